//! A model in one or several GGUF files. Their headers also contain the configuration and the
//! tokenizer.

mod find;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use super::files::{hash_samples, open_regular, read_at};
use super::{Checkpoint, CheckpointError, WeightFile, check_distinct};
use crate::header::MAX_TENSORS;
use crate::{Configuration, Gguf, GgufError, SmallFileError, Value};

pub use find::gguf_model;
pub(super) use find::{GgufFiles, find};

/// Name of the configuration as a small file, with the values by key that [`Configuration`] has.
const CONFIG: &str = "config.json";
/// Name of the first file's header as a small file, with the tokenizer and the chat template.
const HEADER: &str = "header.gguf";

/// Key of the configuration that lists the names of tensors, with `#` in place of numbers.
const TENSORS: &str = "tensors";

/// Maximum number of values in a configuration, and of different tensor names in it.
const MAX_VALUES: usize = 1 << 15;
const MAX_NAMES: usize = 4096;

/// GGUF files whose headers have been read and found consistent.
#[derive(Debug)]
pub(super) struct GgufCheckpoint {
    dir: PathBuf,
    config: Configuration,
    files: Vec<WeightFile>,
    fingerprint: String,
    /// Length and hash of the first file's header.
    header: (u64, blake3::Hash),
}

impl Checkpoint for GgufCheckpoint {
    fn dir(&self) -> &Path {
        &self.dir
    }

    fn own_dir(&self) -> Option<&Path> {
        None
    }

    fn files(&self) -> &[WeightFile] {
        &self.files
    }

    fn config(&self) -> &Configuration {
        &self.config
    }

    fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    fn small_files(&self) -> Result<Vec<String>, CheckpointError> {
        Ok([CONFIG, HEADER].map(str::to_owned).to_vec())
    }

    fn read_small(&self, name: &str) -> Result<Vec<u8>, CheckpointError> {
        if name == CONFIG {
            return Ok(Value::Map(self.config.entries.clone()).to_string().into_bytes());
        }
        let path = self.dir.join(&self.files[0].name);
        let (file, _) = open_regular(&path)?;
        let (len, hash) = self.header;
        let bytes = read_at(&file, &path, len, 0)?;
        match blake3::hash(&bytes) == hash {
            true => Ok(bytes),
            false => Err(SmallFileError::Changed { path }.into()),
        }
    }
}

impl GgufCheckpoint {
    /// Reads and checks the header of every file.
    pub(super) fn open(found: GgufFiles) -> Result<GgufCheckpoint, CheckpointError> {
        let GgufFiles { dir, names } = found;
        let count = names.len();
        let mut identity = blake3::Hasher::new();
        let mut files: Vec<WeightFile> = Vec::with_capacity(count);
        let mut keys = BTreeMap::new();
        let mut header = None;
        let mut tensors = 0;
        // The number of tensors that the files claim for the whole model.
        let mut total = None;
        for (index, name) in names.into_iter().enumerate() {
            let path = dir.join(&name);
            let (about, read) = read_header(&path, &mut identity)?;
            tensors += read.tensors.len();
            if tensors > MAX_TENSORS {
                return Err(CheckpointError::TooManyTensors { path, limit: MAX_TENSORS });
            }
            let of = match split(&read.keys, index, count) {
                Ok(of) => of,
                Err(reason) => return Err(CheckpointError::Part { path, reason }),
            };
            if index > 0 && of != total {
                let reason = "the parts disagree about the number of tensors".to_owned();
                return Err(CheckpointError::Part { path, reason });
            }
            total = of;
            if index == 0 {
                keys = read.keys;
                header = Some(about.header);
            }
            files.push(WeightFile { name, len: about.len, tensors: read.tensors });
        }
        let first = dir.join(files.first().map_or("", |file| file.name.as_str()));
        let Some(header) = header else {
            return Err(CheckpointError::NoWeights { dir });
        };
        if let Some(total) = total
            && total != tensors as u64
        {
            let reason = format!("its parts hold {tensors} tensors of {total}");
            return Err(CheckpointError::Part { path: first, reason });
        }
        check_distinct(&dir, &files)?;
        for file in &files {
            add_small(&dir, file, &mut keys)?;
        }
        let config = configuration(&files, keys)
            .map_err(|reason| CheckpointError::Config { path: first, reason })?;
        let fingerprint = identity.finalize().to_hex().to_string();
        Ok(GgufCheckpoint { dir, config, files, fingerprint, header })
    }
}

/// Bytes that are hashed at a time.
const HASHED: usize = 16 << 10;

/// Facts about a file besides its header.
struct FileFacts {
    /// Length of the file.
    len: u64,
    /// Length and hash of its header.
    header: (u64, blake3::Hash),
}

/// Reads one header, without its long values, and adds the file's contribution to the fingerprint.
fn read_header(
    path: &Path,
    identity: &mut blake3::Hasher,
) -> Result<(FileFacts, Gguf), CheckpointError> {
    let (file, about) = open_regular(path)?;
    let len = about.len;
    let mut hashed = Hashed::new(BufReader::new(&file));
    let read = match Gguf::read(&mut hashed, len, is_configuration) {
        Ok(read) => read,
        Err(GgufError::Read(cause)) => return Err(CheckpointError::reading(path)(cause)),
        Err(reason) => return Err(CheckpointError::Gguf { path: path.to_owned(), reason }),
    };
    let hash = hashed.finish();
    // The name is not hashed, as a model in one file is often renamed.
    identity.update(&len.to_le_bytes()).update(&read.len.to_le_bytes()).update(hash.as_bytes());
    let data = read.tensors.first().map_or(len, |tensor| tensor.offset);
    hash_samples(identity, &file, path, data..len)?;
    Ok((FileFacts { len, header: (read.len, hash) }, read))
}

