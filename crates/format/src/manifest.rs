//! Pieces of a model and the locations of their bytes. `docs/format.md` shows the layout of the
//! file.

mod check;
mod file;
mod geometry;
mod identity;
mod in_place;
mod packed;
mod small;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use sws_kernels::{Activations, Encoding, Packings};

use crate::{Dtype, PieceId};

pub use file::{
    InvalidManifest, JOURNAL, LEARNED_FILE, MANIFEST_FILE, MAX_LEARNED_BYTES, MAX_MANIFEST_BYTES,
    ManifestError,
};
pub use geometry::Geometry;
pub(crate) use geometry::PARTS;
pub use packed::{Packed, Packing};
pub use small::{SMALL_FILES, SmallFileError};

/// The contents of a shard directory, or of a checkpoint read in place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Identity of the model.
    pub model: ModelIdentity,
    /// Encoding requested when the shards were made; `None` for a checkpoint read in place.
    #[serde(with = "encoding_name::optional", default, skip_serializing_if = "Option::is_none")]
    pub encoding: Option<Encoding>,
    /// Files that extents refer to by index.
    pub files: Vec<FileEntry>,
    /// Pieces, sorted by id.
    pub pieces: Vec<Piece>,
    /// Small files of the checkpoint, copied next to the shards; empty for a checkpoint read in
    /// place.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copies: Vec<CopiedFile>,
}

/// A file of the checkpoint that was copied unchanged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiedFile {
    /// File name in the directory of the manifest.
    pub path: String,
    /// Exact length in bytes.
    pub len: u64,
    /// blake3 (hex) of the contents.
    pub blake3: String,
}

/// Largest file that is copied. Tokenizers have 20 MB at most; larger files hold weights in some
/// form.
pub(crate) const MAX_COPY_BYTES: u64 = 64 << 20;

/// Identity of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelIdentity {
    /// The family, as the configuration spells it.
    pub model_type: String,
    /// blake3 (hex) over the configuration, the headers and a sample of the weights. It is the same
    /// for a checkpoint and for shards made from it in any encoding.
    pub fingerprint: String,
}

/// A file that extents refer to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Path relative to the directory of the manifest: plain names joined by `/`.
    pub path: String,
    /// Exact length in bytes.
    pub len: u64,
}

/// A piece of a model, the unit of streaming.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Piece {
    /// Name of the piece.
    pub id: PieceId,
    /// Tensors, in the order in which a pass uses them.
    pub tensors: Vec<Tensor>,
    /// Smaller, inexact copy, if one was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stand_in: Option<StandIn>,
}

/// An inexact copy of a piece, small enough to keep in memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StandIn {
    /// Encoding: `q8` or `q4`.
    #[serde(with = "encoding_name")]
    pub encoding: Encoding,
    /// The tensors of the piece, in the same order.
    pub tensors: Vec<Tensor>,
}

/// One tensor of a piece.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tensor {
    /// Name in the checkpoint.
    pub name: String,
    /// Type in the checkpoint.
    pub dtype: Dtype,
    /// Shape; for a stacked tensor, the shape of this piece's slice.
    pub shape: Vec<u64>,
    /// True if the checkpoint stores this matrix as [columns, rows]. `shape` is [rows, columns],
    /// and shards store rows. In a checkpoint in place such a matrix cannot be used for computing.
    #[serde(default, skip_serializing_if = "is_false")]
    pub transposed: bool,
    /// The packing of this matrix's codes along columns in the checkpoint, if there is one. Shards
    /// store rows. In a checkpoint in place such a matrix cannot be used for computing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packing: Option<Packing>,
    /// Position in a stacked tensor, if it is a slice of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice: Option<Slice>,
    /// Name of the checkpoint file it came from.
    pub source: String,
    /// Encoding of the stored bytes. `None` for raw numbers of a `dtype` that no kernel supports.
    #[serde(with = "encoding_name::optional", default, skip_serializing_if = "Option::is_none")]
    pub encoding: Option<Encoding>,
    /// Extents of the parts, in the order of the encoding.
    pub parts: Vec<Extent>,
    /// The checkpoint's tensors that hold the parts of a quantised matrix; empty if it is one tensor.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub origins: Vec<TensorOrigin>,
    /// Error introduced by a lossy encoding; `None` if nothing changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorNorms>,
}

