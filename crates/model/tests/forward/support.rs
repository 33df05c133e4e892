//! The checkpoints of `tests/goldens`, and helpers to load them.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use sws_model::{
    KvPrecision, Model, ModelSpec, Observer, ResidentSource, Routed, Session, SourceError,
};
use sws_store::{Checkpoint, Manifest, Pass};

pub(crate) use sws_testing::goldens::{Golden, goldens, variants};

/// A checkpoint with its specification and manifest.
pub(crate) struct Fixture {
    pub(crate) dir: PathBuf,
    pub(crate) spec: ModelSpec,
    pub(crate) manifest: Manifest,
}

impl Fixture {
    pub(crate) fn open(name: &str) -> Fixture {
        let dir = goldens().join(name);
        let checkpoint = Checkpoint::open(&dir).unwrap();
        let naming = sws_model::naming(checkpoint.config_json()).unwrap();
        Fixture {
            spec: ModelSpec::parse(checkpoint.config_json()).unwrap(),
            manifest: Manifest::in_place(&checkpoint, naming.as_ref()).unwrap(),
            dir,
        }
    }

    /// Opens a shard directory.
    pub(crate) fn shards(dir: &Path) -> Fixture {
        Fixture {
            spec: ModelSpec::parse(&fs::read(dir.join("config.json")).unwrap()).unwrap(),
            manifest: Manifest::load(dir).unwrap(),
            dir: dir.to_owned(),
        }
    }

    pub(crate) fn source(&self) -> ResidentSource {
        load(&self.dir, &self.manifest, &self.spec)
    }

    pub(crate) fn session(&self) -> Session<ResidentSource> {
        let model = Model::new(self.spec.clone());
        Session::new(model, self.source(), usize::MAX, KvPrecision::F32)
    }

    pub(crate) fn golden(&self) -> Golden {
        Golden::read(&self.dir)
    }
}

pub(crate) fn load(dir: &Path, manifest: &Manifest, spec: &ModelSpec) -> ResidentSource {
    let open = |file: &sws_store::FileEntry| File::open(dir.join(&file.path)).unwrap();
    let files: Vec<File> = manifest.files.iter().map(open).collect();
    ResidentSource::load(spec, manifest, |extent, to| {
        Ok(files[extent.file as usize].read_exact_at(to, extent.offset)?)
    })
    .unwrap()
}

/// Records logits and routes.
#[derive(Default)]
pub(crate) struct Recorder {
    pub(crate) logits: Vec<f32>,
    pub(crate) routes: HashMap<usize, Vec<u32>>,
}

impl Observer for Recorder {
    fn routed(&mut self, _: &Pass, layer: usize, routed: &Routed) -> Result<(), SourceError> {
        self.routes.entry(layer).or_default().extend(&routed.choices);
        Ok(())
    }

    fn logits(&mut self, _: usize, logits: &[f32]) {
        self.logits.extend(logits);
    }
}

pub(crate) fn argmax(logits: &[f32]) -> u32 {
    sws_kernels::functional::argmax(logits).unwrap() as u32
}
