//! Further copies of a model's shards on other drives.

use std::path::{Path, PathBuf};

use sws_format::{FileEntry, Manifest, ManifestError};
use sws_store::{Mirror, ReaderKind, StoreOptions};
use tracing::info;

use crate::{Error, Model, Result};

/// A copy of a model's shards on another drive, whole or partial.
#[derive(Clone, Debug)]
pub struct ModelMirror {
    /// Directory of the copy.
    pub dir: PathBuf,
    /// Bytes of the shards that it has.
    pub bytes: u64,
    /// For each file of the manifest, true if the copy has it.
    pub(crate) files: Vec<bool>,
}

/// The copies of a model, and the receiver of sentences about those that are left out.
#[derive(Clone, Debug)]
pub(crate) struct Mirrors {
    pub(crate) all: Vec<ModelMirror>,
    pub(crate) notice: fn(&str),
}

impl Default for Mirrors {
    fn default() -> Mirrors {
        Mirrors { all: Vec::new(), notice: |_| () }
    }
}

impl Model {
    /// Spreads the reads of this model over further copies of its shards, whole or partial, which lie
    /// in directories on other drives. The output does not depend on them.
    ///
    /// A copy that is absent or fails is left out, and `notice` gets a sentence about it: now, or later
    /// from a thread that reads. A copy of another model is an error.
    pub fn also(&mut self, dirs: &[PathBuf], notice: fn(&str)) -> Result<()> {
        if dirs.is_empty() {
            return Ok(());
        }
        let own = if self.is_sharded() { Manifest::hash_in(self.dir())? } else { None };
        if own.is_none() {
            return Err(self.error("it has no checksums by which copies on other drives could be verified; make shards of it with `sws shard`, or leave out --also"));
        }
        let all = ModelMirror::of_shards(self.dir(), self.manifest(), dirs, notice)?;
        self.set_mirrors(Mirrors { all, notice });
        Ok(())
    }

    /// True if a directory has a copy of this model's shards.
    pub fn has_copy_in(&self, dir: &Path) -> bool {
        if !self.is_sharded() {
            return false;
        }
        let Ok(Some(copy)) = Manifest::hash_in(dir) else { return false };
        matches!(Manifest::hash_in(self.dir()), Ok(Some(own)) if own == copy)
    }

    /// The copies over which reads are spread, besides the model itself.
    pub fn mirrors(&self) -> &[ModelMirror] {
        &self.own_mirrors().all
    }

    /// Opens a reader of each copy.
    pub(crate) fn open_mirrors(&self, kind: ReaderKind) -> Result<Vec<Mirror>> {
        let depth = StoreOptions::default().depth;
        let mirrors = self.mirrors();
        let mut opened = Vec::with_capacity(mirrors.len());
        for mirror in mirrors {
            let reader = kind.open_beside(self.manifest(), &mirror.dir, depth, mirrors.len());
            opened.push(Mirror {
                dir: mirror.dir.clone(),
                reader: reader.map_err(Error::Reader)?,
                files: mirror.files.clone(),
                simulated: None,
            });
        }
        Ok(opened)
    }
}

impl ModelMirror {
    /// The copies, in these directories, of the shards in another one, whose manifest this is. A copy
    /// that is absent is left out, and `notice` gets a sentence about it. A copy of another model is an
    /// error.
    pub fn of_shards(
        own_dir: &Path,
        manifest: &Manifest,
        dirs: &[PathBuf],
        notice: fn(&str),
    ) -> Result<Vec<ModelMirror>> {
        let own = Manifest::hash_in(own_dir)?;
        let mut known = vec![own_dir.canonicalize().ok()];
        let mut all = Vec::new();
        for dir in dirs {
            let place = dir.canonicalize().ok();
            if place.is_some() && known.contains(&place) {
                return Err(Error::model(
                    dir,
                    "this copy is read already; give each once, and the model itself not at all",
                ));
            }
            known.push(place);
            match Manifest::hash_in(dir) {
                Ok(hash @ Some(_)) if hash == own => {}
                Ok(Some(_)) => {
                    return Err(Error::model(
                        dir,
                        format!(
                            "these are not the shards of `{}`, but of another model or encoding; give a copy that `sws mirror` has made of it",
                            own_dir.display()
                        ),
                    ));
                }
                Ok(None) => {
                    let exists = dir.exists();
                    let what = if exists { "has no manifest.json" } else { "does not exist" };
                    notice(&left_out(dir, what));
                    continue;
                }
                Err(ManifestError::Read { cause, .. }) => {
                    notice(&left_out(dir, &format!("cannot be read ({cause})")));
                    continue;
                }
                Err(error) => return Err(error.into()),
            }
            let mirror = ModelMirror::of(manifest, dir);
            if mirror.bytes == 0 {
                notice(&left_out(dir, "has no shard"));
                continue;
            }
            info!(
                "a copy with {} of {} shards is read as well",
                mirror.held(manifest).count(),
                mirror.files.len()
            );
            all.push(mirror);
        }
        Ok(all)
    }

    /// The files in a directory that have their name and length.
    fn of(manifest: &Manifest, dir: &Path) -> ModelMirror {
        let mut bytes = 0;
        let mut files = Vec::with_capacity(manifest.files.len());
        for file in &manifest.files {
            let about = dir.join(&file.path).symlink_metadata();
            let has = about.is_ok_and(|about| about.is_file() && about.len() == file.len);
            if has {
                bytes += file.len;
            }
            files.push(has);
        }
        ModelMirror { dir: dir.to_owned(), bytes, files }
    }

    /// The files of the manifest that the copy has.
    pub(crate) fn held<'m>(
        &'m self,
        manifest: &'m Manifest,
    ) -> impl Iterator<Item = &'m FileEntry> {
        manifest.files.iter().zip(&self.files).filter(|(_, has)| **has).map(|(file, _)| file)
    }
}

/// The sentence about a copy that is absent or fails.
fn left_out(dir: &Path, what: &str) -> String {
    format!(
        "`{}` {what}, so this copy of the model is left out; connect its drive, or make the copy with `sws mirror`",
        dir.display()
    )
}
