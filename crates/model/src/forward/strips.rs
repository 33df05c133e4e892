//! Strips: the tokens of a long pass that the parts of a layer take at a time.
//!
//! A pass of thousands of tokens reads each expert once for all of them. Nothing else gains by so many:
//! mixers, dense blocks and each expert compute a strip of the tokens after another, so that their
//! working memory is that of a strip. Only the hidden state, its normed copy, the routes and the outputs
//! of experts are there for all tokens.

use std::ops::Range;

use sws_format::Span;

use crate::spec::{Mixer, ModelSpec};

/// Tokens of a strip: products with a matrix are no faster with more.
pub(super) const STRIP: usize = 512;

impl ModelSpec {
    /// Number of tokens of a pass that mixers take at a time: a strip, or all of them if layers
    /// select or keep anything for the whole pass.
    pub(super) fn mixed_together(&self, strip: usize, tokens: usize) -> usize {
        let whole = self.streams.is_some()
            || self.kept.is_some()
            || self.layer_inputs.is_some()
            || self.layers.iter().any(|layer| {
                let selects = match &layer.mixer {
                    Mixer::Attention(spec) => spec.extras.blocks.is_some(),
                    Mixer::Latent(spec) => spec.sparse.is_some(),
                    Mixer::Compressed(_) => true,
                    Mixer::Delta(_) | Mixer::Conv(_) | Mixer::StateSpace(_) | Mixer::None => false,
                };
                let has_table = layer.moe().is_some_and(|moe| moe.has_table());
                let residual = layer.residual;
                selects
                    || has_table
                    || layer.ngrams.is_some()
                    || residual.split
                    || residual.conv.is_some()
            });
        if whole { tokens } else { tokens.min(strip) }
    }
}

/// The strips of `tokens` tokens.
pub(super) fn strips(tokens: usize, strip: usize) -> impl Iterator<Item = Range<usize>> {
    (0..tokens).step_by(strip).map(move |first| first..tokens.min(first + strip))
}

/// Writes the parts of `spans` with these rows to `part`; the first row is its row 0.
pub(super) fn cut(spans: &[Span], rows: &Range<usize>, part: &mut Vec<Span>) {
    part.clear();
    part.extend(spans.iter().filter_map(|span| {
        let first = rows.start.max(span.first_row);
        let tokens = rows.end.min(span.first_row + span.tokens).checked_sub(first)?;
        let first_position = span.first_position + (first - span.first_row);
        let cut = Span { first_position, first_row: first - rows.start, tokens, ..*span };
        (tokens > 0).then_some(cut)
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strips_have_every_row_of_every_span_once() {
        let span = |sequence, first_position, first_row, tokens| Span {
            sequence,
            first_position,
            first_row,
            tokens,
        };
        let spans = [span(4, 10, 0, 5), span(0, 0, 5, 1), span(7, 3, 6, 6)];
        for (strip, expected) in [
            (12, vec![vec![spans[0], spans[1], spans[2]]]),
            (
                5,
                vec![
                    vec![spans[0]],
                    vec![span(0, 0, 0, 1), span(7, 3, 1, 4)],
                    vec![span(7, 7, 0, 2)],
                ],
            ),
        ] {
            let mut part = Vec::new();
            let found: Vec<Vec<Span>> = strips(12, strip)
                .map(|rows| {
                    cut(&spans, &rows, &mut part);
                    part.clone()
                })
                .collect();
            assert_eq!(found, expected, "{strip}");
        }
    }
}
