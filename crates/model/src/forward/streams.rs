//! Residual streams: the inputs of branches, and the input of the head. Models with one state, or
//! with states kept, come through here too.
//!
//! The weights of a branch are products with all streams of a token, which are normed together.
//! They are kept until the branch is added, and belong to the saved state of a pass.

use std::ops::Range;

use sws_format::{PieceId, PieceKind};
use sws_kernels::functional::{
    MAX_STREAMS, NormWeight, StreamBias, StreamHead, Streams, add, gated_mean, head_of_streams,
    read_streams, sigmoid, stream_weights, write_streams,
};
use sws_kernels::{PackedInput, Packings, ScratchPool, Tier};

use super::by_rows::by_rows;
use super::linear::{Product, multiply};
use super::norms::{NormVectors, norm_rows, norm_streams, rms_norm_rows};
use super::{kept, messages};
use crate::order::{Branch, Receiver, Site};
use crate::role::Role;
use crate::source::{SourceError, Weights};
use crate::spec::{ModelSpec, StreamReads};
use crate::workspace::{GateWork, StreamWork, Workspace, grown};

/// Writes the normed input of a branch to `work.x` and `work.input`: the hidden state, a mix of it
/// and the kept states, or a mix of its streams. In the last case the weights of the streams are in
/// `work.streams.weights`.
pub(super) fn read(
    branch: Branch<'_>,
    tier: Tier,
    weights: &mut dyn Weights,
    hidden: &[f32],
    work: &mut Workspace,
) -> Result<(), SourceError> {
    let Branch { spec, layer, site } = branch;
    let width = spec.hidden;
    let by = spec.layers[layer].norm;
    let norms = PieceId::new(layer as u32, PieceKind::Norms);
    let tokens = hidden.len() / spec.state_width();
    if spec.kept.is_some() {
        let has_messages = work.messages.round.is_some();
        if has_messages && site == Site::Mixer {
            return messages::read_mixer(branch, tier, weights, hidden, work);
        }
        // The buffer is free, as the output of the branch has not been computed yet.
        let mut mixed = std::mem::take(&mut work.branch);
        let y = grown(&mut mixed, tokens * width);
        let mixes = kept::Mixes::of(branch, weights);
        mixes.write(tier, 0, hidden, y);
        if has_messages {
            let Workspace { messages, scratch, .. } = &mut *work;
            let of = (branch, Receiver::Ffn);
            messages::receive(of, tier, weights, hidden, (y, messages), scratch)?;
            work.norm(tier, by, y, NormVectors::of(weights, norms, site.norm(), by));
            work.branch = mixed;
            return Ok(());
        }
        work.norm(tier, by, y, NormVectors::of(weights, norms, site.norm(), by));
        if site == Site::Mixer && spec.layers[layer].inputs_apart() {
            let roles = [Role::KeyInputNorm, Role::ValueInputNorm].into_iter();
            for ((number, role), to) in (1..).zip(roles).zip(&mut work.attention.inputs) {
                mixes.write(tier, number, hidden, y);
                let vectors = NormVectors::of(weights, norms, role, by);
                norm_rows(tier, by, y, width, vectors);
                to.pack(tier, y, tokens, width);
            }
        }
        work.branch = mixed;
        return Ok(());
    }
    let Some(streams) = spec.streams else {
        work.norm(tier, by, hidden, NormVectors::of(weights, norms, site.norm(), by));
        let Workspace { x, input, streams: StreamWork { gates, .. }, scratch, .. } = work;
        return gate_normed(branch, tier, weights, (&mut x[..], input, gates), scratch);
    };
    let Workspace { x: normed, input, streams: room, branch: mean, scratch, .. } = &mut *work;
    let StreamWork { weights: own, gates } = room;
    let own = grown(own, tokens * streams.weights());
    let x = grown(normed, hidden.len());
    x.copy_from_slice(hidden);
    if spec.stream_gates().is_some() {
        // The buffer is free, as the output of the branch has not been computed yet.
        let mean = grown(mean, tokens * width);
        gated(&Gated::of(branch), tier, weights, (x, input, gates), Some(own), mean, scratch)?;
        let x = grown(normed, mean.len());
        x.copy_from_slice(mean);
        input.pack(tier, x, tokens, width);
        return Ok(());
    }
    weigh(branch, tier, weights, (x, input), own, scratch)?;
    // The buffer is free, as the output of the branch has not been computed yet.
    let mut mixed = std::mem::take(&mut work.branch);
    let y = grown(&mut mixed, tokens * width);
    mix(tier, spec, &work.streams.weights, hidden, y);
    work.norm(tier, by, y, NormVectors::of(weights, norms, site.norm(), by));
    work.branch = mixed;
    Ok(())
}

