//! Gated MLPs: a single one for all rows, and the parts shared with experts.

use sws_format::PieceId;
use sws_kernels::functional::{add, gate, gate_interleaved};
use sws_kernels::{PackedInput, ScratchPool, Tier};

use super::by_rows::by_rows;
use super::linear::{Product, multiply};
use super::mixer::add_bias;
use super::norms::scale_row;
use crate::role::Role;
use crate::source::{SourceError, Weights};
use crate::spec::{GateUp, MlpSpec};
use crate::workspace::{MlpWork, grown};

/// An MLP that every token goes through.
pub(super) struct MlpBlock {
    pub(super) tier: Tier,
    pub(super) piece: PieceId,
    pub(super) spec: MlpSpec,
}

/// down(activation(gate · x, up · x)).
pub(super) fn gated_mlp(
    MlpBlock { tier, piece, spec }: MlpBlock,
    weights: &mut dyn Weights,
    x: &PackedInput,
    work: &mut MlpWork,
    y: &mut [f32],
    scratch: &mut ScratchPool,
) -> Result<(), SourceError> {
    let tokens = x.tokens();
    let rows = spec.gate_rows();
    let MlpWork { gate, up, packed, .. } = work;
    let gates = grown(gate, tokens * rows);
    let ups = grown(up, tokens * spec.width);
    let mut products = [const { None }; 2];
    let to = [&mut *gates, &mut *ups];
    for ((product, &(role, _)), y) in products.iter_mut().zip(spec.gates()).zip(to) {
        *product = Some(Product::new(piece, role, x, y, rows));
    }
    multiply(tier, weights, &mut products, scratch)?;
    if spec.bias {
        for (&(_, bias), y) in spec.gates().iter().zip([&mut *gates, &mut *ups]) {
            add_bias(tier, weights.vector(piece, bias), y);
        }
    }
    let activated = activate(tier, spec, gates, ups);
    if packed.is_empty() {
        packed.push(PackedInput::new());
    }
    packed[0].pack(tier, activated, tokens, spec.width);
    let hidden = y.len() / tokens;
    let down = Product::new(piece, Role::Down, &packed[0], &mut *y, hidden);
    multiply(tier, weights, &mut [Some(down)], scratch)?;
    if spec.bias {
        add_bias(tier, weights.vector(piece, Role::DownBias), y);
    }
    Ok(())
}

/// The sum of several MLPs, whose gates and ups are one matrix, and whose down matrices follow each
/// other. The activations of each MLP are multiplied by a factor of the token: `factors` [tokens,
/// MLPs].
pub(super) fn weighed_mlp(
    MlpBlock { tier, piece, spec }: MlpBlock,
    factors: &[f32],
    weights: &mut dyn Weights,
    x: &PackedInput,
    work: &mut MlpWork,
    y: &mut [f32],
    scratch: &mut ScratchPool,
) -> Result<(), SourceError> {
    let tokens = x.tokens();
    let rows = spec.gate_rows();
    let parts = factors.len() / tokens;
    let hidden = y.len() / tokens;
    let each = spec.width / parts;
    let MlpWork { gate, up, packed, .. } = work;
    let gates = grown(gate, tokens * rows.max(parts * parts * hidden));
    let ups = grown(up, tokens * spec.width);
    let of_gates = &mut gates[..tokens * rows];
    let product = Product::new(piece, Role::GateUp, x, &mut *of_gates, rows);
    multiply(tier, weights, &mut [Some(product)], scratch)?;
    let activated = activate(tier, spec, of_gates, ups);
    for (part, factor) in activated.chunks_exact_mut(each).zip(factors) {
        scale_row(*factor, part);
    }
    if packed.is_empty() {
        packed.push(PackedInput::new());
    }
    packed[0].pack(tier, activated, tokens * parts, each);
    // Each row is multiplied with all matrices, and only the product with its own matrix is used.
    let all = &mut gates[..tokens * parts * parts * hidden];
    let down = Product::new(piece, Role::Down, &packed[0], &mut *all, parts * hidden);
    multiply(tier, weights, &mut [Some(down)], scratch)?;
    let all = &*all;
    by_rows(y, hidden, |first, y| {
        let of_tokens = all[first * parts * parts * hidden..].chunks_exact(parts * parts * hidden);
        for (y, all) in y.chunks_exact_mut(hidden).zip(of_tokens) {
            y.fill(0.0);
            for part in 0..parts {
                add(tier, &all[(part * parts + part) * hidden..][..hidden], y);
            }
        }
    });
    Ok(())
}

