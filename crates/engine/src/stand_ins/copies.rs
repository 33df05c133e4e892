//! Stand-ins: small, inexact copies of experts that stay in memory, and bounds on their errors.

use std::collections::HashMap;

use sws_format::{Piece, PieceId};
use sws_kernels::Matrix;
use sws_kernels::functional::Activation;
use sws_model::{Contribution, Inventory, MlpSpec, Role};
use sws_store::{Arena, NVMeWeightStore};

use crate::error::StreamError;
use crate::infrastructure::ResidentPieces;
use crate::reads::held_tensor;

/// Choice of the stand-ins that stay in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StandInUse {
    /// No stand-ins.
    #[default]
    Off,
    /// As many as fit into an eighth of the experts' memory, layer by layer from the first: early
    /// layers reveal most about later ones.
    Auto,
    /// All stand-ins, at the expense of expert slots.
    All,
}

impl StandInUse {
    /// All choices.
    pub const ALL: [StandInUse; 3] = [StandInUse::Off, StandInUse::Auto, StandInUse::All];

    /// Name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            StandInUse::Off => "off",
            StandInUse::Auto => "auto",
            StandInUse::All => "all",
        }
    }
}

/// The stand-ins in memory.
#[derive(Debug, Default)]
pub struct StandIns {
    held: ResidentPieces,
    bounds: HashMap<PieceId, Option<ErrorBound>>,
}

impl StandIns {
    /// Reads the stand-ins of these experts into slots of `arena`.
    pub fn load(
        store: &NVMeWeightStore,
        arena: &Arena,
        inventory: &Inventory,
        experts: &[PieceId],
    ) -> Result<StandIns, StreamError> {
        let held = ResidentPieces::stand_ins(store, arena, inventory, experts)?;
        let mut bounds = HashMap::with_capacity(experts.len());
        for &id in experts {
            let piece = store.manifest().piece(id);
            bounds.insert(id, piece.and_then(|piece| ErrorBound::of(piece, inventory)));
        }
        Ok(StandIns { held, bounds })
    }

    /// True if the stand-in of an expert is in memory.
    pub fn contains(&self, expert: PieceId) -> bool {
        self.bounds.contains_key(&expert)
    }

    /// True if the stand-ins of the first `experts` experts of a layer are in memory.
    pub(crate) fn covers(&self, layer: u32, experts: u32) -> bool {
        (0..experts).all(|expert| self.contains(PieceId::expert(layer, expert)))
    }

    /// Error bound of the stand-in of an expert; `None` if it is unknown.
    pub fn bound(&self, expert: PieceId) -> Option<&ErrorBound> {
        self.bounds.get(&expert)?.as_ref()
    }

    /// A part of a stand-in's matrix or bias, by its suffix.
    pub(crate) fn part(&self, expert: PieceId, role: Role, suffix: &str) -> Option<&[u8]> {
        self.held.part(expert, role, suffix)
    }

    pub(crate) fn matrix(&self, expert: PieceId, role: Role) -> Option<Matrix<'_>> {
        self.held.matrix(expert, role)
    }
}

/// Bound on the distance between the outputs of a stand-in and of its expert.
///
/// With x the input, s = silu(G x), u = U x, h = s ∘ u and y = D h computed by the stand-in, and
/// ΔG, ΔU, ΔD the changes of its matrices:
///
/// ‖Δy‖ ≤ ‖ΔD‖‖h‖ + ‖D‖‖Δh‖ + ‖ΔD‖‖Δh‖, and
/// ‖Δh‖ ≤ 1.1 ‖ΔG‖‖x‖ · max|u| + (max|s| + 1.1 ‖ΔG‖‖x‖) · ‖ΔU‖‖x‖
///
/// as silu changes by at most 1.1 times the change of its argument. Biases are the same in both:
/// they are part of s and u, and cancel in Δy. A matrix that holds both G and U is bounded as
/// each: its norms are at least those of its rows. The bound is for exact arithmetic; the expert's
/// own output has rounding errors of the same size.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ErrorBound {
    /// Upper bound of ‖ΔG‖.
    pub gate: f64,
    /// Upper bound of ‖ΔU‖.
    pub up: f64,
    /// Upper bound of ‖D‖.
    pub down: f64,
    /// Upper bound of ‖ΔD‖.
    pub down_error: f64,
}

