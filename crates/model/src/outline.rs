//! Models without weights: the tensors that follow from a specification alone.

use sws_format::{
    Dtype, Extent, FileEntry, Manifest, ModelIdentity, Piece, PieceKind, Tensor, check_len,
};
use sws_kernels::{Encoding, MatrixPart, PartLen};

use crate::families::{self, Family, Names, RuleTarget};
use crate::order::TensorSpec;
use crate::role::Role;
use crate::spec::ModelSpec;

/// A tensor of a checkpoint in the layout of the hub. It may stack the experts of a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubTensor {
    /// Name in the checkpoint.
    pub name: String,
    /// Shape, with the number of experts first if they are stacked.
    pub shape: Vec<u64>,
    /// True if the last two dimensions are exchanged in plain floats.
    pub transposed: bool,
    /// Kind of its piece; the first expert's if experts are stacked.
    pub kind: PieceKind,
    /// True for a matrix that can be stored quantised.
    pub matrix: bool,
    /// The number of experts, if this is the table that selects experts by token; `None` for
    /// weights.
    pub table: Option<u64>,
}

/// A model with more weights than any known one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the configuration describes more weights than any model has; download it again")]
pub struct TooManyWeights;

/// Maximum number of tensors. The largest published model has 250,000.
const MAX_TENSORS: usize = 300_000;
/// Maximum bytes of all weights. The largest published model has 6 TiB.
const MAX_BYTES: u64 = 8 << 40;
/// Maximum number of checksums of a part.
const MAX_CHECKS: u64 = 1 << 20;
/// Alignment of pieces, as in a shard of its own.
const PAGE: u64 = 4096;
/// Alignment of the parts of a tensor in a shard.
const PART: u64 = 64;

impl ModelSpec {
    /// The manifest that shards of this model would have. `encoding` returns the encoding of a
    /// matrix by the kind of its piece. Norms, routers and biases are bf16. Offsets refer to a
    /// single file, which does not exist.
    ///
    /// Lengths are exact except for patches: trained models have fewer than are counted here.
    pub fn outline(
        &self,
        encoding: impl Fn(PieceKind) -> Encoding,
    ) -> Result<Manifest, TooManyWeights> {
        let names = self.names();
        let mut pieces = Vec::new();
        let mut tensors = 0;
        let mut end = 0u64;
        self.pieces(|id, specs| {
            tensors += specs.len();
            if tensors > MAX_TENSORS {
                return Err(TooManyWeights);
            }
            end = end.next_multiple_of(PAGE);
            let mut own = Vec::with_capacity(specs.len());
            for spec in specs {
                let encoding = if is_encoded(names.family, id.kind(), spec.role) {
                    Some(encoding(id.kind()))
                } else {
                    (!spec.role.is_whole()).then_some(Encoding::Bf16)
                };
                let name = names.name_of(id, spec.role);
                let tensor = blank(name, spec, encoding, id.kind(), &mut end);
                own.push(tensor.ok_or(TooManyWeights)?);
            }
            pieces.push(Piece { id, tensors: own, stand_in: None });
            if end > MAX_BYTES { Err(TooManyWeights) } else { Ok(()) }
        })?;
        pieces.sort_by_key(|piece| piece.id);
        Ok(Manifest {
            model: ModelIdentity {
                model_type: self.model_type.clone(),
                fingerprint: String::new(),
            },
            encoding: Some(encoding(PieceKind::Expert(0))),
            files: vec![FileEntry { path: "model".to_owned(), len: end }],
            pieces,
            copies: Vec::new(),
        })
    }

    /// The tensors of a checkpoint of this model in the layout of the hub, in the order of
    /// computation.
    pub fn hub_tensors(&self) -> Result<Vec<HubTensor>, TooManyWeights> {
        let names = self.names();
        let mut tensors = Vec::new();
        self.pieces(|id, specs| {
            for spec in specs {
                let table = match id.layer() {
                    Some(layer) if spec.role == Role::ExpertTable => Some(self.experts_in(layer)),
                    _ => None,
                };
                let mut tensor = HubTensor {
                    name: names.name_of(id, spec.role),
                    shape: spec.shape(),
                    transposed: false,
                    kind: id.kind(),
                    matrix: is_encoded(names.family, id.kind(), spec.role),
                    table,
                };
                if let Some(rule) = names.family.rule(id.kind(), spec.role)
                    && let RuleTarget::Experts { transposed } = rule.target
                    && let Some(layer) = id.layer()
                {
                    // The first expert represents all of them.
                    if id.kind() != PieceKind::Expert(0) {
                        continue;
                    }
                    tensor.shape.insert(0, self.experts_in(layer));
                    tensor.transposed = transposed;
                }
                if tensors.len() == MAX_TENSORS {
                    return Err(TooManyWeights);
                }
                tensors.push(tensor);
            }
            Ok(())
        })?;
        Ok(tensors)
    }

