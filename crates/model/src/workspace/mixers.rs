//! Working memory of mixers.

use sws_format::Span;
use sws_kernels::PackedInput;
use sws_kernels::functional::{AttentionScratch, Selected};

/// Buffers that all mixers use, and those of each kind.
#[derive(Debug, Default)]
pub(crate) struct AttentionWork {
    pub(crate) q: Vec<f32>,
    pub(crate) k: Vec<f32>,
    pub(crate) v: Vec<f32>,
    pub(crate) mixed: Vec<f32>,
    pub(crate) packed: PackedInput,
    pub(crate) latent: LatentWork,
    pub(crate) delta: DeltaWork,
    /// Queries with their gates: [tokens, heads, 2 · elements].
    pub(crate) gated: Vec<f32>,
    pub(crate) index: IndexWork,
    pub(crate) blocks: BlockWork,
    pub(crate) compressed: CompressedWork,
    pub(crate) distances: DistanceWork,
    pub(crate) of_tokens: TokenWork,
    /// The inputs of keys and of values, where these have inputs of their own.
    pub(crate) inputs: [PackedInput; 2],
    /// Copied selections of layers with blocks or entries, if they are wanted.
    pub(crate) noted: Option<Vec<u32>>,
    pub(crate) tables: RopeTables,
    pub(crate) attending: AttendScratch,
}

/// Cosines and sines of the rows of a batch.
#[derive(Debug, Default)]
pub(crate) struct RopeTables {
    /// [tokens, pairs] of each rotary embedding.
    pub(crate) each: Vec<[Vec<f32>; 2]>,
    /// The angles of the first embedding, if weights change them.
    pub(crate) learned: Vec<f32>,
    /// The batch for which the tables were computed.
    pub(crate) spans: Vec<Span>,
}

/// Scratch of each thread of attention.
#[derive(Debug, Default)]
pub(crate) struct AttendScratch {
    threads: Vec<AttentionScratch>,
    /// The head size and the number of positions for which the scratch was made.
    fits: (usize, usize),
}

impl AttendScratch {
    /// Scratch for some threads, reallocated if it is too small.
    pub(crate) fn of(&mut self, threads: usize, needed: (usize, usize)) -> &mut [AttentionScratch] {
        let AttendScratch { threads: all, fits } = self;
        if fits.0 < needed.0 || fits.1 < needed.1 {
            *fits = (fits.0.max(needed.0), fits.1.max(needed.1));
            all.clear();
        }
        if all.len() < threads {
            all.resize_with(threads, || AttentionScratch::new(fits.0, fits.1));
        }
        &mut all[..threads]
    }

    pub(super) fn bytes(&self) -> usize {
        self.threads.len() * AttentionScratch::bytes(self.fits.0, self.fits.1)
    }
}

/// Distance biases of attention scores.
#[derive(Debug, Default)]
pub(crate) struct DistanceWork {
    /// [tokens, heads, rank]
    pub(crate) rows: Vec<f32>,
    /// [some tokens, heads, distances]
    pub(crate) bias: Vec<f32>,
}

/// Sinks, and weights of convolutions, of each token.
#[derive(Debug, Default)]
pub(crate) struct TokenWork {
    /// [tokens, heads]
    pub(crate) sinks: Vec<f32>,
    /// Of keys and of values: [tokens, key heads, taps].
    pub(crate) taps: [Vec<f32>; 2],
}

/// Working memory of the heads of latent attention that are computed together.
#[derive(Debug, Default)]
pub(crate) struct LatentWork {
    /// Queries multiplied into the space of latents: [tokens, heads, rank + rotated]. With separate
    /// matrices, the queries of all heads, group after group.
    pub(crate) absorbed: Vec<f32>,
    /// Sums of latents: [tokens, heads, rank].
    pub(crate) attended: Vec<f32>,
    /// The packed sums of each head. Before that, the plain parts of its queries.
    pub(crate) inputs: Vec<PackedInput>,
    /// [heads]
    pub(crate) sinks: Vec<f32>,
}

