//! The models of the simulator: the bundled one, and the tiny ones of all families.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use sws::{LoadedModel, Model, Needs, Options, Streaming};
use sws_format::Manifest;
use sws_model::ModelSpec;
use sws_testing::goldens::{golden_dir, is_readable_in_place, variants};
use sws_testing::random::Random;
use sws_testing::readers::Flip;
use sws_testing::tales;

use super::scenario::CONTEXT;
use crate::crowd::{Text, Told, alone};
use crate::models::make_shards;

/// A model, and what its texts are without other texts.
pub(super) struct SimulatedModel {
    pub(super) name: String,
    pub(super) dir: PathBuf,
    pub(super) model: Model,
    pub(super) manifest: Arc<Manifest>,
    pub(super) spec: ModelSpec,
    /// False if wrong bytes are not noticed when they are read first.
    pub(super) has_checksums: bool,
    /// The model in memory.
    resident: LoadedModel,
}

impl SimulatedModel {
    fn open(name: String, dir: PathBuf, has_checksums: bool) -> Result<SimulatedModel> {
        let model = Model::open(&dir)?;
        let (manifest, spec) = sws_testing::open(&dir)?;
        let streaming = Streaming { warm_start: false, ..Streaming::default() };
        let context = Some(CONTEXT.min(spec.context));
        let options = Options { resident: true, context, streaming, ..Options::default() };
        let resident = model.with(options).needs(Needs { texts: 2, ..Needs::default() }).load()?;
        let manifest = Arc::new(manifest);
        Ok(SimulatedModel { name, dir, model, manifest, spec, has_checksums, resident })
    }

    /// The text without others, all weights in memory.
    pub(super) fn alone(&mut self, text: &Text) -> Result<Told> {
        let text = Text { certified: true, leaves_after: None, ..text.clone() };
        alone(&mut self.resident, &text)
    }

    /// A bit of any file.
    pub(super) fn place(&self, random: &mut Random) -> Flip {
        let file = random.below(self.manifest.files.len() as u64);
        let offset = random.below(self.manifest.files[file as usize].len);
        Flip { file: file as u32, offset, bit: random.below(8) as u8 }
    }
}

/// All models: the bundled one first, each family in shards, and in place where it can be.
pub(super) fn models(scratch: &Path) -> Result<Vec<SimulatedModel>> {
    let mut models = vec![SimulatedModel::open("tales".to_owned(), tales(), true)?];
    for name in variants() {
        let shards = scratch.join(&name);
        make_shards(&golden_dir(&name), &shards)?;
        models.push(SimulatedModel::open(format!("{name}, shards"), shards, true)?);
        if is_readable_in_place(&name) {
            let dir = golden_dir(&name);
            models.push(SimulatedModel::open(format!("{name}, in place"), dir, false)?);
        }
    }
    Ok(models)
}
