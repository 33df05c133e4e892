//! Finds the GGUF files of a model: one, or parts with numbers in their names.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::super::CheckpointError;
use crate::MANIFEST_FILE;
use crate::path::is_plain_name;

const ENDING: &str = ".gguf";

/// Files that show that a directory has another format.
const OTHERS: [&str; 3] = ["model.safetensors", "model.safetensors.index.json", MANIFEST_FILE];

/// The files of one model.
#[derive(Debug)]
pub(in super::super) struct GgufFiles {
    pub(super) dir: PathBuf,
    /// File names in order.
    pub(super) names: Vec<String>,
}

/// Finds the files of the model at `path`: a GGUF file, or a directory that holds those of one
/// model. None if it is neither.
pub(in super::super) fn find(path: &Path) -> Result<Option<GgufFiles>, CheckpointError> {
    if path.is_file() {
        if path.extension().is_none_or(|ending| ending != "gguf") {
            return Ok(None);
        }
        let name = match path.file_name().and_then(OsStr::to_str) {
            Some(name) if is_plain_name(name) => name,
            _ => return Err(CheckpointError::FileName { path: path.to_owned() }),
        };
        let dir = match path.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir,
            _ => Path::new("."),
        };
        return set(dir, name).map(Some);
    }
    if OTHERS.iter().any(|name| path.join(name).symlink_metadata().is_ok()) {
        return Ok(None);
    }
    // The reader of the other format reports the problem with the directory.
    let Ok(entries) = path.read_dir() else { return Ok(None) };
    let mut models: BTreeMap<String, String> = BTreeMap::new();
    for entry in entries.flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        if name.ends_with(ENDING) && !name.starts_with('.') && is_plain_name(&name) {
            let model = match part(&name) {
                Some(part) => part.name(1),
                None => name.clone(),
            };
            models.insert(model, name);
        }
        if models.len() > 1 {
            let mut names = models.into_keys();
            let first = names.next().unwrap_or_default();
            let second = names.next();
            let dir = path.to_owned();
            let second = second.unwrap_or_default();
            return Err(CheckpointError::Several { dir, first, second });
        }
    }
    match models.into_values().next() {
        Some(name) => set(path, &name).map(Some),
        None => Ok(None),
    }
}

/// The files of the model that the file `name` belongs to.
fn set(dir: &Path, name: &str) -> Result<GgufFiles, CheckpointError> {
    let names = match part(name) {
        None => vec![name.to_owned()],
        Some(part) => (1..=part.count).map(|number| part.name(number)).collect(),
    };
    let count = names.len();
    for name in &names {
        let path = dir.join(name);
        match path.try_exists() {
            Ok(true) => {}
            Ok(false) => return Err(CheckpointError::MissingPart { path, count }),
            Err(cause) => return Err(CheckpointError::Read { path, cause }),
        }
    }
    Ok(GgufFiles { dir: dir.to_owned(), names })
}

/// The parts of a split file's name.
struct PartName<'a> {
    model: &'a str,
    count: u32,
}

impl PartName<'_> {
    /// The name of part `number`, counted from one.
    fn name(&self, number: u32) -> String {
        format!("{}-{number:05}-of-{:05}{ENDING}", self.model, self.count)
    }
}

/// The name of the model to which a GGUF file belongs, and the number of its files: the file name
/// without extension and part number. `None` for a file of another format.
pub fn gguf_model(file: &str) -> Option<(&str, usize)> {
    match part(file) {
        Some(part) => Some((part.model, part.count as usize)),
        None => Some((file.strip_suffix(ENDING)?, 1)),
    }
}

/// `None` if a name is not that of a part.
fn part(name: &str) -> Option<PartName<'_>> {
    let (rest, count) = name.strip_suffix(ENDING)?.rsplit_once("-of-")?;
    let (model, number) = rest.rsplit_once('-')?;
    let number = five_digits(number)?;
    let count = five_digits(count)?;
    (1..=count).contains(&number).then_some(PartName { model, count })
}

fn five_digits(digits: &str) -> Option<u32> {
    let five = digits.len() == 5 && digits.bytes().all(|byte| byte.is_ascii_digit());
    if five { digits.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_named_by_their_files() {
        for (file, model) in [
            ("m-30b-q4_k_m.gguf", Some(("m-30b-q4_k_m", 1))),
            ("M-135M-Instruct.Q4_1.gguf", Some(("M-135M-Instruct.Q4_1", 1))),
            ("M-BF16-00001-of-00003.gguf", Some(("M-BF16", 3))),
            ("BF16/M-BF16-00003-of-00003.gguf", Some(("BF16/M-BF16", 3))),
            // No numbers of parts.
            ("m-00000-of-00003.gguf", Some(("m-00000-of-00003", 1))),
            ("m-00004-of-00003.gguf", Some(("m-00004-of-00003", 1))),
            ("m-1-of-3.gguf", Some(("m-1-of-3", 1))),
            ("model.safetensors", None),
            ("gguf", None),
        ] {
            assert_eq!(gguf_model(file), model, "{file}");
        }
    }
}
