//! Prompts rendered by templates: text, parts of which may be literal.

use std::ops::Range;

/// A prompt. In literal parts, names of special tokens are ordinary text. Each literal part is
/// encoded separately.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChatPrompt {
    text: String,
    /// Byte ranges of literal parts, ascending, none of them empty.
    literal: Vec<Range<usize>>,
}

/// Markers around literal parts in the output of this project's own templates, and an escape before
/// a marker that occurs in the text itself. Unicode assigns no meaning to these characters, and
/// they never become part of a prompt.
const BEGIN: char = '\u{fdd0}';
const END: char = '\u{fdd1}';
const ESCAPE: char = '\u{fdd2}';

/// Marks a text as literal.
pub(super) fn literal(text: &str) -> String {
    let mut marked = String::with_capacity(text.len() + BEGIN.len_utf8() + END.len_utf8());
    marked.push(BEGIN);
    for c in text.chars() {
        if [BEGIN, END, ESCAPE].contains(&c) {
            marked.push(ESCAPE);
        }
        marked.push(c);
    }
    marked.push(END);
    marked
}

impl ChatPrompt {
    /// Converts text with marked parts to a prompt.
    pub(super) fn of_marked(marked: &str) -> ChatPrompt {
        let mut prompt = ChatPrompt::default();
        let mut begin = 0;
        let mut chars = marked.chars();
        while let Some(c) = chars.next() {
            match c {
                BEGIN => begin = prompt.text.len(),
                END if begin < prompt.text.len() => prompt.literal.push(begin..prompt.text.len()),
                END => {}
                ESCAPE => prompt.text.extend(chars.next()),
                c => prompt.text.push(c),
            }
        }
        prompt
    }

    /// The whole text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The whole text.
    pub(super) fn into_text(self) -> String {
        self.text
    }

    /// Appends ordinary text.
    pub fn push(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// All parts in order, with true for literal ones.
    pub fn parts(&self) -> impl Iterator<Item = (&str, bool)> {
        let mut at = 0;
        let ends = self.literal.iter().map(|range| (range.clone(), true));
        let last = (self.text.len()..self.text.len(), false);
        let parts = ends.chain([last]).flat_map(move |(range, is_literal)| {
            let before = at..range.start;
            at = range.end;
            [(before, false), (range, is_literal)]
        });
        let parts = parts.filter(|(range, _)| !range.is_empty());
        parts.map(move |(range, is_literal)| (&self.text[range], is_literal))
    }
}

impl From<String> for ChatPrompt {
    /// A prompt without literal parts.
    fn from(text: String) -> ChatPrompt {
        ChatPrompt { text, literal: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_parts_keep_every_character() {
        let texts = ["a", "", "<|sep|>", "\u{fdd0}b\u{fdd1}\u{fdd2}", "é"];
        let marked = texts.map(|text| format!("|{}", literal(text))).concat() + "end";
        let mut prompt = ChatPrompt::of_marked(&marked);
        prompt.push("!");
        let expected = [
            ("|", false),
            ("a", true),
            ("||", false),
            ("<|sep|>", true),
            ("|", false),
            ("\u{fdd0}b\u{fdd1}\u{fdd2}", true),
            ("|", false),
            ("é", true),
            ("end!", false),
        ];
        assert!(prompt.parts().eq(expected), "{prompt:?}");
        assert_eq!(prompt.text(), expected.map(|(text, _)| text).concat());
    }

    #[test]
    fn a_prompt_of_text_is_one_part() {
        let prompt = ChatPrompt::from("<|sep|>".to_owned());
        assert!(prompt.parts().eq([("<|sep|>", false)]));
        assert_eq!(ChatPrompt::default().parts().count(), 0);
        let ends = ChatPrompt::of_marked(&format!("{}{}", literal("a"), literal("b")));
        assert!(ends.parts().eq([("a", true), ("b", true)]));
    }
}
