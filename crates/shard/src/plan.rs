//! The shards of a model and their sizes, planned before anything is written.

use std::collections::{BTreeSet, HashSet};

use sws_format::{
    Manifest, Naming, Piece, PieceKind, Placement, Tensor, encoding_of, quantised_as,
};
use sws_kernels::{Encoding, PartLen, SourceDtype};

use super::direct::ALIGN;
use super::layout::{self, PAD, TENSOR_ALIGN};
use super::{ShardError, ShardOptions};

/// Tensors up to this size are read whole, so that their exponents can be counted before encoding.
/// Each of three workers holds one. The largest experts with many siblings (DeepSeek-V3) have
/// matrices of 28 MiB.
pub(super) const WINDOW: usize = 32 << 20;

/// A shard to write.
pub(super) struct ShardJob<'a> {
    /// File name, relative to the directory.
    pub(super) file: String,
    /// The piece to store.
    pub(super) piece: &'a Piece,
    /// The encoding, for a stand-in.
    pub(super) stand_in: Option<Encoding>,
    /// Planned encoding of each tensor.
    pub(super) encodings: Vec<Option<Encoding>>,
    /// Offset of the first tensor.
    pub(super) data_start: u64,
    /// Length of the file, exact except for patches.
    pub(super) len: u64,
    /// Bytes of the source tensors.
    pub(super) source_len: u64,
}

impl ShardJob<'_> {
    /// Indices of the weight files with this piece. An index may occur several times.
    pub(super) fn files(&self) -> impl Iterator<Item = u32> {
        self.piece.tensors.iter().flat_map(|tensor| &tensor.parts).map(|part| part.file)
    }
}

/// Plans the shards of all pieces in the order of the manifest's files. The shard of a piece is
/// followed by that of its stand-in.
pub(super) fn jobs<'a>(
    manifest: &'a Manifest,
    naming: &dyn Naming,
    options: &ShardOptions,
) -> Result<Vec<ShardJob<'a>>, ShardError> {
    let mut jobs = Vec::new();
    for piece in &manifest.pieces {
        let exact = job(manifest, naming, piece, options.encoding, None);
        check_names(&exact)?;
        jobs.push(exact);
        if let Some(encoding) = options.stand_ins
            && matches!(piece.id.kind(), PieceKind::Expert(_))
        {
            let stand_in = job(manifest, naming, piece, encoding, Some(encoding));
            check_names(&stand_in)?;
            if stand_in.encodings.contains(&Some(encoding)) {
                jobs.push(stand_in);
            }
        }
    }
    Ok(jobs)
}

fn job<'a>(
    manifest: &Manifest,
    naming: &dyn Naming,
    piece: &'a Piece,
    encoding: Encoding,
    stand_in: Option<Encoding>,
) -> ShardJob<'a> {
    let tensors = &piece.tensors;
    let encoding = encoding_of(piece.id.kind(), encoding);
    let encodings: Vec<_> = tensors.iter().map(|t| wanted(t, naming, encoding)).collect();
    let lens = tensors.iter().zip(&encodings).map(|(t, &e)| stored_len(t, e));
    let data_len = lens.fold(0, u64::saturating_add).saturating_add(ALIGN as u64);
    // This bounds the numbers in the header, and so their digits.
    let longest = data_len.saturating_mul(2);
    let choices = |tensor: &Tensor| vec![wanted(tensor, naming, encoding), tensor.encoding];
    let fingerprint = &manifest.model.fingerprint;
    let data_start = layout::data_start(piece.id, fingerprint, tensors, choices, longest);
    ShardJob {
        file: layout::file_name(piece.id, stand_in),
        piece,
        stand_in,
        encodings,
        data_start,
        len: data_start.saturating_add(data_len).next_multiple_of(ALIGN as u64),
        source_len: piece.stored_bytes(),
    }
}

/// Planned encoding of a tensor: the requested one for a matrix that can be encoded, otherwise
/// unchanged.
fn wanted(tensor: &Tensor, naming: &dyn Naming, encoding: Encoding) -> Option<Encoding> {
    let as_is = tensor.encoding;
    let Some(kind) = numbers(as_is) else { return as_is };
    let &[_, cols] = tensor.shape.as_slice() else { return as_is };
    if kind == SourceDtype::E4m3 {
        let Some(published) = as_is else { return as_is };
        if tensor.is_turned() || !is_matrix(tensor, naming) {
            return as_is;
        }
        let packed = quantised_as(published, encoding);
        let group = cols.saturating_mul(packed.row_multiple() as u64);
        let gains = group <= WINDOW as u64 && shortens_codes(packed, cols);
        return if gains { Some(packed) } else { as_is };
    }
    let bf12_row = least_len(Encoding::Bf12, 0, 1, cols);
    let encoding = match encoding {
        Encoding::Nested if nested_row(cols) >= bf12_row => Encoding::Bf11,
        _ => encoding,
    };
    // Encoding works on whole groups of rows. A matrix whose rows do not form whole groups is
    // useless as weights.
    let group =
        cols.saturating_mul(kind.size() as u64).saturating_mul(encoding.row_multiple() as u64);
    let possible = encoding.packs().is_none_or(|numbers| numbers == kind);
    if possible && group <= WINDOW as u64 && is_matrix(tensor, naming) {
        Some(encoding)
    } else {
        as_is
    }
}

