//! States kept from earlier layers. Branches and the final norm read a mix of them. After a state
//! was kept, the state begins anew.
//!
//! The state of a token comes first, then those kept, in the order of their layers. Places of later
//! states contain the embedding, and are not read. States of an earlier round lie behind.

use sws_format::PieceId;
use sws_kernels::Tier;
use sws_kernels::functional::{MAX_STATES, StateWeights, add, axpy, dots, mix_states, softmax};

use super::by_rows::by_rows;
use crate::order::{Branch, Site};
use crate::role::Role;
use crate::source::Weights;
use crate::spec::{KeptStates, ModelSpec};

/// The mixes of the states of a token that a branch reads.
#[derive(Clone, Copy)]
pub(super) struct Mixes<'a> {
    spec: &'a ModelSpec,
    /// Number of states that are mixed.
    states: usize,
    mix: Mix<'a>,
}

/// A mix of the states of a token, or several.
#[derive(Clone, Copy)]
enum Mix<'w> {
    /// No mix: the state as it is.
    State,
    /// A mix of the states, whose norms have weights.
    OfStates(StateWeights<'w>),
    /// Mixes of the normed states: the row for each that computes the logits, and the number added to
    /// the mean of squares.
    OfNormed(&'w [f32], f32),
}

impl<'a> Mixes<'a> {
    /// The mixes that a branch reads.
    ///
    /// # Panics
    ///
    /// If no states are kept.
    pub(super) fn of(branch: Branch<'a>, weights: &'a dyn Weights) -> Mixes<'a> {
        let Branch { spec, layer, site } = branch;
        let KeptStates { every, normed } = spec.kept.expect("a model that keeps states");
        let piece = PieceId::new(layer as u32, site.piece());
        let [norm, row] = site.mix();
        let vector = |role| weights.vector(piece, role);
        let mix = match normed {
            None => {
                let norm = vector(norm);
                let eps = spec.layers[layer].norm.eps();
                Mix::OfStates(StateWeights { norm, row: vector(row), eps })
            }
            Some(_) if branch.mixes() == 0 => Mix::State,
            Some(eps) => Mix::OfNormed(vector(row), eps),
        };
        Mixes { spec, states: 1 + site.kept(layer, every), mix }
    }

    /// Writes the mix with this number of the states of each token of `hidden` to `y` [tokens,
    /// hidden]. Without a mix it is the state itself.
    pub(super) fn write(&self, tier: Tier, number: usize, hidden: &[f32], y: &mut [f32]) {
        let width = self.spec.hidden;
        let all = self.spec.state_width();
        let mix = match self.mix {
            Mix::OfNormed(rows, eps) => Mix::OfNormed(&rows[number * width..][..width], eps),
            mix => mix,
        };
        by_rows(y, width, |first, y| {
            let tokens = hidden[first * all..].chunks_exact(all);
            for (y, x) in y.chunks_exact_mut(width).zip(tokens) {
                mix.of(tier, &x[..self.states * width], y);
            }
        });
    }
}

impl Mix<'_> {
    /// Writes the mix of the states `x` of a token to `y`.
    fn of(self, tier: Tier, x: &[f32], y: &mut [f32]) {
        match self {
            Mix::State => y.copy_from_slice(&x[..y.len()]),
            Mix::OfStates(weights) => mix_states(tier, weights, x, y),
            Mix::OfNormed(row, eps) => mix_normed(tier, (row, eps), x, y),
        }
    }
}

/// y = Σ p_i · n_i, where n_i are the states, normed, and p is the softmax of n_i · row / √width.
pub(super) fn mix_normed(tier: Tier, (row, eps): (&[f32], f32), x: &[f32], y: &mut [f32]) {
    let width = y.len();
    let count = x.len() / width;
    let mut shares = [0.0; MAX_STATES];
    let mut factors = [0.0; MAX_STATES];
    let shares = &mut shares[..count];
    let factors = &mut factors[..count];
    dots(tier, x, x, width, factors);
    for ((share, factor), x) in shares.iter_mut().zip(&mut *factors).zip(x.chunks_exact(width)) {
        *factor = 1.0 / (*factor / width as f32 + eps).sqrt();
        dots(tier, x, row, width, std::slice::from_mut(share));
        *share *= *factor / (width as f32).sqrt();
    }
    softmax(tier, shares, count);
    y.fill(0.0);
    for ((share, factor), x) in shares.iter().zip(factors).zip(x.chunks_exact(width)) {
        axpy(tier, share * *factor, x, y);
    }
}

/// Adds a branch [tokens, hidden] to the state of each token of `hidden`, or keeps the state and
/// puts the branch in its place.
pub(super) fn write(
    tier: Tier,
    Branch { spec, layer, site }: Branch<'_>,
    branch: &[f32],
    hidden: &mut [f32],
) {
    let Some(KeptStates { every, .. }) = spec.kept else { return };
    let width = spec.hidden;
    let all = spec.state_width();
    let anew = site == Site::Mixer && layer.is_multiple_of(every);
    by_rows(hidden, all, |first, x| {
        let branches = branch[first * width..].chunks_exact(width);
        for (x, branch) in x.chunks_exact_mut(all).zip(branches) {
            let (state, kept) = x.split_at_mut(width);
            if anew {
                kept[site.kept(layer, every) * width..][..width].copy_from_slice(state);
                state.copy_from_slice(branch);
            } else {
                add(tier, branch, state);
            }
        }
    });
}

/// Mixes the states of one token, as the final norm reads them.
pub(super) fn head(tier: Tier, spec: &ModelSpec, weights: &dyn Weights, x: &[f32], y: &mut [f32]) {
    let Some(KeptStates { normed, .. }) = spec.kept else { return };
    let vector = |role| weights.vector(PieceId::FINAL_NORM, role);
    let mix = match normed {
        Some(eps) => Mix::OfNormed(vector(Role::HeadMix), eps),
        None => {
            let [norm, row] = [Role::HeadMixNorm, Role::HeadMix].map(vector);
            Mix::OfStates(StateWeights { norm, row, eps: spec.head.norm.eps() })
        }
    };
    let own = (1 + spec.kept_before(spec.layers.len())) * y.len();
    mix.of(tier, &x[..own], y);
}
