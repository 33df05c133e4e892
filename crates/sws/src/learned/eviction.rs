//! The correction of a model's eviction policy: its file, its contents, and its memory.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sws_cache::SavedTensors;
use sws_cache::correction::{Correction, Corrections};
use sws_cache::policy::PolicyKind;
use sws_engine::routes_of;
use sws_format::open_regular;

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
    let error = |why: String| {
        let why = format!("{why}; make it again with `sws draft train`, or remove it");
        Error::Draft { file: file.to_owned(), why }
    };
    let unread = |e: std::io::Error| error(format!("cannot be read: {e}"));
    let shape = routes_of(model.spec());
    let hidden = model.spec().state_width();
    let opened = open_regular(file).map_err(unread)?;
    let most = Correction::most_bytes(shape, hidden) as u64;
    if opened.metadata().map_err(unread)?.len() > most {
        return Err(error("is longer than any correction of this model".to_owned()));
    }
    let mut bytes = Vec::new();
    opened.take(most).read_to_end(&mut bytes).map_err(unread)?;
    let saved = SavedTensors::read(&bytes, &model.manifest().model.fingerprint);
    let correction = saved.and_then(|saved| Correction::recall(&saved, shape));
    let correction = correction.map_err(|e| error(e.to_string()))?;
    correction
        .filter(|correction| [0, hidden].contains(&correction.hidden()))
        .ok_or_else(|| error("has no correction of this model".to_owned()))
}
