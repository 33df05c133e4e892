//! Derives the merges of a SentencePiece vocabulary, which has only scores.

use super::{GgufTextError, HeaderTokens, NORMAL};

/// Maximum length of a token whose splits are tried: the number of splits grows with the length.
const MAX_TOKEN: usize = 256;

/// Maximum number of merges, in all and for each token, as for a `tokenizer.json`. There are more
/// only if every part of every token is a token, too.
const MAX_MERGES: usize = 1 << 20;
const MAX_PER_TOKEN: usize = 16;

/// Derives the merges, best first, as pairs of token ids: every split of a token into two tokens.
/// SentencePiece merges into the token with the highest score first.
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
