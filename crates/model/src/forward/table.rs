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
        let table = table(self, layer, moe.top_k, weights);
        for &token in tokens {
            if token as usize >= self.vocab {
                continue;
            }
            for expert in table.row(token).flatten() {
                if (expert as usize) < moe.experts {
                    experts.push(expert);
                }
            }
        }
        experts.sort_unstable();
        experts.dedup();
    }
}

/// Looks up the experts of tokens, into the choices of `routed`.
pub(super) fn look_up(
    (model, layer, spec): (&ModelSpec, usize, &MoeSpec),
    weights: &dyn Weights,
    tokens: &[u32],
    routed: &mut Routed,
) -> Result<(), SourceError> {
    let k = spec.top_k;
    let table = table(model, layer, k, weights);
    routed.choices.resize(tokens.len() * k, 0);
    for (choices, &token) in routed.choices.chunks_exact_mut(k).zip(tokens) {
        for (place, expert) in table.row(token).enumerate() {
            match expert {
                Some(expert)
                    if (expert as usize) < spec.experts && !choices[..place].contains(&expert) =>
                {
                    choices[place] = expert;
                }
                _ => return Err(BadTable { layer, token }.into()),
            }
        }
    }
    Ok(())
}

/// The experts of all tokens, which are stored as integers of 64 or 32 bits.
struct ExpertTable<'w> {
    numbers: &'w [f32],
    /// Floats of a token.
    width: usize,
    wide: bool,
}

fn table<'w>(
    model: &ModelSpec,
    layer: usize,
    top_k: usize,
    weights: &'w dyn Weights,
) -> ExpertTable<'w> {
    let id = PieceId::new(layer as u32, PieceKind::Router);
    let numbers = weights.vector(id, Role::ExpertTable);
    let wide = numbers.len() >= 2 * model.vocab * top_k;
    ExpertTable { numbers, width: if wide { 2 * top_k } else { top_k }, wide }
}

impl ExpertTable<'_> {
    /// The experts of a token. Halves of 64-bit integers are the bits of floats, the lower half
    /// first. `None` for an integer that is far too large, or negative.
    fn row(&self, token: u32) -> impl Iterator<Item = Option<u32>> + '_ {
        let row = &self.numbers[token as usize * self.width..][..self.width];
        row.chunks_exact(if self.wide { 2 } else { 1 }).map(|number| match *number {
            [low, high] => (high.to_bits() == 0).then_some(low.to_bits()),
            [number] => Some(number.to_bits()),
            _ => None,
        })
    }
}
