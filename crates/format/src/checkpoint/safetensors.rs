//! A directory of safetensors files and a `config.json`. Opening it reads the small parts: the
//! configuration, the index, the headers, a few samples.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use sws_os::identity::FileIdentity;

use super::files::{hash_samples, hash_with_len, open_regular, read_at, samples};
use super::{Checkpoint, CheckpointError, WeightFile, check_distinct, small};
use crate::book::first_reading_agrees;
use crate::header::{Header, HeaderError, MAX_TENSORS};
use crate::path::is_plain_name;
use crate::{Configuration, SmallFileError};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const CONFIG: &str = "config.json";

/// Largest accepted `config.json`. Published ones stay below 1 MB, including those with long lists
/// of modules that are not quantised.
const MAX_CONFIG_BYTES: u64 = 16 << 20;
/// Largest accepted index. The longest published one (140,000 tensors) has 15 MB.
const MAX_INDEX_BYTES: u64 = 64 << 20;
/// Largest number of files that an index may list.
const MAX_FILES: usize = 16_384;

/// A directory of safetensors files whose headers have been read and found consistent with it.
#[derive(Debug)]
pub(super) struct SafetensorsCheckpoint {
    dir: PathBuf,
    config: Configuration,
    files: Vec<WeightFile>,
    fingerprint: String,
    /// Folder for the records of first readings.
    cache: Option<PathBuf>,
}

impl Checkpoint for SafetensorsCheckpoint {
    fn dir(&self) -> &Path {
        &self.dir
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
        small::list(&self.dir)
    }

    fn read_small(&self, name: &str) -> Result<Vec<u8>, CheckpointError> {
        small::read(&self.dir, name, self.cache.as_deref())
    }
}

impl SafetensorsCheckpoint {
    /// Reads and checks `config.json`, the index and the header of every weight file.
    ///
    /// Files may be symbolic links, as they are in the local Hugging Face cache, but the names that
    /// an index lists must be plain names in `dir`.
    pub(super) fn open(
        dir: &Path,
        cache: Option<&Path>,
    ) -> Result<SafetensorsCheckpoint, CheckpointError> {
        if dir.is_file() {
            return Err(CheckpointError::NotADirectory { path: dir.to_owned() });
        }
        let index_path = dir.join(INDEX);
        let listed = if exists(&dir.join(SINGLE))? {
            BTreeMap::from([(SINGLE.to_owned(), Vec::new())])
        } else if exists(&index_path)? {
            read_index(&index_path)?
        } else {
            return Err(no_weights(dir));
        };
        let path = dir.join(CONFIG);
        let (about, config_json) = read_small(&path, MAX_CONFIG_BYTES)?;
        if !first_reading_agrees(&about, &config_json, cache) {
            return Err(SmallFileError::Changed { path }.into());
        }
        let config = parse_config(&path, &config_json)?;

        let mut identity = blake3::Hasher::new();
        hash_with_len(&mut identity, &config_json);
        let mut files: Vec<WeightFile> = Vec::with_capacity(listed.len());
        let mut tensors = 0;
        for (name, expected) in listed {
            let path = dir.join(&name);
            let file = read_weight_file(&path, name, &mut identity)?;
            tensors += file.tensors.len();
            if tensors > MAX_TENSORS {
                return Err(CheckpointError::TooManyTensors { path, limit: MAX_TENSORS });
            }
            check_listed(&path, &file, expected)?;
            files.push(file);
        }
        check_distinct(dir, &files)?;
        let fingerprint = identity.finalize().to_hex().to_string();
        let dir = dir.to_owned();
        let cache = cache.map(Path::to_owned);
        Ok(SafetensorsCheckpoint { dir, config, files, fingerprint, cache })
    }
}

/// Reads the configuration of a model that may have no weights.
///
/// `path` is a directory with a `config.json`, or the file itself under any name.
pub fn read_config(path: impl AsRef<Path>) -> Result<Configuration, CheckpointError> {
    let path = path.as_ref();
    let path = if path.is_dir() { Cow::Owned(path.join(CONFIG)) } else { Cow::Borrowed(path) };
    let (_, json) = read_small(&path, MAX_CONFIG_BYTES)?;
    parse_config(&path, &json)
}