/// The inputs and outputs of the heads of a delta net or a state space.
#[derive(Debug, Default)]
pub(crate) struct DeltaWork {
    /// [tokens, heads], or [tokens, heads, elements of a key]
    pub(crate) decay: Vec<f32>,
    /// [tokens, heads]
    pub(crate) beta: Vec<f32>,
    /// [heads, blocks of columns, tokens, columns]
    pub(crate) outputs: Vec<f32>,
}

/// Working memory of indexers of blocks.
#[derive(Debug, Default)]
pub(crate) struct BlockWork {
    /// [tokens, heads, dim]
    pub(crate) q: Vec<f32>,
    /// [tokens, dim]
    pub(crate) k: Vec<f32>,
    /// Queries and key, if one matrix computes both: [tokens, heads and the key, dim].
    pub(crate) mixed: Vec<f32>,
    /// Buffers for pooled keys of blocks: the norm of keys, a key, and the angles of a position.
    pub(crate) norm: Vec<f32>,
    pub(crate) mean: Vec<f32>,
    pub(crate) angles: [Vec<f32>; 2],
    /// A weight of 1 for each head.
    pub(crate) weights: Vec<f32>,
    /// [tokens selected for together, heads, blocks]
    pub(crate) scores: Vec<f32>,
    /// [tokens selected for together, heads, positions]
    pub(crate) positions: Vec<u32>,
}

impl BlockWork {
    pub(super) fn bytes(&self) -> usize {
        let BlockWork { q, k, mixed, norm, mean, angles, weights, scores, positions } = self;
        let [cos, sin] = angles;
        let floats = [q, k, mixed, norm, mean, cos, sin, weights, scores].map(Vec::capacity);
        let floats: usize = floats.iter().sum();
        floats * size_of::<f32>() + positions.capacity() * size_of::<u32>()
    }
}

/// Working memory of indexers.
#[derive(Debug, Default)]
pub(crate) struct IndexWork {
    /// [tokens, heads, dim]
    pub(crate) q: Vec<f32>,
    /// [tokens, dim]
    pub(crate) k: Vec<f32>,
    /// The logits of the weights of pooled keys: [tokens, dim]
    pub(crate) gates: Vec<f32>,
    /// The keys of a group, the logits of their weights [positions, dim], and the pooled key.
    pub(crate) parts: [Vec<f32>; 3],
    /// [tokens, heads]
    pub(crate) weights: Vec<f32>,
    /// [tokens scored together, positions]
    pub(crate) scores: Vec<f32>,
    pub(crate) selection: Selection,
}

impl IndexWork {
    pub(super) fn bytes(&self) -> usize {
        let IndexWork { q, k, weights, gates, parts, scores, selection } = self;
        let floats = [q, k, weights, gates, scores].into_iter().chain(parts);
        let floats: usize = floats.map(Vec::capacity).sum();
        floats * size_of::<f32>() + selection.positions.capacity() * size_of::<u32>()
    }
}

/// The positions selected for the tokens of a batch.
#[derive(Debug, Default)]
pub(crate) struct Selection {
    /// [tokens, most]; unspecified for sequences whose tokens see all positions.
    pub(crate) positions: Vec<u32>,
    pub(crate) most: usize,
}

impl Selection {
    /// True once a layer of the pass has selected.
    pub(crate) fn is_made(&self) -> bool {
        self.most > 0
    }

