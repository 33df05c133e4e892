//! The tensors that a model needs, and the check that all of them are present and well-formed.

use std::collections::HashMap;

use sws_format::{Dtype, Manifest, Piece, PieceId, PieceKind, Tensor};
use sws_kernels::Encoding;

use crate::families::{self, Names};
use crate::order::TensorSpec;
use crate::role::Role;
use crate::spec::{AttentionGate, Ffn, GateUp, Mixer, ModelSpec, MoeSpec, Router};

/// The tensors of every piece that the forward pass requests, by role.
#[derive(Debug)]
pub struct Inventory {
    pieces: HashMap<PieceId, Vec<HeldTensor>>,
}

/// One tensor of a piece.
#[derive(Clone, Copy, Debug)]
pub struct HeldTensor {
    /// Role of the tensor in its piece.
    pub role: Role,
    /// Index in [`Piece::tensors`].
    pub index: usize,
    /// Encoding in the store.
    pub encoding: Encoding,
    /// Rows; 1 for a norm or bias.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
}

/// Reasons why weights do not fit their configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum WeightsError {
    /// Tensors required by the configuration are absent.
    #[error(
        "the weights lack {names}, which their configuration asks for; download the rest of them, or the configuration that belongs to them"
    )]
    Missing {
        /// The first few missing names.
        names: String,
    },
    /// A tensor whose shape differs from the configuration.
    #[error(
        "the tensor `{name}` has the shape {found:?} where the configuration asks for {expected:?}; download both again, from the same place"
    )]
    Shape { name: String, found: Vec<u64>, expected: Vec<u64> },
    /// A tensor in an unsupported number format.
    #[error(
        "the tensor `{name}` is stored as {found}, and {supported} can be computed with; convert the checkpoint to bf16"
    )]
    Dtype { name: String, found: String, supported: &'static str },
    /// Quantised codes whose scales are missing.
    #[error(
        "the tensor `{name}` is stored as {found}, and its scales are missing; download the rest of the checkpoint"
    )]
    NoScales {
        name: String,
        /// Type of its codes.
        found: Dtype,
    },
    /// A matrix of a checkpoint in place whose bytes are in another order.
    #[error(
        "the tensor `{name}` is stored with rows and columns exchanged, and cannot be read in place; make shards with `sws shard` and use those"
    )]
    Transposed { name: String },
    /// A matrix of a checkpoint in place whose codes are packed along columns.
    #[error(
        "the tensor `{name}` is packed along its columns, as AWQ and GPTQ do, and cannot be read in place; make shards with `sws shard` and use those"
    )]
    Packed { name: String },
    /// A weight that is NaN or infinite.
    #[error(
        "the tensor `{name}`{} holds {value} (row {row}, column {col}), which would make all text after it meaningless; download it again",
        file.as_ref().map_or(String::new(), |file| format!(", which the checkpoint has in `{file}`,"))
    )]
    NotFinite {
        name: String,
        /// The tensor's file in the checkpoint, unless the surrounding error names it.
        file: Option<String>,
        value: f32,
        /// Row of the first such weight.
        row: usize,
        /// Column of the first such weight.
        col: usize,
    },
    /// A piece whose size differs from the manifest.
    #[error(
        "the piece {piece} was given with {found} bytes where the manifest says {expected}; this is a bug, please report it"
    )]
    Bytes {
        piece: PieceId,
        /// Actual size in bytes.
        found: u64,
        /// Expected size in bytes.
        expected: u64,
    },
    /// The model types of manifest and configuration differ.
    #[error(
        "the weights are of model type `{found}`, and the configuration says `{expected}`; use the two that belong together"
    )]
    ModelType {
        /// The type in the manifest.
        found: String,
        /// The type in the configuration.
        expected: String,
    },
}

/// Maximum number of missing tensors named; it also bounds the search in a configuration with a
/// billion of them.
const NAMED: usize = 4;

impl Inventory {
    /// Finds every tensor that `spec` asks for, and checks shapes and types. Unused tensors are no
    /// error: some checkpoints contain them.
    pub fn new(spec: &ModelSpec, manifest: &Manifest) -> Result<Inventory, WeightsError> {
        let found = &manifest.model.model_type;
        let names = match families::names(&spec.model_type, spec.wrapper.as_deref()) {
            Some(names) if *found == spec.model_type => names.of_weights(manifest),
            _ => {
                let expected = spec.model_type.clone();
                return Err(WeightsError::ModelType { found: found.clone(), expected });
            }
        };
        let mut search = Search { names, manifest, found: HashMap::new(), missing: Vec::new() };
        spec.pieces(|id, tensors| search.take(id, tensors))?;
        search.complete()?;
        Ok(Inventory { pieces: search.found })
    }

    /// The tensors of a piece in the order of computation; empty if the forward pass does not need
    /// the piece.
    pub fn piece(&self, id: PieceId) -> &[HeldTensor] {
        self.pieces.get(&id).map_or(&[], Vec::as_slice)
    }

    /// The pieces that the forward pass requests, in no particular order.
    pub fn pieces(&self) -> impl Iterator<Item = PieceId> {
        self.pieces.keys().copied()
    }
}

