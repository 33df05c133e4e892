//! The tensors of a checkpoint as matrices of the model. A quantised matrix consists of several
//! tensors.

use std::collections::{HashMap, HashSet};

use sws_kernels::{Encoding, Fp8Scales, Int4Groups, Nvfp4Scale};

use super::{Geometry, PARTS, Packed, Packing, StoredTensor, TensorOrigin};
use crate::checkpoint::WeightFile;
use crate::header::HeaderTensor;
use crate::{Dtype, Naming};

/// A tensor of the model, from one or several tensors of the checkpoint.
pub(super) struct Logical<'a> {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<u64>,
    pub(super) encoding: Option<Encoding>,
    /// Packing of the codes along columns, if there is one.
    pub(super) packing: Option<Packing>,
    /// The checkpoint's tensors that hold the parts, in the order of the encoding.
    pub(super) parts: Vec<StoredTensor<'a>>,
}

/// Tensors of a checkpoint, in file order and by name.
pub(super) struct CheckpointTensors<'a> {
    pub(super) tensors: Vec<StoredTensor<'a>>,
    by_name: HashMap<&'a str, StoredTensor<'a>>,
    packed: Option<Packed>,
    /// See [`Naming::has_blocks`].
    blocks: bool,
    /// Names of scales for the codes of a matrix.
    scales: HashSet<&'a str>,
}

