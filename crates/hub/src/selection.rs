//! Selection of the files that form a model in a repository.

use std::collections::BTreeSet;

use serde::Deserialize;
use sws_format::{is_plain_name, is_small_file};

use crate::error::{clipped, some_of};
use crate::{HubError, HubFile, Listing, UnclearTag, choose_gguf};

const SINGLE: &str = "model.safetensors";
/// Name of the index of weight files.
pub(crate) const INDEX: &str = "model.safetensors.index.json";
const CONFIG: &str = "config.json";

/// The files of a repository that form a model.
#[derive(Clone, Debug)]
pub struct RepositoryFiles {
    /// The weights.
    pub weights: WeightFiles,
    /// Configuration, tokenizer, licence and the like.
    pub small: Vec<HubFile>,
}

/// Weight files, by format.
#[derive(Clone, Debug)]
pub enum WeightFiles {
    /// Files in safetensors, in the order of their names.
    Safetensors(Vec<HubFile>),
    /// One model in GGUF, in one file or several parts.
    Gguf(Vec<HubFile>),
}

impl WeightFiles {
    /// The files.
    pub fn files(&self) -> &[HubFile] {
        match self {
            WeightFiles::Safetensors(files) | WeightFiles::Gguf(files) => files,
        }
    }

    /// Bytes of all of them.
    pub fn len(&self) -> u64 {
        self.files().iter().fold(0, |sum, file| sum.saturating_add(file.len))
    }