    /// Forgets the selection, and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.most = 0;
    }

    /// A copy for the first `rows` tokens.
    pub(crate) fn first(&self, rows: usize) -> Selection {
        let most = self.most;
        Selection { positions: self.positions[..rows * most].to_vec(), most }
    }

    /// Restores a copied selection.
    pub(crate) fn restore(&mut self, copy: Selection) {
        self.most = copy.most;
        // A longer buffer is kept, because the budget relies on its length.
        match self.positions.get_mut(..copy.positions.len()) {
            Some(positions) => positions.copy_from_slice(&copy.positions),
            None => self.positions = copy.positions,
        }
    }

    /// The selection for the tokens of a sequence; None if they see all positions, or if no layer
    /// has selected.
    pub(crate) fn of(&self, span: &Span) -> Option<Selected<'_>> {
        let &Selection { ref positions, most } = self;
        let positions = || &positions[span.first_row * most..][..span.tokens * most];
        let is_narrowed = self.is_made() && span.first_position + span.tokens > most;
        is_narrowed.then(|| Selected { positions: positions(), lists: 1, most })
    }
}

/// Working memory of compressed attention.
#[derive(Debug, Default)]
pub(crate) struct CompressedWork {
    /// Buffers for the layer's entries, and for those of an indexer.
    pub(crate) pools: [PoolWork; 2],
    /// Queries of an indexer: [tokens, heads, dim].
    pub(crate) index_q: Vec<f32>,
    /// [tokens, heads]
    pub(crate) index_weights: Vec<f32>,
    /// Scores of the entries that a token sees.
    pub(crate) scores: Vec<f32>,
    /// The entries that the token attends to.
    pub(crate) chosen: Vec<u32>,
    /// The places that the token attends to.
    pub(crate) places: Vec<u32>,
    /// Sines for rotating back: [tokens, pairs].
    pub(crate) back: Vec<f32>,
    /// Outputs of the heads of each group, packed.
    pub(crate) groups: Vec<PackedInput>,
}

impl CompressedWork {
    /// Bytes allocated.
    pub(super) fn bytes(&self) -> usize {
        let CompressedWork { pools, index_q, index_weights, scores, chosen, places, back, groups } =
            self;
        let floats = [index_q, index_weights, scores, back].map(Vec::capacity);
        floats.iter().sum::<usize>() * size_of::<f32>()
            + (chosen.capacity() + places.capacity()) * size_of::<u32>()
            + pools.iter().map(PoolWork::bytes).sum::<usize>()
            + groups.iter().map(PackedInput::bytes).sum::<usize>()
    }
}

/// Working memory of the entries of a layer, or of those of its indexer.
#[derive(Debug, Default)]
pub(crate) struct PoolWork {
    /// Rows of each token: [tokens, series, elements].
    pub(crate) rows: Vec<f32>,
    /// The logits of the weights of these rows.
    pub(crate) gates: Vec<f32>,
    /// The rows of an entry, and the logits of their weights: [rows, elements].
    pub(crate) parts: [Vec<f32>; 2],
    pub(crate) entry: Vec<f32>,
    /// Cosines and sines of an entry's angles.
    pub(crate) turns: [Vec<f32>; 2],
}

impl PoolWork {
    /// Bytes allocated.
    fn bytes(&self) -> usize {
        let PoolWork { rows, gates, parts, entry, turns } = self;
        let floats = [rows, gates, entry].into_iter().chain(parts).chain(turns);
        floats.map(Vec::capacity).sum::<usize>() * size_of::<f32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_have_the_rows_of_the_pass_alone() {
        let span = |tokens| Span { sequence: 0, first_row: 0, first_position: 9, tokens };
        let mut selection = Selection { positions: (0..30).collect(), most: 3 };
        let copy = selection.first(2);
        assert_eq!(copy.positions, [0, 1, 2, 3, 4, 5]);
        selection.positions.fill(7);
        selection.clear();
        assert!(selection.of(&span(2)).is_none(), "nothing is selected");
        selection.restore(copy);
        assert_eq!(selection.of(&span(2)).unwrap().positions, [0, 1, 2, 3, 4, 5]);
        assert_eq!(selection.positions.len(), 30, "the budget counts on the longer buffer");
        let mut other = Selection::default();
        other.restore(selection.first(1));
        assert_eq!(other.of(&span(1)).unwrap().positions, [0, 1, 2]);
    }
}
