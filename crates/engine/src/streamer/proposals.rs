//! Passes over proposed tokens, and passes on stand-ins that propose some.

use serde::Serialize;
use sws_model::{CausalLm, ForwardError, Observer, ProposalLm};

use super::SpeculativeWeightStreamer;

/// Maximum number of tokens that are verified together: more are rarely right.
pub const MOST_VERIFIED: usize = 65;

/// Counts of proposed tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProposalCounts {
    /// Passes that verified proposed tokens.
    pub passes: u64,
    /// Proposed tokens in them.
    pub proposed: u64,
    /// Number of these that were right.
    pub accepted: u64,
    /// Tokens computed on stand-ins, to propose the next.
    pub imitated: u64,
}

impl ProposalCounts {
    /// Returns the difference from an earlier reading.
    pub(super) fn since(&self, before: &ProposalCounts) -> ProposalCounts {
        ProposalCounts {
            passes: self.passes - before.passes,
            proposed: self.proposed - before.proposed,
            accepted: self.accepted - before.accepted,
            imitated: self.imitated - before.imitated,
        }
    }
}

/// Proposed tokens so far.
#[derive(Debug, Default)]
pub(super) struct Proposed {
    counts: ProposalCounts,
    /// Length of the sequence before the pass that is to be settled.
    verifying: Option<usize>,
}

impl Proposed {
    pub(super) fn counts(&self) -> ProposalCounts {
        self.counts
    }
}

impl SpeculativeWeightStreamer {
    /// Prepares a pass of so few tokens, whose working memory the plan has beside lent slots, but not
    /// beside that of a prompt.
    fn make_small(&mut self, tokens: usize) {
        self.settle_context(tokens);
        self.lend();
        if self.plan.is_some() && !self.lending.has_lent() {
            self.session.release_work();
        }
    }
}

impl ProposalLm for SpeculativeWeightStreamer {
    fn most_verified(&self) -> usize {
        self.plan.as_ref().map_or(MOST_VERIFIED, |plan| plan.verified)
    }

    fn verify(&mut self, tokens: &[u32], observer: &mut dyn Observer) -> Result<(), ForwardError> {
        self.make_small(tokens.len());
        if let Some(assembler) = self.session.source().assembler() {
            assembler.expect_unheard();
        }
        let before = self.len();
        // Tokens are counted once they are known to be right.
        let done = self.timed(|session| (session.verify(tokens, observer), 0));
        if let (Err(_), Some(assembler)) = (&done, self.session.source().assembler()) {
            assembler.settle(0);
        }
        done?;
        self.proposed.counts.passes += 1;
        self.proposed.counts.proposed += tokens.len().saturating_sub(1) as u64;
        self.proposed.verifying = Some(before);
        Ok(())
    }

    fn verified(&mut self, token: usize) -> &mut [f32] {
        self.session.verified(token)
    }

    fn settle(&mut self, len: usize) {
        // Possible, as the sequence goes back.
        self.session.truncate(len);
        let Some(before) = self.proposed.verifying.take() else { return };
        let kept = len.saturating_sub(before);
        self.totals.tokens += kept as u64;
        self.proposed.counts.accepted += kept.saturating_sub(1) as u64;
        if let Some(assembler) = self.session.source().assembler() {
            assembler.settle(kept);
        }
        *self.totals.gauge.lock() = self.counters();
    }

    fn can_imitate(&self) -> bool {
        self.imitates
    }

    fn imitate(&mut self, token: u32, observer: &mut dyn Observer) -> Result<&[f32], ForwardError> {
        self.make_small(1);
        let mut logits = std::mem::take(&mut self.logits);
        let done = self.timed(|session| {
            session.source().set_imitating(true);
            let observed = session.observed(&[token], observer).map(|behind| {
                logits.clear();
                logits.extend_from_slice(behind);
            });
            session.source().set_imitating(false);
            (observed, 0)
        });
        self.logits = logits;
        self.proposed.counts.imitated += 1;
        done?;
        Ok(&self.logits)
    }
}