/// A tensor of the checkpoint that holds a part of a quantised matrix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorOrigin {
    /// Name in the checkpoint.
    pub name: String,
    /// Type in the checkpoint.
    pub dtype: Dtype,
    /// Shape; for a stacked tensor, the shape of the slice.
    pub shape: Vec<u64>,
}

/// Position of a slice in a tensor that stacks the experts of a layer along its first dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slice {
    /// Index along the first dimension.
    pub index: u64,
    /// Length of the first dimension.
    pub count: u64,
}

/// A range of bytes in a file, with its checksums.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// Index into [`Manifest::files`].
    pub file: u32,
    /// Offset of the first byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
    /// Number of bytes that one checksum covers; the last may cover fewer. It is a whole number of
    /// rows, so that a large matrix can be read and verified by blocks of rows.
    pub check_len: u64,
    /// xxh3 (64 bits) of each block of `check_len` bytes; empty for a checkpoint read in place,
    /// which has no checksums.
    #[serde(with = "hex_numbers", default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<u64>,
}

/// Distance of the stored weights `ŵ` from the checkpoint's `w`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ErrorNorms {
    /// ‖ŵ − w‖ / ‖w‖ in the Frobenius norm.
    pub relative: f64,
    /// Largest |ŵ − w|.
    pub max: f64,
    /// Upper bound of the spectral norm of the checkpoint's matrix. Computed for stand-ins only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spectral: Option<f64>,
    /// Upper bound of the spectral norm of ŵ − w. Computed for stand-ins only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spectral_error: Option<f64>,
}

impl Manifest {
    /// Returns the piece named `id`.
    pub fn piece(&self, id: PieceId) -> Option<&Piece> {
        let at = self.pieces.binary_search_by_key(&id, |piece| piece.id).ok()?;
        Some(&self.pieces[at])
    }

    /// The version of the [arithmetic](sws_kernels::ARITHMETIC) that last changed products with any of the
    /// matrices. Stand-ins do not count: exact outputs do not depend on them.
    pub fn arithmetic(&self) -> u32 {
        let tensors = self.pieces.iter().flat_map(|piece| &piece.tensors);
        tensors.filter_map(|tensor| tensor.encoding).map(Encoding::arithmetic).max().unwrap_or(1)
    }

    /// Layouts of packed activations that the matrices need, including those of stand-ins if these
    /// are used.
    pub fn packings(&self, activations: Activations, stand_ins: bool) -> Packings {
        let tensors = self.pieces.iter().flat_map(|piece| {
            let copy = piece.stand_in.iter().filter(|_| stand_ins);
            piece.tensors.iter().chain(copy.flat_map(|stand_in| &stand_in.tensors))
        });
        Packings::of(activations, tensors.filter_map(|tensor| tensor.encoding))
    }
}

/// Index of the top part of a nested matrix.
const TOP: usize = 1;

impl Piece {
    /// Returns the tensor named `name`.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    /// The tensors of the stand-in, in the order of the piece's: those of a separate copy or, for a
    /// nested piece, the tops of its nested matrices and its other tensors unchanged. `None` if the
    /// piece has neither.
    pub fn stand_in_tensors(&self) -> Option<Cow<'_, [Tensor]>> {
        if let Some(stand_in) = &self.stand_in {
            return Some(Cow::Borrowed(&stand_in.tensors));
        }
        if !self.tensors.iter().any(Tensor::is_nested) {
            return None;
        }
        Some(self.tensors.iter().map(Tensor::top).collect())
    }

    /// Stored bytes of all tensors, without the stand-in.
    pub fn stored_bytes(&self) -> u64 {
        self.tensors.iter().map(Tensor::stored_bytes).sum()
    }
}

