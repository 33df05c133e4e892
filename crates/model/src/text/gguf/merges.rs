//! The merges of a SentencePiece vocabulary, which has scores instead.

use super::{NORMAL, Tokens};

/// Longest token whose parts are tried: the number of parts grows with the length.
const MAX_TOKEN: usize = 256;

/// The merges, best first: every way to make a token of two others. SentencePiece makes the token
/// with the highest score first, wherever it can be made.
pub(super) fn of(tokens: &Tokens<'_>, scores: &[f64]) -> Vec<[String; 2]> {
    let mut merges = Vec::new();
    for (id, &text) in tokens.texts.iter().enumerate() {
        if tokens.types[id] != NORMAL || text.len() > MAX_TOKEN {
            continue;
        }
        for (at, _) in text.char_indices().skip(1) {
            let (left, right) = text.split_at(at);
            if let (Some(&l), Some(&r)) = (tokens.ids.get(left), tokens.ids.get(right)) {
                merges.push((scores[id], id, [l, r]));
            }
        }
    }
    merges.sort_by(|(a_score, a, a_parts), (b_score, b, b_parts)| {
        b_score.total_cmp(a_score).then((a, a_parts).cmp(&(b, b_parts)))
    });
    let text = |id: usize| tokens.texts[id].to_owned();
    merges.into_iter().map(|(.., [left, right])| [text(left), text(right)]).collect()
}
