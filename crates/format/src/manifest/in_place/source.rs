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
        let mut tensors = Vec::new();
        let mut by_name = HashMap::new();
        for (file, entry) in (0..).zip(files) {
            for tensor in &entry.tensors {
                let stored = StoredTensor { file, tensor };
                tensors.push(stored);
                by_name.insert(tensor.name.as_str(), stored);
            }
        }
        let packed = naming.packed();
        let blocks = naming.has_blocks();
        let mut source =
            CheckpointTensors { tensors, by_name, packed, blocks, scales: HashSet::new() };
        for stored in &source.tensors {
            if let CodesForm::Quantised(matrix) = source.find(stored) {
                for part in &matrix.parts[1..] {
                    source.scales.insert(part.tensor.name.as_str());
                }
            }
        }
        source
    }

    /// The tensor with this name.
    pub(super) fn named(&self, name: &str) -> Option<StoredTensor<'a>> {
        self.by_name.get(name).copied()
    }

    /// The tensor whose name has these two parts.
    fn joined(&self, stem: &str, suffix: &str) -> Option<StoredTensor<'a>> {
        self.named(&format!("{stem}{suffix}"))
    }

    /// The scales of a matrix.
    fn scales_of(&self, name: &str, in_blocks: bool) -> Option<StoredTensor<'a>> {
        if in_blocks {
            return self.joined(name, "_scales");
        }
        for suffix in ["_scale_inv", "_scale"] {
            if let Some(scales) = self.joined(name, suffix) {
                return Some(scales);
            }
        }
        let stem = name.strip_suffix(".weight")?;
        self.joined(stem, ".scale").or_else(|| self.joined(stem, ".qscale_weight"))
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
        if let Some(packed) = self.packed
            && let Some(stem) = name.strip_suffix(PARTS[0])
        {
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
            Dtype::NVFP4 => return self.find_blocks(codes),
            _ => return CodesForm::Plain,
        };
        let blocks = name.len() + "_blocks".len() == codes.tensor.name.len() && per_element == 32;
        let Some(scales) = self.scales_of(name, blocks) else { return CodesForm::Plain };
        let Some((&elements, rows)) = outer.split_last() else { return CodesForm::Plain };
        let Some(cols) = elements.checked_mul(per_element) else { return CodesForm::Plain };
        let shape = [rows, &[cols]].concat();
        // The codes are not symmetric, or columns are not in order.
        for suffix in ["_zero_point", "_g_idx"] {
            if let Some(other) = self.joined(name, suffix) {
                return misfit(name, shape, does_not_fit(other.tensor));
            }
        }
        if let Some(other) = self.joined(name, "_shape")
            && !is_shape(other.tensor)
        {
            return misfit(name, shape, does_not_fit(other.tensor));
        }
        let third = self.joined(name, "_scale_2").or_else(|| self.joined(name, "_global_scale"));
        if third.is_none()
            && let Some(divisor) = self.joined(name, "_outer_scale_denominator")
        {
            let divisor = &divisor.tensor.name;
            let reason = format!("whose scales are divided by `{divisor}`, which is not supported");
            return misfit(name, shape, reason);
        }
        let encoding = encoding(codes.tensor, &shape, scales.tensor, third.map(|t| t.tensor));
        let encoding = match encoding {
            Some(encoding) if !self.blocks || !is_fp8_without_blocks(encoding) => encoding,
            _ => return misfit(name, shape, does_not_fit(scales.tensor)),
        };
        // The matrix cannot have the name of another tensor.
        if name != codes.tensor.name && self.by_name.contains_key(name) {
            return CodesForm::Plain;
        }
        let mut parts = vec![*codes, scales];
        if encoding.parts().len() == 3 {
            parts.extend(third);
        }
        CodesForm::Quantised(Logical {
            name: name.to_owned(),
            dtype: codes.tensor.dtype,
            shape,
            encoding: Some(encoding),
            packing: None,
            parts,
        })
    }
}