/// max |silu'|, rounded up.
const SILU_SLOPE: f64 = 1.1;

impl ErrorBound {
    /// True if the bound is proven for experts of this kind. The slope of another activation may
    /// exceed that of silu, and need not be bounded in the other argument at all.
    pub fn holds_for(expert: &MlpSpec) -> bool {
        match expert.activation {
            Activation::Silu => true,
            Activation::Sigmoid
            | Activation::ReluSquared
            | Activation::Softplus
            | Activation::CappedSilu { .. }
            | Activation::GeluTanh
            | Activation::GeluErf
            | Activation::SiluClamped(_)
            | Activation::Clamped { .. }
            | Activation::Situ { .. } => false,
        }
    }

    /// Returns the bound of an expert from the norms in the manifest. `None` if a norm is unknown,
    /// or if the expert itself differs from the checkpoint's.
    fn of(piece: &Piece, inventory: &Inventory) -> Option<ErrorBound> {
        let both = norms(piece, inventory, Role::GateUp);
        let [_, gate] = norms(piece, inventory, Role::Gate).or(both)?;
        let [_, up] = norms(piece, inventory, Role::Up).or(both)?;
        let [down, down_error] = norms(piece, inventory, Role::Down)?;
        Some(ErrorBound { gate, up, down, down_error })
    }

    /// Upper bound of ‖Δy‖, before multiplication by the router's weight.
    pub fn output(&self, of: &Contribution) -> f64 {
        let gate = SILU_SLOPE * self.gate * of.input;
        let hidden = gate * of.up + (of.gate + gate) * self.up * of.input;
        self.down_error * of.hidden + (self.down + self.down_error) * hidden
    }

    /// Weighted error as a share of the norm of the state to which the output is added. NaN if any
    /// input is NaN, or both weight and state are 0.
    pub fn share(&self, of: &Contribution) -> f64 {
        of.weight * self.output(of) / of.state
    }
}