/// Reader that hashes its input. Headers are read a few bytes at a time, which the hash would take
/// longer for than for many at once.
struct Hashed<R> {
    from: R,
    hasher: blake3::Hasher,
    /// Bytes that were read and not hashed yet.
    pending: Vec<u8>,
}

impl<R> Hashed<R> {
    fn new(from: R) -> Hashed<R> {
        Hashed { from, hasher: blake3::Hasher::new(), pending: Vec::with_capacity(HASHED) }
    }

    /// The hash of all that was read.
    fn finish(mut self) -> blake3::Hash {
        self.hasher.update(&self.pending);
        self.hasher.finalize()
    }
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let n = self.from.read(to)?;
        if self.pending.len() + n > HASHED {
            self.hasher.update(&self.pending);
            self.pending.clear();
        }
        match n {
            ..=HASHED => self.pending.extend_from_slice(&to[..n]),
            _ => {
                self.hasher.update(&to[..n]);
            }
        }
        Ok(n)
    }
}

/// Checks a file's keys about the split of its model. Returns the number of tensors that it claims
/// for all files.
fn split(
    keys: &BTreeMap<String, Value>,
    index: usize,
    count: usize,
) -> Result<Option<u64>, String> {
    // Files that were never split have no keys, or a count of 0 or 1.
    let given = whole_number(keys, "split.count")?;
    if given.unwrap_or(1).max(1) != count as u64 {
        let given = given.unwrap_or(0);
        return Err(format!("its `split.count` is {given}, and its name says {count}"));
    }
    match whole_number(keys, "split.no")? {
        Some(no) if no != index as u64 => {
            Err(format!("its `split.no` is {no}, and its name says {index}"))
        }
        None if count > 1 => Err("it has no `split.no`".to_owned()),
        _ => whole_number(keys, "split.tensors.count"),
    }
}

/// The value of a key, if it is there.
fn whole_number(keys: &BTreeMap<String, Value>, key: &str) -> Result<Option<u64>, String> {
    let Some(value) = keys.get(key) else { return Ok(None) };
    match value.as_u64() {
        Some(number) => Ok(Some(number)),
        None => Err(format!("its `{key}` is {value}")),
    }
}

/// True for keys whose values belong to the configuration, however long.
fn is_configuration(key: &str) -> bool {
    let other = ["general.", "tokenizer.", "split."].iter().any(|prefix| key.starts_with(prefix));
    !other || key == "general.architecture"
}

/// Adds the values of small tensors for rotary embeddings, which belong to the configuration, under
/// the names of the tensors.
fn add_small(
    dir: &Path,
    file: &WeightFile,
    entries: &mut BTreeMap<String, Value>,
) -> Result<(), CheckpointError> {
    for tensor in file.tensors.iter().filter(|tensor| tensor.is_configuration()) {
        let path = dir.join(&file.name);
        let bytes = read_at(&open_regular(&path)?.0, &path, tensor.len, tensor.offset)?;
        let mut numbers = Vec::new();
        for &number in bytes.as_chunks().0 {
            numbers.push(Value::Float(f32::from_le_bytes(number).into()));
        }
        entries.insert(tensor.name.clone(), Value::List(numbers));
    }
    Ok(())
}

/// The configuration: the keys unchanged, and the names of the tensors with `#` in place of
/// numbers. Some options of a model show only in its tensors. Fails with the reason if this is not
/// a configuration.
fn configuration(
    files: &[WeightFile],
    mut entries: BTreeMap<String, Value>,
) -> Result<Configuration, String> {
    entries.retain(|_, value| !value.is_null());
    let mut left = MAX_VALUES;
    for (key, value) in &entries {
        check_value(value, &mut left).map_err(|reason| format!("in `{key}`, {reason}"))?;
    }
    let mut names = BTreeSet::new();
    for tensor in files.iter().flat_map(|file| &file.tensors) {
        let parts: Vec<&str> = tensor.name.split('.').map(without_number).collect();
        names.insert(parts.join("."));
        if names.len() > MAX_NAMES {
            return Err(format!("its tensors have more than {MAX_NAMES} kinds of names"));
        }
    }
    let names = names.into_iter().map(Value::String).collect();
    entries.insert(TENSORS.to_owned(), Value::List(names));
    let origin = files.first().map(|file| file.name.clone()).unwrap_or_default();
    Ok(Configuration { origin, entries })
}

/// A part of a name, or `#` if it is a number.
fn without_number(part: &str) -> &str {
    let is_number = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { "#" } else { part }
}

/// Refuses values that JSON lacks, because shards store the configuration as JSON, and more values
/// than any known model has.
fn check_value(value: &Value, left: &mut usize) -> Result<(), &'static str> {
    *left = left.checked_sub(1).ok_or("there are too many values")?;
    match value {
        Value::Float(number) if !number.is_finite() => Err("a number is infinite or none"),
        Value::List(values) => {
            for value in values {
                check_value(value, left)?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}
