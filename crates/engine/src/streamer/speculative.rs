//! Passes over draft tokens, and passes on stand-ins that draft some.

use serde::Serialize;
use sws_model::{CausalLm, ForwardError, Observer, SpeculativeLm};

use super::SpeculativeWeightStreamer;

/// Maximum number of tokens that are verified together: more are rarely right.
pub const MAX_VERIFY_LEN: usize = 65;

/// Counts of draft tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SpeculativeCounts {
    /// Passes that verified draft tokens.
    pub passes: u64,
    /// Draft tokens in them.
    pub proposed: u64,
    /// Number of these that were right.
    pub accepted: u64,
    /// Tokens computed on stand-ins, to draft the next.
    pub imitated: u64,
}

impl SpeculativeCounts {
    /// Returns the difference from an earlier reading.
    pub(super) fn since(&self, before: &SpeculativeCounts) -> SpeculativeCounts {
        SpeculativeCounts {
            passes: self.passes - before.passes,
            proposed: self.proposed - before.proposed,
            accepted: self.accepted - before.accepted,
            imitated: self.imitated - before.imitated,
        }
    }
}

/// The draft tokens so far.
#[derive(Debug, Default)]
pub(super) struct SpeculativeState {
    counts: SpeculativeCounts,
    /// Length of the sequence before the pass that is to be settled.
    verifying: Option<usize>,
}

impl SpeculativeState {
    pub(super) fn counts(&self) -> SpeculativeCounts {
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

impl SpeculativeLm for SpeculativeWeightStreamer {
    fn verify_len(&self) -> usize {
        self.plan.as_ref().map_or(MAX_VERIFY_LEN, |plan| plan.verify_len)
    }

    fn verify(&mut self, tokens: &[u32], observer: &mut dyn Observer) -> Result<(), ForwardError> {
        self.make_small(tokens.len());
        if let Some(assembler) = self.session.source().assembler() {
            assembler.expect_pending();
        }
        let before = self.len();
        // Tokens are counted once they are known to be right.
        let done = self.timed(|session| (session.verify(tokens, observer), 0));
        if let (Err(_), Some(assembler)) = (&done, self.session.source().assembler()) {
            assembler.accept(0);
        }
        done?;
        self.speculative.counts.passes += 1;
        self.speculative.counts.proposed += tokens.len().saturating_sub(1) as u64;
        self.speculative.verifying = Some(before);
        Ok(())
    }

    fn verified_logits(&mut self, token: usize) -> &mut [f32] {
        self.session.verified_logits(token)
    }

    fn accept(&mut self, len: usize) {
        // Possible, as the sequence goes back.
        self.session.truncate(len);
        let Some(before) = self.speculative.verifying.take() else { return };
        let kept = len.saturating_sub(before);
        self.totals.tokens += kept as u64;
        self.speculative.counts.accepted += kept.saturating_sub(1) as u64;
        if let Some(assembler) = self.session.source().assembler() {
            assembler.accept(kept);
        }
        *self.totals.gauge.lock() = self.counters();
    }

    fn can_draft(&self) -> bool {
        self.drafts
    }

    fn draft_token(
        &mut self,
        token: u32,
        observer: &mut dyn Observer,
    ) -> Result<&[f32], ForwardError> {
        self.make_small(1);
        let mut logits = std::mem::take(&mut self.logits);
        let done = self.timed(|session| {
            session.source().set_drafting(true);
            let observed = session.observed(&[token], observer).map(|behind| {
                logits.clear();
                logits.extend_from_slice(behind);
            });
            session.source().set_drafting(false);
            (observed, 0)
        });
        self.logits = logits;
        self.speculative.counts.imitated += 1;
        done?;
        Ok(&self.logits)
    }
}