/// Norms of a matrix of an expert, and of the error of its stand-in. `None` if one is unknown, or if
/// the expert itself differs from the checkpoint's.
fn norms(piece: &Piece, inventory: &Inventory, role: Role) -> Option<[f64; 2]> {
    let stand_in = piece.stand_in.as_ref()?;
    let held = held_tensor(inventory, piece.id, role)?;
    if piece.tensors.get(held.index)?.error.is_some() {
        return None;
    }
    let error = stand_in.tensors.get(held.index)?.error?;
    Some([error.spectral?, error.spectral_error?])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sws_kernels::{EncodedRows, Encoder, Encoding, SourceDtype};

    use super::*;

    /// [rows, cols]
    #[derive(Clone, Debug)]
    struct DenseMatrix(Vec<f64>, usize);

    impl DenseMatrix {
        fn times(&self, x: &[f64]) -> Vec<f64> {
            let dot = |row: &[f64]| row.iter().zip(x).map(|(w, x)| w * x).sum();
            self.0.chunks(self.1).map(dot).collect()
        }

        fn minus(&self, other: &DenseMatrix) -> DenseMatrix {
            DenseMatrix(self.0.iter().zip(&other.0).map(|(a, b)| a - b).collect(), self.1)
        }

        /// Spectral norm by the power method, with a margin for its error.
        fn norm(&self) -> f64 {
            let mut v: Vec<f64> = (0..self.1).map(|i| 1.0 + (i % 5) as f64).collect();
            let mut found = 0.0;
            for _ in 0..200 {
                let y = self.times(&v);
                let mut next = vec![0.0; self.1];
                for (row, y) in self.0.chunks(self.1).zip(&y) {
                    next.iter_mut().zip(row).for_each(|(n, w)| *n += w * y);
                }
                let len = length(&next);
                if len == 0.0 {
                    break;
                }
                found = len.sqrt();
                v = next.into_iter().map(|n| n / len).collect();
            }
            1.001 * found
        }

        /// The numbers after a round trip through an encoding.
        fn through(&self, encoding: Encoding) -> DenseMatrix {
            let bytes: Vec<u8> = self.0.iter().flat_map(|w| (*w as f32).to_le_bytes()).collect();
            let mut rows = EncodedRows::default();
            let encoder = Encoder::new(encoding, SourceDtype::F32, self.1).unwrap();
            encoder.encode(&bytes, &mut rows).unwrap();
            let parts = rows.parts.each_ref().map(Vec::as_slice);
            let parts = &parts[..encoding.parts().len()];
            let matrix = Matrix::new(encoding, self.0.len() / self.1, self.1, parts).unwrap();
            let mut out = vec![0.0; self.1];
            let decoded = (0..matrix.row_count()).flat_map(|row| {
                matrix.decode_row(row, &mut out);
                out.iter().map(|w| f64::from(*w)).collect::<Vec<_>>()
            });
            DenseMatrix(decoded.collect(), self.1)
        }
    }

    fn length(x: &[f64]) -> f64 {
        x.iter().map(|x| x * x).sum::<f64>().sqrt()
    }

    fn silu(x: f64) -> f64 {
        x / (1.0 + (-x).exp())
    }

    /// s, u, h and y of an expert.
    fn expert([gate, up, down]: [&DenseMatrix; 3], x: &[f64]) -> [Vec<f64>; 4] {
        let s: Vec<f64> = gate.times(x).into_iter().map(silu).collect();
        let u = up.times(x);
        let h: Vec<f64> = s.iter().zip(&u).map(|(s, u)| s * u).collect();
        let y = down.times(&h);
        [s, u, h, y]
    }

    fn matrix(rows: usize, cols: usize) -> impl Strategy<Value = DenseMatrix> {
        let scale = prop_oneof![Just(0.0), 0.01f64..0.1, 0.1f64..3.0];
        (prop::collection::vec(-1.0f64..1.0, rows * cols), scale).prop_map(move |(w, scale)| {
            // Rounded to f32, the input of the encoder.
            DenseMatrix(w.into_iter().map(|w| f64::from((w * scale) as f32)).collect(), cols)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        /// Random experts and inputs, small and large: the error of a stand-in never exceeds its
        /// bound, and the bound of an exact copy is 0.
        #[test]
        fn error_is_within_the_bound(
            gate in matrix(24, 70), up in matrix(24, 70), down in matrix(70, 24),
            x in prop::collection::vec(-1.0f64..1.0, 70),
            scale in prop_oneof![0.01f64..1.0, 1.0f64..30.0],
            encoding in prop_oneof![Just(Encoding::Q4), Just(Encoding::Q8), Just(Encoding::F32)],
        ) {
            let x: Vec<f64> = x.into_iter().map(|x| x * scale).collect();
            let exact = [&gate, &up, &down];
            let other = exact.map(|w| w.through(encoding));
            let [g, u, d] = &other;
            let bound = ErrorBound {
                gate: g.minus(&gate).norm(),
                up: u.minus(&up).norm(),
                down: down.norm(),
                down_error: d.minus(&down).norm(),
            };
            let [.., y] = expert(exact, &x);
            let [s, us, h, z] = expert([g, u, d], &x);
            let most = |x: &[f64]| x.iter().fold(0.0f64, |most, x| most.max(x.abs()));
            let of = Contribution {
                input: length(&x),
                gate: most(&s),
                up: most(&us),
                hidden: length(&h),
                weight: 0.5,
                state: 2.0,
            };
            let change: Vec<f64> = z.iter().zip(&y).map(|(z, y)| z - y).collect();
            let found = length(&change);
            let bounded = bound.output(&of);
            prop_assert!(found <= bounded * (1.0 + 1e-9), "{found} above {bounded}");
            prop_assert!(encoding != Encoding::F32 || bounded == 0.0, "an exact copy has no error");
            prop_assert_eq!(bound.share(&of), bounded / 4.0);
        }
    }

    #[test]
    fn share_of_unknown_values_is_nan() {
        let bound = ErrorBound { gate: 1.0, up: 1.0, down: 1.0, down_error: 1.0 };
        let whole =
            Contribution { input: 1.0, gate: 1.0, up: 1.0, hidden: 1.0, weight: 1.0, state: 1.0 };
        assert!(bound.share(&whole) > 1.0);
        for nan in [
            Contribution { hidden: f64::NAN, ..whole },
            Contribution { input: f64::NAN, ..whole },
            Contribution { state: 0.0, weight: 0.0, ..whole },
        ] {
            assert!(bound.share(&nan).is_nan(), "{nan:?}");
        }
    }
}