    /// True if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// True for a repository with weights in safetensors.
pub fn has_safetensors(listing: &Listing) -> bool {
    listing.file(SINGLE).is_some() || listing.file(INDEX).is_some()
}

/// Chooses the files of a model. `index` downloads `model.safetensors.index.json`, where there is
/// one. `tag` chooses one of several models in GGUF.
pub fn select(
    listing: &Listing,
    tag: Option<&str>,
    index: &mut dyn FnMut(&HubFile) -> Result<Vec<u8>, HubError>,
) -> Result<RepositoryFiles, HubError> {
    let safetensors = match (tag, listing.file(SINGLE), listing.file(INDEX)) {
        (Some(_), ..) => None,
        (None, Some(file), _) => Some(vec![file.clone()]),
        (None, None, Some(file)) => Some(listed(listing, &index(file)?)?),
        (None, None, None) => None,
    };
    if let Some(files) = safetensors {
        let Some(config) = listing.file(CONFIG) else {
            return Err(listing.contents_error("has no config.json; it is not a model by itself"));
        };
        if !is_small_file(CONFIG, config.len) {
            return Err(listing.contents_error(format!(
                "lists a config.json of {} bytes, too long for a configuration; report it there",
                config.len
            )));
        }
        let small = listing.files.iter().filter(|file| is_small_file(&file.name, file.len));
        // The index counts as a small file for the checkpoint, although shards do not need it.
        let small = small.chain(listing.file(INDEX)).cloned().collect();
        return Ok(RepositoryFiles { weights: WeightFiles::Safetensors(files), small });
    }
    let names = listing.files.iter().map(|file| file.name.as_str());
    let found = match choose_gguf(names, tag) {
        Ok(found) => found,
        Err(unclear) => return Err(unclear_error(listing, tag, unclear)),
    };
    if found.is_empty() {
        let pickles = listing.files.iter().any(|file| file.name.ends_with(".bin"));
        return Err(listing.contents_error(match pickles {
            true => "has PyTorch weights only, which can run code when opened; look for a copy in safetensors or GGUF",
            false => "holds neither safetensors nor GGUF weights; check its name",
        }));
    }
    let files: Vec<HubFile> =
        found.into_iter().filter_map(|name| listing.file(name)).cloned().collect();
    Ok(RepositoryFiles { weights: WeightFiles::Gguf(files), small: Vec::new() })
}

/// The error for a tag that does not choose one of the models in GGUF.
fn unclear_error(listing: &Listing, tag: Option<&str>, unclear: UnclearTag) -> HubError {
    if unclear.models.is_empty() {
        return listing.contents_error("has no GGUF file; leave out what follows the colon");
    }
    match tag {
        Some(tag) if unclear.none => {
            let models = some_of(&unclear.models);
            listing.contents_error(format!("has no `{tag}` among {models}; choose one of them"))
        }
        _ => HubError::Several { id: listing.id.clone(), models: unclear.models },
    }
}

/// The files that an index lists.
fn listed(listing: &Listing, json: &[u8]) -> Result<Vec<HubFile>, HubError> {
    #[derive(Deserialize)]
    struct WeightIndex {
        weight_map: std::collections::HashMap<String, String>,
    }
    let index: WeightIndex = serde_json::from_slice(json).map_err(|e| {
        listing.contents_error(format!("has a damaged {INDEX} ({e}); report it there"))
    })?;
    let names: BTreeSet<String> = index.weight_map.into_values().collect();
    if names.is_empty() {
        let problem = format!("has a {INDEX} that lists no files; report it there");
        return Err(listing.contents_error(problem));
    }
    let mut files = Vec::with_capacity(names.len());
    for name in names {
        match listing.file(&name) {
            Some(file) if is_plain_name(&name) => files.push(file.clone()),
            _ => {
                let name = clipped(&name);
                let problem = format!("has no {name:?}, though {INDEX} lists it; report it there");
                return Err(listing.contents_error(problem));
            }
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(names: &[&str]) -> Listing {
        let file = |name: &&str| HubFile {
            name: (*name).to_owned(),
            len: 10,
            etag: "e".to_owned(),
            hashed: false,
        };
        let files = names.iter().map(file).collect();
        Listing { id: "o/m".parse().unwrap(), commit: "c".to_owned(), files }
    }

    fn chosen(names: &[&str], tag: Option<&str>, index: &str) -> Result<Vec<String>, String> {
        let listing = listing(names);
        let found = select(&listing, tag, &mut |_| Ok(index.as_bytes().to_vec()));
        let found = found.map_err(|e| e.to_string())?;
        let files = found.weights.files().iter().chain(&found.small);
        Ok(files.map(|file| file.name.clone()).collect())
    }

    #[test]
    fn a_model_is_its_weights_and_small_files() {
        let names = ["model.safetensors", "config.json", "x/y.json", ".gitattributes", "a.bin"];
        assert_eq!(chosen(&names, None, "").unwrap(), ["model.safetensors", "config.json"]);
        let names = ["b.safetensors", "a.safetensors", "c.safetensors", INDEX, "config.json"];
        let index = r#"{"weight_map":{"x":"b.safetensors","y":"a.safetensors"}}"#;
        let expected = ["a.safetensors", "b.safetensors", "config.json", INDEX];
        assert_eq!(chosen(&names, None, index).unwrap(), expected);
        let both = ["model.safetensors", "config.json", "m-Q4_0.gguf"];
        assert_eq!(chosen(&both, Some("Q4_0"), "").unwrap(), ["m-Q4_0.gguf"]);
    }

    #[test]
    fn repositories_without_a_model_say_what_they_hold() {
        let index = |file: &str| format!(r#"{{"weight_map":{{"x":"{file}"}}}}"#);
        #[rustfmt::skip]
        let cases: [(&[&str], Option<&str>, String, &str); 9] = [
            (&["README.md"], None, String::new(), "neither safetensors nor GGUF"),
            (&["pytorch_model.bin"], None, String::new(), "PyTorch"),
            (&["model.safetensors"], None, String::new(), "config.json"),
            (&["a-Q4_0.gguf", "a-Q8_0.gguf"], None, String::new(), "a-Q4_0, a-Q8_0"),
            (&["a-Q4_0.gguf"], Some("Q5"), String::new(), "a-Q4_0"),
            (&["model.safetensors", "config.json"], Some("Q5"), String::new(), "colon"),
            (&[INDEX, "config.json"], None, index("../x"), "../x"),
            (&[INDEX, "config.json"], None, "{".to_owned(), "damaged"),
            (&[INDEX, "config.json"], None, r#"{"weight_map":{}}"#.to_owned(), "no files"),
        ];
        for (names, tag, index, expected) in cases {
            let error = chosen(names, tag, &index).unwrap_err();
            assert!(error.contains(expected) && error.contains("o/m"), "{error}");
        }
    }
}
