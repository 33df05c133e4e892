//! The correction of a model's eviction policy: its file, its contents, and its memory.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sws_cache::SavedTensors;
use sws_cache::correction::{Correction, Corrections};
use sws_cache::policy::PolicyKind;
use sws_engine::routes_of;

use super::read_within;
use crate::{Error, Model, Result};

/// Name of the file in a model's directory.
const FILE: &str = "eviction.safetensors";

/// Path of the correction beside a draft.
pub fn path(draft: &Path) -> PathBuf {
    draft.with_file_name(FILE)
}

/// Corrections for a policy that can use them: those in the model's directory. Without any, new
/// ones are learned if the run keeps what it learns.
pub(crate) fn find(model: &Model, policy: PolicyKind, learns: bool) -> Result<Corrections> {
    let file = model.dir().join(FILE);
    Ok(match policy {
        PolicyKind::Expected if file.exists() => Corrections::Fitted(Arc::new(read(model, &file)?)),
        PolicyKind::Expected if learns && model.learned_file().is_some() => {
            Corrections::Learned { hidden: model.spec().state_width() }
        }
        _ => Corrections::None,
    })
}

fn read(model: &Model, file: &Path) -> Result<Correction> {
    let shape = routes_of(model.spec());
    let hidden = model.spec().state_width();
    let most = Correction::most_bytes(shape, hidden) as u64;
    let bytes = match read_within(file, most) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Err(error(file, "is longer than any correction of this model")),
        Err(e) => return Err(error(file, &format!("cannot be read: {e}"))),
    };
    let saved = SavedTensors::read(&bytes, &model.manifest().model.fingerprint);
    match saved.and_then(|saved| Correction::recall(&saved, shape)) {
        Ok(Some(correction)) if [0, hidden].contains(&correction.hidden()) => Ok(correction),
        Ok(_) => Err(error(file, "has no correction of this model")),
        Err(e) => Err(error(file, &e.to_string())),
    }
}

/// An error of the correction in a file.
fn error(file: &Path, why: &str) -> Error {
    let why = format!("{why}; make it again with `sws draft train`, or remove it");
    Error::Draft { file: file.to_owned(), why }
}
