//! A model in memory, which is not a directory of safetensors: the seams of the store are enough to
//! shard it and to read it in place.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use sws_format::{
    Checkpoint, CheckpointError, Configuration, Extent, HeaderTensor, Manifest, ShardReader, Value,
    WeightFile, open_checkpoint,
};
use sws_model::{CausalLm, ForwardPass, KvPrecision, ModelSpec, ResidentSource, Session};
use sws_shard::{ShardOptions, shard};

use sws_testing::{
    goldens::{golden_dir, is_readable_in_place},
    readers::MemoryReader,
};

use crate::forward::support::{Fixture, Recorder, variants};

#[derive(Debug)]
struct InMemory {
    files: Vec<WeightFile>,
    bytes: Vec<Vec<u8>>,
    config: Configuration,
}

impl InMemory {
    /// Copies a checkpoint into files of at most seven tensors, which begin with bytes that are no
    /// header and have gaps.
    fn of(checkpoint: &dyn Checkpoint) -> InMemory {
        let config = Configuration { origin: "memory".to_owned(), ..checkpoint.config().clone() };
        let mut memory = InMemory { files: Vec::new(), bytes: Vec::new(), config };
        for file in checkpoint.files() {
            let from = fs::read(checkpoint.dir().join(&file.name)).unwrap();
            for tensors in file.tensors.rchunks(7) {
                let mut bytes = vec![0xff; 5];
                let copy = |tensor: &HeaderTensor| {
                    bytes.resize(bytes.len().next_multiple_of(32), 0xee);
                    let offset = bytes.len() as u64;
                    bytes.extend(&from[tensor.offset as usize..][..tensor.len as usize]);
                    HeaderTensor { offset, ..tensor.clone() }
                };
                let tensors = tensors.iter().map(copy).collect();
                let name = format!("{}.part", memory.files.len());
                memory.files.push(WeightFile { name, len: bytes.len() as u64, tensors });
                memory.bytes.push(bytes);
            }
        }
        memory
    }
}

/// A checkpoint with a tensor per expert, as another that stacks them: gates above ups.
fn stacked(checkpoint: &dyn Checkpoint, layers: usize, experts: usize) -> InMemory {
    let mut memory = InMemory::of(checkpoint);
    let all: Vec<(HeaderTensor, Vec<u8>)> = memory
        .files
        .iter()
        .zip(&memory.bytes)
        .flat_map(|(file, bytes)| {
            let of = |t: &HeaderTensor| bytes[t.offset as usize..][..t.len as usize].to_vec();
            file.tensors.iter().map(move |tensor| (tensor.clone(), of(tensor)))
        })
        .collect();
    let (apart, mut tensors): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|(tensor, _)| tensor.name.contains(".mlp.experts."));
    for layer in 0..layers {
        for (names, to) in
            [(&["gate_proj", "up_proj"][..], "gate_up_proj"), (&["down_proj"], "down_proj")]
        {
            let (mut bytes, mut first) = (Vec::new(), None);
            for (expert, name) in (0..experts).flat_map(|e| names.iter().map(move |n| (e, n))) {
                let end = format!("layers.{layer}.mlp.experts.{expert}.{name}.weight");
                let found = apart.iter().find(|(tensor, _)| tensor.name.ends_with(&end));
                let (tensor, own) = found.unwrap_or_else(|| panic!("no {end}"));
                bytes.extend(own);
                first.get_or_insert(tensor);
            }
            let first = first.unwrap();
            let prefix = first.name.split("experts.").next().unwrap();
            let shape = vec![experts as u64, names.len() as u64 * first.shape[0], first.shape[1]];
            let tensor =
                HeaderTensor { name: format!("{prefix}experts.{to}"), shape, ..first.clone() };
            tensors.push((tensor, bytes));
        }
    }
    let (mut bytes, mut headers) = (Vec::new(), Vec::new());
    for (tensor, own) in tensors {
        headers.push(HeaderTensor { offset: bytes.len() as u64, len: own.len() as u64, ..tensor });
        bytes.extend(own);
    }
    let len = bytes.len() as u64;
    memory.files = vec![WeightFile { name: "stacked".to_owned(), len, tensors: headers }];
    memory.bytes = vec![bytes];
    memory
}

