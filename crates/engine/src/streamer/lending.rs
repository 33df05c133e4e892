//! When the memory of a prompt's activations is lent to slots.

/// Small passes in which lent slots pay for the reads that are lost when they are taken back.
const WORTH_LENDING: u32 = 16;

/// Lends slots as long as passes are small: each sequence gets at most a token. They are taken back before
/// a prompt, which needs the memory, and lent later after one that came soon after the one before.
#[derive(Clone, Debug, Default)]
pub struct Lending {
    /// Number of slots without lent ones, if slots have been lent.
    own: Option<usize>,
    /// Small passes since the last large one, and number of them before slots are lent again.
    small: u32,
    wait: u32,
}

impl Lending {
    /// Counts a small pass. Returns true if slots should be lent for it.
    pub fn small(&mut self) -> bool {
        self.small = self.small.saturating_add(1);
        self.own.is_none() && self.small > self.wait
    }

    /// True while slots are lent.
    pub fn has_lent(&self) -> bool {
        self.own.is_some()
    }

    /// Records that slots were lent beside so many others.
    pub fn lent(&mut self, own: usize) {
        self.own = Some(own);
    }

    /// Counts a large pass. Returns the number of slots to keep, if others have to be taken back.
    pub fn large(&mut self) -> Option<usize> {
        let small = std::mem::take(&mut self.small);
        if self.own.is_some() || self.wait > 0 {
            self.wait = if small < WORTH_LENDING { WORTH_LENDING } else { 0 };
        }
        self.own.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_lent_later_after_prompts_that_follow_each_other() {
        let mut lending = Lending::default();
        assert_eq!(lending.large(), None);
        assert!(lending.small());
        lending.lent(7);
        assert!(!lending.small());
        assert_eq!(lending.large(), Some(7));
        // Only two small passes: not worth it.
        let waited = (0..40).position(|_| lending.small());
        assert_eq!(waited, Some(WORTH_LENDING as usize));
        lending.lent(7);
        assert_eq!(lending.large(), Some(7));
        assert!(lending.small());
    }
}
