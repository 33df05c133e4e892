//! What a model consists of and where its bytes lie. `docs/format.md` draws the file.

#[cfg(feature = "io")]
mod check;
#[cfg(feature = "io")]
mod file;
mod in_place;
#[cfg(feature = "io")]
mod small;

use serde::{Deserialize, Serialize};
use sws_kernels::Encoding;

use crate::PieceId;

#[cfg(feature = "io")]
pub use file::{InvalidManifest, MANIFEST_FILE, ManifestError};
#[cfg(feature = "io")]
pub use small::{SMALL_FILES, SmallFileError};

/// The contents of a shard directory, or of a checkpoint read in place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Which model this is.
    pub model: ModelIdentity,
    /// The encoding asked for when the shards were made; none for a checkpoint read in place.
    #[serde(with = "encoding_name::optional", default, skip_serializing_if = "Option::is_none")]
    pub encoding: Option<Encoding>,
    /// The files that extents point into, by index.
    pub files: Vec<FileEntry>,
    /// The pieces, sorted by id.
    pub pieces: Vec<Piece>,
    /// The checkpoint's small files, copied beside the shards; none for a checkpoint read in place.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copies: Vec<CopiedFile>,
}

/// A file of the checkpoint that was copied as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiedFile {
    /// Its name in the directory of the manifest.
    pub path: String,
    /// Its exact length.
    pub len: u64,
    /// blake3 (hex) of its bytes.
    pub blake3: String,
}

/// The longest file that is copied: a tokenizer has 20 MB at most; what is larger holds weights in
/// some form.
#[cfg(feature = "io")]
pub(crate) const MAX_COPY_BYTES: u64 = 64 << 20;

/// What tells one model from another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelIdentity {
    /// The family, as `config.json` spells it.
    pub model_type: String,
    /// blake3 (hex) over the configuration, the headers and a sample of the weights. A checkpoint
    /// and the shards made from it have the same fingerprint; so do its shards in every encoding.
    pub fingerprint: String,
}

/// A file that extents point into.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Path below the directory of the manifest: plain names joined by `/`.
    pub path: String,
    /// Its exact length.
    pub len: u64,
}

/// The unit of streaming.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Piece {
    /// Its name.
    pub id: PieceId,
    /// Its tensors in the order in which they are computed with.
    pub tensors: Vec<Tensor>,
    /// A smaller, inexact copy, if one was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stand_in: Option<StandIn>,
}

/// An inexact copy of a piece, small enough to keep in memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StandIn {
    /// `q8` or `q4`.
    #[serde(with = "encoding_name")]
    pub encoding: Encoding,
    /// The same tensors as the piece's, in the same order.
    pub tensors: Vec<Tensor>,
}

/// One tensor of a piece.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tensor {
    /// Its name in the checkpoint.
    pub name: String,
    /// Its type in the checkpoint.
    pub dtype: safetensors::Dtype,
    /// Its shape; of a stacked tensor, the shape of this piece's slice.
    pub shape: Vec<u64>,
    /// Which slice of a stacked tensor this is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice: Option<Slice>,
    /// The checkpoint file it came from, by name.
    pub source: String,
    /// How it is stored. None: as raw numbers of `dtype`, a type that no kernel computes with.
    #[serde(with = "encoding_name::optional", default, skip_serializing_if = "Option::is_none")]
    pub encoding: Option<Encoding>,
    /// Where the parts of its encoding lie, in the order of the encoding's parts.
    pub parts: Vec<Extent>,
    /// What a lossy encoding changed; none if nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorNorms>,
}

/// A place in a tensor that stacks the experts of a layer along its first dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slice {
    /// The index along the first dimension.
    pub index: u64,
    /// The length of the first dimension.
    pub count: u64,
}

/// A run of bytes in a file, with its checksums.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// Index into [`Manifest::files`].
    pub file: u32,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
    /// The bytes that one checksum covers (the last may cover fewer). A whole number of rows, so
    /// that a large matrix can be read and verified by blocks of rows.
    pub check_len: u64,
    /// xxh3 (64 bits) of each such run; empty for a checkpoint read in place, for which nobody
    /// vouches.
    #[serde(with = "hex_numbers", default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<u64>,
}

/// How far the stored weights `ŵ` are from the checkpoint's `w`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ErrorNorms {
    /// ‖ŵ − w‖ / ‖w‖ in the Frobenius norm.
    pub relative: f64,
    /// The largest |ŵ − w|.
    pub max: f64,
    /// An upper bound of the spectral norm of the checkpoint's matrix, where it was computed: in
    /// stand-ins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spectral: Option<f64>,
    /// The same of ŵ − w.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spectral_error: Option<f64>,
}

impl Manifest {
    /// The piece of that name.
    pub fn piece(&self, id: PieceId) -> Option<&Piece> {
        let at = self.pieces.binary_search_by_key(&id, |piece| piece.id).ok()?;
        Some(&self.pieces[at])
    }
}

impl Piece {
    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    /// The bytes of all its extents.
    pub fn stored_bytes(&self) -> u64 {
        self.tensors.iter().map(Tensor::stored_bytes).sum()
    }
}

impl Tensor {
    /// The bytes of all its parts.
    pub fn stored_bytes(&self) -> u64 {
        self.parts.iter().map(|extent| extent.len).sum()
    }

    /// The bytes that the checkpoint has for it. What came with scales has as many as are stored,
    /// as it is kept as it was.
    pub fn source_bytes(&self) -> u64 {
        match self.dtype {
            safetensors::Dtype::F8_E4M3 | safetensors::Dtype::U8 => self.stored_bytes(),
            dtype => self.shape.iter().product::<u64>() * dtype.bitsize() as u64 / 8,
        }
    }

    /// Its rows and columns as a matrix: the last dimension is a row's. A vector is one row.
    pub fn matrix_shape(&self) -> (u64, u64) {
        match self.shape.split_last() {
            Some((&cols, outer)) => (outer.iter().product(), cols),
            None => (1, 1),
        }
    }
}

/// Encodings are spelled as on the command line.
mod encoding_name {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use sws_kernels::Encoding;

    pub(super) fn serialize<S: Serializer>(e: &Encoding, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(e.name())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Encoding, D::Error> {
        String::deserialize(d)?.parse().map_err(D::Error::custom)
    }

    /// The same for a field that may be absent.
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

/// JSON numbers are doubles to many readers, which would lose the low bits of a hash.
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
            number
                .filter(|number| format!("{number:016x}") == word)
                .map(Hex)
                .ok_or_else(|| D::Error::custom("a checksum is not 16 hexadecimal digits"))
        }
    }
}
