//! A writer of GGUF files, for tests.

mod convert;
mod delta;
mod gemma4;
mod gpt_oss;
mod keys;
mod latent;
mod names;
mod read;
mod stacks;

use std::path::Path;

pub use convert::{conversational, converted, convertible};
pub use latent::fused;

/// A file to write. Nothing of it is checked, so it can be wrong in any way.
#[derive(Clone, Debug)]
pub struct GgufFile {
    /// Version of the format.
    pub version: u32,
    /// Keys with their values.
    pub keys: Vec<(String, Key)>,
    /// Tensors in the order of their data.
    pub tensors: Vec<GgufTensor>,
}

/// A tensor to write.
#[derive(Clone, Debug)]
pub struct GgufTensor {
    /// Name.
    pub name: String,
    /// Number of its type.
    pub kind: u32,
    /// Shape, outermost dimension first.
    pub shape: Vec<u64>,
    /// Offset in the data, if not the next multiple of 32.
    pub offset: Option<u64>,
    /// Bytes.
    pub bytes: Vec<u8>,
}

/// A value to write.
#[derive(Clone, Debug)]
pub enum Key {
    /// A number.
    U32(u32),
    /// A number.
    F32(f32),
    /// A truth value.
    Bool(bool),
    /// A text.
    Text(String),
    /// A list of texts.
    Texts(Vec<String>),
    /// A list of numbers.
    Ints(Vec<i32>),
    /// A list of truth values.
    Bools(Vec<bool>),
    /// A list of numbers.
    Floats(Vec<f32>),
    /// The number of a type, and bytes.
    Raw(u32, Vec<u8>),
}

impl From<&str> for Key {
    fn from(text: &str) -> Key {
        Key::Text(text.to_owned())
    }
}

impl Default for GgufFile {
    fn default() -> GgufFile {
        GgufFile { version: 3, keys: Vec::new(), tensors: Vec::new() }
    }
}

impl GgufFile {
    /// Adds a key.
    pub fn key(&mut self, name: &str, value: Key) {
        self.keys.push((name.to_owned(), value));
    }

    /// Adds a tensor behind the others.
    pub fn tensor(&mut self, name: &str, kind: u32, shape: &[u64], bytes: Vec<u8>) {
        let name = name.to_owned();
        let shape = shape.to_vec();
        self.tensors.push(GgufTensor { name, kind, shape, offset: None, bytes });
    }

    /// The header, without the padding behind it.
    pub fn header(&self) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend((self.tensors.len() as u64).to_le_bytes());
        bytes.extend((self.keys.len() as u64).to_le_bytes());
        for (name, value) in &self.keys {
            bytes.extend(text(name));
            bytes.extend(value.bytes());
        }
        for (tensor, offset) in self.tensors.iter().zip(self.offsets()) {
            bytes.extend(text(&tensor.name));
            bytes.extend((tensor.shape.len() as u32).to_le_bytes());
            bytes.extend(tensor.shape.iter().rev().flat_map(|dim| dim.to_le_bytes()));
            bytes.extend(tensor.kind.to_le_bytes());
            bytes.extend(offset.to_le_bytes());
        }
        bytes
    }

    /// The whole file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.header();
        for tensor in &self.tensors {
            bytes.resize(bytes.len().next_multiple_of(32), 0);
            bytes.extend(&tensor.bytes);
        }
        bytes
    }

    /// Writes the file.
    pub fn write(&self, path: &Path) {
        std::fs::write(path, self.bytes()).unwrap();
    }

    fn offsets(&self) -> Vec<u64> {
        let mut end = 0u64;
        let mut offsets = Vec::with_capacity(self.tensors.len());
        for tensor in &self.tensors {
            let start = end.next_multiple_of(32);
            end = start + tensor.bytes.len() as u64;
            offsets.push(tensor.offset.unwrap_or(start));
        }
        offsets
    }
}

impl Key {
    /// The type and the value.
    fn bytes(&self) -> Vec<u8> {
        match self {
            Key::U32(number) => typed(4, &number.to_le_bytes()),
            Key::F32(number) => typed(6, &number.to_le_bytes()),
            Key::Bool(flag) => typed(7, &[u8::from(*flag)]),
            Key::Text(words) => typed(8, &text(words)),
            Key::Texts(all) => list(8, all.len(), all.iter().flat_map(|word| text(word)).collect()),
            Key::Ints(all) => {
                list(5, all.len(), all.iter().flat_map(|n| n.to_le_bytes()).collect())
            }
            Key::Bools(all) => list(7, all.len(), all.iter().map(|flag| u8::from(*flag)).collect()),
            Key::Floats(all) => {
                list(6, all.len(), all.iter().flat_map(|n| n.to_le_bytes()).collect())
            }
            Key::Raw(kind, bytes) => typed(*kind, bytes),
        }
    }
}

/// A value with its type.
fn typed(kind: u32, bytes: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes(), bytes].concat()
}

/// A list of `len` values of this type.
fn list(kind: u32, len: usize, bytes: Vec<u8>) -> Vec<u8> {
    let head = [&kind.to_le_bytes()[..], &(len as u64).to_le_bytes()].concat();
    typed(9, &[head, bytes].concat())
}

/// A number of a configuration.
fn number(config: &serde_json::Value, entry: &str) -> u64 {
    config[entry].as_u64().unwrap()
}

/// A text as files have it: its length and its bytes.
pub fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

/// The number of a type in GGUF files, and the bytes of a number.
fn kind_of(dtype: safetensors::Dtype) -> (u32, usize) {
    match dtype {
        safetensors::Dtype::F32 => (0, 4),
        safetensors::Dtype::F16 => (1, 2),
        safetensors::Dtype::BF16 => (30, 2),
        other => panic!("{other:?} in a golden"),
    }
}
