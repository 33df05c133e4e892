//! The checkpoints of `tests/goldens`, and helpers to load them.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};
use sws_model::{
    KvPrecision, Model, ModelSpec, Observer, ResidentSource, Routed, Session, SourceError,
};
use sws_store::{Checkpoint, Manifest, Pass};

#[path = "../../../../tests/variants.rs"]
mod variants;
pub(crate) use variants::{goldens, variants};

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
        let bytes = fs::read(self.dir.join("golden.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let numbers = |name: &str| -> Vec<i64> {
            let Ok(tensor) = file.tensor(name) else { return Vec::new() };
            let width = tensor.data().len() / tensor.shape().iter().product::<usize>();
            let number = |bytes: &[u8]| match bytes.len() {
                4 => i64::from(i32::from_le_bytes(bytes.try_into().unwrap())),
                _ => i64::from_le_bytes(bytes.try_into().unwrap()),
            };
            tensor.data().chunks(width).map(number).collect()
        };
        let logits = file.tensor("logits").unwrap();
        assert_eq!(logits.dtype(), Dtype::F32);
        let floats = logits.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b));
        Golden {
            tokens: numbers("tokens").into_iter().map(|t| t as u32).collect(),
            greedy: numbers("greedy").into_iter().map(|t| t as u32).collect(),
            moe_layers: numbers("moe_layers").into_iter().map(|l| l as usize).collect(),
            routes: numbers("routes").into_iter().map(|e| e as u32).collect(),
            logits: floats.collect(),
        }
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

/// The recorded results of transformers.
pub(crate) struct Golden {
    pub(crate) tokens: Vec<u32>,
    pub(crate) greedy: Vec<u32>,
    pub(crate) moe_layers: Vec<usize>,
    /// [layers with experts, tokens, top-k]
    pub(crate) routes: Vec<u32>,
    /// [tokens, vocab]
    pub(crate) logits: Vec<f32>,
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
