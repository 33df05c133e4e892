//! Messages between the rounds of layers that a pass visits several times.
//!
//! Behind the states that a token keeps lie those of the round before: the states that it has kept
//! but the first, which is that of all rounds, and the one at its end. A message is a mix of these.
//! Gates, computed from a latent of state and message, determine what a branch reads of each.

use sws_format::{PieceId, PieceKind};
use sws_kernels::functional::elementary::tanh;
use sws_kernels::functional::{NormWeight, rms_norm};
use sws_kernels::{PackedInput, Packings, ScratchPool, Tier};

use super::by_rows::by_rows;
use super::kept::{Mixes, mix_normed};
use super::linear::{Product, multiply};
use super::norms::{NormVectors, norm_rows};
use super::{ForwardError, ForwardPass};
use crate::order::{Branch, Receiver};
use crate::role::Role;
use crate::source::{SourceError, WeightSource, Weights};
use crate::spec::{LoopSpec, ModelSpec};
use crate::state::ForwardState;
use crate::workspace::{MessageWork, Workspace, grown};

impl ForwardPass {
    /// Copies the rows that compute the logits of messages, if there are any.
    pub(super) fn learn_messages(
        &self,
        state: &mut ForwardState,
        source: &mut dyn WeightSource,
    ) -> Result<(), ForwardError> {
        if self.spec.looped.is_none() {
            return Ok(());
        }
        let norms = PieceId::new(0, PieceKind::Norms);
        source.infrastructure(0, &[PieceKind::Norms], &mut |weights| {
            let roles = [Role::Messages, Role::KvMessages];
            for (rows, role) in state.work.messages.rows.iter_mut().zip(roles) {
                let from = weights.vector(norms, role);
                grown(rows, from.len()).copy_from_slice(from);
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Begins a visit of a layer: in later rounds its branches read messages. The first visit of a
    /// round takes the states of the round before, and returns to the state from which that began.
    pub(super) fn begin_visit(&self, visit: usize, state: &mut ForwardState) {
        let spec = &self.spec;
        let round = spec.round_of(visit);
        let layer = spec.layer_of(visit);
        state.work.messages.round = round.map(|of| layer - of.first);
        let Some(of) = round.filter(|of| layer == of.first) else { return };
        let width = spec.hidden;
        let all = spec.state_width();
        let first = 1 + spec.kept_before(of.first);
        let count = spec.kept_in(of);
        let behind = 1 + spec.kept_before(spec.layers.len());
        by_rows(&mut state.hidden, all, |_, x| {
            for x in x.chunks_exact_mut(all) {
                let kept = (first + 1) * width;
                let last = (behind + count - 1) * width;
                x.copy_within(kept..kept + (count - 1) * width, behind * width);
                x.copy_within(..width, last);
                x.copy_within(first * width..(first + 1) * width, 0);
            }
        });
    }
}

/// Writes the normed inputs of a mixer in a later round: that of queries to `work.x` and
/// `work.input`, and those of keys and of values to `work.attention.inputs`.
pub(super) fn read_mixer(
    branch: Branch<'_>,
    tier: Tier,
    weights: &mut dyn Weights,
    hidden: &[f32],
    work: &mut Workspace,
) -> Result<(), SourceError> {
    let Branch { spec, layer, .. } = branch;
    let width = spec.hidden;
    let tokens = hidden.len() / spec.state_width();
    let apart = spec.layers[layer].inputs_apart();
    let mut states = std::mem::take(&mut work.messages.states);
    let mixes = Mixes::of(branch, weights);
    for (number, y) in states.iter_mut().enumerate() {
        mixes.write(tier, if apart { number } else { 0 }, hidden, grown(y, tokens * width));
    }
    for (y, to) in states.iter_mut().zip([Receiver::Query, Receiver::Key, Receiver::Value]) {
        let y = &mut y[..tokens * width];
        receive((branch, to), tier, weights, hidden, (y, &mut work.messages), &mut work.scratch)?;
    }
    let by = spec.layers[layer].norm;
    let norms = PieceId::new(layer as u32, PieceKind::Norms);
    let vectors = NormVectors::of(weights, norms, Role::MixerNorm, by);
    work.norm(tier, by, &states[0][..tokens * width], vectors);
    let roles = [Role::KeyInputNorm, Role::ValueInputNorm];
    for ((y, role), to) in states[1..].iter_mut().zip(roles).zip(&mut work.attention.inputs) {
        let y = &mut y[..tokens * width];
        let vectors = match apart {
            true => NormVectors::of(weights, norms, role, by),
            false => vectors,
        };
        norm_rows(tier, by, y, width, vectors);
        to.pack(tier, y, tokens, width);
    }
    work.messages.states = states;
    Ok(())
}

/// Mixes the states `y` [tokens, hidden] with their messages.
///
/// # Panics
///
/// If the visit is not of a later round.
pub(super) fn receive(
    (Branch { spec, layer, .. }, to): (Branch<'_>, Receiver),
    tier: Tier,
    weights: &mut dyn Weights,
    hidden: &[f32],
    (y, work): (&mut [f32], &mut MessageWork),
    scratch: &mut ScratchPool,
) -> Result<(), SourceError> {
    let of = spec.looped.expect("layers that a pass visits several times");
    let eps = spec.kept.and_then(|kept| kept.normed).expect("mixes of normed states");
    let width = spec.hidden;
    let rank = of.rank;
    let all = spec.state_width();
    let tokens = y.len() / width;
    let MessageWork {
        rows: [rows, kv_rows], round, message, both, packed, low, of_low, gates, ..
    } = work;
    let (role, number) = to.row();
    let rows = if role == Role::Messages { rows } else { kv_rows };
    let number = 2 * round.expect("a visit in a later round") + number;
    let row = &rows[number * width..][..width];
    let message = grown(message, tokens * width);
    let behind = (1 + spec.kept_before(spec.layers.len())) * width;
    by_rows(message, width, |first, message| {
        let states = hidden[first * all..].chunks_exact(all);
        for (message, states) in message.chunks_exact_mut(width).zip(states) {
            mix_normed(tier, (row, eps), &states[behind..], message);
        }
    });
    let message = &*message;
    let both = grown(both, tokens * 2 * width);
    let given = &*y;
    by_rows(both, 2 * width, |first, both| {
        for (place, both) in (first..).zip(both.chunks_exact_mut(2 * width)) {
            let (state, of_message) = both.split_at_mut(width);
            state.copy_from_slice(&given[place * width..][..width]);
            of_message.copy_from_slice(&message[place * width..][..width]);
        }
        rms_norm(tier, both, width, NormWeight::None, spec.layers[layer].norm.eps());
    });
    packed.pack(tier, both, tokens, 2 * width);
    let piece = to.piece(layer);
    let [down, forget, gain] = to.roles();
    let low = grown(low, tokens * rank);
    let mut products = [Some(Product::new(piece, down, packed, &mut *low, rank))];
    multiply(tier, weights, &mut products, scratch)?;
    of_low.pack(tier, low, tokens, rank);
    let (forgets, gains) = grown(gates, 2 * tokens * width).split_at_mut(tokens * width);
    let mut products = [
        Some(Product::new(piece, forget, of_low, &mut *forgets, width)),
        Some(Product::new(piece, gain, of_low, &mut *gains, width)),
    ];
    multiply(tier, weights, &mut products, scratch)?;
    let forgets = &*forgets;
    let gains = &*gains;
    by_rows(y, 1, |first, y| {
        let given = message[first..].iter().zip(&forgets[first..]).zip(&gains[first..]);
        for (y, ((message, forget), gain)) in y.iter_mut().zip(given) {
            *y = (1.0 - tanh(*forget)) * *y + tanh(*gain) * message;
        }
    });
    Ok(())
}

impl MessageWork {
    /// Bytes for passes of up to this many tokens, of a model with these layers in rounds.
    pub(super) fn bytes_for(
        packings: Packings,
        (spec, of): (&ModelSpec, LoopSpec),
        tokens: usize,
    ) -> usize {
        let rank = of.rank;
        let rows = 4 * of.layers() * spec.hidden;
        // Three states, a message, both of them, and gates of both.
        let floats = tokens * (8 * spec.hidden + rank) + rows;
        let packed = |width| PackedInput::bytes_for(packings, tokens, width);
        floats * size_of::<f32>() + packed(2 * spec.hidden) + packed(rank)
    }
}
