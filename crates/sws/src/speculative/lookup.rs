//! Draft tokens from the text itself: those that followed an earlier occurrence of its last tokens.

/// Minimum number of last tokens that must have occurred before.
const LEAST: usize = 2;
/// Maximum number of tokens compared. More tokens would not add information.
const MOST: usize = 32;
/// Number of [classes](LookupMatch::class).
pub(super) const CLASSES: usize = 4;

/// The place of an earlier occurrence of the end of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LookupMatch {
    /// Index of the token after the earlier occurrence.
    next: usize,
    /// Number of matching tokens.
    pub(super) tokens: usize,
}

impl LookupMatch {
    /// Finds the longest suffix of a text that has occurred before; on ties the latest occurrence.
    pub(super) fn of(text: &[u32]) -> Option<LookupMatch> {
        let (&last, before) = text.split_last()?;
        let mut best: Option<LookupMatch> = None;
        for next in (LEAST..=before.len()).rev().filter(|&next| text[next - 1] == last) {
            let pairs = text[..next].iter().rev().zip(text.iter().rev());
            let tokens = pairs.take(MOST).take_while(|(a, b)| a == b).count();
            if tokens >= LEAST && best.is_none_or(|best| tokens > best.tokens) {
                best = Some(LookupMatch { next, tokens });
                if tokens == MOST {
                    break;
                }
            }
        }
        best
    }

    /// The tokens that followed the earlier occurrence. They start over where they reach the end of
    /// the text.
    pub(super) fn draft_tokens(self, text: &[u32], most: usize) -> Vec<u32> {
        text[self.next..].iter().copied().cycle().take(most).collect()
    }

    /// Class of matches of similar length, which are right about equally often.
    pub(super) fn class(self) -> usize {
        match self.tokens {
            0..4 => 0,
            4..8 => 1,
            8..16 => 2,
            _ => 3,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_end_is_found_and_continued() {
        // Text, tokens that agree, the next five.
        let cases: [(&[u32], _); 7] = [
            (&[], None),
            (&[1, 2, 3], None),
            (&[1, 2, 9, 2], None),
            (&[1, 2, 9, 8, 1, 2], Some((2, vec![9, 8, 1, 2, 9]))),
            // The longer one, then the later one.
            (&[7, 1, 2, 3, 1, 2, 4, 7, 1, 2], Some((3, vec![3, 1, 2, 4, 7]))),
            (&[1, 2, 3, 1, 2, 4, 1, 2], Some((2, vec![4, 1, 2, 4, 1]))),
            (&[5, 5, 5, 5], Some((3, vec![5; 5]))),
        ];
        for (text, expected) in cases {
            let found = LookupMatch::of(text);
            let found = found.map(|found| (found.tokens, found.draft_tokens(text, 5)));
            assert_eq!(found, expected, "{text:?}");
        }
        let long: Vec<u32> = (0..100).chain(0..100).collect();
        assert_eq!(
            LookupMatch::of(&long).map(|found| (found.tokens, found.class())),
            Some((MOST, 3))
        );
    }
}