impl Checkpoint for InMemory {
    fn dir(&self) -> &Path {
        Path::new("memory")
    }

    fn files(&self) -> &[WeightFile] {
        &self.files
    }

    fn config(&self) -> &Configuration {
        &self.config
    }

    fn fingerprint(&self) -> &str {
        "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
    }

    fn reader(&self) -> Option<Arc<dyn ShardReader>> {
        Some(Arc::new(MemoryReader::new(self.bytes.clone())))
    }

    fn small_files(&self) -> Result<Vec<String>, CheckpointError> {
        Ok(vec!["config.json".to_owned()])
    }

    fn read_small(&self, _name: &str) -> Result<Vec<u8>, CheckpointError> {
        Ok(Value::Map(self.config.entries.clone()).to_string().into_bytes())
    }
}

#[test]
fn shards_and_weights_in_place_give_the_bits_of_the_directory() {
    for name in variants() {
        let fixture = Fixture::open(&name);
        let memory = InMemory::of(&*open_checkpoint(golden_dir(&name), None).unwrap());
        let naming = sws_model::naming(memory.config()).unwrap();
        let manifest = Manifest::in_place(&memory, &*naming).unwrap();
        let spec = ModelSpec::of(memory.config()).unwrap().for_weights(&manifest);
        assert_eq!(spec, fixture.spec);
        let in_place = ResidentSource::load(&spec, &manifest, |extent: &Extent, to| {
            let bytes = &memory.bytes[extent.file as usize];
            to.copy_from_slice(&bytes[extent.offset as usize..][..to.len()]);
            Ok(())
        });
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("shards");
        shard(&memory, &*naming, &out, &ShardOptions::default(), &|_| ()).unwrap();

        let expected = logits(&spec, fixture.source());
        match is_readable_in_place(&name) {
            true => assert!(logits(&spec, in_place.unwrap()) == expected, "{name} in place"),
            false => assert!(in_place.is_err(), "{name} in place"),
        }
        let sharded = Fixture::at(&out);
        assert!(logits(&sharded.spec, sharded.source()) == expected, "{name} in shards");
    }
}

/// Qwen4-Exp is published with stacked experts, and written by transformers with one tensor each.
#[test]
fn stacked_experts_give_the_bits_of_those_apart() {
    let fixture = Fixture::open("qwen4_exp");
    let checkpoint = open_checkpoint(&fixture.dir, None).unwrap();
    let moe = fixture.spec.moes().next().unwrap();
    let memory = stacked(&*checkpoint, fixture.spec.layers.len(), moe.experts);
    let naming = sws_model::naming(memory.config()).unwrap();
    let manifest = Manifest::in_place(&memory, &*naming).unwrap();
    let spec = ModelSpec::of(memory.config()).unwrap().for_weights(&manifest);
    assert_ne!(spec, fixture.spec);
    let source = ResidentSource::load(&spec, &manifest, |extent: &Extent, to| {
        let bytes = &memory.bytes[extent.file as usize];
        to.copy_from_slice(&bytes[extent.offset as usize..][..to.len()]);
        Ok(())
    });
    assert!(logits(&spec, source.unwrap()) == logits(&fixture.spec, fixture.source()));
}

/// The sharder finds missing bytes through the reader, and names the file.
#[test]
fn a_file_that_ends_early_is_named() {
    let fixture = Fixture::open("llama");
    let mut memory = InMemory::of(&*open_checkpoint(&fixture.dir, None).unwrap());
    let last = memory.bytes.last_mut().unwrap();
    last.truncate(last.len() - 1);
    let naming = sws_model::naming(memory.config()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("shards");
    let error = shard(&memory, &*naming, &out, &ShardOptions::default(), &|_| ()).unwrap_err();
    let named = format!("`memory/{}`", memory.files.last().unwrap().name);
    assert!(error.to_string().starts_with(&named), "{error}");
}

fn logits(spec: &ModelSpec, source: ResidentSource) -> Vec<u32> {
    let model = ForwardPass::new(spec.clone());
    let mut seen = Recorder::default();
    let mut session = Session::new(model, source, usize::MAX, KvPrecision::F32);
    session.score(&[3, 1, 4, 1, 5, 9, 2, 6], &mut seen).unwrap();
    seen.logits.iter().map(|logit| logit.to_bits()).collect()
}
