//! The manifest of a checkpoint that is read in place.

use std::collections::{BTreeMap, HashMap, HashSet};

use sws_kernels::Encoding;

use super::{Extent, FileEntry, Manifest, ModelIdentity, Piece, Slice, Tensor};
use crate::blocks::check_len;
use crate::checkpoint::{Checkpoint, CheckpointError, WeightFile};
use crate::header::{HeaderTensor, MAX_TENSORS};
use crate::{Dtype, Naming, PieceId, Placement};

/// Largest number of experts in a stacked tensor.
pub(super) const MAX_STACKED: u64 = 65_536;

/// Largest number of rows, and of columns, of a matrix that is stored transposed. It bounds the
/// memory in which one is turned.
pub(super) const MAX_TRANSPOSED: u64 = 1 << 22;

/// Side of the square blocks that share one scale in `fp8`.
const FP8_BLOCK: u64 = 128;
/// Length of the runs that share one scale in `mxfp4`; two numbers fill a byte.
const MXFP4_BLOCK: u64 = 32;

impl Manifest {
    /// Builds the manifest of a checkpoint that is read in place, with extents of its own files.
    ///
    /// A matrix that the checkpoint stores in two tensors becomes one: `X.weight` of type F8_E4M3
    /// with `X.weight_scale_inv`, named `X.weight`; `X_blocks` with `X_scales` (MXFP4), named `X`,
    /// with the shape that the matrix has when decoded. A tensor that stacks experts becomes one
    /// slice in each expert's piece. [`Naming::name`] may rename tensors. There are no checksums, so the first read cannot be verified.
    pub fn in_place(
        checkpoint: &dyn Checkpoint,
        naming: &dyn Naming,
    ) -> Result<Manifest, CheckpointError> {
        let source = Source::new(checkpoint.files());
        let mut pieces: BTreeMap<PieceId, Vec<(u16, Tensor)>> = BTreeMap::new();
        let mut count = 0;
        let limit = most_tensors(checkpoint.files());
        for stored in &source.tensors {
            let Some(logical) = source.logical(stored) else { continue };
            let file = &checkpoint.files()[stored.file as usize];
            let path = || checkpoint.dir().join(&file.name);
            let placement = naming.place(&logical.name, &logical.shape);
            let experts = match placement {
                Placement::Experts { transposed, .. } => {
                    let experts = logical.stacked().filter(|_| !transposed || logical.turns());
                    let experts = experts.ok_or_else(|| CheckpointError::NotStacked {
                        path: path(),
                        tensor: logical.name.clone(),
                        shape: logical.shape.clone(),
                    })?;
                    Some(experts)
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
                // An expert's part with a name of its own is a tensor like any other.
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

        // Renamed tensors can get the name of another one of their piece.
        for tensors in pieces.values() {
            let mut names = HashSet::with_capacity(tensors.len());
            if let Some((_, tensor)) =
                tensors.iter().find(|(_, tensor)| !names.insert(&tensor.name))
            {
                return Err(CheckpointError::SameName {
                    path: checkpoint.dir().join(&tensor.source),
                    tensor: tensor.name.clone(),
                });
            }
        }
        let pieces = pieces.into_iter().map(|(id, mut tensors)| {
            tensors.sort_by(|(a_rank, a), (b_rank, b)| (a_rank, &a.name).cmp(&(b_rank, &b.name)));
            let tensors = tensors.into_iter().map(|(_, tensor)| tensor).collect();
            Piece { id, tensors, stand_in: None }
        });
        let files = checkpoint.files().iter();
        Ok(Manifest {
            model: ModelIdentity {
                model_type: naming.model_type().to_owned(),
                fingerprint: checkpoint.fingerprint().to_owned(),
            },
            encoding: None,
            files: files.map(|f| FileEntry { path: f.name.clone(), len: f.len }).collect(),
            pieces: pieces.collect(),
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

/// Tensors of a checkpoint, in file order and by name.
struct Source<'a> {
    tensors: Vec<Stored<'a>>,
    by_name: HashMap<&'a str, Stored<'a>>,
}

#[derive(Clone, Copy)]
struct Stored<'a> {
    file: u32,
    tensor: &'a HeaderTensor,
}

/// A tensor of the model, made of one or two of the checkpoint's.
struct Logical<'a> {
    name: String,
    dtype: Dtype,
    shape: Vec<u64>,
    encoding: Option<Encoding>,
    /// The checkpoint's tensors that hold the parts, in the order of the encoding.
    parts: Vec<Stored<'a>>,
}

impl<'a> Source<'a> {
    fn new(files: &'a [WeightFile]) -> Source<'a> {
        let tensors: Vec<Stored<'a>> = (0..)
            .zip(files)
            .flat_map(|(file, entry)| {
                entry.tensors.iter().map(move |tensor| Stored { file, tensor })
            })
            .collect();
        let by_name = tensors.iter().map(|stored| (stored.tensor.name.as_str(), *stored)).collect();
        Source { tensors, by_name }
    }

    /// Returns the tensor whose first part is `stored`; `None` if `stored` holds the scales of
    /// another.
    fn logical(&self, stored: &Stored<'a>) -> Option<Logical<'a>> {
        let name = stored.tensor.name.as_str();
        let of = |suffix, weights: &str| {
            let stem = name.strip_suffix(suffix)?;
            self.by_name.get(format!("{stem}{weights}").as_str())
        };
        if of("_scale_inv", "").is_some_and(|weights| self.fp8(weights).is_some())
            || of("_scales", "_blocks").is_some_and(|weights| self.mxfp4(weights).is_some())
        {
            return None;
        }
        if let Some(pair) = self.fp8(stored).or_else(|| self.mxfp4(stored)) {
            return Some(pair);
        }
        Some(Logical {
            name: name.to_owned(),
            dtype: stored.tensor.dtype,
            shape: stored.tensor.shape.clone(),
            encoding: stored.tensor.dtype.encoding(),
            parts: vec![*stored],
        })
    }

    /// A matrix or a stack of matrices in e4m3, with its block scales.
    fn fp8(&self, weights: &Stored<'a>) -> Option<Logical<'a>> {
        let HeaderTensor { name, dtype, shape, .. } = weights.tensor;
        let scales = self.by_name.get(format!("{name}_scale_inv").as_str())?;
        let mut expected = shape.clone();
        for dim in expected.iter_mut().rev().take(2) {
            *dim = dim.div_ceil(FP8_BLOCK);
        }
        let fits = *dtype == Dtype::F8_E4M3
            && matches!(shape.len(), 2 | 3)
            && scales.tensor.dtype == Dtype::F32
            && scales.tensor.shape == expected;
        fits.then(|| Logical {
            name: name.clone(),
            dtype: *dtype,
            shape: shape.clone(),
            encoding: Some(Encoding::Fp8),
            parts: vec![*weights, *scales],
        })
    }

    /// A matrix or a stack of matrices in e2m1, with its scales. The shapes in a stack are
    /// `[experts, rows, cols / 32, 16]` for the blocks and `[experts, rows, cols / 32]` for the
    /// scales.
    fn mxfp4(&self, blocks: &Stored<'a>) -> Option<Logical<'a>> {
        let stem = blocks.tensor.name.strip_suffix("_blocks")?;
        let scales = self.by_name.get(format!("{stem}_scales").as_str())?;
        let (&half, shape) = blocks.tensor.shape.split_last()?;
        let (&runs, outer) = shape.split_last()?;
        let fits = [blocks, scales].iter().all(|part| part.tensor.dtype == Dtype::U8)
            && half == MXFP4_BLOCK / 2
            && matches!(outer.len(), 1 | 2)
            && scales.tensor.shape == shape
            && !self.by_name.contains_key(stem);
        let cols = runs.checked_mul(MXFP4_BLOCK)?;
        fits.then(|| Logical {
            name: stem.to_owned(),
            dtype: Dtype::U8,
            shape: outer.iter().copied().chain([cols]).collect(),
            encoding: Some(Encoding::Mxfp4),
            parts: vec![*blocks, *scales],
        })
    }
}

impl Logical<'_> {
    /// Number of experts, if the first dimension can be cut into them: no part is empty, and every
    /// part has the same whole number of bytes for each expert.
    fn stacked(&self) -> Option<u32> {
        let &count = self.shape.first()?;
        let even = |part: &Stored<'_>| {
            part.tensor.len > 0
                && part.tensor.shape.first() == Some(&count)
                && part.tensor.len.is_multiple_of(count)
        };
        let fits = self.shape.len() > 1
            && (1..=MAX_STACKED).contains(&count)
            && self.parts.iter().all(even);
        fits.then_some(count as u32)
    }

    /// True if the numbers are plain floats, without blocks.
    fn is_plain(&self) -> bool {
        matches!(self.encoding, Some(Encoding::F32 | Encoding::F16 | Encoding::Bf16))
    }

    /// True if slices can be matrices stored as [columns, rows], or are known not to be.
    fn turns(&self) -> bool {
        let small = || self.shape[1..].iter().all(|&dim| dim <= MAX_TRANSPOSED);
        let plain = self.is_plain() && self.shape.len() == 3 && small();
        plain || self.encoding == Some(Encoding::Mxfp4)
    }

    fn cut(&self, id: PieceId, slice: Option<Slice>, source: &str) -> Tensor {
        let skipped = usize::from(slice.is_some());
        let Slice { index, count } = slice.unwrap_or(Slice { index: 0, count: 1 });
        // The rows of a part: the product of its dimensions before the last, or before the last two
        // for the blocks of mxfp4.
        let extent = |(number, part): (usize, &Stored<'_>)| {
            let in_row = 1 + usize::from(self.encoding == Some(Encoding::Mxfp4) && number == 0);
            let shape = &part.tensor.shape[skipped..];
            let rows = shape[..shape.len().saturating_sub(in_row)].iter().product::<u64>();
            let len = part.tensor.len / count;
            Extent {
                file: part.file,
                offset: part.tensor.offset + index * len,
                len,
                check_len: check_len(len.checked_div(rows).unwrap_or(0), rows, id.kind()),
                checks: Vec::new(),
            }
        };
        Tensor {
            name: self.name.clone(),
            dtype: self.dtype,
            shape: self.shape[skipped..].to_vec(),
            transposed: false,
            slice,
            source: source.to_owned(),
            encoding: self.encoding,
            parts: self.parts.iter().enumerate().map(extent).collect(),
            error: None,
        }
    }
}
