//! The checkpoints of `tests/goldens`: reference results from transformers, copies with a
//! tokenizer, and damaged copies.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

use sws_format::open_checkpoint;
use sws_shard::{ShardOptions, shard};
use tempfile::TempDir;

use crate::root;

/// The directory of the goldens: that of the repository, or `SWS_GOLDENS`.
pub fn goldens() -> PathBuf {
    std::env::var_os("SWS_GOLDENS").map_or_else(|| root().join("tests/goldens"), PathBuf::from)
}

/// The directory of a checkpoint among the goldens.
pub fn golden_dir(name: &str) -> PathBuf {
    goldens().join(name)
}

/// A golden checkpoint as it can be run: in place, or as shards where that is refused.
#[derive(Debug)]
pub struct Runnable {
    /// The directory of the model.
    pub dir: PathBuf,
    _temporary: Option<TempDir>,
}

/// The checkpoint `name` as it can be run.
pub fn runnable(name: &str) -> Runnable {
    runnable_from(&golden_dir(name))
}

/// A checkpoint like a golden, as it can be run.
pub fn runnable_from(dir: &Path) -> Runnable {
    if !has_turned(dir) {
        return Runnable { dir: dir.to_owned(), _temporary: None };
    }
    let temp = tempfile::tempdir().unwrap();
    let shards = temp.path().join("shards");
    let checkpoint = open_checkpoint(dir, None).unwrap();
    let naming = sws_model::naming(checkpoint.config()).unwrap();
    let encoding = "bf16".parse().unwrap();
    let options = ShardOptions { encoding, ..ShardOptions::default() };
    shard(&*checkpoint, naming.as_ref(), &shards, &options, &|_| {}).unwrap();
    Runnable { dir: shards, _temporary: Some(temp) }
}

/// The checkpoint `name` with room for more positions, as it can be run.
pub fn with_context(name: &str, positions: usize) -> Runnable {
    let temp = tempfile::tempdir().unwrap();
    let copy = temp.path().join("copy");
    std::fs::create_dir(&copy).unwrap();
    for entry in golden_dir(name).read_dir().unwrap().map(Result::unwrap) {
        std::fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
    }
    let path = copy.join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let inner = config.as_object_mut().unwrap();
    let inner = match inner.contains_key("text_config") {
        true => inner["text_config"].as_object_mut().unwrap(),
        false => inner,
    };
    inner.insert("max_position_embeddings".to_owned(), positions.into());
    std::fs::write(path, config.to_string()).unwrap();
    let runnable = runnable_from(&copy);
    Runnable { _temporary: runnable._temporary.or(Some(temp)), ..runnable }
}

/// False for checkpoints with transposed or packed matrices, which only shards of them bring in
/// order.
pub fn is_readable_in_place(name: &str) -> bool {
    !has_turned(&golden_dir(name))
}

/// True for checkpoints whose weights are published quantised.
pub fn is_quantised(name: &str) -> bool {
    let config = std::fs::read_to_string(golden_dir(name).join("config.json")).unwrap();
    config.contains("quantization_config")
}

fn has_turned(dir: &Path) -> bool {
    let (manifest, _) = crate::open(dir).unwrap();
    manifest.pieces.iter().flat_map(|piece| &piece.tensors).any(sws_format::Tensor::is_turned)
}

/// Names of all checkpoints among the goldens.
pub fn variants() -> Vec<String> {
    let entries = goldens().read_dir().unwrap().map(|entry| entry.unwrap());
    let mut names: Vec<String> = entries
        .filter(|entry| entry.path().join("golden.safetensors").exists())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert!(names.len() >= 18, "{names:?}");
    names
}

/// Reference results from transformers.
#[derive(Debug)]
pub struct Golden {
    /// The tokens that were scored.
    pub tokens: Vec<u32>,
    /// The likeliest continuation.
    pub greedy: Vec<u32>,
    /// [tokens, vocab]
    pub logits: Vec<f32>,
    /// The layers with experts.
    pub moe_layers: Vec<u32>,
    /// [layers with experts, tokens, top-k]
    pub routes: Vec<u32>,
}