impl<'a> CheckpointTensors<'a> {
    /// The matrix of these blocks, if a tensor has a number that multiplies all of them.
    fn find_blocks(&self, blocks: &StoredTensor<'a>) -> CodesForm<'a> {
        let name = blocks.tensor.name.as_str();
        let shape = blocks.tensor.shape.clone();
        let Some(stem) = name.strip_suffix(".weight") else { return CodesForm::Plain };
        let Some(number) = self.joined(stem, ".scale") else { return CodesForm::Plain };
        // Gemma 4's router has a tensor of this name, which multiplies what experts return.
        if let Some(layer) = stem.strip_suffix("ffn_down_exps")
            && self.joined(layer, "ffn_gate_inp.scale").is_some()
        {
            return CodesForm::Plain;
        }
        let fits = match shape.split_last_chunk::<2>() {
            Some((stack, _)) => stack.len() < 2 && is_of_whole(number.tensor, stack),
            None => false,
        };
        if !fits || number.tensor.dtype != Dtype::F32 || shape.contains(&0) {
            return misfit(name, shape, does_not_fit(number.tensor));
        }
        CodesForm::Quantised(Logical {
            name: name.to_owned(),
            dtype: blocks.tensor.dtype,
            shape,
            encoding: Some(Encoding::Nvfp4(Nvfp4Scale::OfBlocks)),
            packing: None,
            parts: vec![*blocks, number],
        })
    }

    /// The matrix to which these packed codes belong.
    fn find_packed(&self, codes: &StoredTensor<'a>, stem: &str, packed: Packed) -> CodesForm<'a> {
        let name = format!("{stem}.weight");
        let shape = codes.tensor.shape.clone();
        let mut parts = vec![*codes];
        for (suffix, needed) in PARTS[1..].iter().zip([true, true, packed.act_order]) {
            match self.joined(stem, suffix) {
                Some(part) => parts.push(part),
                None if needed => {
                    return misfit(&name, shape, format!("and `{stem}{suffix}` is missing"));
                }
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
            Err(0) => {
                let reason = "whose type or shape is not that of packed codes".to_owned();
                return misfit(&name, shape, reason);
            }
            Err(part) => return misfit(&name, shape, does_not_fit(parts[part].tensor)),
        };
        if let Some(said) = packed.group
            && !geometry.has_groups_of(said)
        {
            let found = geometry.columns_of_group();
            return CodesForm::OtherGroups { name, shape, scales: parts[2], found, said };
        }
        // The matrix cannot have the name of another tensor.
        if self.by_name.contains_key(name.as_str()) {
            return misfit(&name, shape, format!("and `{name}` is there, too"));
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

fn misfit<'a>(name: &str, shape: Vec<u64>, reason: String) -> CodesForm<'a> {
    CodesForm::Misfit { name: name.to_owned(), shape, reason }
}

fn does_not_fit(other: &HeaderTensor) -> String {
    let HeaderTensor { name, dtype, shape, .. } = other;
    format!("which `{name}`, as {dtype} of shape {shape:?}, does not fit")
}

/// True for a tensor with two numbers. Codes and configuration determine the shape, too.
fn is_shape(tensor: &HeaderTensor) -> bool {
    matches!(tensor.dtype, Dtype::I32 | Dtype::I64) && tensor.shape == [2]
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
    let dtype = scales.dtype;
    let has = scales.shape.strip_prefix(stack)?;
    let powers = matches!(dtype, Dtype::F8_E8M0 | Dtype::U8);
    // One scale for `count` columns of a row.
    let by = |count: u64| cols.is_multiple_of(count) && *has == [rows, cols / count];
    match codes.dtype {
        Dtype::F8_E4M3 if *has == [rows.div_ceil(128), cols.div_ceil(128)] => {
            if dtype == Dtype::F8_E8M0 {
                return Some(Encoding::Fp8(Fp8Scales::SquaresE8m0));
            }
            fp8(dtype, Fp8Scales::Squares, Fp8Scales::SquaresBf16)
        }
        Dtype::F8_E4M3 if powers && by(32) => Some(Encoding::Fp8(Fp8Scales::Thirtytwos)),
        Dtype::F8_E4M3 if is_of_whole(scales, stack) => {
            fp8(dtype, Fp8Scales::Whole, Fp8Scales::WholeBf16)
        }
        Dtype::F8_E4M3 if *has == [rows] || *has == [rows, 1] => {
            fp8(dtype, Fp8Scales::Rows, Fp8Scales::RowsBf16)
        }
        Dtype::I32 if dtype == Dtype::BF16 && by(32) => {
            Some(Encoding::Int4(Int4Groups::Symmetric32))
        }
        Dtype::I32 if dtype == Dtype::BF16 && by(128) => {
            Some(Encoding::Int4(Int4Groups::Symmetric128))
        }
        Dtype::U8 if dtype == Dtype::F8_E4M3 && by(16) => {
            let third = third?;
            if third.dtype != Dtype::F32 || !is_of_whole(third, stack) {
                return None;
            }
            Some(Encoding::Nvfp4(match third.name.ends_with("_global_scale") {
                true => Nvfp4Scale::Divided,
                false => Nvfp4Scale::Times,
            }))
        }
        Dtype::U8 | Dtype::I8 if powers && by(32) => Some(Encoding::Mxfp4),
        _ => None,
    }
}

/// True if the tensor has one scale for each matrix of a stack.
fn is_of_whole(scales: &HeaderTensor, stack: &[u64]) -> bool {
    let rest = scales.shape.strip_prefix(stack);
    rest.is_some_and(|rest| rest.iter().all(|&dim| dim == 1))
}

/// The encoding with scales of this type.
fn fp8(dtype: Dtype, f32: Fp8Scales, bf16: Fp8Scales) -> Option<Encoding> {
    match dtype {
        Dtype::F32 => Some(Encoding::Fp8(f32)),
        Dtype::BF16 => Some(Encoding::Fp8(bf16)),
        _ => None,
    }
}
