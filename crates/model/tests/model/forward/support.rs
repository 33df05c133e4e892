//! The checkpoints of `tests/goldens`, and helpers to load them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use sws_format::{Manifest, Pass};
use sws_model::{
    ForwardPass, KvPrecision, ModelSpec, Observer, ResidentSource, Routed, Session, SourceError,
};
use sws_testing::goldens::{Golden, Runnable, golden_dir, runnable};
pub(crate) use sws_testing::goldens::{goldens, variants};
use sws_testing::resident;

/// A checkpoint with its specification and manifest.
pub(crate) struct Fixture {
    pub(crate) dir: PathBuf,
    /// The golden, and what keeps its directory.
    golden: Option<(PathBuf, Runnable)>,
    pub(crate) spec: ModelSpec,
    pub(crate) manifest: Manifest,
}

impl Fixture {
    pub(crate) fn open(name: &str) -> Fixture {
        let runnable = runnable(name);
        let fixture = Fixture::at(&runnable.dir);
        Fixture { golden: Some((golden_dir(name), runnable)), ..fixture }
    }

    /// Opens a checkpoint or shard directory.
    pub(crate) fn at(dir: &Path) -> Fixture {
        let (manifest, spec) = sws_testing::open(dir).unwrap();
        Fixture { dir: dir.to_owned(), golden: None, spec, manifest }
    }

    pub(crate) fn source(&self) -> ResidentSource {
        resident(&self.dir, &self.manifest, &self.spec).unwrap()
    }

    pub(crate) fn session(&self) -> Session<ResidentSource> {
        let model = ForwardPass::new(self.spec.clone());
        Session::new(model, self.source(), usize::MAX, KvPrecision::F32)
    }

    pub(crate) fn golden(&self) -> Golden {
        Golden::read(self.golden.as_ref().map_or(&self.dir, |(dir, _)| dir))
    }
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
