//! Names of models, for people and for clients of a server.

use std::path::Path;

use sws_format::gguf_model;
use sws_hub::{Library, LibraryShards, ModelId};

use crate::Model;

impl Model {
    /// Name of the model without a path of this machine: its id, or else the name of its GGUF file
    /// without extension and part number, or the name of its directory.
    pub fn name(&self) -> String {
        if let Some(name) = self.supplier() {
            return name;
        }
        let path = std::path::absolute(self.dir()).unwrap_or_else(|_| self.dir().to_owned());
        let place = path.canonicalize().ok();
        let stem = self.gguf_stem();
        if let Some(id) = in_cache(&path) {
            return match stem {
                Some(stem) => format!("{id}:{stem}"),
                None => id.to_string(),
            };
        }
        if let Some(stem) = stem {
            return stem.to_owned();
        }
        if let Some(library) = Library::of_process() {
            for LibraryShards { id, form, path: dir, .. } in library.all() {
                if place.is_some() && dir.canonicalize().ok() == place {
                    return format!("{id}:{form}");
                }
            }
        }
        let name = last(&path).or_else(|| last(place.as_deref()?));
        name.unwrap_or_else(|| "model".to_owned())
    }

    /// Name of the model's GGUF file, without extension and part number. `None` if the model is not
    /// read from such a file.
    pub fn gguf_stem(&self) -> Option<&str> {
        let file = self.manifest().files.first()?;
        Some(gguf_model(&file.path)?.0)
    }
}

/// The id of the model in a snapshot of the Hugging Face cache.
fn in_cache(snapshot: &Path) -> Option<ModelId> {
    let snapshots = snapshot.parent().filter(|dir| dir.ends_with("snapshots"))?;
    ModelId::from_flat(last(snapshots.parent()?)?.strip_prefix("models--")?)
}

fn last(path: &Path) -> Option<String> {
    Some(path.file_name()?.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use sws_testing::gguf::converted;
    use sws_testing::goldens;

    use super::*;

    #[test]
    fn models_are_named_by_id_or_file_or_directory() {
        let temp = tempfile::tempdir().unwrap();
        let snapshot = temp.path().join("models--Owner--Name/snapshots").join("a".repeat(40));
        let dirs = [temp.path().join("real"), snapshot];
        let file = converted(&goldens::golden_dir("qwen2_moe")).unwrap();
        for dir in &dirs {
            goldens::copy("qwen2_moe", &dir.join("checkpoint"));
            for name in ["a-q4_k_m.gguf", "alone/b.Q8_0-00001-of-00001.gguf"] {
                std::fs::create_dir_all(dir.join("alone")).unwrap();
                file.write(&dir.join(name));
            }
        }
        let [plain, cached] = &dirs;
        let elsewhere = temp.path().join("link");
        sws_os::open::symlink(plain.join("checkpoint"), &elsewhere).unwrap();
        let cases: [(PathBuf, &str); 7] = [
            (plain.join("a-q4_k_m.gguf"), "a-q4_k_m"),
            (plain.join("alone/b.Q8_0-00001-of-00001.gguf"), "b.Q8_0"),
            (plain.join("alone"), "b.Q8_0"),
            (plain.join("checkpoint"), "checkpoint"),
            (plain.join("alone/../checkpoint/../checkpoint"), "checkpoint"),
            (elsewhere, "link"),
            (cached.join("a-q4_k_m.gguf"), "Owner/Name:a-q4_k_m"),
        ];
        for (path, name) in cases {
            let model = Model::open(&path).unwrap();
            assert_eq!(model.name(), name, "{}", path.display());
            assert!(!model.name().contains(temp.path().to_str().unwrap()));
        }
    }
}
