//! Markers of answers within grammars: their tokens are not text.

use super::bounds::quoted;

/// The markers that are tokens of their own, with their tokens.
#[derive(Clone, Debug, Default)]
pub(super) struct Marks(Vec<(String, u32)>);

/// A piece of a text with markers.
#[derive(Debug, PartialEq)]
pub(super) enum MarkPiece<'t> {
    Text(&'t str),
    Token(u32),
}

impl Marks {
    pub(super) fn new(mut marks: Vec<(String, u32)>) -> Marks {
        marks.retain(|(text, _)| !text.is_empty());
        // A marker may begin with another one.
        marks.sort_by_key(|(text, _)| usize::MAX - text.len());
        Marks(marks)
    }

    /// The pieces of a text.
    pub(super) fn pieces<'t>(&self, text: &'t str) -> Vec<MarkPiece<'t>> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let found = self.0.iter().filter_map(|(mark, id)| Some((rest.find(mark)?, mark, *id)));
            let Some((at, mark, id)) = found.min_by_key(|(at, _, _)| *at) else {
                pieces.push(MarkPiece::Text(rest));
                break;
            };
            if at > 0 {
                pieces.push(MarkPiece::Text(&rest[..at]));
            }
            pieces.push(MarkPiece::Token(id));
            rest = &rest[at + mark.len()..];
        }
        pieces
    }

    /// A text in a rule.
    pub(super) fn rule(&self, text: &str) -> String {
        rule(&self.pieces(text))
    }
}

/// Pieces in a rule.
pub(super) fn rule(pieces: &[MarkPiece<'_>]) -> String {
    let words = pieces.iter().map(|piece| match piece {
        MarkPiece::Text(text) => quoted(text),
        MarkPiece::Token(id) => format!("<[{id}]>"),
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_are_tokens_and_the_longest_counts() {
        let marks = [("<a>", 5), ("<a><b>", 6), ("", 7)].map(|(text, id)| (text.to_owned(), id));
        let marks = Marks::new(marks.to_vec());
        assert_eq!(marks.rule("x<a><b>\"<a>"), "\"x\" <[6]> \"\\\"\" <[5]>");
        assert_eq!(marks.rule(""), "");
        assert_eq!(Marks::default().rule("<a>"), "\"<a>\"");
    }
}
