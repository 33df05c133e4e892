//! The manifest of a checkpoint that is read in place.

mod source;
mod strange;

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;

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
        let stored = CheckpointTensors::new(checkpoint.files(), naming);
        let in_place = InPlace { checkpoint, naming, stored: &stored };
        let mut pieces: BTreeMap<PieceId, Vec<(u16, Tensor)>> = BTreeMap::new();
        let mut count = 0;
        let limit = most_tensors(checkpoint.files());
        for first in &stored.tensors {
            if stored.is_scales(first) {
                continue;
            }
            let logical = in_place.logical(first)?;
            let placement = naming.place(&logical.name, &logical.shape);
            if placement == Placement::Extra {
                in_place.check_extra(first)?;
            }
            let experts = in_place.experts(first, &logical, placement)?;
            count += experts.unwrap_or(1) as usize;
            if count > limit {
                let path = in_place.path(first);
                return Err(CheckpointError::TooManyTensors { path, limit });
            }
            for index in 0..experts.unwrap_or(1) {
                let (id, rank) = match placement {
                    Placement::Extra => (PieceId::EXTRA, 0),
                    Placement::Piece { id, rank, .. } => (id, rank),
                    Placement::Experts { layer, rank, .. } => (PieceId::expert(layer, index), rank),
                };
                let slice = experts.map(|count| Slice { index: index.into(), count: count.into() });
                let mut tensor = logical.cut(id, slice, in_place.file(first));
                // An expert's part with a name of its own is treated like any other tensor.
                if let Some(name) = naming.name(&logical.name, experts.map(|_| index)) {
                    tensor.name = name;
                    tensor.slice = None;
                }
                let turned = matches!(placement, Placement::Experts { transposed: true, .. });
                if turned && logical.is_plain() {
                    tensor.shape.reverse();
                    tensor.transposed = true;
                }
                pieces.entry(id).or_default().push((rank, tensor));
            }
        }
        check_names(&pieces, checkpoint)?;
        let files = checkpoint.files().iter();
        Ok(Manifest {
            model: ModelIdentity {
                model_type: naming.model_type().to_owned(),
                fingerprint: checkpoint.fingerprint().to_owned(),
            },
            encoding: None,
            files: files.map(|f| FileEntry { path: f.name.clone(), len: f.len }).collect(),
            pieces: sorted(pieces),
            copies: Vec::new(),
        })
    }
}

/// A checkpoint that is read in place.
struct InPlace<'a> {
    checkpoint: &'a dyn Checkpoint,
    naming: &'a dyn Naming,
    stored: &'a CheckpointTensors<'a>,
}

impl<'a> InPlace<'a> {
    /// Name of the file of a tensor.
    fn file(&self, first: &StoredTensor<'a>) -> &'a str {
        &self.checkpoint.files()[first.file as usize].name
    }

    fn path(&self, first: &StoredTensor<'a>) -> PathBuf {
        self.checkpoint.dir().join(self.file(first))
    }

    /// The tensor of the model that begins with this one.
    fn logical(&self, first: &StoredTensor<'a>) -> Result<Logical<'a>, CheckpointError> {
        let is_placed =
            |name: &str, shape: &[u64]| !matches!(self.naming.place(name, shape), Placement::Extra);
        match self.stored.find(first) {
            CodesForm::Quantised(matrix) => Ok(matrix),
            CodesForm::Misfit { name, shape, reason } if is_placed(&name, &shape) => {
                let tensor = first.tensor.name.clone();
                Err(CheckpointError::Scales { path: self.path(first), tensor, reason })
            }
            CodesForm::OtherGroups { name, shape, scales, found, said }
                if is_placed(&name, &shape) =>
            {
                let path = self.checkpoint.dir().join(CONFIG);
                let HeaderTensor { name, shape, .. } = scales.tensor;
                let (tensor, shape) = (name.clone(), shape.clone());
                Err(CheckpointError::Groups { path, tensor, shape, found, said })
            }
            CodesForm::Plain | CodesForm::Misfit { .. } | CodesForm::OtherGroups { .. } => {
                Ok(self.stored.plain(first))
            }
        }
    }

    /// Refuses a tensor without a place in the model that changes its numbers.
    fn check_extra(&self, first: &StoredTensor<'a>) -> Result<(), CheckpointError> {
        let Some(strange) = strange(first, self.stored, self.naming) else { return Ok(()) };
        let path = self.path(first);
        let tensor = first.tensor.name.clone();
        Err(match strange {
            Strange::Codes(matrix) => CheckpointError::NotCodes { path, tensor, matrix },
            Strange::Inputs(matrix) => CheckpointError::Inputs { path, tensor, matrix },
            Strange::Adapter => CheckpointError::Adapter { path, tensor },
        })
    }

    /// Number of experts that the tensor stacks; `None` if it is placed as a whole.
    fn experts(
        &self,
        first: &StoredTensor<'a>,
        logical: &Logical<'a>,
        placement: Placement,
    ) -> Result<Option<u32>, CheckpointError> {
        let Placement::Experts { transposed, .. } = placement else { return Ok(None) };
        match logical.stacked() {
            Some(experts) if !transposed || logical.turns() => Ok(Some(experts)),
            _ => Err(CheckpointError::NotStacked {
                path: self.path(first),
                tensor: logical.name.clone(),
                shape: logical.shape.clone(),
            }),
        }
    }
}

/// Refuses tensors of a piece with the same name, which renaming can give them.
fn check_names(
    pieces: &BTreeMap<PieceId, Vec<(u16, Tensor)>>,
    checkpoint: &dyn Checkpoint,
) -> Result<(), CheckpointError> {
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
    Ok(())
}

/// The pieces, with their tensors by rank and name.
fn sorted(pieces: BTreeMap<PieceId, Vec<(u16, Tensor)>>) -> Vec<Piece> {
    let mut sorted = Vec::with_capacity(pieces.len());
    for (id, mut tensors) in pieces {
        tensors.sort_by(|(a_rank, a), (b_rank, b)| (a_rank, &a.name).cmp(&(b_rank, &b.name)));
        let tensors = tensors.into_iter().map(|(_, tensor)| tensor).collect();
        sorted.push(Piece { id, tensors, stand_in: None });
    }
    sorted
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
