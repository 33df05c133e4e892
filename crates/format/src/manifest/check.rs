//! Validation of a manifest, before anything is read or allocated according to it.

use std::collections::HashSet;

use sws_kernels::PartLen;

use super::in_place::{MAX_STACKED, MAX_TRANSPOSED};
use super::{
    Extent, Geometry, MANIFEST_FILE, MAX_COPY_BYTES, Manifest, Packing, Piece, Tensor, TensorOrigin,
};
use crate::Dtype;
use crate::header::{MAX_DIMS, MAX_TENSORS, good_name};
use crate::path::{is_plain_name, is_plain_path};

impl Manifest {
    /// Returns the first problem with the manifest itself; the files are not checked.
    ///
    /// A manifest that passes has unique, sorted pieces, paths that stay below the directory,
    /// extents that lie inside their files and do not overlap, parts of the lengths that their
    /// encodings need, and the right number of checksums. With `checksums`, extents without
    /// checksums are refused.
    pub(crate) fn check(&self, checksums: bool) -> Result<(), String> {
        self.check_identity()?;
        self.check_files()?;
        if let Some(pair) = self.pieces.windows(2).find(|pair| pair[0].id >= pair[1].id) {
            return Err(format!("its pieces {} and {} are not in order", pair[0].id, pair[1].id));
        }
        let tensors: usize = self.pieces.iter().map(|piece| piece.all_tensors().count()).sum();
        if tensors > MAX_TENSORS {
            return Err(format!(
                "it lists {tensors} tensors, more than the {MAX_TENSORS} that a manifest can have"
            ));
        }
        for piece in &self.pieces {
            check_piece(piece).map_err(|reason| format!("its piece {} {reason}", piece.id))?;
            for tensor in piece.all_tensors() {
                self.check_tensor(tensor, checksums).map_err(|reason| {
                    format!("in its piece {} the tensor `{}` {reason}", piece.id, tensor.name)
                })?;
            }
        }
        self.check_overlap()
    }

    fn check_identity(&self) -> Result<(), String> {
        let fingerprint = &self.model.fingerprint;
        if !is_blake3(fingerprint) {
            return Err("its fingerprint is not 64 hexadecimal digits".to_owned());
        }
        if !good_name(&self.model.model_type) {
            return Err("its model_type is empty, too long or not printable".to_owned());
        }
        Ok(())
    }

    fn check_files(&self) -> Result<(), String> {
        let mut paths = HashSet::new();
        for file in &self.files {
            if !is_plain_path(&file.path) {
                return Err(format!("it points outside its directory, to {:?}", file.path));
            }
            if !paths.insert(&file.path) {
                return Err(format!("it lists the file {} twice", file.path));
            }
        }
        for copy in &self.copies {
            if !is_plain_name(&copy.path) {
                return Err(format!("it points outside its directory, to {:?}", copy.path));
            }
            if copy.path == MANIFEST_FILE || !paths.insert(&copy.path) {
                return Err(format!("it lists the file {} twice", copy.path));
            }
            if copy.len > MAX_COPY_BYTES {
                return Err(format!("its file {} is too long for one that is copied", copy.path));
            }
            if !is_blake3(&copy.blake3) {
                return Err(format!(
                    "the checksum of its file {} is not 64 hexadecimal digits",
                    copy.path
                ));
            }
        }
        Ok(())
    }

    /// The version of the format that this manifest needs. Readers that know only version 1 would
    /// restore transposed tensors wrongly.
    pub(super) fn version(&self) -> u64 {
        let mut tensors = self.pieces.iter().flat_map(Piece::all_tensors);
        if tensors.any(|tensor| tensor.transposed) { 2 } else { 1 }
    }

    fn check_tensor(&self, tensor: &Tensor, checksums: bool) -> Result<(), &'static str> {
        if !is_plain_name(&tensor.source) {
            return Err("names a source that is not a plain file name");
        }
        if tensor.slice.is_some_and(|s| s.index >= s.count || s.count > MAX_STACKED) {
            return Err("is an impossible slice");
        }
        if tensor.shape.len() > MAX_DIMS || tensor.dtype.byte_len(&tensor.shape).is_none() {
            return Err("has an impossible shape");
        }
        if let Some(error) = &tensor.error {
            let norms =
                [Some(error.relative), Some(error.max), error.spectral, error.spectral_error];
            // JSON has neither infinities nor NaN.
            if !norms.into_iter().flatten().all(|norm| norm.is_finite() && norm >= 0.0) {
                return Err("has an error norm that is not a number");
            }
        }
        if tensor.transposed {
            check_transposed(tensor)?;
        }
        check_parts(tensor)?;
        match tensor.packing {
            Some(packing) => check_packed(packing, tensor)?,
            None => check_origins(tensor)?,
        }
        for part in &tensor.parts {
            self.check_extent(part, checksums)?;
        }
        Ok(())
    }

    fn check_extent(&self, part: &Extent, checksums: bool) -> Result<(), &'static str> {
        let file = self.files.get(part.file as usize).ok_or("lies in a file that is not listed")?;
        if part.offset.checked_add(part.len).is_none_or(|end| end > file.len) {
            return Err("reaches beyond the end of its file");
        }
        if part.check_len == 0 {
            return Err("has checksums over nothing");
        }
        let expected = part.len.div_ceil(part.check_len);
        if (checksums || !part.checks.is_empty()) && part.checks.len() as u64 != expected {
            return Err("does not have as many checksums as its length asks for");
        }
        Ok(())
    }

    fn check_overlap(&self) -> Result<(), String> {
        let mut extents = Vec::new();
        for piece in &self.pieces {
            for part in piece.all_tensors().flat_map(|tensor| &tensor.parts) {
                if part.len > 0 {
                    extents.push((part.file, part.offset, part, piece));
                }
            }
        }
        extents.sort_unstable_by_key(|&(file, offset, ..)| (file, offset));
        for pair in extents.windows(2) {
            let [(a_file, a_offset, a, a_piece), (b_file, b_offset, _, b_piece)] = pair else {
                continue;
            };
            if a_file == b_file && a_offset + a.len > *b_offset {
                let file = &self.files[*a_file as usize].path;
                return Err(format!(
                    "its pieces {} and {} overlap in {file}",
                    a_piece.id, b_piece.id
                ));
            }
        }
        Ok(())
    }
}

