//! Probabilities of tokens.

use sws_kernels::functional::elementary::{exp, ln1p64};

/// The probability of a token among all, before any sampling option.
///
/// Sums are taken in a fixed order with portable exponentials, so probabilities are the same on
/// every machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Rank {
    /// The token.
    pub token: u32,
    /// The natural logarithm of its probability.
    pub logprob: f32,
    /// The most likely tokens at this position with their log probabilities, in descending order;
    /// on ties the smaller id comes first.
    pub top: Vec<(u32, f32)>,
}

impl Rank {
    /// Ranks a token by the logits of all tokens, with the `top` most likely ones.
    pub fn of(logits: &[f32], token: u32, top: usize) -> Rank {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|&logit| f64::from(exp(logit - largest))).sum();
        let log = ln1p64(sum - 1.0);
        let logprob = |logit: f32| (f64::from(logit - largest) - log) as f32;
        let top = likeliest(logits, top);
        Rank {
            token,
            logprob: logits.get(token as usize).map_or(f32::NEG_INFINITY, |&l| logprob(l)),
            top: top.into_iter().map(|(id, logit)| (id, logprob(logit))).collect(),
        }
    }
}

/// The tokens with the largest logits, in one pass.
fn likeliest(logits: &[f32], most: usize) -> Vec<(u32, f32)> {
    let mut top: Vec<(u32, f32)> = Vec::with_capacity(most + 1);
    for (id, &logit) in (0..).zip(logits) {
        if top.len() == most && top.last().is_none_or(|&(_, last)| logit <= last) {
            continue;
        }
        let at = top.partition_point(|&(_, other)| other >= logit);
        top.insert(at, (id, logit));
        top.truncate(most);
    }
    top
}

/// Ranks the tokens of a prompt from the second on.
pub(crate) struct PromptScores<'a> {
    /// Tokens from position `from` on.
    tokens: &'a [u32],
    from: usize,
    vocab: usize,
    top: usize,
    ranks: Vec<Rank>,
    /// Logits after the last position so far.
    last: Vec<f32>,
}

impl<'a> PromptScores<'a> {
    pub(crate) fn new(
        tokens: &'a [u32],
        from: usize,
        vocab: usize,
        top: usize,
    ) -> PromptScores<'a> {
        PromptScores { tokens, from, vocab, top, ranks: Vec::new(), last: Vec::new() }
    }

    /// Takes the logits [tokens, vocab] of the positions from `first` on.
    pub(crate) fn take(&mut self, first: usize, logits: &[f32]) {
        let PromptScores { tokens, from, vocab, top, ranks, last } = self;
        for (position, row) in (first..).zip(logits.chunks_exact(*vocab)) {
            if let Some(&token) = tokens.get(position + 1 - *from) {
                ranks.push(Rank::of(row, token, *top));
            }
        }
        last.clear();
        last.extend_from_slice(&logits[logits.len().saturating_sub(*vocab)..]);
    }

    /// The ranks, and the logits after the last position.
    pub(crate) fn into_parts(self) -> (Vec<Rank>, Vec<f32>) {
        (self.ranks, self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_add_up_and_the_likeliest_come_first() {
        let logits = [1.0, 3.0, -2.0, 3.0, 0.5];
        let rank = Rank::of(&logits, 3, 5);
        let total: f32 = rank.top.iter().map(|(_, logprob)| logprob.exp()).sum();
        assert!((total - 1.0).abs() < 1e-6, "{total}");
        let ids: Vec<u32> = rank.top.iter().map(|&(id, _)| id).collect();
        assert_eq!(ids, [1, 3, 0, 4, 2]);
        // A greedy token has exactly the largest probability.
        assert_eq!(rank.logprob, rank.top[0].1);
        assert!(Rank::of(&logits, 2, 0).top.is_empty());
        assert_eq!(Rank::of(&logits, 2, 2).top.len(), 2);
    }

    #[test]
    fn each_token_of_a_prompt_is_ranked_by_the_one_before() {
        let tokens = [2, 0, 1];
        let mut scores = PromptScores::new(&tokens, 10, 3, 1);
        let rows = [[0.0, 5.0, 1.0], [4.0, 1.0, 0.0], [7.0, 8.0, 9.0]];
        scores.take(10, &rows.concat()[..6]);
        scores.take(12, &rows[2]);
        let (ranks, last) = scores.into_parts();
        assert_eq!(ranks, [Rank::of(&rows[0], 0, 1), Rank::of(&rows[1], 1, 1)]);
        assert_eq!(last, rows[2]);
    }
}
