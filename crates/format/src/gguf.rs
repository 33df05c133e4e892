//! The header of a GGUF file, the format of llama.cpp: keys with values, and the places of tensors.
//!
//! The bytes are untrusted. They are read through [`Read`] one field at a time, and nothing is
//! allocated that the bytes still to come cannot fill.

mod cursor;
mod error;
mod lists;
mod tensors;

use std::collections::BTreeMap;
use std::io::Read;

use crate::Value;
use crate::header::{HeaderTensor, MAX_TENSORS, good_name};
use cursor::{GgufCursor, List};

pub use error::GgufError;
pub use lists::GgufList;

/// Maximum length of a header, so that shards can store it as a small file. The longest published
/// headers, with a vocabulary of 260,000 tokens and its merges, have 16 MB.
pub(crate) const MAX_GGUF_HEADER: u64 = 64 << 20;

/// Largest number of keys. Published files have fewer than a hundred.
const MAX_KEYS: u64 = 4096;
/// Largest alignment of tensors. Published files have 32.
const MAX_ALIGNMENT: u64 = 1 << 16;
/// Deepest nesting of lists. Published files have none.
const MAX_DEPTH: usize = 4;
/// Maximum number of elements in a list of numbers shorter than four bytes, so that no list takes
/// many times its bytes in memory.
const MAX_SHORT: u64 = 1 << 16;

/// Maximum number of values kept of a header, each of which takes several times its bytes: enough
/// for four lists of a million tokens.
const MAX_KEPT: usize = 1 << 22;

/// Minimum bytes of a key with its value: an empty name, a type and one byte.
const LEAST_KEY: u64 = 8 + 4 + 1;
/// Minimum bytes of a tensor's entry: an empty name and no dimensions.
const LEAST_TENSOR: u64 = 8 + 4 + 4 + 8;

const TEXT: u32 = 8;
const LIST: u32 = 9;

/// The header of a GGUF file.
#[derive(Clone, Debug, PartialEq)]
pub struct Gguf {
    /// Version of the format, 2 or 3. The parts that are read here are the same in both.
    pub version: u32,
    /// Values by key. A list that was not requested is replaced by a map with its `length`, and a
    /// text by null.
    pub keys: BTreeMap<String, Value>,
    /// Tensors by ascending offset, outermost dimension first.
    pub tensors: Vec<HeaderTensor>,
    /// Length of the header, without the padding after it.
    pub len: u64,
}

impl Gguf {
    /// Reads the header of a file of `file_len` bytes.
    ///
    /// `wanted` returns true for keys whose texts and lists are kept. All other values are always
    /// kept. Every tensor of an accepted header lies in the file after the header, overlaps no
    /// other, and has a unique name.
    pub fn read(
        from: impl Read,
        file_len: u64,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<Gguf, GgufError> {
        let mut header = GgufHeader::new(from, file_len);
        let start = header.start()?;
        let keys = header.keys(start.keys, wanted)?;
        let raw = tensors::read(&mut header.cursor, start.tensors)?;
        let len = header.cursor.at();
        let data_start = len.next_multiple_of(alignment(&keys)?);
        let tensors = tensors::check(raw, alignment(&keys)?, data_start, file_len)?;
        Ok(Gguf { version: start.version, keys, tensors, len })
    }

    /// Reads the keys of a header whose tensors are elsewhere, or not needed.
    pub fn read_keys(
        from: impl Read,
        header_len: u64,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<BTreeMap<String, Value>, GgufError> {
        let mut header = GgufHeader::new(from, header_len);
        let start = header.start()?;
        header.keys(start.keys, wanted)
    }

    /// The wanted lists of a header in memory, by key. They are not copied.
    pub fn lists<'a>(
        bytes: &'a [u8],
        wanted: impl Fn(&str) -> bool,
    ) -> Result<BTreeMap<String, GgufList<'a>>, GgufError> {
        let mut header = GgufHeader::new(bytes, bytes.len() as u64);
        let mut lists = BTreeMap::new();
        for _ in 0..header.start()?.keys {
            let (name, kind) = header.name()?;
            let start = header.cursor.at() as usize;
            header.value(kind, false, 0).map_err(|error| error.of_key(&name))?;
            let value = &bytes[start..header.cursor.at() as usize];
            if kind == LIST
                && wanted(&name)
                && let Some(list) = GgufList::new(value)
            {
                lists.insert(name, list);
            }
        }
        Ok(lists)
    }
}

/// The alignment of tensors, from the keys.
fn alignment(keys: &BTreeMap<String, Value>) -> Result<u64, GgufError> {
    let Some(value) = keys.get("general.alignment") else { return Ok(32) };
    match value.as_u64() {
        Some(align) if align.is_power_of_two() && align <= MAX_ALIGNMENT => Ok(align),
        _ => Err(GgufError::Alignment(value.to_string())),
    }
}

