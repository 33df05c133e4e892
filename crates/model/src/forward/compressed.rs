//! Attention to the last positions, and to entries that earlier ones were pooled into.
//!
//! The keys of the last positions lie in a ring, the entries behind it. A query attends to a list
//! of places: those of the positions, ascending, then those of the entries, ascending. Sums
//! therefore depend on the position and the selected entries, but not on how a text was divided
//! into passes.

mod pools;

use sws_kernels::functional::{
    Attention, IndexQuery, NormWeight, Queries, RopePairs, RopeShape, Selected, attention as attend,
};
use sws_kernels::{
    MatmulJob, Matrix, OutputColumns, PackedInput, Packings, ScratchPool, Tier, threads_for,
};

use super::indexer::{best, score};
use super::linear::{MAX, Product, multiply, run};
use super::mixer::{MixerContext, OutputRoom, Turned, project_out, turn};
use super::norms::{rms_norm_rows, scale_row};
use crate::layer_state::{CompressedState, SequenceState};
use crate::order::{INDEX_POOL_ROLES, POOL_ROLES};
use crate::role::Role;
use crate::source::{SourceError, Weights};
use crate::spec::{CompressedSpec, PoolIndexer, PoolSpec};
use crate::workspace::{AttentionWork, CompressedWork, PoolWork, Workspace, grown};
use pools::Pooling;

impl CompressedWork {
    /// Bytes for passes of up to this many tokens and positions.
    pub(super) fn bytes_for<'a>(
        packings: Packings,
        specs: impl Iterator<Item = &'a CompressedSpec>,
        tokens: usize,
        positions: usize,
    ) -> usize {
        // Every buffer has the length of the largest layer that uses it.
        let mut most = [0; 16];
        let mut groups = 0;
        let mut width = 0;
        for spec in specs {
            let lens = CompressedWork::lens(spec, tokens, positions);
            for (most, len) in most.iter_mut().zip(lens) {
                *most = len.max(*most);
            }
            groups = spec.groups.max(groups);
            width = (spec.query_width() / spec.groups).max(width);
        }
        let packed = groups * PackedInput::bytes_for(packings, tokens, width);
        most.iter().sum::<usize>() * size_of::<f32>() + packed
    }

    /// Lengths of all buffers, except packed ones. All of them contain floats.
    fn lens(spec: &CompressedSpec, tokens: usize, positions: usize) -> [usize; 16] {
        let mut lens = [0; 16];
        lens[0] = tokens * spec.rotated / 2;
        lens[1] = spec.most_seen(positions);
        let Some(pools) = spec.pools else { return lens };
        lens[2..7].copy_from_slice(&PoolWork::lens(&pools, spec.head_dim, tokens));
        let Some(PoolIndexer { heads, dim, most }) = pools.indexer else { return lens };
        lens[7..12].copy_from_slice(&PoolWork::lens(&pools, dim, tokens));
        let entries = positions / pools.ratio;
        lens[12..].copy_from_slice(&[
            tokens * heads * dim,
            tokens * heads,
            if entries > most { entries } else { 0 },
            if entries > most { most } else { 0 },
        ]);
        lens
    }
}

/// Applies compressed attention to the normed hidden state in `work.input`. The result is in
/// `work.branch`.
pub(super) fn compressed(
    context: &MixerContext<'_>,
    spec: &CompressedSpec,
    weights: &mut dyn Weights,
    sequences: &mut [SequenceState],
    work: &mut Workspace,
) -> Result<(), SourceError> {
    project(context, spec, weights, work)?;
    rotate(context, spec, weights, &mut work.attention);
    pool(context, spec, weights, sequences, &mut work.attention.compressed);
    attend_rows(context, spec, weights, sequences, &mut work.attention);
    project_groups(context, spec, weights, work)?;
    let Workspace { branch, attention: own, scratch, .. } = work;
    let width = spec.group_width();
    let outputs = grown(&mut own.v, context.tokens() * width);
    let room = OutputRoom { packed: &mut own.packed, branch, scratch };
    project_out(context, weights, (outputs, width), false, room)
}

/// The last elements of heads, which are rotated.
fn turned(spec: &CompressedSpec, heads: usize, head_dim: usize) -> Turned {
    let offset = head_dim - spec.rotated;
    let shape = RopeShape { heads, head_dim, offset, pairs: RopePairs::Interleaved };
    Turned { shape, angles: spec.rotated / 2 }
}