    /// Number of experts in a layer.
    fn experts_in(&self, layer: u32) -> u64 {
        self.layers[layer as usize].moe().map_or(0, |moe| moe.experts as u64)
    }

    fn names(&self) -> Names {
        families::names(&self.model_type, self.wrapper.as_deref())
            .expect("a specification was made by its family")
    }

    /// Number of weights of the whole model, and number of weights that a token is multiplied with:
    /// without the experts that it does not use, the embedding, and tables whose rows are looked
    /// up. Tables of experts are not weights.
    pub fn parameters(&self) -> [u64; 2] {
        let embedding = weights(&[self.embedding().1]);
        let mut ending = 0;
        for (_, tensor) in self.ending() {
            ending += weights(&[tensor]);
        }
        let mut tables = 0u64;
        for layer in 0..self.layers.len() {
            for (_, tensors) in self.table(layer) {
                tables = tables.saturating_add(weights(&tensors));
            }
        }
        let looked_up = if self.tied { tables } else { embedding.saturating_add(tables) };
        let mut parameters = [looked_up.saturating_add(ending), ending];
        for (layer, spec) in self.layers.iter().enumerate() {
            let pieces = self.layer_pieces(layer);
            let always: u64 = pieces.fixed.iter().map(|(_, tensors)| weights(tensors)).sum();
            let each = pieces.experts.map_or(0, |(_, tensors)| weights(&tensors));
            let [count, chosen] = spec.moe().map_or([0; 2], |moe| [moe.experts, moe.top_k]);
            for (parameters, experts) in parameters.iter_mut().zip([count, chosen]) {
                *parameters =
                    parameters.saturating_add(always + each.saturating_mul(experts as u64));
            }
        }
        parameters
    }
}

/// Number of weights of tensors.
fn weights(tensors: &[TensorSpec]) -> u64 {
    let mut count = 0u64;
    for tensor in tensors {
        if !tensor.role.is_whole() {
            let own = (tensor.rows as u64).saturating_mul(tensor.cols as u64);
            count = count.saturating_add(own);
        }
    }
    count
}

/// True for a matrix that shards hold in the requested encoding.
fn is_encoded(family: &Family, kind: PieceKind, role: Role) -> bool {
    match role {
        Role::Embedding | Role::Head | Role::LayerInputs => true,
        // A table outside layers is re-encoded, like the embedding.
        Role::Table => family.rule(kind, role).is_none_or(|rule| rule.matrix),
        role => family.rule(kind, role).is_some_and(|rule| rule.matrix),
    }
}

/// A tensor of a shard that begins at `end`. Moves `end` behind it. Without an encoding it has
/// integers.
fn blank(
    name: String,
    spec: &TensorSpec,
    encoding: Option<Encoding>,
    kind: PieceKind,
    end: &mut u64,
) -> Option<Tensor> {
    let rows = spec.rows as u64;
    let cols = spec.cols as u64;
    let mut parts = Vec::new();
    match encoding {
        Some(encoding) => {
            for part in encoding.parts() {
                let len = part_len(part, encoding, rows, cols)?;
                parts.push(extent(len, rows, kind, end)?);
            }
        }
        None => {
            let len = rows.checked_mul(cols)?.checked_mul(8)?;
            parts.push(extent(len, rows, kind, end)?);
        }
    }
    Some(Tensor {
        name,
        dtype: if encoding.is_some() { Dtype::BF16 } else { Dtype::I64 },
        shape: spec.shape(),
        transposed: false,
        packing: None,
        slice: None,
        source: String::new(),
        encoding,
        parts,
        error: None,
        origins: Vec::new(),
    })
}

/// Bytes of a part of a matrix. Patches are as many as is typical.
fn part_len(part: &MatrixPart, encoding: Encoding, rows: u64, cols: u64) -> Option<u64> {
    match part.len(rows, cols)? {
        PartLen::Exact(len) => Some(len),
        PartLen::AtLeast(len) => {
            len.checked_add(rows.checked_mul(cols)? / encoding.typical_patches())
        }
    }
}

/// A part of a tensor with this many rows, which begins at `end`. Moves `end` behind it.
fn extent(len: u64, rows: u64, kind: PieceKind, end: &mut u64) -> Option<Extent> {
    let offset = end.checked_next_multiple_of(PART)?;
    let behind = offset.checked_add(len)?;
    if behind > MAX_BYTES {
        return None;
    }
    *end = behind;
    // Parts with less than a byte per row, such as scales of blocks, count as one byte per row.
    let check_len = check_len(len.div_ceil(rows.max(1)), rows, kind);
    let checks = len.div_ceil(check_len);
    if checks > MAX_CHECKS {
        return None;
    }
    Some(Extent { file: 0, offset, len, check_len, checks: vec![0; checks as usize] })
}