fn parse_config(path: &Path, json: &[u8]) -> Result<Configuration, CheckpointError> {
    Configuration::from_json(CONFIG, json)
        .map_err(|error| CheckpointError::Config { path: path.to_owned(), reason: error.reason })
}

/// Returns the ranges of a safetensors file that opening its checkpoint reads: the header, and the
/// samples of the fingerprint. `first` are its first 8 bytes.
///
/// A file of the same length that has only these bytes, and zeros elsewhere, gives the same
/// manifest and fingerprint.
pub fn sketch(first: [u8; 8], len: u64) -> Result<Vec<Range<u64>>, HeaderError> {
    let data = 8 + Header::json_len(first, len)?;
    let samples = samples(len - data).map(|(offset, len)| data + offset..data + offset + len);
    Ok(std::iter::once(0..data).chain(samples).collect())
}

/// True if `path` exists. A dangling link counts as existing; a directory that may not be searched
/// is an error.
fn exists(path: &Path) -> Result<bool, CheckpointError> {
    match path.symlink_metadata() {
        Ok(_) => Ok(true),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(cause) => Err(CheckpointError::Read { path: path.to_owned(), cause }),
    }
}

/// Returns the error for a directory without safetensors, depending on its contents.
fn no_weights(dir: &Path) -> CheckpointError {
    let entries = match dir.read_dir() {
        Ok(entries) => entries,
        Err(cause) => return CheckpointError::Read { path: dir.to_owned(), cause },
    };
    let mut names: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    names.sort();
    if has_file(&names, "manifest.json") {
        return CheckpointError::Shards { dir: dir.to_owned() };
    }
    let other = |what: String| CheckpointError::Other { dir: dir.to_owned(), what };
    if has_file(&names, "adapter_config.json") {
        return other(
            "an adapter, which changes another model; merge it into that with peft: merge_and_unload().save_pretrained(out)".to_owned(),
        );
    }
    if let Some(path) = first_with(&names, &["bin", "pt", "pth"]) {
        return CheckpointError::PyTorch { path: path.to_owned() };
    }
    if let Some(name) = first_with(&names, &["safetensors"]).and_then(Path::file_name) {
        let name = name.display();
        return other(format!(
            "`{name}`, and neither model.safetensors nor model.safetensors.index.json; download all files of the checkpoint, in the layout of transformers"
        ));
    }
    if has_file(&names, CONFIG) {
        return other(format!(
            "{CONFIG} and no weights; download these, too (`sws plan` and `sws inspect` need none)"
        ));
    }
    CheckpointError::NoWeights { dir: dir.to_owned() }
}

fn has_file(paths: &[PathBuf], name: &str) -> bool {
    paths.iter().any(|path| path.ends_with(name))
}

/// The first path with one of these extensions.
fn first_with<'p>(paths: &'p [PathBuf], extensions: &[&str]) -> Option<&'p Path> {
    for path in paths {
        if let Some(extension) = path.extension().and_then(OsStr::to_str)
            && extensions.contains(&extension)
        {
            return Some(path);
        }
    }
    None
}

fn read_small(path: &Path, limit: u64) -> Result<(FileIdentity, Vec<u8>), CheckpointError> {
    let (file, about) = open_regular(path)?;
    let len = about.len;
    if len > limit {
        return Err(CheckpointError::TooLarge { path: path.to_owned(), len, limit });
    }
    let mut bytes = Vec::with_capacity(len as usize);
    file.take(limit).read_to_end(&mut bytes).map_err(CheckpointError::reading(path))?;
    Ok((about, bytes))
}

