//! The merges of a SentencePiece vocabulary, which has scores instead.

use super::{GgufTextError, NORMAL, Tokens};

/// Longest token whose parts are tried: the number of parts grows with the length.
const MAX_TOKEN: usize = 256;

/// Largest number of merges, in all and for each token, as of those in a `tokenizer.json`. Where
/// every part of every token is one too, there are many more.
const MAX_MERGES: usize = 1 << 20;
const MAX_PER_TOKEN: usize = 16;

/// The merges, best first: every way to make a token of two others. SentencePiece makes the token
/// with the highest score first, wherever it can be made.
pub(super) fn of(tokens: &Tokens<'_>, scores: &[f64]) -> Result<Vec<[String; 2]>, GgufTextError> {
    let most = MAX_MERGES.min(MAX_PER_TOKEN * tokens.texts.len());
    let mut merges = Vec::new();
    for (id, &text) in tokens.texts.iter().enumerate() {
        if tokens.types[id] != NORMAL || text.len() > MAX_TOKEN {
            continue;
        }
        for (at, _) in text.char_indices().skip(1) {
            let (left, right) = text.split_at(at);
            if let (Some(&l), Some(&r)) = (tokens.ids.get(left), tokens.ids.get(right)) {
                if merges.len() == most {
                    return Err(GgufTextError::TooMany("merges"));
                }
                merges.push((scores[id], id, [l, r]));
            }
        }
    }
    merges.sort_by(|(a_score, a, a_parts), (b_score, b, b_parts)| {
        b_score.total_cmp(a_score).then((a, a_parts).cmp(&(b, b_parts)))
    });
    let text = |id: usize| tokens.texts[id].to_owned();
    Ok(merges.into_iter().map(|(.., [left, right])| [text(left), text(right)]).collect())
}
