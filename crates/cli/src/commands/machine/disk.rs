//! The disk where models are.

use std::path::{Path, PathBuf};

use sws::disk_speed;
use sws_format::{FileEntry, Manifest, ModelIdentity};
use sws_hub::Library;
use sws_os::identity::FileIdentity;
use sws_store::ReaderKind;

use crate::here::{entries, newest};

/// Smallest file whose speed says something about a disk.
const PROBED: u64 = 16 << 20;

/// The speed of the disk where models are: of a file of the newest, or of this program, whose disk it
/// may be. True if it is not known to be.
pub(super) fn disk_of_models(reader: ReaderKind) -> (Option<f64>, bool) {
    for here in newest() {
        if let Some(path) = here.path
            && let Some((file, len)) = largest_file(&path)
            && len >= PROBED
            && let Some(speed) = speed_of_file(&file, reader)
        {
            return (Some(speed), false);
        }
    }
    let Ok(program) = std::env::current_exe() else { return (None, false) };
    let models = Library::of_process().and_then(|library| device(library.dir()));
    let is_elsewhere = models.is_none() || models != device(&program);
    (speed_of_file(&program, reader), is_elsewhere)
}

/// The device of a path, or of its nearest parent that exists.
pub(crate) fn device(path: &Path) -> Option<u64> {
    let nearest = path.ancestors().find(|path| path.exists())?;
    Some(FileIdentity::at(nearest).ok()?.device)
}

/// The largest file of a directory, or the file itself.
fn largest_file(path: &Path) -> Option<(PathBuf, u64)> {
    let mut files = entries(path);
    files.push(path.to_owned());
    let mut largest = None;
    for file in files {
        if let Ok(about) = file.metadata()
            && about.is_file()
            && largest.as_ref().is_none_or(|(_, len)| about.len() >= *len)
        {
            largest = Some((file, about.len()));
        }
    }
    largest
}

fn speed_of_file(path: &Path, reader: ReaderKind) -> Option<f64> {
    let dir = path.parent()?;
    let name = path.file_name()?.to_str()?.to_owned();
    let file = FileEntry { path: name, len: path.metadata().ok()?.len() };
    let model = ModelIdentity { model_type: String::new(), fingerprint: String::new() };
    let pieces = Vec::new();
    let copies = Vec::new();
    let manifest = Manifest { model, encoding: None, files: vec![file], pieces, copies };
    disk_speed(&manifest, dir, reader)
}
