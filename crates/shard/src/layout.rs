//! Layout of a shard, and the header that describes it.

use std::fmt::Write as _;

use sws_format::{Dtype, PieceId, Tensor};
use sws_kernels::{Encoding, Fp8Scales};

use super::direct::ALIGN;

/// Alignment of the first byte of a part.
pub(super) const TENSOR_ALIGN: u64 = 64;
/// Prefix of the names of padding tensors.
pub(super) const PAD: &str = "__pad.";

/// File name of a piece, relative to the directory.
pub(super) fn file_name(id: PieceId, stand_in: Option<Encoding>) -> String {
    match stand_in {
        None => format!("{id}.safetensors"),
        Some(encoding) => format!("{id}.{encoding}.safetensors"),
    }
}

/// Builds the header of a shard, up to its first tensor at `data_start`. It depends on the manifest
/// alone, so that every byte of it can be verified. `None` if it does not fit, which an
/// inconsistent manifest can cause.
pub(super) fn header(
    id: PieceId,
    fingerprint: &str,
    tensors: &[Tensor],
    data_start: u64,
    file_len: u64,
) -> Option<Vec<u8>> {
    let mut json = String::from("{");
    metadata(&mut json, id, fingerprint);
    let mut end = data_start;
    let mut pads = 0;
    for tensor in tensors {
        for (index, part) in tensor.parts.iter().enumerate() {
            padding(&mut json, &mut pads, end, part.offset, data_start)?;
            end = part.offset.checked_add(part.len)?;
            let (dtype, shape) = part_type(tensor, index);
            let name = part_name(tensor, index);
            entry(&mut json, &name, dtype, &shape, part.offset - data_start, end - data_start);
        }
    }
    padding(&mut json, &mut pads, end, file_len, data_start)?;
    json.push('}');

    let region = usize::try_from(data_start).ok()?;
    if region < 8 + json.len() || region > 8 + json.len() + (1 << 26) {
        return None;
    }
    let mut bytes = Vec::with_capacity(region);
    bytes.extend_from_slice(&(data_start - 8).to_le_bytes());
    bytes.extend_from_slice(json.as_bytes());
    bytes.resize(region, b' ');
    Some(bytes)
}

/// First bytes of a piece's shard. They are different for every model.
pub(super) fn beginning(id: PieceId, fingerprint: &str, data_start: u64) -> Vec<u8> {
    let mut json = String::from("{");
    metadata(&mut json, id, fingerprint);
    [&(data_start - 8).to_le_bytes(), json.as_bytes()].concat()
}

/// Offset of the first tensor in a shard, chosen before anything is encoded. It leaves room for the
/// longest header, whichever of its possible encodings each tensor gets.
pub(super) fn data_start(
    id: PieceId,
    fingerprint: &str,
    tensors: &[Tensor],
    choices: impl Fn(&Tensor) -> Vec<Option<Encoding>>,
    longest_file: u64,
) -> u64 {
    let mut text = String::from("{");
    metadata(&mut text, id, fingerprint);
    let mut len = text.len() + 1;
    for tensor in tensors {
        let mut longest = 0;
        for encoding in choices(tensor) {
            let stored = Tensor { encoding, ..tensor.clone() };
            let parts = part_count(&stored);
            let mut text = String::new();
            let mut pads = 1 << 30;
            for index in 0..parts {
                let shape = [tensor.shape.as_slice(), &[longest_file]].concat();
                let name = part_name(&stored, index);
                let far = longest_file;
                entry(&mut text, &name, Dtype::F8_E4M3, &shape, far, far);
                // A gap is shorter than a block, but its offsets may have the maximum number of
                // digits.
                let _ = padding(&mut text, &mut pads, far, far + 1, 0);
            }
            longest = longest.max(text.len());
        }
        len += longest;
    }
    (8 + len as u64).next_multiple_of(ALIGN as u64)
}

/// Number of parts in the header.
pub(super) fn part_count(tensor: &Tensor) -> usize {
    tensor.encoding.map_or(1, |encoding| encoding.parts().len()).max(tensor.parts.len())
}

/// Name of a part in the header.
pub(super) fn part_name(tensor: &Tensor, index: usize) -> String {
    match tensor.encoding.and_then(|encoding| encoding.parts().get(index)) {
        Some(part) => format!("{}{}", tensor.name, part.suffix),
        None => tensor.name.clone(),
    }
}

/// Type and shape of a part, as seen by a library that does not know the encodings.
fn part_type(tensor: &Tensor, index: usize) -> (Dtype, Vec<u64>) {
    let dtype = match tensor.encoding {
        None => tensor.dtype,
        Some(Encoding::F32) => Dtype::F32,
        Some(Encoding::F16) => Dtype::F16,
        Some(Encoding::Bf16) => Dtype::BF16,
        Some(Encoding::Fp8(Fp8Scales::Squares)) if index == 0 => Dtype::F8_E4M3,
        Some(_) => return (Dtype::U8, vec![tensor.parts[index].len]),
    };
    (dtype, tensor.shape.clone())
}

fn metadata(json: &mut String, id: PieceId, fingerprint: &str) {
    let fingerprint = serde_json::Value::from(fingerprint);
    let _ =
        write!(json, r#""__metadata__":{{"sws.fingerprint":{fingerprint},"sws.piece":"{id}"}}"#);
}

fn entry(json: &mut String, name: &str, dtype: Dtype, shape: &[u64], start: u64, end: u64) {
    let name = serde_json::Value::from(name);
    let _ = write!(json, r#",{name}:{{"dtype":"{dtype}","shape":["#);
    for (i, dim) in shape.iter().enumerate() {
        let comma = if i == 0 { "" } else { "," };
        let _ = write!(json, "{comma}{dim}");
    }
    let _ = write!(json, r#"],"data_offsets":[{start},{end}]}}"#);
}

/// Adds an entry for the gap between two parts, if there is one.
fn padding(json: &mut String, pads: &mut u32, from: u64, to: u64, data_start: u64) -> Option<()> {
    let gap = to.checked_sub(from)?;
    if gap > 0 {
        let start = from.checked_sub(data_start)?;
        let end = to - data_start;
        entry(json, &format!("{PAD}{pads}"), Dtype::U8, &[gap], start, end);
        *pads += 1;
    }
    Some(())
}
