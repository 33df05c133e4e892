//! Experts that a table selects by token. They are known before a pass.

use sws_format::{PieceId, PieceKind};

use crate::role::Role;
use crate::source::{Routed, SourceError, Weights};
use crate::spec::{ModelSpec, MoeSpec};

/// A table that does not list as many experts for each token as it needs.
#[derive(Debug, thiserror::Error)]
#[error(
    "the table of experts of layer {layer} gives the token {token} an expert that does not exist, or one twice; download it again"
)]
struct BadTable {
    layer: usize,
    token: u32,
}

impl ModelSpec {
    /// Adds the experts that the tokens will use in a layer to `experts`, ascending, if they follow
    /// from the tokens alone. Entries of a damaged table are left out; a pass refuses them.
    pub fn known_experts(
        &self,
        layer: usize,
        weights: &dyn Weights,
        tokens: &[u32],
        experts: &mut Vec<u32>,
    ) {
        let Some(moe) = self.layers[layer].moe().filter(|moe| moe.has_table()) else { return };
        let table = table(layer, weights);
        let all = tokens.iter().filter(|&&token| (token as usize) < self.vocab);
        let all = all.flat_map(|&token| row(table, moe.top_k, token));
        experts.extend(all.flatten().filter(|&expert| (expert as usize) < moe.experts));
        experts.sort_unstable();
        experts.dedup();
    }
}

/// Looks up the experts of tokens, into the choices of `routed`.
pub(super) fn look_up(
    (layer, spec): (usize, &MoeSpec),
    weights: &dyn Weights,
    tokens: &[u32],
    routed: &mut Routed,
) -> Result<(), SourceError> {
    let k = spec.top_k;
    let table = table(layer, weights);
    routed.choices.resize(tokens.len() * k, 0);
    for (choices, &token) in routed.choices.chunks_exact_mut(k).zip(tokens) {
        for (place, expert) in row(table, k, token).enumerate() {
            let expert = expert.filter(|&expert| (expert as usize) < spec.experts);
            let expert = expert.filter(|expert| !choices[..place].contains(expert));
            choices[place] = expert.ok_or(BadTable { layer, token })?;
        }
    }
    Ok(())
}

fn table(layer: usize, weights: &dyn Weights) -> &[f32] {
    weights.vector(PieceId::new(layer as u32, PieceKind::Router), Role::ExpertTable)
}

/// The experts of a token, stored as 64-bit integers. Their halves are the bits of floats, the
/// lower half first. `None` for an integer that is negative or far too large.
fn row(table: &[f32], top_k: usize, token: u32) -> impl Iterator<Item = Option<u32>> + '_ {
    let row = &table[token as usize * 2 * top_k..][..2 * top_k];
    let halves = row.as_chunks::<2>().0.iter();
    halves.map(|[low, high]| (high.to_bits() == 0).then_some(low.to_bits()))
}
