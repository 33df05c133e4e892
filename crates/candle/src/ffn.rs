//! Feed-forward blocks: a single MLP, or a mixture of experts.

use candle_core::{Device, Module, Result, Tensor};
use candle_nn::Linear;
use candle_nn::ops::{sigmoid, silu, softmax_last_dim};
use sws_kernels::functional::Activation;
use sws_model::{GateUp, MlpSpec, MoeSpec, Routed, Router};

use crate::weights::{self, CandleLoader};

/// down(silu(gate(x)) · up(x))
pub(crate) struct Mlp {
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl Mlp {
    /// Loads an MLP. `names` are those of gate, up and down.
    pub(crate) fn load(
        from: &mut CandleLoader<'_>,
        prefix: &str,
        names: [&str; 3],
        spec: MlpSpec,
        hidden: usize,
    ) -> weights::Result<Mlp> {
        let MlpSpec { width, bias, .. } = spec;
        let [gate, up, down] = names;
        Ok(Mlp {
            gate: from.linear(&format!("{prefix}.{gate}"), width, hidden, bias)?,
            up: from.linear(&format!("{prefix}.{up}"), width, hidden, bias)?,
            down: from.linear(&format!("{prefix}.{down}"), hidden, width, bias)?,
        })
    }

    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.down.forward(&(silu(&self.gate.forward(x)?)? * self.up.forward(x)?)?)
    }
}

pub(crate) struct Moe {
    top_k: usize,
    renormalise: bool,
    router: Linear,
    experts: Vec<Mlp>,
    shared: Option<SharedMlp>,
}

struct SharedMlp {
    mlp: Mlp,
    gate: Option<Linear>,
}

pub(crate) const QWEN: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];
const MIXTRAL: [&str; 3] = ["w1", "w3", "w2"];

impl Moe {
    /// Loads the block of the layer whose tensor names begin with `layer`.
    pub(crate) fn load(
        from: &mut CandleLoader<'_>,
        layer: &str,
        model_type: &str,
        spec: &MoeSpec,
        hidden: usize,
    ) -> weights::Result<Moe> {
        let renormalise = renormalises(spec.router)?;
        let (block, names) = match model_type {
            "mixtral" => (format!("{layer}.block_sparse_moe"), MIXTRAL),
            _ => (format!("{layer}.mlp"), QWEN),
        };
        let router = from.get(&format!("{block}.gate.weight"), &[spec.experts, hidden])?;
        let mut experts = Vec::new();
        for expert in 0..spec.experts {
            let prefix = format!("{block}.experts.{expert}");
            experts.push(Mlp::load(from, &prefix, names, spec.expert, hidden)?);
        }
        let shared = match spec.shared {
            None => None,
            Some(shared) => {
                let expert = format!("{block}.shared_expert");
                let mlp = Mlp::load(from, &expert, QWEN, shared.mlp, hidden)?;
                let gate = format!("{block}.shared_expert_gate");
                let gate = match shared.gated {
                    true => Some(from.linear(&gate, 1, hidden, false)?),
                    false => None,
                };
                Some(SharedMlp { mlp, gate })
            }
        };
        let router = Linear::new(router, None);
        Ok(Moe { top_k: spec.top_k, renormalise, router, experts, shared })
    }

    /// Returns the output for `x` [tokens, hidden], and the router's choices.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<(Tensor, Routed)> {
        let routed = self.route(x)?;
        let mut sum = match &self.shared {
            None => x.zeros_like()?,
            Some(shared) => {
                let y = shared.mlp.forward(x)?;
                match &shared.gate {
                    None => y,
                    Some(gate) => y.broadcast_mul(&sigmoid(&gate.forward(x)?)?)?,
                }
            }
        };
        for &expert in &routed.distinct {
            let mut rows = Vec::new();
            let mut weights = Vec::new();
            for (place, &chosen) in routed.choices.iter().enumerate() {
                if chosen == expert {
                    rows.push((place / self.top_k) as u32);
                    weights.push(routed.weights[place]);
                }
            }
            let count = rows.len();
            let rows = Tensor::from_vec(rows, count, &Device::Cpu)?;
            let weights = Tensor::from_vec(weights, (count, 1), &Device::Cpu)?;
            let y = self.experts[expert as usize].forward(&x.index_select(&rows, 0)?)?;
            sum = sum.index_add(&rows, &y.broadcast_mul(&weights)?, 0)?;
        }
        Ok((sum, routed))
    }

    fn route(&self, x: &Tensor) -> Result<Routed> {
        let probabilities = softmax_last_dim(&self.router.forward(x)?)?.to_vec2::<f32>()?;
        let mut routed = Routed { top_k: self.top_k, ..Routed::default() };
        for row in probabilities {
            let mut order: Vec<u32> = (0..row.len() as u32).collect();
            // The sort is stable: among equals the first expert wins.
            order.sort_by(|&a, &b| row[b as usize].total_cmp(&row[a as usize]));
            order.truncate(self.top_k);
            let chosen: Vec<f32> = order.iter().map(|&expert| row[expert as usize]).collect();
            let divisor: f32 = if self.renormalise { chosen.iter().sum() } else { 1.0 };
            routed.weights.extend(chosen.iter().map(|probability| probability / divisor));
            routed.choices.extend(order);
        }
        routed.distinct = routed.choices.clone();
        routed.distinct.sort_unstable();
        routed.distinct.dedup();
        Ok(routed)
    }
}

/// True if a router divides the weights of the chosen experts by their sum. An error for one that
/// [`Moe`] does not compute.
pub(crate) fn renormalises(router: Router) -> weights::Result<bool> {
    match router {
        Router::Softmax { renormalise } => Ok(renormalise),
        // The same weights.
        Router::SoftmaxOfChosen => Ok(true),
        Router::SoftmaxScaled => Err(unknown("a router with factors")),
        Router::Near { .. } => Err(unknown("a router that compares logits")),
        Router::Ranked(_) => Err(unknown("a router with ranks")),
        Router::Table(_) => Err(unknown("a table of experts")),
    }
}

/// Checks that an MLP is one that [`Mlp`] computes.
pub(crate) fn supports_mlp(spec: MlpSpec) -> weights::Result<()> {
    if spec.activation != Activation::Silu {
        return Err(unknown("an activation other than silu"));
    }
    if spec.gate_up != GateUp::Separate {
        return Err(unknown("gates and ups in one matrix"));
    }
    Ok(())
}

pub(crate) fn unknown(what: &str) -> weights::CandleError {
    weights::CandleError::Unsupported(format!("{what} of this model"))
}
