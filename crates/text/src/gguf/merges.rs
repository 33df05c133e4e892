//! The merges of a SentencePiece vocabulary, which has scores instead.

use super::{GgufTextError, HeaderTokens, NORMAL};

/// Longest token whose parts are tried: the number of parts grows with the length.
const MAX_TOKEN: usize = 256;

/// Largest number of merges, in all and for each token, as of those in a `tokenizer.json`. Where
/// every part of every token is one too, there are many more.
const MAX_MERGES: usize = 1 << 20;
const MAX_PER_TOKEN: usize = 16;

/// The merges as ids of two tokens, best first: every way to make a token of two others. SentencePiece
/// makes the token with the highest score first, wherever it can be made.
pub(super) fn of(tokens: &HeaderTokens, scores: &[f64]) -> Result<Vec<[u32; 2]>, GgufTextError> {
    let most = MAX_MERGES.min(MAX_PER_TOKEN * tokens.vocabulary.len());
    let mut merges = Vec::new();
    for ((text, id), &score) in tokens.vocabulary.iter().zip(scores) {
        if tokens.types[id as usize] != NORMAL || text.len() > MAX_TOKEN {
            continue;
        }
        for (at, _) in text.char_indices().skip(1) {
            let (left, right) = text.split_at(at);
            if let (Some(left), Some(right)) =
                (tokens.vocabulary.id(left), tokens.vocabulary.id(right))
            {
                if merges.len() == most {
                    return Err(GgufTextError::TooMany("merges"));
                }
                merges.push((score, id, [left, right]));
            }
        }
    }
    merges.sort_unstable_by(|(a_score, a, a_parts), (b_score, b, b_parts)| {
        b_score.total_cmp(a_score).then((a, a_parts).cmp(&(b, b_parts)))
    });
    Ok(merges.into_iter().map(|(.., parts)| parts).collect())
}
