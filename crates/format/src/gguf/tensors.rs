//! The tensors of a header: names, types, shapes and places.

use std::io::Read;

use super::GgufError;
use super::cursor::GgufCursor;
use crate::Dtype;
use crate::header::{HeaderTensor, good_name};

/// Largest number of dimensions.
const MAX_DIMS: u32 = 4;

/// A tensor's entry before validation.
pub(super) struct TensorEntry {
    name: String,
    /// Shape, outermost dimension first.
    shape: Vec<u64>,
    kind: u32,
    /// Offset from the start of the data.
    offset: u64,
}

/// Reads the entries of `count` tensors. The caller has checked that the header has room for them.
pub(super) fn read(
    cursor: &mut GgufCursor<impl Read>,
    count: u64,
) -> Result<Vec<TensorEntry>, GgufError> {
    let mut tensors = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let name = cursor.text("the name of a tensor")?;
        if !good_name(&name) {
            return Err(GgufError::Name("tensor"));
        }
        let dims = cursor.u32("the shape of a tensor")?;
        if dims > MAX_DIMS {
            return Err(GgufError::Shape { tensor: name, reason: "more than four dimensions" });
        }
        let mut shape = Vec::with_capacity(dims as usize);
        for _ in 0..dims {
            shape.push(cursor.u64("the shape of a tensor")?);
        }
        shape.reverse();
        let kind = cursor.u32("the type of a tensor")?;
        let offset = cursor.u64("the place of a tensor")?;
        tensors.push(TensorEntry { name, shape, kind, offset });
    }
    Ok(tensors)
}

/// Checks the entries against each other and against the length of the file. Returns the tensors by
/// ascending offset.
pub(super) fn check(
    raw: Vec<TensorEntry>,
    alignment: u64,
    data_start: u64,
    file_len: u64,
) -> Result<Vec<HeaderTensor>, GgufError> {
    let mut tensors = Vec::with_capacity(raw.len());
    for TensorEntry { name, shape, kind, offset } in raw {
        let dtype = dtype(&name, kind)?;
        let Some(len) = dtype.byte_len(&shape) else {
            let reason = "a shape that cannot be stored in its type";
            return Err(GgufError::Shape { tensor: name, reason });
        };
        if !offset.is_multiple_of(alignment) {
            let reason = "does not start at a multiple of the alignment";
            return Err(GgufError::Place { tensor: name, reason });
        }
        let end = offset.checked_add(len).and_then(|end| end.checked_add(data_start));
        if end.is_none_or(|end| end > file_len) {
            let reason = "reaches beyond the end of the file";
            return Err(GgufError::Place { tensor: name, reason });
        }
        let offset = data_start + offset;
        tensors.push(HeaderTensor { name, dtype, shape, offset, len });
    }
    tensors.sort_by(|a, b| (a.offset, a.len, &a.name).cmp(&(b.offset, b.len, &b.name)));
    if let Some(pair) =
        tensors.windows(2).find(|pair| pair[0].offset + pair[0].len > pair[1].offset)
    {
        let reason = "overlaps another one";
        return Err(GgufError::Place { tensor: pair[1].name.clone(), reason });
    }
    let mut names: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(GgufError::Twice { what: "tensor", name: pair[0].to_owned() }),
        None => Ok(tensors),
    }
}

fn dtype(tensor: &str, kind: u32) -> Result<Dtype, GgufError> {
    let name = match kind {
        0 => return Ok(Dtype::F32),
        1 => return Ok(Dtype::F16),
        2 => return Ok(Dtype::Q4_0),
        3 => return Ok(Dtype::Q4_1),
        6 => return Ok(Dtype::Q5_0),
        7 => return Ok(Dtype::Q5_1),
        8 => return Ok(Dtype::Q8_0),
        10 => return Ok(Dtype::Q2_K),
        11 => return Ok(Dtype::Q3_K),
        12 => return Ok(Dtype::Q4_K),
        13 => return Ok(Dtype::Q5_K),
        14 => return Ok(Dtype::Q6_K),
        16 => return Ok(Dtype::IQ2_XXS),
        17 => return Ok(Dtype::IQ2_XS),
        18 => return Ok(Dtype::IQ3_XXS),
        19 => return Ok(Dtype::IQ1_S),
        20 => return Ok(Dtype::IQ4_NL),
        21 => return Ok(Dtype::IQ3_S),
        22 => return Ok(Dtype::IQ2_S),
        23 => return Ok(Dtype::IQ4_XS),
        24 => return Ok(Dtype::I8),
        25 => return Ok(Dtype::I16),
        26 => return Ok(Dtype::I32),
        27 => return Ok(Dtype::I64),
        28 => return Ok(Dtype::F64),
        29 => return Ok(Dtype::IQ1_M),
        30 => return Ok(Dtype::BF16),
        34 => return Ok(Dtype::TQ1_0),
        35 => return Ok(Dtype::TQ2_0),
        39 => return Ok(Dtype::MXFP4),
        40 => return Ok(Dtype::NVFP4),
        9 => "Q8_1",
        15 => "Q8_K",
        41 => "Q1_0",
        42 => "Q2_0",
        _ => return Err(GgufError::UnknownType { tensor: tensor.to_owned(), kind }),
    };
    Err(GgufError::Type { tensor: tensor.to_owned(), kind: name })
}
