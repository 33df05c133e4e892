//! Detection of texts that repeat themselves without end.

/// Number of last tokens that must repeat.
pub(crate) const REPEATED: usize = 200;
/// Maximum length of the repeated part, in tokens.
const MAX_PERIOD: usize = REPEATED / 2;

/// Detects a text whose last [`REPEATED`] tokens repeat the same tokens over and over.
#[derive(Debug)]
pub(crate) struct RepeatGuard {
    /// For each period, the number of last tokens that equal the token one period earlier.
    equal: [u16; MAX_PERIOD],
}

impl RepeatGuard {
    pub(crate) fn new() -> RepeatGuard {
        RepeatGuard { equal: [0; MAX_PERIOD] }
    }

    /// Adds the last token of `tokens`. Returns true if the text repeats itself.
    pub(crate) fn repeats(&mut self, tokens: &[u32]) -> bool {
        let Some((last, earlier)) = tokens.split_last() else { return false };
        let mut found = false;
        for (period, equal) in (1..).zip(&mut self.equal) {
            let same = earlier.len().checked_sub(period).is_some_and(|at| earlier[at] == *last);
            *equal = if same { equal.saturating_add(1) } else { 0 };
            found |= usize::from(*equal) + period >= REPEATED;
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of tokens after which a text is found to repeat itself.
    fn found(tokens: impl Iterator<Item = u32>) -> Option<usize> {
        let mut guard = RepeatGuard::new();
        let mut text = Vec::new();
        for token in tokens {
            text.push(token);
            if guard.repeats(&text) {
                return Some(text.len());
            }
        }
        None
    }

    #[test]
    fn the_last_tokens_have_to_repeat() {
        for period in [1, 2, 7, 100] {
            let text = (0..1000).map(|at| at % period);
            assert_eq!(found(text), Some(REPEATED), "{period}");
            let text = (1000..1500).chain((0..1000).map(|at| at % period));
            assert_eq!(found(text), Some(500 + REPEATED), "{period}");
        }
        // Too long a period, and one that is broken off in time.
        assert_eq!(found((0..1000).map(|at| at % 101)), None);
        let broken = (0..2000).map(|at| if at % 199 == 0 { 10_000 + at } else { at % 3 });
        assert_eq!(found(broken), None);
        assert_eq!(found(0..1000), None);
    }
}
