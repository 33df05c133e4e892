//! `--record`: a file of routes and layer inputs that grows with the run.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use anyhow::bail;
use serde_json::json;
use sws_format::{Header, Pass};
use sws_model::{ModelSpec, Observer, Routed, SourceError};

use crate::atomic_file::{AtomicFile, refusal};

/// Space reserved for the header, which is written last.
const HEADER: usize = 4096;

/// Writes a safetensors file during a run, in the trace format: `ids` [tokens, layers with experts,
/// k] u16, the most probable expert first, with `tokens`, `passes` and `lens` i32.
///
/// On request also `hidden` and `attended` [tokens, layers, hidden] f32. `hidden` has the inputs of
/// the layers. `attended` has the inputs of their routers before the norm, with the output of a
/// shared expert added; 0 in layers without experts. Models with shared experts also get `routed`,
/// the same without that output. Apart from the token ids and the sizes of
/// passes, memory use is constant.
pub(crate) struct RunRecorder {
    file: AtomicFile,
    path: std::path::PathBuf,
    /// Index of each layer among those with experts.
    places: Vec<Option<usize>>,
    experts: usize,
    top_k: usize,
    states: Option<[StateFile; 3]>,
    /// [tokens, layers, k] of the pass in progress.
    ids: Vec<u16>,
    /// Tokens of completed passes.
    done: usize,
    passes: Vec<u32>,
    failed: Option<anyhow::Error>,
}

/// A file with one state per token and layer.
struct StateFile {
    name: &'static str,
    file: File,
    layers: usize,
    width: usize,
    /// The last state written, as bytes.
    bytes: Vec<u8>,
}

impl StateFile {
    /// An empty file, beside the recording.
    fn create(
        name: &'static str,
        recording: &AtomicFile,
        spec: &ModelSpec,
    ) -> anyhow::Result<StateFile> {
        Ok(StateFile {
            name,
            file: recording.beside()?,
            layers: spec.layers.len(),
            width: spec.state_width(),
            bytes: Vec::new(),
        })
    }

    fn write(
        &mut self,
        first: usize,
        layer: usize,
        state: &[f32],
        shared: &[f32],
    ) -> std::io::Result<()> {
        let StateFile { file, layers, width, bytes, .. } = self;
        for (token, row) in state.chunks_exact(*width).enumerate() {
            bytes.clear();
            match shared.get(token * *width..(token + 1) * *width) {
                None => bytes.extend(row.iter().copied().flat_map(f32::to_le_bytes)),
                Some(more) => {
                    let sum = row.iter().zip(more).map(|(x, y)| x + y);
                    bytes.extend(sum.flat_map(f32::to_le_bytes));
                }
            }
            let at = ((first + token) * *layers + layer) * *width * 4;
            file.seek(SeekFrom::Start(at as u64))?;
            file.write_all(bytes)?;
        }
        Ok(())
    }
}

impl RunRecorder {
    pub(crate) fn create(
        path: &Path,
        spec: &ModelSpec,
        hidden: bool,
    ) -> anyhow::Result<RunRecorder> {
        let places = moe_layers(spec);
        if places.iter().flatten().count() == 0 {
            bail!("a {} model has no experts whose choice could be recorded", spec.model_type);
        }
        if spec.looped.is_some() {
            bail!(
                "a model of the type {} visits layers several times for a token, which a trace cannot tell apart; `sws forward --routes` writes the experts of every visit",
                spec.published_type()
            );
        }
        let mut file = AtomicFile::create_apart(path)?;
        file.write(&[b' '; HEADER])?;
        let states = match hidden {
            true => Some([
                StateFile::create("hidden", &file, spec)?,
                StateFile::create("attended", &file, spec)?,
                StateFile::create("routed", &file, spec)?,
            ]),
            false => None,
        };
        Ok(RunRecorder {
            file,
            path: path.to_owned(),
            places,
            experts: most_experts(spec),
            top_k: spec.max_top_k(),
            states,
            ids: Vec::new(),
            done: 0,
            passes: Vec::new(),
            failed: None,
        })
    }

    /// The file under construction.
    pub(crate) fn file(&self) -> &AtomicFile {
        &self.file
    }

