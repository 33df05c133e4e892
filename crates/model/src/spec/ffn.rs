//! MLPs, and shared experts.

use sws_format::PieceKind;
use sws_kernels::functional::Activation;

use crate::role::Role;

/// A gated MLP: down(activation(gate(x), up(x))).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MlpSpec {
    /// Number of gates, and of ups.
    pub width: usize,
    /// True if all matrices have biases.
    pub bias: bool,
    /// The activation of a gate and its up.
    pub activation: Activation,
    /// The matrices that compute gates and ups.
    pub gate_up: GateUp,
}

/// The matrices that compute the gates and ups of an MLP. If they share a matrix, they share a
/// bias, too.
///
/// A row of a product depends on a single row of the matrix. A product that is split therefore has
/// the bits of two products, and the common matrix is stored, read and encoded as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateUp {
    /// One matrix each.
    Separate,
    /// A common matrix, with the rows of all gates before those of all ups.
    Halves,
    /// A common matrix, with the row of each gate before that of its up.
    Interleaved,
    /// A single matrix of ups, whose activation has no second factor.
    Ups,
}

/// A shared expert.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedSpec {
    /// The computation of the shared expert.
    pub mlp: MlpSpec,
    /// True if its output is multiplied by the sigmoid of a separate router row.
    pub gated: bool,
    /// True if its tensors are those of the MLP in models or layers without experts.
    pub is_mlp: bool,
    /// True if its output and the sum of the routed experts are averaged instead of added up.
    pub averaged: bool,
}

impl MlpSpec {
    /// down(silu(gate(x)) · up(x)) with a matrix for each and no biases, as in most families.
    pub const fn silu(width: usize) -> MlpSpec {
        let activation = Activation::Silu;
        let gate_up = GateUp::Separate;
        MlpSpec { width, bias: false, activation, gate_up }
    }

    /// The matrices that compute gates and ups, each with its bias.
    pub(crate) const fn gates(&self) -> &'static [(Role, Role)] {
        match self.gate_up {
            GateUp::Separate => &[(Role::Gate, Role::GateBias), (Role::Up, Role::UpBias)],
            GateUp::Halves | GateUp::Interleaved => &[(Role::GateUp, Role::GateUpBias)],
            GateUp::Ups => &[(Role::Up, Role::UpBias)],
        }
    }

    /// Rows of each of these matrices.
    pub(crate) const fn gate_rows(&self) -> usize {
        match self.gate_up {
            GateUp::Separate | GateUp::Ups => self.width,
            GateUp::Halves | GateUp::Interleaved => 2 * self.width,
        }
    }
}

impl SharedSpec {
    /// A shared expert whose output is added to the sum of the others.
    pub const fn added(mlp: MlpSpec) -> SharedSpec {
        SharedSpec { mlp, gated: false, is_mlp: false, averaged: false }
    }

    /// The piece with its tensors.
    pub(crate) const fn piece(&self) -> PieceKind {
        if self.is_mlp { PieceKind::Mlp } else { PieceKind::SharedExpert }
    }
}
