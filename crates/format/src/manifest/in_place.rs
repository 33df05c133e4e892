//! The manifest of a checkpoint that is read in place.

mod source;
mod strange;

use std::collections::{BTreeMap, HashSet};

use sws_kernels::Encoding;

use super::{
    Extent, FileEntry, Geometry, Manifest, ModelIdentity, PARTS, Packed, Packing, Piece, Slice,
    Tensor, TensorOrigin,
};
use crate::blocks::{check_len, part_rows};
use crate::checkpoint::{Checkpoint, CheckpointError, WeightFile};
use crate::header::{HeaderTensor, MAX_TENSORS};
use crate::{Naming, PieceId, Placement};
use source::{CheckpointTensors, CodesForm, Logical};
use strange::{Strange, strange};

const CONFIG: &str = "config.json";

/// Largest number of experts in a stacked tensor.
pub(super) const MAX_STACKED: u64 = 65_536;

/// Maximum number of rows, and of columns, of a transposed matrix. It bounds the memory for
/// converting it.
pub(super) const MAX_TRANSPOSED: u64 = 1 << 22;

impl Manifest {
    /// Builds the manifest of a checkpoint that is read in place, with extents of its own files.
    ///
    /// A matrix that the checkpoint stores as codes and scales becomes one tensor with the shape that
    /// it has when decoded, named like the codes without their ending. A tensor that stacks experts becomes one
    /// slice in each expert's piece. [`Naming::name`] may rename tensors. There are no checksums, so the
    /// first read cannot be verified.
    pub fn in_place(
        checkpoint: &dyn Checkpoint,
        naming: &dyn Naming,
    ) -> Result<Manifest, CheckpointError> {
        let source = CheckpointTensors::new(checkpoint.files(), naming);
        let mut pieces: BTreeMap<PieceId, Vec<(u16, Tensor)>> = BTreeMap::new();
        let mut count = 0;
        let limit = most_tensors(checkpoint.files());
        for stored in &source.tensors {
            if source.is_scales(stored) {
                continue;
            }
            let file = &checkpoint.files()[stored.file as usize];
            let path = || checkpoint.dir().join(&file.name);
            let logical = match source.find(stored) {
                CodesForm::Quantised(matrix) => matrix,
                CodesForm::Misfit { name, shape, reason }
                    if !matches!(naming.place(&name, &shape), Placement::Extra) =>
                {
                    let tensor = stored.tensor.name.clone();
                    return Err(CheckpointError::Scales { path: path(), tensor, reason });
                }
                CodesForm::OtherGroups { name, shape, scales, found, said }
                    if !matches!(naming.place(&name, &shape), Placement::Extra) =>
                {
                    let path = checkpoint.dir().join(CONFIG);
                    let tensor = &scales.tensor.name;
                    let shape = scales.tensor.shape.clone();
                    let tensor = tensor.clone();
                    return Err(CheckpointError::Groups { path, tensor, shape, found, said });
                }
                CodesForm::Plain | CodesForm::Misfit { .. } | CodesForm::OtherGroups { .. } => {
                    source.plain(stored)
                }
            };
            let placement = naming.place(&logical.name, &logical.shape);
            if placement == Placement::Extra
                && let Some(strange) = strange(stored, &source, naming)
            {
                let path = path();
                let tensor = stored.tensor.name.clone();
                return Err(match strange {
                    Strange::Codes(matrix) => CheckpointError::NotCodes { path, tensor, matrix },
                    Strange::Inputs(matrix) => CheckpointError::Inputs { path, tensor, matrix },
                    Strange::Adapter => CheckpointError::Adapter { path, tensor },
                });
            }
            let experts = match placement {
                Placement::Experts { transposed, .. } => {
                    let experts = logical.stacked();
                    if experts.is_none() || transposed && !logical.turns() {
                        return Err(CheckpointError::NotStacked {
                            path: path(),
                            tensor: logical.name.clone(),
                            shape: logical.shape.clone(),
                        });
                    }
                    experts
                }
                Placement::Piece { .. } | Placement::Extra => None,
            };
            let transposed = matches!(placement, Placement::Experts { transposed: true, .. })
                && logical.is_plain();
            count += experts.unwrap_or(1) as usize;
            if count > limit {
                return Err(CheckpointError::TooManyTensors { path: path(), limit });
            }
            for index in 0..experts.unwrap_or(1) {
                let (id, rank) = match placement {
                    Placement::Extra => (PieceId::EXTRA, 0),
                    Placement::Piece { id, rank, .. } => (id, rank),
                    Placement::Experts { layer, rank, .. } => (PieceId::expert(layer, index), rank),
                };
                let slice = experts.map(|count| Slice { index: index.into(), count: count.into() });
                let mut tensor = logical.cut(id, slice, &file.name);
                // An expert's part with a name of its own is treated like any other tensor.
                if let Some(name) = naming.name(&logical.name, experts.map(|_| index)) {
                    tensor.name = name;
                    tensor.slice = None;
                }
                if transposed {
                    tensor.shape.reverse();
                    tensor.transposed = true;
                }
                pieces.entry(id).or_default().push((rank, tensor));
            }
        }

        // Renaming can give two tensors of a piece the same name.
        for tensors in pieces.values() {
            let mut names = HashSet::with_capacity(tensors.len());
            for (_, tensor) in tensors {
                if !names.insert(&tensor.name) {
                    return Err(CheckpointError::SameName {
                        path: checkpoint.dir().join(&tensor.source),
                        tensor: tensor.name.clone(),
                    });
                }
            }
        }
        let mut sorted = Vec::with_capacity(pieces.len());
        for (id, mut tensors) in pieces {
            tensors.sort_by(|(a_rank, a), (b_rank, b)| (a_rank, &a.name).cmp(&(b_rank, &b.name)));
            let tensors = tensors.into_iter().map(|(_, tensor)| tensor).collect();
            sorted.push(Piece { id, tensors, stand_in: None });
        }
        let files = checkpoint.files().iter();
        Ok(Manifest {
            model: ModelIdentity {
                model_type: naming.model_type().to_owned(),
                fingerprint: checkpoint.fingerprint().to_owned(),
            },
            encoding: None,
            files: files.map(|f| FileEntry { path: f.name.clone(), len: f.len }).collect(),
            pieces: sorted,
            copies: Vec::new(),
        })
    }
}