/// True if a row of codes is shorter in this encoding, even with the maximum number of patches and
/// two bytes for their offset.
fn shortens_codes(packed: Encoding, cols: u64) -> bool {
    let Some(row) = least_len(packed, 0, 1, cols) else { return false };
    let longest = row.checked_add(cols / packed.most_patches() + 2);
    matches!(longest, Some(longest) if longest < cols)
}

/// Length of a row in nested. Padded blocks are as long as whole ones.
fn nested_row(cols: u64) -> Option<u64> {
    let first = least_len(Encoding::Nested, 0, 1, cols)?;
    Some(first + least_len(Encoding::Nested, 1, 1, cols)?)
}

fn is_matrix(tensor: &Tensor, naming: &dyn Naming) -> bool {
    let placement = match tensor.slice {
        Some(slice) => {
            let shape = [&[slice.count], tensor.source_shape().as_slice()].concat();
            naming.place(&tensor.name, &shape)
        }
        None => naming.place(&tensor.name, &tensor.shape),
    };
    match placement {
        Placement::Piece { matrix, .. } | Placement::Experts { matrix, .. } => matrix,
        Placement::Extra => false,
    }
}

/// Source type of tensors that can be re-encoded: plain floats, and codes of e4m3.
pub(super) fn numbers(encoding: Option<Encoding>) -> Option<SourceDtype> {
    encoding?.numbers()
}

/// Length of a part, without patches.
pub(super) fn least_len(encoding: Encoding, part: usize, rows: u64, cols: u64) -> Option<u64> {
    match encoding.parts().get(part)?.len(rows, cols)? {
        PartLen::Exact(len) | PartLen::AtLeast(len) => Some(len),
    }
}

/// Length of a tensor in a shard, including the padding before the next one.
fn stored_len(tensor: &Tensor, encoding: Option<Encoding>) -> u64 {
    match encoding {
        Some(encoding) if Some(encoding) != tensor.encoding || tensor.packing.is_some() => {
            encoded_len(tensor, encoding).unwrap_or(u64::MAX)
        }
        _ => tensor.parts.iter().filter_map(|part| aligned(part.len)).sum(),
    }
}

/// Length of a tensor in another encoding, with a typical number of patches.
fn encoded_len(tensor: &Tensor, encoding: Encoding) -> Option<u64> {
    let (rows, cols) = tensor.matrix_shape();
    let patches = rows.checked_mul(cols)? / encoding.typical_patches();
    let mut sum = aligned(patches)?;
    for part in 0..encoding.parts().len() {
        let len = least_len(encoding, part, rows, cols)?;
        sum = sum.checked_add(aligned(len)?)?;
    }
    Some(sum)
}

fn aligned(len: u64) -> Option<u64> {
    len.checked_next_multiple_of(TENSOR_ALIGN)
}

/// Refuses tensor names that parts of other tensors or padding may have in the shard.
fn check_names(job: &ShardJob) -> Result<(), ShardError> {
    let mut names = HashSet::new();
    for (tensor, &encoding) in job.piece.tensors.iter().zip(&job.encodings) {
        let mut suffixes = BTreeSet::from([""]);
        for encoding in [encoding, tensor.encoding].into_iter().flatten() {
            suffixes.extend(encoding.parts().iter().map(|part| part.suffix));
        }
        let mut clash = tensor.name.starts_with(PAD);
        for suffix in suffixes {
            clash |= !names.insert(format!("{}{suffix}", tensor.name));
        }
        if clash {
            let piece = job.piece.id;
            let tensor = tensor.name.clone();
            return Err(ShardError::Name { piece, tensor });
        }
    }
    Ok(())
}

/// Order of writing: weight file by weight file, so that files can arrive and be removed one after
/// another. For each file, shards that also need an earlier file come first. Then large shards come
/// first, so that the last thread does not finish a large one alone.
pub(super) fn by_file(jobs: &[ShardJob]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..jobs.len()).collect();
    order.sort_by_key(|&index| {
        let job = &jobs[index];
        (job.files().max(), job.files().min(), std::cmp::Reverse(job.source_len))
    });
    order
}
