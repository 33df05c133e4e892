//! Softmax attention with grouped heads, and its cache.

use candle_core::{Device, Module, Result, Tensor};
use candle_nn::ops::softmax_last_dim;
use candle_nn::rotary_emb::rope;
use candle_nn::{Linear, RmsNorm};
use sws_model::{AttentionSpec, QkNorm, Rope, RopeScaling};

use crate::weights::{self, CandleLoader};

pub(crate) struct CandleAttention {
    spec: AttentionSpec,
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    query_norm: Option<RmsNorm>,
    key_norm: Option<RmsNorm>,
    /// Keys and values [kv heads, positions, head] of the latest positions: all of them, or as many
    /// as the window reaches back.
    cache: Option<(Tensor, Tensor)>,
}

/// Cosines and sines [tokens, head / 2] of the tokens being processed.
pub(crate) struct CandleRotations {
    cos: Tensor,
    sin: Tensor,
}

impl CandleRotations {
    pub(crate) fn new(rope: &Rope, first: usize, tokens: usize) -> Result<CandleRotations> {
        let positions: Vec<f32> = (first..first + tokens).map(|position| position as f32).collect();
        let positions = Tensor::from_vec(positions, (tokens, 1), &Device::Cpu)?;
        let steps = steps(rope);
        let steps = Tensor::new(steps, &Device::Cpu)?.unsqueeze(0)?;
        let angles = positions.matmul(&steps)?;
        let factor = f64::from(rope.factor);
        Ok(CandleRotations { cos: (angles.cos()? * factor)?, sin: (angles.sin()? * factor)? })
    }
}

impl CandleAttention {
    pub(crate) fn load(
        from: &mut CandleLoader<'_>,
        prefix: &str,
        spec: &AttentionSpec,
        hidden: usize,
        eps: f64,
    ) -> weights::Result<CandleAttention> {
        let q = spec.q_width();
        let kv = spec.key_width();
        let query = from.linear(&format!("{prefix}.q_proj"), q, hidden, spec.qkv_bias)?;
        let key = from.linear(&format!("{prefix}.k_proj"), kv, hidden, spec.qkv_bias)?;
        let value = from.linear(&format!("{prefix}.v_proj"), kv, hidden, spec.qkv_bias)?;
        let output = from.linear(&format!("{prefix}.o_proj"), hidden, q, spec.output_bias)?;
        let widths = match spec.qk_norm {
            QkNorm::None => None,
            QkNorm::PerHead => Some((spec.head_dim, spec.head_dim)),
            QkNorm::FullWidth => Some((q, kv)),
            QkNorm::PerRotatedHead | QkNorm::Unweighted | QkNorm::Limited { .. } => {
                return Err(crate::ffn::unknown("norms of rotated heads"));
            }
        };
        let mut norm = |name: &str, width: usize| {
            let weight = from.get(&format!("{prefix}.{name}.weight"), &[width])?;
            weights::Result::Ok(RmsNorm::new(weight, eps))
        };
        let (query_norm, key_norm) = match widths {
            None => (None, None),
            Some((q, kv)) => (Some(norm("q_norm", q)?), Some(norm("k_norm", kv)?)),
        };
        let spec = spec.clone();
        Ok(CandleAttention { spec, query, key, value, output, query_norm, key_norm, cache: None })
    }

    pub(crate) fn clear(&mut self) {
        self.cache = None;
    }

    /// Processes `x` [tokens, hidden], the positions from `first` on.
    pub(crate) fn forward(
        &mut self,
        x: &Tensor,
        first: usize,
        turns: Option<&CandleRotations>,
    ) -> Result<Tensor> {
        let &AttentionSpec { heads, kv_heads, head_dim, .. } = &self.spec;
        let tokens = x.dim(0)?;
        let query = self.heads(&self.query, self.query_norm.as_ref(), x, heads, turns)?;
        let key = self.heads(&self.key, self.key_norm.as_ref(), x, kv_heads, turns)?;
        let value = self.heads(&self.value, None, x, kv_heads, None)?;
        let (keys, values) = match self.cache.take() {
            None => (key, value),
            Some((keys, values)) => {
                (Tensor::cat(&[&keys, &key], 1)?, Tensor::cat(&[&values, &value], 1)?)
            }
        };
        let len = keys.dim(1)?;

        // The heads of a group see the same keys, so their queries form one matrix.
        let group = heads / kv_heads;
        let query = query.reshape((kv_heads, group * tokens, head_dim))?;
        let scores = (query.matmul(&keys.t()?)? * f64::from(self.spec.scale))?;
        let scores = scores.reshape((heads, tokens, len))?;
        let mask = self.mask(first, tokens, len)?;
        let weights = softmax_last_dim(&scores.broadcast_add(&mask)?)?;
        let weights = weights.reshape((kv_heads, group * tokens, len))?;
        let mixed = weights.matmul(&values)?.reshape((heads, tokens, head_dim))?;
        let mixed = mixed.transpose(0, 1)?.reshape((tokens, heads * head_dim))?;

        self.cache = match self.spec.window {
            // The next token sees itself and the `window - 1` positions before it.
            Some(1) => None,
            Some(window) if len >= window => {
                let at = len + 1 - window;
                Some((keys.narrow(1, at, window - 1)?, values.narrow(1, at, window - 1)?))
            }
            _ => Some((keys, values)),
        };
        self.output.forward(&mixed)
    }