/// Largest number of tensors in the manifest of these files. A header of a hundred bytes can stack
/// 65,536 experts, so the limit grows with the size of the files.
fn most_tensors(files: &[WeightFile]) -> usize {
    let bytes: u64 = files.iter().map(|file| file.len).sum();
    MAX_TENSORS.min(4096 + usize::try_from(bytes / 64).unwrap_or(MAX_TENSORS))
}

#[derive(Clone, Copy)]
struct StoredTensor<'a> {
    file: u32,
    tensor: &'a HeaderTensor,
}

impl StoredTensor<'_> {
    fn origin(&self) -> TensorOrigin {
        let HeaderTensor { name, dtype, shape, .. } = self.tensor;
        TensorOrigin { name: name.clone(), dtype: *dtype, shape: shape.clone() }
    }

    /// True if the tensor is this many of equal length.
    fn is_stack_of(&self, count: u64) -> bool {
        self.tensor.len > 0
            && self.tensor.shape.first() == Some(&count)
            && self.tensor.len.is_multiple_of(count)
    }
}

impl Logical<'_> {
    /// Number of experts, if the first dimension can be cut into them: no part is empty, and every
    /// part has the same whole number of bytes for each expert.
    fn stacked(&self) -> Option<u32> {
        let &count = self.shape.first()?;
        let fits = self.shape.len() > 1
            && self.packing.is_none()
            && (1..=MAX_STACKED).contains(&count)
            && self.parts.iter().all(|part| part.is_stack_of(count));
        fits.then_some(count as u32)
    }

    /// True if the numbers are plain floats, without blocks.
    fn is_plain(&self) -> bool {
        self.encoding.is_some_and(Encoding::is_plain)
    }

    /// True if slices can be matrices stored as [columns, rows], or are known not to be.
    fn turns(&self) -> bool {
        let plain = self.is_plain()
            && self.shape.len() == 3
            && self.shape[1..].iter().all(|&dim| dim <= MAX_TRANSPOSED);
        plain || self.encoding == Some(Encoding::Mxfp4)
    }

    fn cut(&self, id: PieceId, slice: Option<Slice>, source: &str) -> Tensor {
        let skipped = usize::from(slice.is_some());
        let Slice { index, count } = slice.unwrap_or(Slice { index: 0, count: 1 });
        let shape = self.shape[skipped..].to_vec();
        let rows = shape.split_last().map_or(1, |(_, outer)| outer.iter().product());
        let mut parts = Vec::with_capacity(self.parts.len());
        let mut origins = Vec::new();
        for (number, part) in self.parts.iter().enumerate() {
            let len = part.tensor.len / count;
            let rows = part_rows(self.encoding, number, rows, len);
            parts.push(Extent {
                file: part.file,
                offset: part.tensor.offset + index * len,
                len,
                check_len: check_len(len.checked_div(rows).unwrap_or(0), rows, id.kind()),
                checks: Vec::new(),
            });
            if self.parts.len() > 1 {
                let mut origin = part.origin();
                origin.shape.drain(..skipped);
                origins.push(origin);
            }
        }
        Tensor {
            name: self.name.clone(),
            dtype: self.dtype,
            shape,
            transposed: false,
            packing: self.packing,
            slice,
            source: source.to_owned(),
            encoding: self.encoding,
            parts,
            origins,
            error: None,
        }
    }
}
