//! The header of a safetensors file, which locates its tensors.
//!
//! The bytes are untrusted. Nothing here reads a file. Allocations are bounded by the length of the
//! JSON, which the caller has checked against the length of the file.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::Dtype;
use crate::dtype::of_safetensors;

/// Longest header that the format allows.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Largest number of tensors in a model: several times that of the largest one published.
pub(crate) const MAX_TENSORS: usize = 1 << 20;

/// Longest name of a tensor, in bytes.
pub(crate) const MAX_NAME_BYTES: usize = 512;

/// Largest number of dimensions of a tensor.
pub(crate) const MAX_DIMS: usize = 8;

/// The tensors of one file, in file order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Header {
    /// Tensors, without gap or overlap from the first byte after the header to the end of the file.
    pub tensors: Vec<HeaderTensor>,
}

/// One tensor of a safetensors file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HeaderTensor {
    /// Name.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Shape.
    pub shape: Vec<u64>,
    /// Offset of the first byte, counted from the start of the file.
    pub offset: u64,
    /// Length in bytes, as type and shape imply.
    pub len: u64,
}

/// Largest tensor, in bytes, whose numbers become part of the configuration.
const MAX_SMALL: u64 = 16 << 10;

impl HeaderTensor {
    /// True for a small tensor of a GGUF file for rotary embeddings, whose numbers belong to the
    /// configuration.
    pub fn is_configuration(&self) -> bool {
        self.name.starts_with("rope_") && self.dtype == Dtype::F32 && self.len <= MAX_SMALL
    }
}

/// Problem with a header.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum HeaderError {
    /// The file is too short to hold the length of the header.
    #[error("its {0} bytes are too few for a header")]
    TooShort(u64),
    /// The header would end beyond the end of the file.
    #[error("its header of {header} bytes does not fit into the file of {file} bytes")]
    BeyondEnd {
        /// Length of the header, as the file states it.
        header: u64,
        /// Length of the file.
        file: u64,
    },
    /// The header is longer than the format allows.
    #[error("its header of {0} bytes is longer than the format allows")]
    TooLong(u64),
    /// The header is malformed JSON, or JSON of the wrong structure.
    #[error("its header is not what the format asks for ({0})")]
    Json(#[source] serde_json::Error),
    /// Two tensors have the same name.
    #[error("its header names the tensor `{0}` twice")]
    Duplicate(String),
    /// The type and shape of a tensor do not agree with its bytes.
    #[error("its tensor `{name}` has {bytes} bytes, which is not what its type and shape need")]
    Size {
        name: String,
        /// Number of bytes between its offsets.
        bytes: u64,
    },
    /// A tensor does not start where the previous one ends.
    #[error(
        "its tensor `{name}` starts at byte {start} of the data and should start at {expected}"
    )]
    Offset {
        name: String,
        /// Start of the tensor in the data.
        start: u64,
        /// End of the previous tensor.
        expected: u64,
    },
    /// The tensors do not fill the file.
    #[error("its header describes {described} bytes of data and the file has {present}")]
    Length {
        /// Number of bytes that the header describes.
        described: u64,
        /// Number of bytes in the file.
        present: u64,
    },
}

impl Header {
    /// Returns the length of the JSON, from the file's first eight bytes and its length.
    ///
    /// The result is less than the length of the file, so it is safe to allocate.
    pub fn json_len(first: [u8; 8], file_len: u64) -> Result<u64, HeaderError> {
        let header = u64::from_le_bytes(first);
        match file_len.checked_sub(8) {
            None => Err(HeaderError::TooShort(file_len)),
            Some(room) if header > room => Err(HeaderError::BeyondEnd { header, file: file_len }),
            Some(_) if header > MAX_HEADER_BYTES => Err(HeaderError::TooLong(header)),
            Some(_) => Ok(header),
        }
    }