    /// Projects to [heads, tokens, head], normalised and rotated.
    fn heads(
        &self,
        linear: &Linear,
        norm: Option<&RmsNorm>,
        x: &Tensor,
        heads: usize,
        turns: Option<&CandleRotations>,
    ) -> Result<Tensor> {
        let tokens = x.dim(0)?;
        let head_dim = self.spec.head_dim;
        let mut x = linear.forward(x)?;
        if let (Some(norm), QkNorm::FullWidth) = (norm, self.spec.qk_norm) {
            x = norm.forward(&x)?;
        }
        if let Some(clip) = self.spec.extras.clip {
            x = x.clamp(-clip, clip)?;
        }
        let mut x = x.reshape((tokens, heads, head_dim))?;
        if let (Some(norm), QkNorm::PerHead) = (norm, self.spec.qk_norm) {
            x = norm.forward(&x)?;
        }
        let x = x.transpose(0, 1)?.contiguous()?;
        match turns {
            Some(CandleRotations { cos, sin }) => rope(&x.unsqueeze(0)?, cos, sin)?.squeeze(0),
            None => Ok(x),
        }
    }

    /// The mask [tokens, len]: minus infinity where a token must not attend. The last key is that
    /// of the last token.
    fn mask(&self, first: usize, tokens: usize, len: usize) -> Result<Tensor> {
        let begin = first + tokens - len;
        let window = self.spec.window.unwrap_or(usize::MAX);
        let mut mask = Vec::with_capacity(tokens * len);
        for query in first..first + tokens {
            for key in begin..begin + len {
                let sees = key <= query && query - key < window;
                mask.push(if sees { 0.0 } else { f32::NEG_INFINITY });
            }
        }
        Tensor::from_vec(mask, (tokens, len), &Device::Cpu)
    }
}

/// True if `rope` of candle supports this rotary embedding.
pub(crate) fn turns_whole_heads(rope: &Rope, head_dim: usize) -> bool {
    let halves = matches!(rope.pairs, sws_kernels::functional::RopePairs::HalfSplit);
    let whole = rope.offset == 0 && 2 * rope.inv_freq.len() == head_dim;
    halves && whole
}

/// The angle of each pair of a head from one position to the next. Computed from the configuration,
/// not from what our layers made of it.
fn steps(rope: &Rope) -> Vec<f32> {
    let pairs = rope.inv_freq.len();
    let mut steps = Vec::with_capacity(pairs);
    for pair in 0..pairs {
        let angle = rope.theta.powf(-(pair as f64) / pairs as f64);
        steps.push(scaled(rope, pair, angle) as f32);
    }
    steps
}

/// The angle of a pair, scaled for longer texts.
fn scaled(rope: &Rope, pair: usize, angle: f64) -> f64 {
    let pairs = rope.inv_freq.len();
    match rope.scaling {
        // `supports` refuses divisors.
        RopeScaling::None | RopeScaling::Divided => angle,
        RopeScaling::Linear { factor } => angle / factor,
        RopeScaling::Llama3 { factor, low, high, trained } => {
            let waves = trained * angle / std::f64::consts::TAU;
            let kept = ((waves - low) / (high - low)).clamp(0.0, 1.0);
            angle * (kept + (1.0 - kept) / factor)
        }
        RopeScaling::Yarn { factor, fast, slow, trained, truncate } => {
            let turning = |turns: f64| {
                let turns = trained / (turns * std::f64::consts::TAU);
                pairs as f64 * turns.ln() / rope.theta.ln()
            };
            let mut first = turning(fast);
            let mut last = turning(slow);
            if truncate {
                (first, last) = (first.floor(), last.ceil());
            }
            let first = first.max(0.0);
            let last = last.min(2.0 * pairs as f64 - 1.0);
            let width = if first == last { 0.001 } else { last - first };
            let kept = 1.0 - ((pair as f64 - first) / width).clamp(0.0, 1.0);
            angle * (kept + (1.0 - kept) / factor)
        }
    }
}
