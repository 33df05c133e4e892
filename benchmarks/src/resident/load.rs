//! Loads a model into memory, as `sws` does.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use sws_model::text::Tokenizer;
use sws_model::{Loader, ModelSpec, ResidentSource};
use sws_store::{
    Arena, Checkpoint, MANIFEST_FILE, Manifest, NVMeWeightStore, Read, ReaderKind, StoreOptions,
};

/// Memory for reads in flight, in addition to the largest piece.
const LOADING_BYTES: usize = 64 << 20;

/// Reads the manifest and the spec of a checkpoint or shard directory.
pub fn open(dir: &Path) -> Result<(Manifest, ModelSpec)> {
    let (manifest, config) = if dir.join(MANIFEST_FILE).exists() {
        let manifest = Manifest::load(dir)?;
        let config = manifest.read_small(dir, "config.json", None)?;
        let missing = || format!("`{}` has no config.json", dir.display());
        (manifest, config.with_context(missing)?)
    } else {
        let checkpoint = Checkpoint::open(dir)?;
        let config = checkpoint.config_json().to_vec();
        let naming = sws_model::naming(&config)?;
        (Manifest::in_place(&checkpoint, &*naming)?, config)
    };
    Ok((manifest, ModelSpec::parse(&config)?))
}

/// Loads a model. Returns its spec, the name of its encoding, and its weights.
pub fn load(dir: &Path) -> Result<(ModelSpec, String, ResidentSource)> {
    let (manifest, spec) = open(dir)?;
    let encoding = manifest.encoding.map_or("as stored".to_owned(), |e| e.to_string());
    let manifest = Arc::new(manifest);
    let mut loader = Loader::new(&spec, &manifest)?;
    let options = StoreOptions::default();
    let reader = ReaderKind::Direct.open(&manifest, dir, options.depth)?;
    let options = StoreOptions { reader: Some(reader), ..options };
    let store = NVMeWeightStore::open(Arc::clone(&manifest), dir, options)?;
    let wanted: Vec<Read> = loader.wanted().into_iter().map(Read::Piece).collect();
    let mut largest = 0;
    for read in &wanted {
        largest = largest.max(store.layout(read.clone())?.slot_len());
    }
    let arena = Arena::new(largest + LOADING_BYTES)?;
    let mut failure = None;
    store.extract_pieces(&wanted, &arena, |completion| {
        let added = completion.result.map_err(anyhow::Error::from).and_then(|()| {
            let layout = &completion.layout;
            let add = loader.add(layout.read().piece(), |_, (tensor, part), into| {
                let found = layout.tensors().iter().find(|t| t.index == tensor);
                let bytes = found.and_then(|t| t.part(&completion.slot, part));
                into.copy_from_slice(bytes.ok_or("the read left out a tensor")?);
                Ok(())
            });
            add.map_err(|e| anyhow!("{e}"))
        });
        failure = failure.take().or(added.err());
    })?;
    match failure {
        Some(error) => Err(error),
        None => Ok((spec.clone(), encoding, loader.finish())),
    }
}

/// The tokenizer of a shard directory.
pub fn tokenizer(dir: &Path) -> Result<Tokenizer> {
    let bytes = Manifest::load(dir)?.read_small(dir, "tokenizer.json", None)?;
    let missing = || format!("`{}` has no tokenizer.json", dir.display());
    Ok(Tokenizer::from_bytes(&bytes.with_context(missing)?)?)
}
