//! States kept from earlier layers. Branches and the final norm read a mix of them. After a state
//! was kept, the state begins anew.
//!
//! The state of a token comes first, then those kept, in the order of their layers. Places of later
//! states contain the embedding, and are not read.

use sws_format::PieceId;
use sws_kernels::Tier;
use sws_kernels::functional::{StateWeights, add, mix_states};

use super::by_rows::by_rows;
use crate::order::{Branch, Site};
use crate::role::Role;
use crate::source::Weights;
use crate::spec::ModelSpec;

/// The vectors by which a branch mixes states, and the number of kept states that it reads.
///
/// # Panics
///
/// If no states are kept.
pub(super) fn of_branch<'w>(
    Branch { spec, layer, site }: Branch<'_>,
    weights: &'w dyn Weights,
) -> (StateWeights<'w>, usize) {
    let every = spec.kept_every.expect("a model that keeps states");
    let piece = PieceId::new(layer as u32, site.piece());
    let [norm, row] = site.mix().map(|role| weights.vector(piece, role));
    let eps = spec.layers[layer].norm.eps();
    (StateWeights { norm, row, eps }, site.kept(layer, every))
}

/// Mixes the states of each token of `hidden` into `y` [tokens, hidden].
pub(super) fn mix(
    tier: Tier,
    spec: &ModelSpec,
    (weights, kept): (StateWeights<'_>, usize),
    hidden: &[f32],
    y: &mut [f32],
) {
    let width = spec.hidden;
    let all = spec.state_width();
    by_rows(y, width, |first, y| {
        let tokens = hidden[first * all..].chunks_exact(all);
        for (y, x) in y.chunks_exact_mut(width).zip(tokens) {
            mix_states(tier, weights, &x[..(1 + kept) * width], y);
        }
    });
}

/// Adds a branch [tokens, hidden] to the state of each token of `hidden`, or keeps the state and
/// puts the branch in its place.
pub(super) fn write(
    tier: Tier,
    Branch { spec, layer, site }: Branch<'_>,
    branch: &[f32],
    hidden: &mut [f32],
) {
    let Some(every) = spec.kept_every else { return };
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
    let [norm, row] =
        [Role::HeadMixNorm, Role::HeadMix].map(|role| weights.vector(PieceId::FINAL_NORM, role));
    mix_states(tier, StateWeights { norm, row, eps: spec.head.norm.eps() }, x, y);
}