impl Tensor {
    fn is_nested(&self) -> bool {
        self.encoding == Some(Encoding::Nested)
    }

    /// The top of a nested tensor; another one unchanged.
    fn top(&self) -> Tensor {
        if !self.is_nested() {
            return self.clone();
        }
        let parts = self.parts.get(TOP).cloned().into_iter().collect();
        Tensor { encoding: Some(Encoding::Top), parts, ..self.clone() }
    }

    /// Stored bytes of all parts.
    pub fn stored_bytes(&self) -> u64 {
        self.parts.iter().map(|extent| extent.len).sum()
    }

    /// True if the checkpoint stores the matrix in another order, which only shards convert to
    /// rows.
    pub fn is_turned(&self) -> bool {
        self.transposed || self.packing.is_some()
    }

    /// Size in the checkpoint. A tensor with scales is stored unchanged unless its codes are
    /// packed, so its size is that of the stored bytes.
    pub fn source_bytes(&self) -> u64 {
        match self.dtype {
            _ if self.packing.is_some() || self.encoding.is_some_and(Encoding::packs_codes) => {
                let len = |origin: &TensorOrigin| origin.dtype.byte_len(&origin.shape).unwrap_or(0);
                self.origins.iter().map(len).sum()
            }
            _ if !self.origins.is_empty() => self.stored_bytes(),
            dtype if dtype.blocks().is_some() => self.stored_bytes(),
            dtype => self.shape.iter().product::<u64>() * dtype.bits() / 8,
        }
    }

    /// Shape in the checkpoint, without the dimension that counts slices.
    pub fn source_shape(&self) -> Vec<u64> {
        let mut shape = self.shape.clone();
        if self.transposed {
            shape.reverse();
        }
        shape
    }

    /// Rows and columns of the tensor as a matrix: the last dimension gives the columns. A vector
    /// is one row.
    pub fn matrix_shape(&self) -> (u64, u64) {
        match self.shape.split_last() {
            Some((&cols, outer)) => (outer.iter().product(), cols),
            None => (1, 1),
        }
    }
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// Serializes encodings by their names on the command line.
mod encoding_name {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use sws_kernels::Encoding;

    pub(super) fn serialize<S: Serializer>(e: &Encoding, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(e.name())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Encoding, D::Error> {
        String::deserialize(d)?.parse().map_err(D::Error::custom)
    }

    /// For fields that may be absent.
    pub(super) mod optional {
        use super::*;

        pub(in super::super) fn serialize<S: Serializer>(
            e: &Option<Encoding>,
            s: S,
        ) -> Result<S::Ok, S::Error> {
            match e {
                Some(encoding) => super::serialize(encoding, s),
                None => s.serialize_none(),
            }
        }

        pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
            d: D,
        ) -> Result<Option<Encoding>, D::Error> {
            super::deserialize(d).map(Some)
        }
    }
}

/// Serializes hashes as hexadecimal strings: many JSON readers parse numbers as doubles, which
/// would lose the low bits of a hash.
mod hex_numbers {
    use std::borrow::Cow;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(numbers: &[u64], s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(numbers.iter().map(|n| format!("{n:016x}")))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<u64>, D::Error> {
        Ok(Vec::<Hex>::deserialize(d)?.into_iter().map(|Hex(number)| number).collect())
    }

    struct Hex(u64);

    impl<'de> Deserialize<'de> for Hex {
        fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
            let word = Cow::<str>::deserialize(d)?;
            let number = u64::from_str_radix(&word, 16).ok();
            match number {
                Some(number) if format!("{number:016x}") == word => Ok(Hex(number)),
                _ => Err(D::Error::custom("a checksum is not 16 hexadecimal digits")),
            }
        }
    }
}