impl ModelSpec {
    /// The spec, adapted to these weights. If a configuration does not determine whether gates and
    /// ups of experts are one tensor, the spec assumes one until it sees the weights. A head among
    /// the weights is used even if the configuration ties the head to the embedding. Kimi K3 stores
    /// more rates of decay than it has heads, and its configuration does not contain their number.
    pub fn for_weights(mut self, manifest: &Manifest) -> ModelSpec {
        self.tied &= manifest.piece(PieceId::LM_HEAD).is_none();
        let Some(names) = families::names(&self.model_type, self.wrapper.as_deref()) else {
            return self;
        };
        let names = names.of_weights(manifest);
        if let Some(head) = manifest.piece(PieceId::LM_HEAD)
            && let Some(tensor) = head.tensors.first()
            && tensor.shape.first() == Some(&(self.vocab as u64))
        {
            self.head.rows[0] = self.vocab;
        }
        // Published weights of A.X K1 have no corrections, whose defaults are zero.
        if self.model_type == "axk1" && !has_correction(manifest, names, self.layers.len()) {
            for layer in &mut self.layers {
                if let Ffn::Moe(MoeSpec { router: Router::Ranked(router), .. }) = &mut layer.ffn {
                    router.correction = false;
                }
            }
        }
        for (layer, spec) in (0..).zip(&mut self.layers) {
            if let Some(ngrams) = &mut spec.ngrams {
                let more = ngrams.numbers.is_some();
                ngrams.parts = parts_of(manifest, layer, &ngrams.parts, more);
            }
            let id = PieceId::expert(layer, 0);
            if let Ffn::Moe(moe) = &mut spec.ffn
                && moe.expert.gate_up == GateUp::Halves
                && let Some(piece) = manifest.piece(id)
                && names.names_of(id, Role::Gate).any(|name| named(piece, &name).is_some())
            {
                moe.expert.gate_up = GateUp::Separate;
            }
            let id = PieceId::new(layer, PieceKind::Attention);
            // GGUF files have no key for the kind of Laguna's gates.
            if self.model_type == "laguna"
                && let Mixer::Attention(attention) = &mut spec.mixer
                && let Some(AttentionGate::Own { per_head, .. }) = &mut attention.gate
                && let Some(piece) = manifest.piece(id)
                && let name = names.name_of(id, Role::OutputGate)
                && let Some(tensor) = named(piece, &name)
            {
                *per_head = tensor.shape.first() == Some(&(attention.heads as u64));
            }
            if self.wrapper.as_deref() == Some("kimi_k3")
                && let Mixer::Delta(delta) = &mut spec.mixer
                && let Some(piece) = manifest.piece(id)
                && let name = names.name_of(id, Role::DecayRate)
                && let Some(tensor) = named(piece, &name)
                && let [count] = *tensor.shape
            {
                delta.rates = usize::try_from(count).unwrap_or(usize::MAX).max(delta.heads);
            }
        }
        self
    }
}

/// True if the router of any layer has a correction.
fn has_correction(manifest: &Manifest, names: Names, layers: usize) -> bool {
    for layer in 0..layers as u32 {
        let id = PieceId::new(layer, PieceKind::Router);
        let name = names.name_of(id, Role::RouterCorrection);
        if let Some(piece) = manifest.piece(id)
            && named(piece, &name).is_some()
        {
            return true;
        }
    }
    false
}

/// The tensor of a piece with this name.
fn named<'p>(piece: &'p Piece, name: &str) -> Option<&'p Tensor> {
    Some(&piece.tensors[index_of(piece, name)?])
}

/// The index of a tensor in its piece.
fn index_of(piece: &Piece, name: &str) -> Option<usize> {
    piece.tensors.iter().position(|tensor| tensor.name == name)
}

/// The numbers of rows in the parts of a table, as stored in the weights, if their sum is that of
/// the configuration, or, with `more`, above it.
fn parts_of(manifest: &Manifest, layer: u32, expected: &[usize], more: bool) -> Vec<usize> {
    let mut found = Vec::new();
    for part in 0..expected.len() as u32 {
        let piece = manifest.piece(PieceId::new(layer, PieceKind::Table(part)));
        let Some(rows) = piece.and_then(rows_of_table) else { break };
        found.push(rows);
    }
    let sum = checked_sum(&found);
    let same = sum == checked_sum(expected) || (more && sum > checked_sum(expected));
    let same = same && found.len() == expected.len();
    if same { found } else { expected.to_vec() }
}

/// The number of rows in the matrix of a part of a table.
fn rows_of_table(piece: &Piece) -> Option<usize> {
    let table = piece.tensors.iter().find(|tensor| tensor.shape.len() == 2)?;
    usize::try_from(table.shape[0]).ok()
}

fn checked_sum(numbers: &[usize]) -> Option<usize> {
    numbers.iter().try_fold(0usize, |sum, number| sum.checked_add(*number))
}

struct Search<'a> {
    names: Names,
    manifest: &'a Manifest,
    found: HashMap<PieceId, Vec<HeldTensor>>,
    /// The possible names of each missing tensor.
    missing: Vec<String>,
}

