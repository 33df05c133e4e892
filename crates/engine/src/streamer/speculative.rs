//! Passes over draft tokens, and passes on stand-ins that draft some.

use serde::Serialize;
use sws_model::{CausalLm, ForwardError, Observer};

use super::SpeculativeWeightStreamer;

/// Maximum number of tokens that are verified together: more are rarely right.
pub const MAX_VERIFY_LEN: usize = 65;

/// Counts of draft tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SpeculativeCounts {
    /// Passes that verified draft tokens.
    pub passes: u64,
    /// Draft tokens in these passes.
    pub proposed: u64,
    /// Number of these that were right.
    pub accepted: u64,
    /// Tokens computed on stand-ins to draft the next token.
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

/// Counts of draft tokens, and the pass that was not accepted yet.
#[derive(Debug, Default)]
pub(super) struct SpeculativeState {
    counts: SpeculativeCounts,
    /// Length of the sequence before the pass that awaits
    /// [`accept`](SpeculativeWeightStreamer::accept).
    verifying: Option<usize>,
}

impl SpeculativeState {
    pub(super) fn counts(&self) -> SpeculativeCounts {
        self.counts
    }
}

impl SpeculativeWeightStreamer {
    /// Prepares a pass of few tokens. The plan has room for its working memory beside lent slots,
    /// but not beside the working memory of a prompt, which is therefore released.
    fn make_small(&mut self, tokens: usize) {
        self.settle_context(tokens);
        self.lend();
        if self.plan.is_some() && !self.lending.has_lent() {
            self.sequences.state_mut().release_work();
        }
    }

    /// Maximum number of tokens of a [`verify`](Self::verify), two or more; 0 if there can be none: where a
    /// sequence cannot be cut anywhere, as with windows and recurrent layers, or there is no room for the
    /// logits of several positions.
    pub fn verify_len(&self) -> usize {
        let planned = self.plan.as_ref().map_or(MAX_VERIFY_LEN, |plan| plan.verify_len);
        if planned > 1 && self.goes_back() { planned } else { 0 }
    }

    /// Continues the first sequence by draft tokens: one pass computes all of them, and the
    /// [logits](Self::verified_logits) behind each. Those that turn out wrong are dropped.
    ///
    /// The bits of a pass do not depend on its number of tokens, so the logits behind each token are those
    /// of a pass over that token alone, as long as the tokens before it are right. What the pass tells of
    /// the use of experts counts once it is [accepted](Self::accept), as far as tokens are kept. Nothing
    /// else may come before that.
    pub fn verify(
        &mut self,
        tokens: &[u32],
        observer: &mut dyn Observer,
    ) -> Result<(), ForwardError> {
        self.make_small(tokens.len());
        if let Some(assembler) = self.sequences.source().assembler() {
            assembler.expect_pending();
        }
        let before = self.len();
        let started = self.start_clock();
        let ran = self.sequences.verify(0, tokens, observer);
        // Tokens are counted once they are known to be right.
        self.end_pass(started, 0);
        if let (Err(_), Some(assembler)) = (&ran, self.sequences.source().assembler()) {
            assembler.accept(0);
        }
        ran?;
        self.speculative.counts.passes += 1;
        self.speculative.counts.proposed += tokens.len().saturating_sub(1) as u64;
        self.speculative.verifying = Some(before);
        Ok(())
    }

    /// The `vocab` logits behind a token of the last [`verify`](Self::verify), which the caller may
    /// overwrite.
    ///
    /// # Panics
    ///
    /// If it had no such token, or another pass came since.
    pub fn verified_logits(&mut self, token: usize) -> &mut [f32] {
        self.sequences.logits(token)
    }

    /// Keeps the first `len` positions of the sequence, and drops those of tokens that were
    /// [drafted](Self::draft_token), or verified and wrong.
    pub fn accept(&mut self, len: usize) {
        // This succeeds, because sequences that are verified can be cut anywhere.
        self.sequences.state_mut().truncate(0, len);
        let Some(before) = self.speculative.verifying.take() else { return };
        let kept = len.saturating_sub(before);
        self.totals.tokens += kept as u64;
        self.speculative.counts.accepted += kept.saturating_sub(1) as u64;
        if let Some(assembler) = self.sequences.source().assembler() {
            assembler.accept(kept);
        }
        self.publish_counters();
    }

    /// True if stand-ins of all experts are in memory.
    pub fn can_draft(&self) -> bool {
        self.drafts
    }

    /// Continues the sequence by a token that is computed on stand-ins, without a read. Returns the
    /// `vocab` logits of the next token, which are not exact. The position has to be
    /// [dropped](Self::accept) before the sequence is continued otherwise.
    pub fn draft_token(
        &mut self,
        token: u32,
        observer: &mut dyn Observer,
    ) -> Result<&[f32], ForwardError> {
        self.make_small(1);
        let started = self.start_clock();
        self.sequences.source().set_drafting(true);
        let ran = self.sequences.continue_one(0, &[token], observer);
        self.sequences.source().set_drafting(false);
        self.end_pass(started, 0);
        self.speculative.counts.imitated += 1;
        ran?;
        Ok(self.sequences.logits(0))
    }
}