/// Norms queries and keys, and rotates them by their positions, including the queries of an
/// indexer.
fn rotate(
    context: &MixerContext<'_>,
    spec: &CompressedSpec,
    weights: &dyn Weights,
    own: &mut AttentionWork,
) {
    let tier = context.tier;
    let tokens = context.tokens();
    let AttentionWork { q, k, tables, compressed: more, .. } = own;
    let dim = spec.head_dim;
    let q = grown(q, tokens * spec.query_width());
    let keys = grown(k, tokens * dim);
    let [cos, sin] = &tables.each[spec.rope];
    rms_norm_rows(tier, q, dim, NormWeight::None, spec.eps);
    turn(tier, turned(spec, spec.heads, dim), (cos, sin), q);
    let weight = NormWeight::Plain(weights.vector(context.id(), Role::KvDownNorm));
    rms_norm_rows(tier, keys, dim, weight, spec.eps);
    turn(tier, turned(spec, 1, dim), (cos, sin), keys);
    if let Some(it) = spec.indexer() {
        let index_q = &mut more.index_q[..tokens * it.width()];
        turn(tier, turned(spec, it.heads, it.dim), (cos, sin), index_q);
        // The scales of products and of heads. Both are positive, so their place does not change
        // the selection.
        let factor = (1.0 / (it.width() as f64).sqrt()) as f32;
        scale_row(factor, &mut more.index_weights[..tokens * it.heads]);
    }
}

/// Pools the entries that the tokens finish, and those of an indexer.
fn pool(
    context: &MixerContext<'_>,
    spec: &CompressedSpec,
    weights: &dyn Weights,
    sequences: &mut [SequenceState],
    more: &mut CompressedWork,
) {
    let &MixerContext { tier, layer, ropes, spans, .. } = context;
    let Some(pools) = spec.pools else { return };
    let index = spec.indexer().map(|it| (it.dim, INDEX_POOL_ROLES));
    let all = [Some((spec.head_dim, POOL_ROLES)), index].into_iter().flatten();
    for ((n, (dim, [_, _, bias, norm])), work) in all.enumerate().zip(&mut more.pools) {
        let bias = weights.vector(context.id(), bias);
        let norm = weights.vector(context.id(), norm);
        let rope = &ropes[spec.rope];
        let index = n > 0;
        let pooling = Pooling { tier, layer, pools, dim, index, bias, norm, eps: spec.eps, rope };
        pooling.run(spans, sequences, work);
    }
}

/// Appends keys to the caches, and attends to lists of places. Outputs are rotated back.
fn attend_rows(
    context: &MixerContext<'_>,
    spec: &CompressedSpec,
    weights: &dyn Weights,
    sequences: &mut [SequenceState],
    own: &mut AttentionWork,
) {
    let &MixerContext { tier, layer, spans, .. } = context;
    let AttentionWork { q, k: keys, mixed, tables, compressed: more, noted, attending, .. } = own;
    let tokens = context.tokens();
    let dim = spec.head_dim;
    let q_width = spec.query_width();
    let mixed = grown(mixed, tokens * q_width);
    let rule = Attention {
        heads: spec.heads,
        kv_heads: 1,
        key_dim: dim,
        value_dim: dim,
        scale: spec.scale,
        window: None,
        aligned: false,
        soft_cap: None,
        sinks: Some(weights.vector(context.id(), Role::Sinks)),
    };
    for span in spans {
        let state = sequences[span.sequence].layer(layer).compressed();
        for start in (0..span.tokens).step_by(state.chunk()) {
            let count = state.chunk().min(span.tokens - start);
            let row = span.first_row + start;
            let first = span.first_position + start;
            state.append(first, &keys[row * dim..][..count * dim]);
            for (row, position) in (row..row + count).zip(first..) {
                let selected = more.list(tier, spec, state, (row, position));
                if let Some(noted) = noted {
                    noted.extend_from_slice(&more.chosen[..selected]);
                }
                let places = &more.places;
                let threads = threads_for(q_width * places.len());
                let scratch = attending.of(threads, (dim, state.most_seen()));
                // The list contains places, not positions: the query sees the whole list.
                let first = places.len() - 1;
                let most = places.len();
                let selected = Some(Selected { positions: places, lists: 1, most });
                let q = &q[row * q_width..][..q_width];
                let y = &mut mixed[row * q_width..][..q_width];
                let queries = Queries { first, q, selected, distances: None };
                attend(tier, &rule, &state.view(), queries, y, scratch);
            }
        }
    }
    let [cos, sin] = &tables.each[spec.rope];
    let back = grown(&mut more.back, tokens * (spec.rotated / 2));
    for (back, sin) in back.iter_mut().zip(sin) {
        *back = -sin;
    }
    turn(tier, turned(spec, spec.heads, dim), (cos, back), mixed);
}

/// Projects the outputs of groups of heads, into `work.attention.v`.
fn project_groups(
    context: &MixerContext<'_>,
    spec: &CompressedSpec,
    weights: &mut dyn Weights,
    work: &mut Workspace,
) -> Result<(), SourceError> {
    let tier = context.tier;
    let tokens = context.tokens();
    let id = context.id();
    let Workspace { attention: own, scratch, .. } = work;
    let AttentionWork { v, mixed, compressed: more, .. } = own;
    let groups = spec.groups;
    let q_width = spec.query_width();
    let width = q_width / groups;
    more.groups.resize_with(groups.max(more.groups.len()), PackedInput::new);
    for (group, packed) in more.groups[..groups].iter_mut().enumerate() {
        let row = |token: usize| &mixed[token * q_width + group * width..][..width];
        packed.pack_rows(tier, tokens, width, row);
    }
    let low = grown(v, tokens * spec.group_width());
    let inputs = &more.groups;
    match weights.matrix(id, Role::OutputDown) {
        Some(matrix) => {
            project_rows((tier, spec), inputs, (0, &matrix), low, scratch);
            Ok(())
        }
        None => weights.blocks(id, Role::OutputDown, &mut |first, rows| {
            project_rows((tier, spec), inputs, (first, rows), low, scratch);
        }),
    }
}