/// A read of streams through gates for their elements.
pub(super) struct Gated<'a> {
    spec: &'a ModelSpec,
    piece: PieceId,
    /// The norm of streams, and the matrices to the latent of gates and from it.
    roles: [Role; 3],
    /// The matrix to the weights of writing.
    own: Role,
}

impl<'a> Gated<'a> {
    /// The read of a branch.
    pub(super) fn of(Branch { spec, layer, site }: Branch<'a>) -> Gated<'a> {
        let piece = PieceId::new(layer as u32, site.piece());
        let [own, ..] = site.roles();
        Gated { spec, piece, roles: site.gates(), own }
    }

    /// The read of the head.
    pub(super) fn of_head(spec: &'a ModelSpec) -> Gated<'a> {
        let roles = [Role::FinalNorm, Role::HeadStreamsDown, Role::HeadStreamsUp];
        Gated { spec, piece: PieceId::FINAL_NORM, roles, own: Role::HeadStreams }
    }
}

impl GateWork {
    /// Bytes for passes of up to this many tokens, whose streams have `width` elements in all.
    pub(super) fn bytes_for(packings: Packings, tokens: usize, width: usize, rank: usize) -> usize {
        let packed = PackedInput::bytes_for(packings, tokens, rank);
        tokens * (width.max(rank) + rank) * size_of::<f32>() + packed
    }
}

/// Computes the mean of the streams `x` [tokens, streams, width], each normed and multiplied by its
/// gates. `x` is overwritten. For a branch, also computes the weights by which it is added to each
/// stream.
///
/// # Panics
///
/// If streams are read otherwise.
pub(super) fn gated(
    of: &Gated<'_>,
    tier: Tier,
    weights: &mut dyn Weights,
    (x, input, work): (&mut [f32], &mut PackedInput, &mut GateWork),
    mut own: Option<&mut [f32]>,
    mean: &mut [f32],
    scratch: &mut ScratchPool,
) -> Result<(), SourceError> {
    let &Gated { spec, piece, roles: [norm, down, up], own: writing } = of;
    let streams = spec.streams.expect("a model with streams");
    let rank = spec.stream_gates().expect("streams with gates");
    let count = streams.count;
    let width = spec.state_width();
    let hidden = spec.hidden;
    let tokens = x.len() / width;
    norm_streams(tier, spec.head.norm, hidden, weights.vector(piece, norm), x);
    input.pack(tier, x, tokens, width);
    let to_own = own.as_deref_mut().map(|own| Product::new(piece, writing, input, own, count));
    let of = ElementGates { piece, down, up, rank, width, count };
    let gates = of.compute(tier, weights, (&*input, to_own), work, scratch)?;
    let x = &*x;
    by_rows(mean, hidden, |first, mean| {
        let part = first * width..(first + mean.len() / hidden) * width;
        gated_mean(tier, (count, hidden), &gates[part.clone()], &x[part], mean);
    });
    if let Some(own) = own {
        let base = [0.0; MAX_STREAMS];
        let scale = [1.0 / count as f32];
        let bias = StreamBias { base: &base[..count], scale: &scale };
        stream_weights(tier, streams, bias, own);
    }
    Ok(())
}

/// Multiplies the normed state before a branch [tokens, hidden], which is packed, by its gates, if it
/// has gates.
pub(super) fn gate_normed(
    Branch { spec, layer, site }: Branch<'_>,
    tier: Tier,
    weights: &mut dyn Weights,
    (x, input, work): (&mut [f32], &mut PackedInput, &mut GateWork),
    scratch: &mut ScratchPool,
) -> Result<(), SourceError> {
    let Some(rank) = spec.layers[layer].norm_gates.of(site) else { return Ok(()) };
    let piece = PieceId::new(layer as u32, site.piece());
    let [_, down, up] = site.gates();
    let width = spec.hidden;
    let tokens = input.tokens();
    let of = ElementGates { piece, down, up, rank, width, count: 1 };
    let gates = of.compute(tier, weights, (&*input, None), work, scratch)?;
    let x = &mut x[..tokens * width];
    by_rows(x, 1, |first, x| {
        for (x, gate) in x.iter_mut().zip(&gates[first..]) {
            *x *= gate;
        }
    });
    input.pack(tier, x, tokens, width);
    Ok(())
}

/// Gates for all elements of some streams, from a latent.
struct ElementGates {
    piece: PieceId,
    /// The matrices to the latent, and from it.
    down: Role,
    up: Role,
    /// Elements of the latent, and of all streams.
    rank: usize,
    width: usize,
    /// Number of streams.
    count: usize,
}

impl ElementGates {
    /// Computes the gates [tokens, width] of an input, and a product of the same input.
    fn compute<'w>(
        self,
        tier: Tier,
        weights: &mut dyn Weights,
        (input, beside): (&PackedInput, Option<Product<'_>>),
        work: &'w mut GateWork,
        scratch: &mut ScratchPool,
    ) -> Result<&'w [f32], SourceError> {
        let ElementGates { piece, down, up, rank, width, count } = self;
        let tokens = input.tokens();
        let GateWork { low, gates, packed } = work;
        let low = grown(low, tokens * rank);
        let mut products = [Some(Product::new(piece, down, input, &mut *low, rank)), beside];
        multiply(tier, weights, &mut products, scratch)?;
        // The sigmoids take the place of the gates, which come later.
        let shares = &mut grown(gates, tokens * width.max(rank))[..low.len()];
        for x in &mut *low {
            *x /= count as f32;
        }
        shares.copy_from_slice(low);
        sigmoid(tier, shares);
        for (x, share) in low.iter_mut().zip(shares) {
            *x *= *share;
        }
        packed.pack(tier, low, tokens, rank);
        let gates = &mut gates[..tokens * width];
        let product = Product::new(piece, up, packed, &mut *gates, width);
        multiply(tier, weights, &mut [Some(product)], scratch)?;
        by_rows(gates, 1, |_, gates| sigmoid(tier, gates));
        Ok(gates)
    }
}

/// Computes the weights of a branch [tokens, weights] from all streams of each token, which are
/// overwritten.
///
/// # Panics
///
/// If the residual is not several streams.
pub(super) fn weigh(
    branch: Branch<'_>,
    tier: Tier,
    weights: &mut dyn Weights,
    (x, input): (&mut [f32], &mut PackedInput),
    own: &mut [f32],
    scratch: &mut ScratchPool,
) -> Result<(), SourceError> {
    let Branch { spec, layer, site } = branch;
    let streams = spec.streams.expect("a model with streams");
    let width = spec.state_width();
    let piece = PieceId::new(layer as u32, site.piece());
    let [matrix, base, scale] = site.roles();
    let eps = spec.layers[layer].norm.eps();
    rms_norm_rows(tier, x, width, NormWeight::None, eps);
    input.pack(tier, x, x.len() / width, width);
    let product = Product::new(piece, matrix, input, &mut *own, streams.weights());
    multiply(tier, weights, &mut [Some(product)], scratch)?;
    let base = weights.vector(piece, base);
    let bias = StreamBias { base, scale: weights.vector(piece, scale) };
    stream_weights(tier, streams, bias, own);
    Ok(())
}

/// Mixes the streams of each token of `hidden` into `y` [tokens, hidden].
pub(super) fn mix(tier: Tier, spec: &ModelSpec, own: &[f32], hidden: &[f32], y: &mut [f32]) {
    let Some(streams) = spec.streams else { return };
    by_rows(y, spec.hidden, |first, y| {
        let rows = first..first + y.len() / spec.hidden;
        let own = of(streams, own, &rows);
        let x = of_width(spec.state_width(), hidden, &rows);
        read_streams(tier, streams, own, x, y);
    });
}

/// Adds a branch [tokens, hidden] to the streams of each token of `hidden`, which it mixes.
pub(super) fn write(tier: Tier, spec: &ModelSpec, own: &[f32], branch: &[f32], hidden: &mut [f32]) {
    let Some(streams) = spec.streams else { return };
    let width = spec.state_width();
    by_rows(hidden, width, |first, x| {
        let rows = first..first + x.len() / width;
        let own = of(streams, own, &rows);
        let branch = of_width(spec.hidden, branch, &rows);
        write_streams(tier, streams, own, branch, x);
    });
}

/// The state of one token, or the mix of its states or streams, as the final norm reads it.
pub(super) fn head(tier: Tier, spec: &ModelSpec, weights: &dyn Weights, x: &[f32], y: &mut [f32]) {
    if spec.kept.is_some() {
        return kept::head(tier, spec, weights, x, y);
    }
    let Some(Streams { eps, count, .. }) = spec.streams else { return y.copy_from_slice(x) };
    if spec.stream_reads == StreamReads::WeightsThenMean {
        y.fill(0.0);
        for x in x.chunks_exact(y.len()) {
            add(tier, x, y);
        }
        for y in y {
            *y /= count as f32;
        }
        return;
    }
    let norm_eps = spec.head.norm.eps();
    let vector = |role| weights.vector(PieceId::FINAL_NORM, role);
    let rows = vector(Role::HeadStreams);
    let base = vector(Role::HeadStreamsBase);
    let scale = vector(Role::HeadStreamsScale)[0];
    head_of_streams(tier, StreamHead { rows, scale, base, norm_eps, eps }, x, y);
}

/// The weights of some tokens.
fn of<'x>(streams: Streams, own: &'x [f32], rows: &Range<usize>) -> &'x [f32] {
    of_width(streams.weights(), own, rows)
}

/// Some rows of `width` values.
fn of_width<'x>(width: usize, x: &'x [f32], rows: &Range<usize>) -> &'x [f32] {
    &x[rows.start * width..rows.end * width]
}
