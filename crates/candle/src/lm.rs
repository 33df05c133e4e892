//! The model: its layers, and one sequence in progress.

use std::path::Path;

use candle_core::{Device, Module, Tensor};
use candle_nn::{Embedding, Linear, RmsNorm};
use sws_format::Pass;
use sws_model::{
    AttentionSpec, CausalLm, Ffn, ForwardError, Mixer, ModelSpec, Norm, Observer, RopeScaling,
    Routed, check_tokens,
};
use sws_store::NVMeWeightStore;

use crate::attention::{CandleAttention, CandleRotations, turns_whole_heads};
use crate::ffn::{Mlp, Moe, QWEN, renormalises, supports_mlp, unknown};
use crate::weights::{CandleError, CandleLoader, Result, SafetensorsFiles, Shards, Tensors};

/// Families whose tensor names are known here.
const FAMILIES: [&str; 8] =
    ["mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "llama", "mistral", "qwen2", "qwen3"];

/// Tokens that go through the layers together. It bounds the size of the attention scores.
const CHUNK: usize = 64;

/// A model in memory, every weight widened to f32, with one sequence.
pub struct CandleLm {
    spec: ModelSpec,
    embedding: Embedding,
    layers: Vec<CandleLayer>,
    norm: RmsNorm,
    head: Linear,
    weight_bytes: u64,
    limit: usize,
    /// Positions whose keys and values are in every layer.
    len: usize,
    /// True if a pass failed midway.
    partial: bool,
    /// [vocab]
    logits: Vec<f32>,
}

struct CandleLayer {
    mixer_norm: RmsNorm,
    attention: CandleAttention,
    rope: Option<usize>,
    ffn_norm: RmsNorm,
    ffn: FfnBlock,
}

enum FfnBlock {
    Dense(Mlp),
    Moe(Moe),
}

/// Checks that every feature of `spec` is supported here; the error names the first that is not.
pub fn supports(spec: &ModelSpec) -> Result<()> {
    if !FAMILIES.contains(&spec.model_type.as_str()) {
        let model_type = &spec.model_type;
        let known = FAMILIES.join(", ");
        return Err(CandleError::Unsupported(format!(
            "the model type `{model_type}` but only {known}"
        )));
    }
    if spec.learned_angles || spec.kept.is_some() {
        return Err(unknown("learned angles, or kept states"));
    }
    if spec.embedding_norm.is_some() || spec.head.rows != [spec.vocab; 2] {
        return Err(unknown("normed embeddings, or a head of fewer tokens"));
    }
    for layer in &spec.layers {
        if layer.residual.conv.is_some() || layer.residual.scaled_mlp {
            return Err(unknown("convolutions of branches, or MLPs with a factor"));
        }
        match layer.norm {
            Norm::Rms { one_plus: false, .. } => {}
            Norm::Rms { one_plus: true, .. } => {
                return Err(unknown("norms with one plus their weights"));
            }
            Norm::Unweighted { .. } | Norm::OfScaled { .. } => {
                return Err(unknown("norms without weights, or of scaled states"));
            }
            Norm::Layer { .. } => return Err(unknown("norms that subtract the mean")),
        }
        let attention = grouped(&layer.mixer)?;
        let extras = attention.extras;
        if extras.aligned || extras.temperature.is_some() {
            return Err(unknown("attention in chunks, or whose queries grow"));
        }
        if attention.value_dim != attention.head_dim
            || matches!(extras.value_scale, Some(scale) if scale != 1.0)
        {
            return Err(unknown("values of another length or scale than keys"));
        }
        if let Some(rope) = attention.rope {
            let rope = &spec.ropes[rope];
            if !turns_whole_heads(rope, attention.head_dim) {
                return Err(unknown("a rotary embedding of parts of heads"));
            }
            if rope.scaling == RopeScaling::Divided {
                return Err(unknown("divided angles of rotary embeddings"));
            }
        }
        if extras.distances.is_some() || extras.conv.is_some() {
            return Err(unknown("scores by distance, or convolutions of keys"));
        }
        if extras.blocks.is_some() {
            return Err(unknown("attention to selected blocks of positions"));
        }
        if extras.fused {
            return Err(unknown("queries, keys and values in one matrix"));
        }
        if extras.paired_rows {
            return Err(unknown("queries and keys in the order of GGUF files"));
        }
        if attention.gate.is_some() {
            return Err(unknown("attention with gated outputs"));
        }
        if attention.sinks {
            return Err(unknown("attention with sinks"));
        }
        match layer.ffn {
            Ffn::Dense(mlp) => supports_mlp(mlp)?,
            Ffn::None => return Err(unknown("layers without a feed-forward block")),
            Ffn::Moe(moe) if moe.router_bias => return Err(unknown("a router with a bias")),
            Ffn::Moe(moe) if moe.latent.is_some() => return Err(unknown("latent experts")),
            Ffn::Moe(moe) => {
                renormalises(moe.router)?;
                supports_mlp(moe.expert)?;
                if let Some(shared) = moe.shared {
                    supports_mlp(shared.mlp)?;
                }
            }
        }
    }
    Ok(())
}

/// The attention with grouped heads of a layer.
fn grouped(mixer: &Mixer) -> Result<&AttentionSpec> {
    match mixer {
        Mixer::Attention(attention) => Ok(attention),
        Mixer::Latent(_) => Err(unknown("latent attention")),
        Mixer::Compressed(_) => Err(unknown("attention to pooled entries")),
        Mixer::Delta(_) => Err(unknown("gated delta nets")),
        Mixer::Conv(_) => Err(unknown("short convolutions")),
        Mixer::StateSpace(_) => Err(unknown("state spaces")),
        Mixer::None => Err(unknown("layers without attention")),
    }
}

impl CandleLm {
    /// Loads the checkpoint in `dir`, whose `config.json` became `spec`. `progress` receives the
    /// bytes of weights in memory, and returns false to stop loading.
    pub fn from_checkpoint(
        spec: ModelSpec,
        dir: &Path,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<CandleLm> {
        supports(&spec)?;
        CandleLm::load(spec, &mut SafetensorsFiles::open(dir)?, progress)
    }

    /// Loads the pieces of `store` in any encoding, decoded to f32. The store verifies every byte.
    /// `progress` works as in [`CandleLm::from_checkpoint`].
    pub fn from_shards(
        spec: ModelSpec,
        store: &NVMeWeightStore,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<CandleLm> {
        supports(&spec)?;
        CandleLm::load(spec, &mut Shards::open(store)?, progress)
    }

    fn load(
        spec: ModelSpec,
        tensors: &mut dyn Tensors,
        progress: &mut dyn FnMut(u64) -> bool,
    ) -> Result<CandleLm> {
        let from = &mut CandleLoader { tensors, progress, bytes: 0 };
        let hidden = spec.hidden;
        let embedding = from.get("model.embed_tokens.weight", &[spec.vocab, hidden])?;
        let mut layers = Vec::new();
        for number in 0..spec.layers.len() {
            layers.push(CandleLayer::load(from, &spec, number)?);
        }
        let norm = norm(from, "model.norm.weight", spec.head.norm, hidden)?;
        let head = match spec.tied {
            true => embedding.clone(),
            false => from.get("lm_head.weight", &[spec.vocab, hidden])?,
        };
        Ok(CandleLm {
            embedding: Embedding::new(embedding, hidden),
            layers,
            norm,
            head: Linear::new(head, None),
            weight_bytes: from.bytes,
            limit: spec.context,
            len: 0,
            partial: false,
            logits: Vec::new(),
            spec,
        })
    }

    /// Limits the sequence to at most this many positions.
    pub fn limited(mut self, positions: usize) -> CandleLm {
        self.limit = self.limit.min(positions);
        self
    }

    /// The specification of the model.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// The bytes of all weights in memory.
    pub fn weight_bytes(&self) -> u64 {
        self.weight_bytes
    }

    fn fits(&self, tokens: &[u32]) -> std::result::Result<(), ForwardError> {
        if self.partial {
            return Err(ForwardError::Interrupted);
        }
        check_tokens(tokens, self.len, self.limit(), self.spec.vocab)
    }

    /// Runs a chunk through the layers. Returns the hidden state [tokens, hidden] after the last.
    fn run(&mut self, tokens: &[u32], observer: &mut dyn Observer) -> Result<Tensor> {
        let first = self.len;
        self.partial = true;
        let turns = |rope| CandleRotations::new(rope, first, tokens.len());
        let turns: Vec<CandleRotations> =
            self.spec.ropes.iter().map(turns).collect::<candle_core::Result<_>>()?;
        let pass = Pass::single(first, tokens);
        let mut x = self.embedding.forward(&Tensor::new(tokens, &Device::Cpu)?)?;
        observer.pass_begins(&pass).map_err(CandleError::Observer)?;
        for (number, layer) in self.layers.iter_mut().enumerate() {
            let hidden = x.flatten_all()?.to_vec1::<f32>()?;
            observer.layer_begins(&pass, number, &hidden).map_err(CandleError::Observer)?;
            let turns = layer.rope.map(|rope| &turns[rope]);
            let (y, routed) = layer.forward(&x, first, turns)?;
            if let Some(routed) = routed {
                observer.routed(&pass, number, &routed).map_err(CandleError::Observer)?;
            }
            x = y;
        }
        self.len += tokens.len();
        self.partial = false;
        Ok(x)
    }

    /// The logits of some rows of the hidden state.
    fn logits(&self, x: &Tensor) -> Result<Vec<f32>> {
        let logits = self.head.forward(&self.norm.forward(x)?)?;
        Ok(logits.flatten_all()?.to_vec1()?)
    }

    /// The logits of the last row of the hidden state.
    fn last_logits(&self, x: &Tensor) -> Result<Vec<f32>> {
        self.logits(&x.narrow(0, x.dim(0)? - 1, 1)?)
    }
}

impl CausalLm for CandleLm {
    fn vocab(&self) -> usize {
        self.spec.vocab
    }

    fn limit(&self) -> usize {
        self.limit
    }

    fn len(&self) -> usize {
        self.len
    }

    fn clear(&mut self) {
        for layer in &mut self.layers {
            layer.attention.clear();
        }
        self.len = 0;
        self.partial = false;
    }

    fn observed(
        &mut self,
        tokens: &[u32],
        observer: &mut dyn Observer,
    ) -> std::result::Result<&[f32], ForwardError> {
        self.fits(tokens)?;
        let mut last = None;
        for chunk in tokens.chunks(CHUNK) {
            last = Some(self.run(chunk, observer).map_err(failed)?);
        }
        let x = last.ok_or(ForwardError::NoTokens)?;
        self.logits = self.last_logits(&x).map_err(failed)?;
        Ok(&self.logits)
    }

    fn score(
        &mut self,
        tokens: &[u32],
        observer: &mut dyn Observer,
    ) -> std::result::Result<(), ForwardError> {
        self.fits(tokens)?;
        for chunk in tokens.chunks(CHUNK) {
            let first = self.len;
            let x = self.run(chunk, observer).map_err(failed)?;
            observer.logits(first, &self.logits(&x).map_err(failed)?);
        }
        Ok(())
    }
}

impl CandleLayer {
    fn load(from: &mut CandleLoader<'_>, spec: &ModelSpec, number: usize) -> Result<CandleLayer> {
        let layer = &spec.layers[number];
        let hidden = spec.hidden;
        let prefix = format!("model.layers.{number}");
        let eps = layer.norm.eps();
        let attention = grouped(&layer.mixer)?;
        let mixer_norm =
            norm(from, &format!("{prefix}.input_layernorm.weight"), layer.norm, hidden)?;
        let self_attn = format!("{prefix}.self_attn");
        Ok(CandleLayer {
            mixer_norm,
            rope: attention.rope,
            attention: CandleAttention::load(from, &self_attn, attention, hidden, f64::from(eps))?,
            ffn_norm: norm(
                from,
                &format!("{prefix}.post_attention_layernorm.weight"),
                layer.norm,
                hidden,
            )?,
            ffn: match &layer.ffn {
                Ffn::Dense(mlp) => {
                    FfnBlock::Dense(Mlp::load(from, &format!("{prefix}.mlp"), QWEN, *mlp, hidden)?)
                }
                Ffn::Moe(moe) => {
                    FfnBlock::Moe(Moe::load(from, &prefix, &spec.model_type, moe, hidden)?)
                }
                Ffn::None => return Err(unknown("layers without a feed-forward block")),
            },
        })
    }

    fn forward(
        &mut self,
        x: &Tensor,
        first: usize,
        turns: Option<&CandleRotations>,
    ) -> Result<(Tensor, Option<Routed>)> {
        let x = (x + self.attention.forward(&self.mixer_norm.forward(x)?, first, turns)?)?;
        let normed = self.ffn_norm.forward(&x)?;
        let (y, routed) = match &self.ffn {
            FfnBlock::Dense(mlp) => (mlp.forward(&normed)?, None),
            FfnBlock::Moe(moe) => {
                let (y, routed) = moe.forward(&normed)?;
                (y, Some(routed))
            }
        };
        Ok(((x + y)?, routed))
    }
}

fn norm(from: &mut CandleLoader<'_>, name: &str, norm: Norm, width: usize) -> Result<RmsNorm> {
    Ok(RmsNorm::new(from.get(name, &[width])?, f64::from(norm.eps())))
}

fn failed(error: CandleError) -> ForwardError {
    ForwardError::Source(error.into())
}