impl Golden {
    /// Reads the results for the checkpoint in a directory.
    pub fn read(dir: &Path) -> Golden {
        let file = Tensors::read(&dir.join("golden.safetensors"));
        Golden {
            tokens: file.integers("tokens"),
            greedy: file.integers("greedy"),
            logits: file.floats("logits"),
            moe_layers: file.integers_if_any("moe_layers"),
            routes: file.integers_if_any("routes"),
        }
    }
}

/// The results for a checkpoint among the goldens.
pub fn golden(name: &str) -> Golden {
    Golden::read(&golden_dir(name))
}

/// The tensors of a file, for reading or editing.
#[derive(Debug)]
pub struct Tensors(
    /// Type, shape and bytes by name.
    pub BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>,
);

impl Tensors {
    /// Reads a file.
    pub fn read(path: &Path) -> Tensors {
        let bytes = std::fs::read(path).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let mut tensors = BTreeMap::new();
        for (name, view) in file.tensors() {
            tensors.insert(name, (view.dtype(), view.shape().to_vec(), view.data().to_vec()));
        }
        Tensors(tensors)
    }

    /// Writes a file.
    pub fn write(&self, path: &Path) {
        let views = self.0.iter().map(|(name, (dtype, shape, bytes))| {
            (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        });
        std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
    }

    /// The lower halves of the integers of a tensor.
    pub fn integers(&self, name: &str) -> Vec<u32> {
        let (dtype, _, bytes) = &self.0[name];
        bytes
            .chunks(dtype.bitsize() / 8)
            .map(|b| u32::from_le_bytes(b[..4].try_into().unwrap()))
            .collect()
    }

    /// The same; none without the tensor.
    fn integers_if_any(&self, name: &str) -> Vec<u32> {
        if self.0.contains_key(name) { self.integers(name) } else { Vec::new() }
    }

    /// The numbers of a tensor of 32-bit floats.
    pub fn floats(&self, name: &str) -> Vec<f32> {
        let (dtype, _, bytes) = &self.0[name];
        assert_eq!(*dtype, Dtype::F32);
        bytes.as_chunks().0.iter().copied().map(f32::from_le_bytes).collect()
    }
}

/// A list in the form of `--tokens`.
pub fn list(tokens: &[u32]) -> String {
    tokens.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// Copies a golden checkpoint and adds a tokenizer of the same vocabulary size. Id 0 ends a text, 1
/// to 28 are the letters, the space and the line break, the rest are words that occur in no text.
pub fn copy(name: &str, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in golden_dir(name).read_dir().unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
    let vocab = crate::spec(to).vocab;
    std::fs::write(to.join("tokenizer.json"), tokenizer(vocab as u32).to_string()).unwrap();
}

/// The JSON of that tokenizer.
pub fn tokenizer(vocab: u32) -> Value {
    let letters = ('a'..='z').chain(['Ġ', 'Ċ']).map(String::from);
    let words = (0..).map(|n| format!("Ġword{n}"));
    let end = ["<end>".to_owned()];
    let tokens = end.into_iter().chain(letters).chain(words).take(vocab as usize);
    let ids: serde_json::Map<String, Value> = tokens.zip((0..).map(Value::from)).collect();
    let bytes = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false,
    });
    json!({
        "version": "1.0",
        "added_tokens": [{
            "id": 0, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        }],
        "pre_tokenizer": bytes, "decoder": bytes,
        "model": { "type": "BPE", "vocab": ids, "merges": [] },
    })
}

/// Edits a JSON file, and returns its new content.
pub fn change(dir: &Path, file: &str, change: impl FnOnce(&mut Value)) -> Value {
    let path = dir.join(file);
    let mut json = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut json);
    std::fs::write(&path, json.to_string()).unwrap();
    json
}
