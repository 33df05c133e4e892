//! The models of the grid, and the text that they compute.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use sws::Request;
use sws_kernels::Encoding;

use crate::inflate::{Neurons, inflate};
use crate::random::write_random;
use crate::shapes::Shape;
use crate::stream::child::succeed;

/// Size of an expert of the inflated model, in bf16.
const INFLATED: u64 = 4 << 20;
const FILE: u64 = 5_000_000_000;
const ENCODINGS: [Encoding; 3] = [Encoding::Bf16, Encoding::Bf12, Encoding::Q4];
/// Names of the models, and layers of the random ones. Of these only the vocabulary is not the
/// published one either.
const MODELS: [(&str, usize); 4] =
    [("tales-moe", 0), ("tales-4MiB", 0), ("qwen3-30b-a3b", 3), ("mixtral-8x7b", 1)];
const VOCABULARY: usize = 32_000;

/// A model in one encoding.
pub(super) struct Model {
    pub(super) name: String,
    pub(super) encoding: String,
    pub(super) dir: PathBuf,
}

impl Model {
    /// A model that is not of the grid.
    pub(super) fn given(path: &Path) -> Result<Model> {
        let dir = path.canonicalize().with_context(|| format!("`{}`", path.display()))?;
        let name = dir.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let encoding =
            dir.extension().map_or("-".into(), |word| word.to_string_lossy()).into_owned();
        Ok(Model { name, encoding, dir })
    }
}

/// Makes the models that are not in `scratch` yet.
pub(super) fn models(scratch: &Path) -> Result<Vec<Model>> {
    let mut models = Vec::new();
    for (name, layers) in MODELS {
        let checkpoint = scratch.join(name);
        for encoding in ENCODINGS {
            let dir = scratch.join(format!("{name}-{encoding}"));
            if !dir.exists() {
                if !checkpoint.exists() {
                    make(name, layers, &checkpoint)?;
                }
                let form = encoding.to_string();
                sws(&[
                    "shard".as_ref(),
                    checkpoint.as_ref(),
                    "--encoding".as_ref(),
                    form.as_ref(),
                    "--out".as_ref(),
                    dir.as_ref(),
                ])?;
            }
            models.push(Model { name: name.to_owned(), encoding: encoding.to_string(), dir });
        }
        if checkpoint.exists() {
            std::fs::remove_dir_all(&checkpoint)?;
        }
    }
    Ok(models)
}

fn make(name: &str, layers: usize, out: &Path) -> Result<()> {
    if let Ok(mut shape) = Shape::named(name) {
        (shape.layers, shape.vocab) = (layers, VOCABULARY);
        let config = shape.config();
        let generation = shape.generation_config();
        let configs = [("config.json", &config), ("generation_config.json", &generation)];
        return write_random(&configs, &shape.tensors(), out, FILE, 0);
    }
    let tales = sws_testing::tales();
    let unshard =
        |out: &Path| sws(&["unshard".as_ref(), tales.as_ref(), "--out".as_ref(), out.as_ref()]);
    if name == "tales-moe" {
        return unshard(out);
    }
    let small = out.with_extension("small");
    unshard(&small)?;
    inflate(&small, INFLATED, out, FILE, (0, Neurons::Scattered))?;
    Ok(std::fs::remove_dir_all(&small)?)
}

/// Runs the `sws` that lies beside this program.
fn sws(arguments: &[&OsStr]) -> Result<()> {
    succeed(&std::env::current_exe()?.with_file_name("sws"), arguments, None).map(drop)
}

/// A prompt, and as many tokens after it as the small model writes. All models get them, as random
/// ones write no text in which tokens recur.
pub(super) fn tokens(count: usize) -> Result<[Vec<u32>; 2]> {
    written(include_str!("../../prompt.txt").trim(), 7, count)
}

/// Another text of the same lengths, for earlier runs.
pub(super) fn earlier_tokens([prompt, text]: &[Vec<u32>; 2]) -> Result<[Vec<u32>; 2]> {
    let [mut earlier, rest] =
        written("The king had three daughters", 8, prompt.len() + text.len())?;
    earlier.extend(rest);
    let text = earlier.drain(prompt.len()..).take(text.len()).collect();
    Ok([earlier, text])
}

fn written(prompt: &str, seed: u64, count: usize) -> Result<[Vec<u32>; 2]> {
    let model = sws::Model::open(sws_testing::tales())?;
    let mut options = sws::Options::default();
    options.streaming.warm_start = false;
    let mut loaded = model.with(options).load()?;
    let tokenizer = loaded.text().tokenizer().context("the small model has a tokenizer")?;
    let prompt = tokenizer.encode(prompt, true)?;
    let request = Request::from(prompt.clone()).seed(seed).max_new_tokens(count);
    let mut generated = loaded.generate(request)?;
    generated.by_ref().try_for_each(|piece| piece.map(drop))?;
    let text = generated.finish().tokens;
    ensure!(text.len() == count, "the text ends after {} tokens; ask for fewer", text.len());
    Ok([prompt, text])
}