/// Computes all products with the normed hidden state and with the latent query.
fn project(
    context: &MixerContext<'_>,
    spec: &CompressedSpec,
    weights: &mut dyn Weights,
    work: &mut Workspace,
) -> Result<(), SourceError> {
    let tier = context.tier;
    let id = context.id();
    let Workspace { input, attention: own, scratch, .. } = work;
    let AttentionWork { q, k, v, packed, compressed: more, .. } = own;
    let tokens = input.tokens();
    let rank = spec.query_rank;
    let q_width = spec.query_width();
    let low = grown(v, tokens * rank);
    let query = Product::new(id, Role::QueryDown, input, &mut *low, rank);
    let keys = grown(k, tokens * spec.head_dim);
    let keys = Product::new(id, Role::KvDown, input, keys, spec.head_dim);
    let CompressedWork { pools: [entries, index], index_q, index_weights, .. } = more;
    let [mut rows, mut index_rows] = [[None, None], [None, None]];
    let mut by = None;
    if let Some(pools) = &spec.pools {
        rows = entries.products((pools, spec.head_dim), id, POOL_ROLES, input);
        if let Some(it) = &pools.indexer {
            index_rows = index.products((pools, it.dim), id, INDEX_POOL_ROLES, input);
            let y = grown(index_weights, tokens * it.heads);
            by = Some(Product::new(id, Role::IndexWeights, input, y, it.heads));
        }
    }
    let [rows, gates] = rows;
    let [index_rows, index_gates] = index_rows;
    let mut all = [Some(query), Some(keys), rows, gates, index_rows, index_gates, by];
    multiply(tier, weights, &mut all, scratch)?;
    let weight = NormWeight::Plain(weights.vector(id, Role::QueryDownNorm));
    rms_norm_rows(tier, low, rank, weight, spec.eps);
    packed.pack(tier, low, tokens, rank);
    let query = Product::new(id, Role::QueryUp, packed, grown(q, tokens * q_width), q_width);
    let indexing = spec.indexer().map(|it| {
        let y = grown(index_q, tokens * it.width());
        Product::new(id, Role::IndexQuery, packed, y, it.width())
    });
    multiply(tier, weights, &mut [Some(query), indexing], scratch)
}

impl CompressedWork {
    /// Lists the places that the query of a row sees, at a position. Returns the number of selected
    /// entries; 0 if no selection was needed.
    fn list(
        &mut self,
        tier: Tier,
        spec: &CompressedSpec,
        state: &CompressedState,
        (row, position): (usize, usize),
    ) -> usize {
        let CompressedWork { index_q, index_weights, scores, chosen, places, .. } = self;
        places.clear();
        // The capacity is set at once, because the budget relies on it.
        places.reserve_exact(state.most_seen());
        state.window_of(position, places);
        let Some(PoolSpec { ratio, indexer }) = spec.pools else { return 0 };
        let seen = (position + 1) / ratio;
        let Some(PoolIndexer { heads, dim, most }) = indexer.filter(|it| seen > it.most) else {
            places.extend((0..seen as u32).map(|n| state.entry(n)));
            return 0;
        };
        let keys = state.index();
        let room = grown(scores, keys.keys.capacity);
        let scores = &mut room[..seen];
        let q = &index_q[row * heads * dim..];
        let weights = &index_weights[row * heads..];
        let query = IndexQuery { q: &q[..heads * dim], weights: &weights[..heads] };
        score(tier, query, &keys, scores);
        if chosen.len() < most {
            *chosen = vec![0; most];
        }
        best(scores, &mut chosen[..most]);
        places.extend(chosen[..most].iter().map(|&n| state.entry(n)));
        most
    }
}

/// Computes the outputs of groups of heads, in the rows from `first` on of their matrix.
fn project_rows(
    (tier, spec): (Tier, &CompressedSpec),
    groups: &[PackedInput],
    (first, block): (usize, &Matrix<'_>),
    y: &mut [f32],
    scratch: &mut ScratchPool,
) {
    let rank = spec.group_rank;
    let tokens = y.len() / spec.group_width();
    let mut at = first;
    let end = first + block.row_count();
    while at < end {
        let mut jobs = [const { None }; MAX];
        let mut left = OutputColumns::new(&mut *y, tokens, spec.group_width()).split_at(at).1;
        for job in &mut jobs {
            let next = end.min((at / rank + 1) * rank);
            if at < next {
                let (own, others) = left.split_at(next - at);
                left = others;
                let matrix = block.rows(at - first..next - first);
                *job = Some(MatmulJob { matrix, x: &groups[at / rank], y: own });
                at = next;
            }
        }
        run(tier, &jobs, scratch);
    }
}