    /// Parses the JSON of a file of `file_len` bytes.
    pub fn parse(json: &[u8], file_len: u64) -> Result<Header, HeaderError> {
        let data_start = json.len() as u64 + 8;
        let present = file_len
            .checked_sub(data_start)
            .ok_or(HeaderError::BeyondEnd { header: json.len() as u64, file: file_len })?;
        let RawHeader(mut raw) = serde_json::from_slice(json).map_err(HeaderError::Json)?;
        raw.sort_by(|(a_name, a), (b_name, b)| {
            (a.data_offsets, a_name).cmp(&(b.data_offsets, b_name))
        });

        let mut tensors = Vec::with_capacity(raw.len());
        let mut end = 0;
        for (name, info) in raw {
            let (start, stop) = info.data_offsets;
            if start != end || stop < start {
                return Err(HeaderError::Offset { name, start, expected: end });
            }
            let len = stop - start;
            if info.dtype.byte_len(&info.shape.0) != Some(len) {
                return Err(HeaderError::Size { name, bytes: len });
            }
            end = stop;
            let offset = data_start
                .checked_add(start)
                .ok_or(HeaderError::Length { described: stop, present })?;
            tensors.push(HeaderTensor {
                name,
                dtype: info.dtype,
                shape: info.shape.0,
                offset,
                len,
            });
        }
        if end != present {
            return Err(HeaderError::Length { described: end, present });
        }

        let mut names: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(HeaderError::Duplicate(pair[0].to_owned()));
        }
        Ok(Header { tensors })
    }

    /// Builds the header of a file with consecutive tensors, each with a name, a type, a shape and
    /// a length in bytes. The header's length is a multiple of `align`.
    pub fn write<'t>(
        metadata: Option<Value>,
        tensors: impl IntoIterator<Item = (&'t str, impl Serialize, Vec<usize>, usize)>,
        align: usize,
    ) -> Vec<u8> {
        // The order does not depend on the features of serde_json in a build.
        let mut header: BTreeMap<String, Value> =
            metadata.into_iter().map(|facts| ("__metadata__".to_owned(), facts)).collect();
        let mut end = 0;
        for (name, dtype, shape, len) in tensors {
            let start = end;
            end += len;
            let entry = json!({ "data_offsets": [start, end], "dtype": dtype, "shape": shape });
            header.insert(name.to_owned(), entry);
        }
        Header::framed(json!(header).to_string(), align)
    }

    /// Builds a header from its JSON: the length, the JSON, and spaces up to a multiple of `align`.
    pub fn framed(json: impl Into<Vec<u8>>, align: usize) -> Vec<u8> {
        let json = json.into();
        let len = (8 + json.len()).next_multiple_of(align);
        let mut bytes = Vec::with_capacity(len);
        bytes.extend((len as u64 - 8).to_le_bytes());
        bytes.extend(json);
        bytes.resize(len, b' ');
        bytes
    }
}

/// True if a name may appear in messages and manifests.
pub(crate) fn good_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= MAX_NAME_BYTES && !name.chars().any(char::is_control)
}

/// The parsed header before validation. The `safetensors` crate's own type first collects the JSON
/// in a tree many times its size, and of two equal names keeps the last.
struct RawHeader(Vec<(String, RawTensor)>);

#[derive(Deserialize)]
struct RawTensor {
    #[serde(deserialize_with = "of_safetensors")]
    dtype: Dtype,
    shape: ShapeNumbers,
    data_offsets: (u64, u64),
}

struct ShapeNumbers(Vec<u64>);

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TensorsVisitor;
        impl<'de> Visitor<'de> for TensorsVisitor {
            type Value = RawHeader;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
                let mut tensors = Vec::new();
                let mut metadata = None;
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        if metadata.replace(map.next_value::<Option<Metadata>>()?).is_some() {
                            return Err(A::Error::duplicate_field("__metadata__"));
                        }
                        continue;
                    }
                    if !good_name(&name) {
                        return Err(A::Error::custom(
                            "the name of a tensor is empty, too long or not printable",
                        ));
                    }
                    if tensors.len() == MAX_TENSORS {
                        return Err(A::Error::custom("there are too many tensors"));
                    }
                    tensors.push((name, map.next_value()?));
                }
                Ok(RawHeader(tensors))
            }
        }
        deserializer.deserialize_map(TensorsVisitor)
    }
}

/// The header's metadata, which is validated and discarded.
struct Metadata;

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Strings;
        impl<'de> Visitor<'de> for Strings {
            type Value = Metadata;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Metadata, A::Error> {
                while map.next_entry::<String, String>()?.is_some() {}
                Ok(Metadata)
            }
        }
        deserializer.deserialize_map(Strings)
    }
}

impl<'de> Deserialize<'de> for ShapeNumbers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Dims;
        impl<'de> Visitor<'de> for Dims {
            type Value = ShapeNumbers;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "at most {MAX_DIMS} dimensions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<ShapeNumbers, A::Error> {
                let mut dims = Vec::new();
                while let Some(dim) = seq.next_element()? {
                    if dims.len() == MAX_DIMS {
                        return Err(A::Error::invalid_length(MAX_DIMS + 1, &self));
                    }
                    dims.push(dim);
                }
                Ok(ShapeNumbers(dims))
            }
        }
        deserializer.deserialize_seq(Dims)
    }
}