    /// Completes the file. `tokens` are those that went through the layers.
    pub(crate) fn finish(mut self, tokens: &[u32]) -> anyhow::Result<()> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let layers = self.places.iter().flatten().count();
        let tokens = &tokens[..tokens.len().min(self.done)];
        let tails = [
            ("tokens", tokens.len(), le_bytes(tokens)),
            ("passes", self.passes.len(), le_bytes(&self.passes)),
            ("lens", 1, le_bytes(&[self.done as u32])),
        ];
        let facts = json!({
            "layers": layers.to_string(),
            "experts": self.experts.to_string(),
            "top_k": self.top_k.to_string(),
        });
        let shape = [self.done, layers, self.top_k];
        let mut tensors = vec![("ids", "U16", shape.to_vec(), shape.iter().product::<usize>() * 2)];
        for (name, count, bytes) in &tails {
            tensors.push((name, "I32", vec![*count], bytes.len()));
            self.file.write(bytes)?;
        }
        // A backend may not report all states, and not all models have each.
        for states in self.states.into_iter().flatten() {
            if states.bytes.is_empty() {
                continue;
            }
            let StateFile { name, file, layers, width, .. } = states;
            let len = self.done * layers * width * 4;
            tensors.push((name, "F32", vec![self.done, layers, width], len));
            file.set_len(len as u64).map_err(refusal(&self.path))?;
            self.file.append(file)?;
        }
        self.file.rewrite(&Header::write(Some(facts), tensors, HEADER))?;
        self.file.publish()
    }

    fn note(&mut self, result: anyhow::Result<()>) {
        if let Err(error) = result {
            self.failed.get_or_insert(error);
        }
    }
}

/// The bytes of numbers as i32.
fn le_bytes(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().copied().flat_map(u32::to_le_bytes).collect()
}

/// The largest number of experts in a layer.
pub(crate) fn most_experts(spec: &ModelSpec) -> usize {
    spec.moes().map(|moe| moe.experts).max().unwrap_or(0)
}

/// Index of each layer among those with experts; `None` for the others.
pub(crate) fn moe_layers(spec: &ModelSpec) -> Vec<Option<usize>> {
    let mut count = 0;
    let mut places = Vec::new();
    for layer in spec.in_order() {
        let has_experts = layer.moe().is_some();
        places.push(has_experts.then_some(count));
        count += usize::from(has_experts);
    }
    places
}

impl Observer for RunRecorder {
    fn layer_begins(
        &mut self,
        pass: &Pass,
        layer: usize,
        hidden: &[f32],
    ) -> Result<(), SourceError> {
        if let Some([states, ..]) = &mut self.states {
            let written = states.write(pass.first_position(), layer, hidden, &[]);
            self.note(written.map_err(refusal(&self.path)));
        }
        Ok(())
    }

    fn attended(
        &mut self,
        pass: &Pass,
        layer: usize,
        state: &[f32],
        shared: &[f32],
    ) -> Result<(), SourceError> {
        if let Some([_, attended, routed]) = &mut self.states {
            let first = pass.first_position();
            let mut written = attended.write(first, layer, state, shared);
            if written.is_ok() && !shared.is_empty() {
                written = routed.write(first, layer, state, &[]);
            }
            self.note(written.map_err(refusal(&self.path)));
        }
        Ok(())
    }

    fn routed(&mut self, _: &Pass, layer: usize, routed: &Routed) -> Result<(), SourceError> {
        let Some(Some(place)) = self.places.get(layer).copied() else { return Ok(()) };
        let layers = self.places.iter().flatten().count();
        let row = layers * self.top_k;
        let tokens = routed.choices.len() / routed.top_k.max(1);
        self.ids.resize(tokens * row, 0);
        for (token, choices) in routed.choices.chunks(routed.top_k.max(1)).enumerate() {
            let to = &mut self.ids[token * row + place * self.top_k..][..self.top_k];
            // A layer that chooses fewer experts repeats its first choice.
            let padded = choices.iter().chain(std::iter::repeat(&choices[0]));
            for (to, &expert) in to.iter_mut().zip(padded) {
                *to = expert as u16;
            }
        }
        if place + 1 == layers {
            let bytes: Vec<u8> = self.ids.iter().copied().flat_map(u16::to_le_bytes).collect();
            let written = self.file.write(&bytes);
            self.note(written);
            self.done += tokens;
            self.passes.push(tokens as u32);
        }
        Ok(())
    }
}