/// Applies the activation to `gates` and `ups` [rows, width]. If gates and ups are one product,
/// `gates` is that product [rows, 2 · width], and `ups` is a buffer. If there are only ups, `gates`
/// has them, and `ups` is a buffer. Returns the result [rows, width], which is in the buffer chosen
/// by [`activated`].
pub(super) fn activate<'x>(
    tier: Tier,
    spec: MlpSpec,
    gates: &'x mut [f32],
    ups: &'x mut [f32],
) -> &'x mut [f32] {
    let MlpSpec { width, activation, gate_up, .. } = spec;
    match gate_up {
        GateUp::Separate | GateUp::Ups => by_rows(gates, width, |first, gates| {
            gate(tier, activation, gates, &ups[first * width..][..gates.len()]);
        }),
        GateUp::Halves => by_rows(ups, width, |first, y| {
            let both = gates[2 * first * width..].chunks_exact(2 * width);
            for (y, both) in y.chunks_exact_mut(width).zip(both) {
                let (gates, ups) = both.split_at(width);
                y.copy_from_slice(gates);
                gate(tier, activation, y, ups);
            }
        }),
        GateUp::Interleaved => by_rows(ups, width, |first, y| {
            let both = &gates[2 * first * width..][..2 * y.len()];
            gate_interleaved(tier, activation, both, y);
        }),
    }
    activated(spec, gates, ups)
}

/// Returns the buffer of [`activate`] that has the result.
pub(super) fn activated<T>(spec: MlpSpec, gates: T, ups: T) -> T {
    match spec.gate_up {
        GateUp::Separate | GateUp::Ups => gates,
        GateUp::Halves | GateUp::Interleaved => ups,
    }
}

/// The gates and ups of a row before their activation, each as a slice and its stride.
pub(super) fn gates_and_ups<'x>(
    spec: MlpSpec,
    row: usize,
    gates: &'x [f32],
    ups: &'x [f32],
) -> [(&'x [f32], usize); 2] {
    let width = spec.width;
    match spec.gate_up {
        GateUp::Ups => [(&gates[row * width..][..width], 1); 2],
        GateUp::Separate => {
            [(&gates[row * width..][..width], 1), (&ups[row * width..][..width], 1)]
        }
        GateUp::Halves => {
            let (gates, ups) = gates[2 * row * width..][..2 * width].split_at(width);
            [(gates, 1), (ups, 1)]
        }
        GateUp::Interleaved => {
            let both = &gates[2 * row * width..][..2 * width];
            [(both, 2), (&both[1..], 2)]
        }
    }
}

#[cfg(test)]
mod tests {
    use sws_kernels::functional::Activation;

    use super::*;

    #[test]
    fn activated_bits_do_not_depend_on_the_layout_of_gates_and_ups() {
        let rows = 3;
        let width = 37;
        let number = |i: usize| (i as f32 * 0.61).sin() * 4.0;
        let gate = |row: usize, i: usize| number(row * width + i);
        let up = |row: usize, i: usize| number(1000 + row * width + i);
        let each = |of: &dyn Fn(usize, usize) -> Vec<f32>| -> Vec<f32> {
            (0..rows).flat_map(|row| (0..width).flat_map(move |i| of(row, i))).collect()
        };
        let halves = |row: usize| -> Vec<f32> {
            let gates = (0..width).map(|i| gate(row, i));
            gates.chain((0..width).map(|i| up(row, i))).collect()
        };
        let layouts = [
            (GateUp::Separate, each(&|row, i| vec![gate(row, i)])),
            (GateUp::Halves, (0..rows).flat_map(halves).collect()),
            (GateUp::Interleaved, each(&|row, i| vec![gate(row, i), up(row, i)])),
        ];
        for activation in [Activation::Silu, Activation::Clamped { alpha: 1.7, limit: 2.0 }] {
            let expected: Vec<f32> = each(&|row, i| vec![activation.at(gate(row, i), up(row, i))]);
            for (gate_up, gates) in &layouts {
                let spec = MlpSpec { activation, gate_up: *gate_up, ..MlpSpec::silu(width) };
                let ups = each(&|row, i| vec![up(row, i)]);
                for row in 0..rows {
                    let [g, u] = gates_and_ups(spec, row, gates, &ups)
                        .map(|(x, step)| x.iter().copied().step_by(step).collect::<Vec<f32>>());
                    assert!(g.into_iter().eq((0..width).map(|i| gate(row, i))), "{gate_up:?}");
                    assert!(u.into_iter().eq((0..width).map(|i| up(row, i))), "{gate_up:?}");
                }
                let mut gates = gates.clone();
                let mut ups = ups;
                let found = activate(Tier::best(), spec, &mut gates, &mut ups);
                let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
                assert_eq!(bits(found), bits(&expected), "{gate_up:?} {activation:?}");
            }
        }
    }
}