/// Codes, and the tensors that should be their scales.
pub(super) enum CodesForm<'a> {
    /// A tensor without scales.
    Plain,
    /// A quantised matrix.
    Quantised(Logical<'a>),
    /// A matrix, by its name and shape, whose parts contradict each other.
    Misfit { name: String, shape: Vec<u64>, reason: String },
    /// A quantised matrix whose scales have another group size than the configuration says.
    OtherGroups { name: String, shape: Vec<u64>, scales: StoredTensor<'a>, found: u64, said: u64 },
}

impl<'a> CheckpointTensors<'a> {
    pub(super) fn new(files: &'a [WeightFile], naming: &dyn Naming) -> CheckpointTensors<'a> {
        let tensors: Vec<StoredTensor<'a>> = (0..)
            .zip(files)
            .flat_map(|(file, entry)| {
                entry.tensors.iter().map(move |tensor| StoredTensor { file, tensor })
            })
            .collect();
        let by_name = tensors.iter().map(|stored| (stored.tensor.name.as_str(), *stored)).collect();
        let packed = naming.packed();
        let blocks = naming.has_blocks();
        let mut source =
            CheckpointTensors { tensors, by_name, packed, blocks, scales: HashSet::new() };
        for stored in &source.tensors {
            if let CodesForm::Quantised(matrix) = source.find(stored) {
                source
                    .scales
                    .extend(matrix.parts[1..].iter().map(|part| part.tensor.name.as_str()));
            }
        }
        source
    }

    /// The tensor with this name.
    pub(super) fn named(&self, name: &str) -> Option<StoredTensor<'a>> {
        self.by_name.get(name).copied()
    }

    /// True if the tensor holds scales of another one.
    pub(super) fn is_scales(&self, stored: &StoredTensor<'a>) -> bool {
        self.scales.contains(stored.tensor.name.as_str())
    }

    /// The tensor on its own.
    pub(super) fn plain(&self, stored: &StoredTensor<'a>) -> Logical<'a> {
        Logical {
            name: stored.tensor.name.clone(),
            dtype: stored.tensor.dtype,
            shape: stored.tensor.shape.clone(),
            encoding: stored.tensor.dtype.encoding(),
            packing: None,
            parts: vec![*stored],
        }
    }

    /// The matrix to which these codes belong, found by the names of related tensors.
    pub(super) fn find(&self, codes: &StoredTensor<'a>) -> CodesForm<'a> {
        let name = codes.tensor.name.as_str();
        if let (Some(packed), Some(stem)) = (self.packed, name.strip_suffix(PARTS[0])) {
            return self.find_packed(codes, stem, packed);
        }
        let shape = codes.tensor.shape.as_slice();
        let (name, outer, per_element) = match codes.tensor.dtype {
            Dtype::F8_E4M3 => (name, shape, 1),
            Dtype::I8 => (name, shape, 2),
            Dtype::U8 => match (name.strip_suffix("_blocks"), shape) {
                // The last two dimensions are the blocks of a row, and the bytes of a block.
                (Some(stem), [blocks @ .., 16]) => (stem, blocks, 32),
                _ => (name.strip_suffix("_packed").unwrap_or(name), shape, 2),
            },
            Dtype::I32 => match name.strip_suffix("_packed") {
                Some(stem) => (stem, shape, 8),
                None => return CodesForm::Plain,
            },
            _ => return CodesForm::Plain,
        };
        let with = |suffix: &str| self.named(&format!("{name}{suffix}"));
        let instead = |suffix: &str| {
            let stem = name.strip_suffix(".weight")?;
            self.named(&format!("{stem}{suffix}"))
        };
        let blocks = name.len() + "_blocks".len() == codes.tensor.name.len() && per_element == 32;
        let scales = match blocks {
            true => with("_scales"),
            false => with("_scale_inv")
                .or_else(|| with("_scale"))
                .or_else(|| instead(".scale"))
                .or_else(|| instead(".qscale_weight")),
        };
        let Some(scales) = scales else { return CodesForm::Plain };
        let Some((&elements, rows)) = outer.split_last() else { return CodesForm::Plain };
        let Some(cols) = elements.checked_mul(per_element) else { return CodesForm::Plain };
        let shape = [rows, &[cols]].concat();
        let misfit = |other: &StoredTensor<'_>| CodesForm::Misfit {
            name: name.to_owned(),
            shape: shape.clone(),
            reason: format!(
                "which `{}`, as {} of shape {:?}, does not fit",
                other.tensor.name, other.tensor.dtype, other.tensor.shape
            ),
        };
        // The codes are not symmetric, or columns are not in order.
        let beside = ["_zero_point", "_g_idx"].into_iter().find_map(with);
        // A tensor with two numbers. Codes and configuration determine the shape, too.
        let is_shape = |tensor: &HeaderTensor| {
            matches!(tensor.dtype, Dtype::I32 | Dtype::I64) && tensor.shape == [2]
        };
        let cut = with("_shape").filter(|stored| !is_shape(stored.tensor));
        if let Some(other) = beside.or(cut) {
            return misfit(&other);
        }
        let third = with("_scale_2").or_else(|| with("_global_scale"));
        if let (None, Some(divisor)) = (third, with("_outer_scale_denominator")) {
            let name = name.to_owned();
            let divisor = &divisor.tensor.name;
            let reason = format!("whose scales are divided by `{divisor}`, which is not supported");
            return CodesForm::Misfit { name, shape, reason };
        }
        let encoding = encoding(codes.tensor, &shape, scales.tensor, third.map(|t| t.tensor));
        let fits = |of: &Encoding| !self.blocks || !is_fp8_without_blocks(*of);
        let Some(encoding) = encoding.filter(fits) else { return misfit(&scales) };
        // The matrix cannot have the name of another tensor.
        if name != codes.tensor.name && self.by_name.contains_key(name) {
            return CodesForm::Plain;
        }
        let three = encoding.parts().len() == 3;
        CodesForm::Quantised(Logical {
            name: name.to_owned(),
            dtype: codes.tensor.dtype,
            shape,
            encoding: Some(encoding),
            packing: None,
            parts: [*codes, scales].into_iter().chain(third.filter(|_| three)).collect(),
        })
    }
}

impl<'a> CheckpointTensors<'a> {
    /// The matrix to which these packed codes belong.
    fn find_packed(&self, codes: &StoredTensor<'a>, stem: &str, packed: Packed) -> CodesForm<'a> {
        let name = format!("{stem}.weight");
        let part = |suffix: &str| self.named(&format!("{stem}{suffix}"));
        let shape = codes.tensor.shape.clone();
        let misfit =
            |reason| CodesForm::Misfit { name: name.clone(), shape: shape.clone(), reason };
        let mut parts = vec![*codes];
        for (suffix, needed) in PARTS[1..].iter().zip([true, true, packed.act_order]) {
            match part(suffix) {
                Some(part) => parts.push(part),
                None if needed => return misfit(format!("and `{stem}{suffix}` is missing")),
                None => {}
            }
        }
        // AWQ has no order of columns.
        if packed.packing == Packing::Awq {
            parts.truncate(3);
        }
        let origins: Vec<TensorOrigin> = parts.iter().map(StoredTensor::origin).collect();
        let geometry = match Geometry::of(packed.packing, &origins) {
            Ok(geometry) => geometry,
            Err(0) => return misfit("whose type or shape is not that of packed codes".to_owned()),
            Err(part) => {
                let other = parts[part].tensor;
                return misfit(format!(
                    "which `{}`, as {} of shape {:?}, does not fit",
                    other.name, other.dtype, other.shape
                ));
            }
        };
        if let Some(said) = packed.group.filter(|&group| !geometry.has_groups_of(group)) {
            let found = geometry.columns_of_group();
            return CodesForm::OtherGroups { name, shape, scales: parts[2], found, said };
        }
        // The matrix cannot have the name of another tensor.
        if self.by_name.contains_key(name.as_str()) {
            return misfit(format!("and `{name}` is there, too"));
        }
        CodesForm::Quantised(Logical {
            name,
            dtype: codes.tensor.dtype,
            shape: vec![geometry.rows, geometry.cols],
            encoding: Some(geometry.encoding(packed.act_order)),
            packing: Some(packed.packing),
            parts,
        })
    }
}

fn is_fp8_without_blocks(encoding: Encoding) -> bool {
    use Fp8Scales::{Rows, RowsBf16, Whole, WholeBf16};
    matches!(encoding, Encoding::Fp8(Rows | RowsBf16 | Whole | WholeBf16))
}

/// The encoding of a matrix, or of a stack of matrices; `None` if types and shapes do not fit
/// together.
fn encoding(
    codes: &HeaderTensor,
    shape: &[u64],
    scales: &HeaderTensor,
    third: Option<&HeaderTensor>,
) -> Option<Encoding> {
    let (stack, &[rows, cols]) = shape.split_last_chunk::<2>()?;
    if stack.len() > 1 || shape.contains(&0) {
        return None;
    }
    let of_matrix = |tensor: &HeaderTensor| {
        let rest = tensor.shape.strip_prefix(stack)?;
        rest.iter().all(|&dim| dim == 1).then_some(())
    };
    let dtype = scales.dtype;
    let has = scales.shape.strip_prefix(stack)?;
    let powers = matches!(dtype, Dtype::F8_E8M0 | Dtype::U8);
    // One scale for `count` columns of a row.
    let by = |count: u64| cols.is_multiple_of(count) && *has == [rows, cols / count];
    let fp8 = |f32, bf16| match dtype {
        Dtype::F32 => Some(Encoding::Fp8(f32)),
        Dtype::BF16 => Some(Encoding::Fp8(bf16)),
        _ => None,
    };
    match codes.dtype {
        Dtype::F8_E4M3 if *has == [rows.div_ceil(128), cols.div_ceil(128)] => {
            if dtype == Dtype::F8_E8M0 {
                return Some(Encoding::Fp8(Fp8Scales::SquaresE8m0));
            }
            fp8(Fp8Scales::Squares, Fp8Scales::SquaresBf16)
        }
        Dtype::F8_E4M3 if powers && by(32) => Some(Encoding::Fp8(Fp8Scales::Thirtytwos)),
        Dtype::F8_E4M3 if of_matrix(scales).is_some() => {
            fp8(Fp8Scales::Whole, Fp8Scales::WholeBf16)
        }
        Dtype::F8_E4M3 if *has == [rows] || *has == [rows, 1] => {
            fp8(Fp8Scales::Rows, Fp8Scales::RowsBf16)
        }
        Dtype::I32 if dtype == Dtype::BF16 && by(32) => {
            Some(Encoding::Int4(Int4Groups::Symmetric32))
        }
        Dtype::I32 if dtype == Dtype::BF16 && by(128) => {
            Some(Encoding::Int4(Int4Groups::Symmetric128))
        }
        Dtype::U8 if dtype == Dtype::F8_E4M3 && by(16) => {
            let third = third.filter(|third| third.dtype == Dtype::F32)?;
            of_matrix(third)?;
            Some(Encoding::Nvfp4(match third.name.ends_with("_global_scale") {
                true => Nvfp4Scale::Divided,
                false => Nvfp4Scale::Times,
            }))
        }
        Dtype::U8 | Dtype::I8 if powers && by(32) => Some(Encoding::Mxfp4),
        _ => None,
    }
}
