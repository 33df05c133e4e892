//! Problems with GGUF files.

use std::io;

/// Problem with the header of a GGUF file, as the rest of a sentence that begins with its name.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum GgufError {
    /// The file could not be read.
    #[error("cannot be read ({0}); check that it exists and that you may read it")]
    Read(#[source] io::Error),
    /// The file does not begin like a GGUF file.
    #[error("is not a GGUF file, as it does not begin with `GGUF`; download it again")]
    Foreign,
    /// The version of the file is not supported.
    #[error("is a GGUF file of version {0}, and 2 and 3 are read; take a newer file of this model")]
    Version(u32),
    /// The numbers of the file are big-endian.
    #[error("is a big-endian GGUF file, which is not read; take the little-endian one")]
    BigEndian,
    /// The file ends too early.
    #[error("is damaged: it ends within {within}; download it again")]
    Ends {
        /// The truncated field.
        within: &'static str,
    },
    /// The header is longer than that of any model.
    #[error("is damaged: its header has more than {limit} bytes; download it again")]
    TooLong { limit: u64 },
    /// A count exceeds the size of the file, or that of any known model.
    #[error(
        "is damaged: its header lists {count} {what}, more than the {most} that it can have; download it again"
    )]
    TooMany { what: &'static str, count: u64, most: u64 },
    /// A name is empty, too long or not printable.
    #[error("is damaged: the name of a {0} is empty, too long or not printable; download it again")]
    Name(&'static str),
    /// Two keys or tensors have the same name.
    #[error("is damaged: it has the {what} `{name}` twice; download it again")]
    Twice { what: &'static str, name: String },
    /// The value of a key is damaged.
    #[error("is damaged: in the value of its key `{key}`, {reason}; download it again")]
    Value { key: String, reason: String },
    /// The bytes of a text are not UTF-8.
    #[error("is damaged: a text is not UTF-8; download it again")]
    Text,
    /// A truth value is neither 0 nor 1.
    #[error("is damaged: a truth value is {0}; download it again")]
    Bool(u8),
    /// The type of a value does not exist in the format.
    #[error("is damaged: a value is of type {0}, which does not exist; download it again")]
    Kind(u32),
    /// Lists are nested too deeply.
    #[error("is damaged: lists are nested too deeply; download it again")]
    Deep,
    /// The alignment is not a power of two, or implausibly large.
    #[error(
        "is damaged: it aligns tensors to {0}, which is not a small power of two; download it again"
    )]
    Alignment(String),
    /// The type of a tensor does not exist in the format.
    #[error(
        "holds the tensor `{tensor}` in a format without a name, number {kind}; take a file of this model in one of F32, F16, BF16, Q8_0, Q4_0 to Q5_1, Q2_K to Q6_K, IQ1_S to IQ4_XS, TQ1_0, TQ2_0, MXFP4 and NVFP4"
    )]
    UnknownType {
        tensor: String,
        /// The number of its type.
        kind: u32,
    },
    /// The type of a tensor is known, but not supported.
    #[error(
        "holds the tensor `{tensor}` in {kind}, which is not supported; take a file of this model in one of F32, F16, BF16, Q8_0, Q4_0 to Q5_1, Q2_K to Q6_K, IQ1_S to IQ4_XS, TQ1_0, TQ2_0, MXFP4 and NVFP4"
    )]
    Type {
        tensor: String,
        /// The name of its type.
        kind: &'static str,
    },
    /// The shape of a tensor is impossible.
    #[error("is damaged: its tensor `{tensor}` has {reason}; download it again")]
    Shape { tensor: String, reason: &'static str },
    /// A tensor lies outside the file, or overlaps another.
    #[error("is damaged: its tensor `{tensor}` {reason}; download it again")]
    Place { tensor: String, reason: &'static str },
}

impl GgufError {
    /// The same problem in the value of a key, whose name the message includes.
    pub(super) fn of_key(self, key: &str) -> GgufError {
        let reason = match self {
            GgufError::Text => "a text is not UTF-8".to_owned(),
            GgufError::Bool(value) => format!("a truth value is {value}"),
            GgufError::Kind(kind) => format!("the type {kind} does not exist"),
            GgufError::Deep => "lists are nested too deeply".to_owned(),
            GgufError::TooMany { what, count, most } => {
                format!("there are {count} {what}, more than {most}")
            }
            other => return other,
        };
        GgufError::Value { key: key.to_owned(), reason }
    }
}
