//! The estimated time of a prompt, labelled as an estimate wherever it is shown.

use std::ops::Range;

use sws_model::MoeSpec;

use super::pieces::PieceSizes;
use super::{ArenaSplit, Planner, SlotClass};

/// Reads of a prompt, pass by pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PromptReads {
    /// Bytes of infrastructure that a pass reads.
    pub infrastructure: u64,
    /// Number of experts in each layer with experts, and the number of them that a token uses.
    pub experts: Vec<[usize; 2]>,
    /// The same of later visits of layers that a pass visits several times.
    pub again: Vec<[usize; 2]>,
    /// Bytes of an expert, on average.
    pub expert: u64,
    /// Experts that stay in memory from one pass to the next.
    pub slots: usize,
    /// Number of tokens in a pass.
    pub chunk: usize,
}

/// Seconds that a thread takes to process a byte that was read: copying, checksum, and search for
/// non-finite numbers. A profile of 128 tokens of the shape of Qwen3-30B-A3B had 3.4 for 12.4 GB.
const TAKING: f64 = 2.8e-10;

/// Minimum share of a model's experts used by a pass that reads the next layer during computation.
const SWEEP: f64 = 0.9;

impl PromptReads {
    /// The token range of each pass of a prompt, and the bytes that the pass reads. The first pass
    /// finds no expert in memory.
    pub fn passes(&self, tokens: usize) -> impl Iterator<Item = (Range<usize>, u64)> {
        let chunk = self.chunk.max(1);
        let all = self.all_experts();
        // What a later visit finds in memory.
        let kept = (self.slots as f64 / all.max(1) as f64).min(1.0);
        (0..tokens).step_by(chunk).map(move |first| {
            let part = first..tokens.min(first + chunk);
            let held = if first == 0 { 0.0 } else { self.slots as f64 };
            let absent = (used(&self.experts, part.len()) - held).max(0.0)
                + used(&self.again, part.len()) * (1.0 - kept);
            (part, self.infrastructure + (absent * self.expert as f64) as u64)
        })
    }

    /// Seconds until all passes have ended, with a disk of this speed in bytes per second, and this
    /// many threads. `computing` returns the seconds of computing the tokens at a range of
    /// positions.
    pub fn seconds(
        &self,
        tokens: usize,
        disk: f64,
        threads: usize,
        computing: impl Fn(&Range<usize>) -> f64,
    ) -> f64 {
        let layers = self.experts.len().max(1) as f64;
        let all = self.all_experts();
        let passes = self.passes(tokens).map(|(part, bytes)| {
            let reading = bytes as f64 / disk;
            let computing = computing(&part) + bytes as f64 * TAKING / threads.max(1) as f64;
            match used(&self.experts, part.len()) >= SWEEP * all as f64 {
                // Computing cannot overlap the reads of the first layer.
                true => reading.max(computing) + reading.min(computing) / layers,
                false => reading + computing,
            }
        });
        passes.sum()
    }

    /// Number of experts of all layers.
    fn all_experts(&self) -> usize {
        self.experts.iter().map(|[experts, _]| experts).sum()
    }
}

/// Expected number of experts used by this many tokens, over all layers, if tokens choose
/// independently.
fn used(layers: &[[usize; 2]], tokens: usize) -> f64 {
    let mut sum = 0.0;
    for &[experts, top_k] in layers {
        let unused = 1.0 - top_k as f64 / experts.max(1) as f64;
        sum += experts as f64 * (1.0 - unused.powf(tokens as f64));
    }
    sum
}

impl Planner {
    pub(super) fn prompt_reads(&self, split: &ArenaSplit, chunk: usize) -> PromptReads {
        let PieceSizes { slots, .. } = &self.pieces;
        PromptReads {
            infrastructure: self.streamed_per_pass(split),
            experts: self.spec.moes().map(choice_of).collect(),
            again: self.spec.routings_again().map(choice_of).collect(),
            expert: slots.bytes().checked_div(slots.experts() as u64).unwrap_or(0),
            slots: SlotClass::count_of(&split.slots),
            chunk,
        }
    }

    /// Bytes of infrastructure that a pass reads.
    pub(super) fn streamed_per_pass(&self, split: &ArenaSplit) -> u64 {
        let mut bytes = 0;
        for piece in &self.pieces.cyclic {
            if !split.pinned.contains(&piece.id) {
                bytes += piece.per_pass(&self.spec);
            }
        }
        bytes
    }
}

/// The number of experts of a layer, and of those that a token uses.
fn choice_of(moe: &MoeSpec) -> [usize; 2] {
    [moe.experts, moe.top_k]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_read_what_is_not_in_memory() {
        let reads = PromptReads {
            infrastructure: 7,
            experts: vec![[8, 2], [8, 2]],
            again: Vec::new(),
            expert: 1000,
            slots: 4,
            chunk: 100,
        };
        let passes: Vec<_> = reads.passes(250).collect();
        assert_eq!(passes, [(0..100, 16_006), (100..200, 12_006), (200..250, 12_006)]);
        // A later visit reads what the slots have not kept.
        let looped = PromptReads { again: vec![[8, 2]], ..reads.clone() };
        let passes: Vec<_> = looped.passes(150).collect();
        assert_eq!(passes, [(0..100, 22_006), (100..150, 18_006)]);
        // One token uses a quarter of the experts.
        assert_eq!(reads.passes(1).collect::<Vec<_>>(), [(0..1, 4007)]);
        let of =
            |per_token: f64| reads.seconds(200, 1000.0, 2, |part| per_token * part.len() as f64);
        // Reading takes 16 and 12 s; of the shorter of the two a layer's share is not hidden.
        for (per_token, expected) in [(0.0, 28.012), (0.02, 30.012), (0.2, 20.0 + 8.0 + 20.0 + 6.0)]
        {
            assert!((of(per_token) - expected).abs() < 0.02, "{per_token}: {}", of(per_token));
        }
        // Too few for a sweep.
        let expected = 4.507 + 4007.0 * TAKING / 2.0;
        assert!((reads.seconds(1, 1000.0, 2, |_| 0.5) - expected).abs() < 1e-9);
    }
}
