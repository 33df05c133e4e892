//! Loads a model into memory, as `sws` does.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use sws_engine::ResidentLoad;
use sws_format::Manifest;
use sws_model::{ModelSpec, ResidentSource};
use sws_store::{NVMeWeightStore, ReaderKind, StoreOptions};
use sws_testing::open;
use sws_text::Tokenizer;

/// Loads a model. Returns its spec, the name of its encoding, and its weights.
pub fn load(dir: &Path) -> Result<(ModelSpec, String, ResidentSource)> {
    let (manifest, spec) = open(dir)?;
    let encoding = manifest.encoding.map_or("as stored".to_owned(), |e| e.to_string());
    let options = StoreOptions::default();
    let reader = ReaderKind::Direct.open(&manifest, dir, options.depth)?;
    let options = StoreOptions { reader: Some(reader), ..options };
    let store = NVMeWeightStore::open(Arc::new(manifest), dir, options)?;
    let source = ResidentLoad::new(&spec, &store)?.load(|_| true)?;
    Ok((spec, encoding, source.context("loading stopped by itself")?))
}

/// The tokenizer of a shard directory.
pub fn tokenizer(dir: &Path) -> Result<Tokenizer> {
    let bytes = Manifest::load(dir)?.read_small(dir, "tokenizer.json", None)?;
    let missing = || format!("`{}` has no tokenizer.json", dir.display());
    Ok(Tokenizer::from_bytes(&bytes.with_context(missing)?)?)
}