/// The first numbers of a header.
struct GgufStart {
    version: u32,
    /// Number of tensors.
    tensors: u64,
    /// Number of keys.
    keys: u64,
}

struct GgufHeader<R> {
    cursor: GgufCursor<R>,
    /// Number of values that may still be kept.
    room: usize,
}

impl<R: Read> GgufHeader<R> {
    fn new(from: R, len: u64) -> GgufHeader<R> {
        GgufHeader { cursor: GgufCursor::new(from, len), room: MAX_KEPT }
    }

    fn start(&mut self) -> Result<GgufStart, GgufError> {
        let cursor = &mut self.cursor;
        if cursor.left() < 4 || cursor.array("its first bytes")? != *b"GGUF" {
            return Err(GgufError::Foreign);
        }
        let version = cursor.u32("its version")?;
        match version {
            2 | 3 => {}
            _ if matches!(version.swap_bytes(), 1..=3) => return Err(GgufError::BigEndian),
            _ => return Err(GgufError::Version(version)),
        }
        let tensors = cursor.u64("its number of tensors")?;
        let keys = cursor.u64("its number of keys")?;
        let most = (MAX_TENSORS as u64).min(cursor.left() / LEAST_TENSOR);
        if tensors > most {
            return Err(GgufError::TooMany { what: "tensors", count: tensors, most });
        }
        let most = MAX_KEYS.min(cursor.left() / LEAST_KEY);
        if keys > most {
            return Err(GgufError::TooMany { what: "keys", count: keys, most });
        }
        Ok(GgufStart { version, tensors, keys })
    }

    /// The name of the next key, and the type of its value.
    fn name(&mut self) -> Result<(String, u32), GgufError> {
        let name = self.cursor.text("the name of a key")?;
        if !good_name(&name) {
            return Err(GgufError::Name("key"));
        }
        Ok((name, self.cursor.u32("the type of a key")?))
    }

    fn keys(
        &mut self,
        count: u64,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<BTreeMap<String, Value>, GgufError> {
        let mut keys = BTreeMap::new();
        for _ in 0..count {
            let (name, kind) = self.name()?;
            let keep = wanted(&name);
            let value = self.value(kind, keep, 0).map_err(|error| error.of_key(&name))?;
            if keys.contains_key(&name) {
                return Err(GgufError::Twice { what: "key", name });
            }
            keys.insert(name, value);
        }
        Ok(keys)
    }

    fn value(&mut self, kind: u32, keep: bool, depth: usize) -> Result<Value, GgufError> {
        match kind {
            TEXT if keep => Ok(Value::String(self.cursor.text("a text")?)),
            TEXT => self.cursor.skip_text("a text").map(|()| Value::Null),
            LIST => self.list(keep, depth),
            _ => self
                .cursor
                .number(kind)
                .map(|number| if depth == 0 { decimal(number) } else { number }),
        }
    }

    fn list(&mut self, keep: bool, depth: usize) -> Result<Value, GgufError> {
        if depth == MAX_DEPTH {
            return Err(GgufError::Deep);
        }
        let List { kind, least, count } = self.cursor.list_start()?;
        if keep && least < 4 && count > MAX_SHORT {
            return Err(GgufError::TooMany { what: "short numbers", count, most: MAX_SHORT });
        }
        let fixed = !matches!(kind, TEXT | LIST);
        if !keep && fixed {
            self.cursor.skip(count * least, "a list")?;
            return Ok(length(count));
        }
        if keep {
            let what = "values";
            let most = self.room as u64;
            let left = self.room.checked_sub(count as usize);
            self.room = left.ok_or(GgufError::TooMany { what, count, most })?;
        }
        let mut values = Vec::with_capacity(if keep { count as usize } else { 0 });
        for _ in 0..count {
            let value = self.value(kind, keep, depth + 1)?;
            if keep {
                values.push(value);
            }
        }
        Ok(if keep { Value::List(values) } else { length(count) })
    }
}

/// The number with the fewest digits that rounds to this f32. Configurations contain decimal
/// numbers, so this is the original one.
fn decimal(value: Value) -> Value {
    match value {
        Value::Float(number) if number.is_finite() && f64::from(number as f32) == number => {
            let digits = (number as f32).to_string();
            digits.parse().map_or(value, Value::Float)
        }
        value => value,
    }
}

/// The value that replaces a list that was not kept.
fn length(count: u64) -> Value {
    Value::Map(BTreeMap::from([("length".to_owned(), Value::Int(count.into()))]))
}