/// Reads one header and adds the file's contribution to the fingerprint to `identity`.
fn read_weight_file(
    path: &Path,
    name: String,
    identity: &mut blake3::Hasher,
) -> Result<WeightFile, CheckpointError> {
    let damaged = |reason| CheckpointError::Header { path: path.to_owned(), reason };
    let (file, about) = open_regular(path)?;
    let len = about.len;
    if len < 8 {
        return Err(damaged(HeaderError::TooShort(len)));
    }
    let mut first = [0; 8];
    first.copy_from_slice(&read_at(&file, path, 8, 0)?);
    let json_len = Header::json_len(first, len).map_err(damaged)?;
    let json = read_at(&file, path, json_len, 8)?;
    let Header { tensors } = Header::parse(&json, len).map_err(damaged)?;

    hash_with_len(identity, name.as_bytes());
    identity.update(&len.to_le_bytes());
    hash_with_len(identity, &json);
    hash_samples(identity, &file, path, 8 + json_len..len)?;
    Ok(WeightFile { name, len, tensors })
}

/// Reads the files of an index, each with the tensors that the index expects in it.
fn read_index(path: &Path) -> Result<BTreeMap<String, Vec<String>>, CheckpointError> {
    let damaged = |reason| CheckpointError::Index { path: path.to_owned(), reason };
    let (_, json) = read_small(path, MAX_INDEX_BYTES)?;
    let index: SafetensorsIndex =
        serde_json::from_slice(&json).map_err(|e| damaged(e.to_string()))?;
    let mut names: Vec<&str> = index.weight_map.0.iter().map(|(name, _)| &**name).collect();
    names.sort_unstable();
    if let Some([name, _]) = names.array_windows().find(|[one, next]| one == next) {
        let name: String = name.escape_debug().take(100).collect();
        return Err(damaged(format!("it lists the tensor `{name}` twice")));
    }
    let mut files: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (tensor, file) in index.weight_map.0 {
        if !is_plain_name(&file) {
            let reason = format!("the file name {file:?} is not a plain name in its directory");
            return Err(damaged(reason));
        }
        match files.get_mut(file.as_ref()) {
            Some(tensors) => tensors.push(tensor.into_owned()),
            None => _ = files.insert(file.into_owned(), vec![tensor.into_owned()]),
        }
        if files.len() > MAX_FILES {
            return Err(damaged(format!("it lists more than {MAX_FILES} files")));
        }
    }
    if files.is_empty() {
        return Err(damaged("it lists no tensors".to_owned()));
    }
    for name in files.keys() {
        let file = path.with_file_name(name);
        // A dangling link is a file that was never downloaded.
        match file.try_exists() {
            Ok(true) => {}
            Ok(false) => {
                return Err(CheckpointError::Missing { path: file, index: INDEX.to_owned() });
            }
            Err(cause) => return Err(CheckpointError::Read { path: file, cause }),
        }
    }
    Ok(files)
}

#[derive(Deserialize)]
struct SafetensorsIndex<'a> {
    #[serde(borrow)]
    weight_map: WeightMap<'a>,
}

/// Pairs of tensor and file, borrowed from the JSON where it has no escapes.
struct WeightMap<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'de: 'a, 'a> Deserialize<'de> for WeightMap<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct BorrowedText<'a>(#[serde(borrow)] Cow<'a, str>);

        struct PairsVisitor;
        impl<'de> Visitor<'de> for PairsVisitor {
            type Value = WeightMap<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map from tensors to files")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Vec::new();
                while let Some((BorrowedText(tensor), BorrowedText(file))) = map.next_entry()? {
                    if pairs.len() == MAX_TENSORS {
                        return Err(A::Error::custom("there are too many tensors"));
                    }
                    pairs.push((tensor, file));
                }
                Ok(WeightMap(pairs))
            }
        }
        deserializer.deserialize_map(PairsVisitor)
    }
}

fn check_listed(
    path: &Path,
    file: &WeightFile,
    mut expected: Vec<String>,
) -> Result<(), CheckpointError> {
    let mut present: Vec<&str> = file.tensors.iter().map(|t| t.name.as_str()).collect();
    present.sort_unstable();
    expected.sort_unstable();
    match expected.into_iter().find(|tensor| present.binary_search(&tensor.as_str()).is_err()) {
        Some(tensor) => Err(CheckpointError::MissingTensor {
            path: path.to_owned(),
            tensor: tensor.escape_debug().to_string(),
            index: INDEX.to_owned(),
        }),
        None => Ok(()),
    }
}