pub(super) fn is_blake3(hex: &str) -> bool {
    hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit())
}

impl Piece {
    fn all_tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.tensors.iter().chain(self.stand_in.iter().flat_map(|stand_in| &stand_in.tensors))
    }
}

fn check_piece(piece: &Piece) -> Result<(), &'static str> {
    let mut names = HashSet::new();
    for tensor in &piece.tensors {
        if !good_name(&tensor.name) {
            return Err("has a tensor whose name is empty, too long or not printable");
        }
        if !names.insert(&tensor.name) {
            return Err("has two tensors of one name");
        }
    }
    if let Some(stand_in) = &piece.stand_in {
        let same = |(a, b): (&Tensor, &Tensor)| {
            a.name == b.name && a.shape == b.shape && a.transposed == b.transposed
        };
        if stand_in.tensors.len() != piece.tensors.len()
            || !piece.tensors.iter().zip(&stand_in.tensors).all(same)
        {
            return Err("has a stand-in with other tensors than its own");
        }
    }
    Ok(())
}

fn check_transposed(tensor: &Tensor) -> Result<(), &'static str> {
    let plain = matches!(tensor.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16);
    let small = tensor.shape.iter().all(|&dim| dim <= MAX_TRANSPOSED);
    if !plain || !small || tensor.shape.len() != 2 || tensor.encoding.is_none() {
        return Err("is transposed, and no matrix that can be");
    }
    Ok(())
}

fn check_packed(packing: Packing, tensor: &Tensor) -> Result<(), &'static str> {
    let named = tensor.origins.iter().all(|origin| good_name(&origin.name));
    if !named || tensor.slice.is_some() || Geometry::of_tensor(packing, tensor).is_none() {
        return Err("does not fit the tensors that it was packed in");
    }
    Ok(())
}

fn check_origins(tensor: &Tensor) -> Result<(), &'static str> {
    let fits = |(origin, part): (&TensorOrigin, &Extent)| {
        good_name(&origin.name)
            && origin.shape.len() <= MAX_DIMS
            && origin.dtype.byte_len(&origin.shape) == Some(part.len)
    };
    let is_whole = match (tensor.encoding, &tensor.parts[..], &tensor.origins[..]) {
        // Codes, whose length in the checkpoint is that of the matrix, and their scales.
        (Some(encoding), [_, _, _, scales], [codes, beside]) if encoding.packs_codes() => {
            let (rows, cols) = tensor.matrix_shape();
            let len = codes.dtype.byte_len(&codes.shape);
            let is_exact = tensor.error.is_none();
            let is_whole = len.is_some() && len == rows.checked_mul(cols);
            is_exact && good_name(&codes.name) && is_whole && fits((beside, scales))
        }
        (Some(encoding), ..) if encoding.packs_codes() => false,
        (_, _, []) => true,
        (_, parts, origins) => origins.len() == parts.len() && origins.iter().zip(parts).all(fits),
    };
    if is_whole { Ok(()) } else { Err("does not fit the tensors that it came from") }
}

fn check_parts(tensor: &Tensor) -> Result<(), &'static str> {
    const LENGTH: &str = "has a part whose length does not fit its shape";
    let Some(encoding) = tensor.encoding else {
        let [part] = tensor.parts.as_slice() else {
            return Err("has more or fewer parts than one");
        };
        return if tensor.dtype.byte_len(&tensor.shape) == Some(part.len) {
            Ok(())
        } else {
            Err(LENGTH)
        };
    };
    let kinds = encoding.parts();
    if kinds.len() != tensor.parts.len() {
        return Err("has more or fewer parts than its encoding");
    }
    let (rows, cols) = tensor.matrix_shape();
    for (kind, part) in kinds.iter().zip(&tensor.parts) {
        let fits = match kind.len(rows, cols) {
            Some(PartLen::Exact(len)) => part.len == len,
            // At most one more byte per weight. The product cannot overflow, as the shape was
            // checked.
            Some(PartLen::AtLeast(len)) => {
                (len..=len.saturating_add(rows * cols)).contains(&part.len)
            }
            None => false,
        };
        if !fits {
            return Err(LENGTH);
        }
    }
    Ok(())
}