impl Search<'_> {
    fn take(&mut self, id: PieceId, wanted: &[TensorSpec]) -> Result<(), WeightsError> {
        let piece = self.manifest.piece(id);
        let mut held = Vec::with_capacity(wanted.len());
        for wanted in wanted {
            let name = self.names.name_of(id, wanted.role);
            if let Some(piece) = piece
                && let Some(index) = self.index(piece, id, &name, wanted.role)
            {
                let tensor = &piece.tensors[index];
                let name = tensor.name.clone();
                // Shards store rows, even if the checkpoint does not.
                if tensor.transposed && self.manifest.encoding.is_none() {
                    return Err(WeightsError::Transposed { name });
                }
                if tensor.packing.is_some() && self.manifest.encoding.is_none() {
                    return Err(WeightsError::Packed { name });
                }
                held.push(check(piece, index, wanted)?);
            } else {
                // Nothing tells which of its names this checkpoint would have.
                let mut all = format!("`{name}`");
                for other in self.names.names_of(id, wanted.role).skip(1) {
                    all += &format!(" or `{other}`");
                }
                self.missing.push(all);
            }
        }
        self.found.insert(id, held);
        if self.missing.len() > NAMED { self.complete() } else { Ok(()) }
    }

    /// The index of a tensor in its piece, by its first name or another one.
    fn index(&self, piece: &Piece, id: PieceId, name: &str, role: Role) -> Option<usize> {
        let mut others = self.names.names_of(id, role).skip(1);
        index_of(piece, name).or_else(|| others.find_map(|name| index_of(piece, &name)))
    }

    /// Fails if a tensor is missing.
    fn complete(&self) -> Result<(), WeightsError> {
        if self.missing.is_empty() {
            return Ok(());
        }
        let mut names = self.missing[..NAMED.min(self.missing.len())].join(", ");
        if self.missing.len() > NAMED {
            names += " and more";
        }
        Err(WeightsError::Missing { names })
    }
}

fn check(piece: &Piece, index: usize, wanted: &TensorSpec) -> Result<HeldTensor, WeightsError> {
    let tensor = &piece.tensors[index];
    let expected = wanted.shape();
    // Some formats write a matrix of one row as a vector, and convolutions have a dimension for the
    // one channel of each. GGUF files have one for the heads of latent attention, and one for the
    // groups of a norm, and files of Inkling one for shared experts.
    let heads = matches!(wanted.role, Role::KeyUp | Role::ValueUp)
        || piece.id.kind() == PieceKind::SharedExpert;
    let fits = match *tensor.shape {
        [heads_of, rows, cols] if heads => expected == [heads_of.saturating_mul(rows), cols],
        [groups, each] if wanted.role == Role::MixedNorm => {
            expected == [groups.saturating_mul(each)]
        }
        _ => without_ones(&tensor.shape).eq(without_ones(&expected)),
    };
    if !fits {
        let name = tensor.name.clone();
        let found = tensor.shape.clone();
        return Err(WeightsError::Shape { name, found, expected });
    }
    let matrix = wanted.role.is_matrix();
    match tensor.encoding {
        // 64-bit integers, whose halves are stored as the bits of floats.
        None if wanted.role.is_whole() && tensor.dtype == Dtype::I64 => {
            let encoding = Encoding::F32;
            let cols = 2 * wanted.cols;
            Ok(HeldTensor { role: wanted.role, index, encoding, rows: wanted.rows, cols })
        }
        // Files of llama.cpp have the experts of tokens as 32-bit integers.
        None if wanted.role == Role::ExpertTable && tensor.dtype == Dtype::I32 => {
            let encoding = Encoding::F32;
            Ok(HeldTensor {
                role: wanted.role,
                index,
                encoding,
                rows: wanted.rows,
                cols: wanted.cols,
            })
        }
        _ if wanted.role.is_whole() => Err(WeightsError::Dtype {
            name: tensor.name.clone(),
            found: format!("{:?}", tensor.dtype),
            supported: "i64",
        }),
        Some(encoding) if matrix || encoding.is_plain() => Ok(HeldTensor {
            role: wanted.role,
            index,
            encoding,
            rows: wanted.rows,
            cols: wanted.cols,
        }),
        None if matrix && matches!(tensor.dtype, Dtype::F8_E4M3 | Dtype::U8 | Dtype::I8) => {
            Err(WeightsError::NoScales { name: tensor.name.clone(), found: tensor.dtype })
        }
        encoding => Err(WeightsError::Dtype {
            name: tensor.name.clone(),
            found: match encoding {
                Some(encoding) => encoding.to_string(),
                None => format!("{:?}", tensor.dtype),
            },
            supported: if matrix {
                "f32, f16, bf16 and our encodings"
            } else {
                "f32, f16 and bf16"
            },
        }),
    }
}

/// A shape without the dimensions that are 1.
fn without_ones(shape: &[u64]) -> impl Iterator<Item = &u64> {
    shape.iter().filter(|&&dim| dim != 1)
}
