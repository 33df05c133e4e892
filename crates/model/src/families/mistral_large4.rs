//! Mistral Large 4: latent attention whose layers may see the latents of earlier ones, an indexer
//! with queries from the hidden state, queries that grow by numbers of each head, angles that
//! weights change, and layers in which nothing turns.

use sws_format::PieceKind;
use sws_kernels::functional::RopePairs;

use super::common::{DecoderParts, FamilyDefaults, MAX_WIDTH, switched_off};
use super::deepseek::sharpened;
use super::entries::{positive_or, size_or};
use super::per_layer::{all_but_every, each_layer, first_layers};
use super::ranked::{RANKED, RankedLayers, sigmoid};
use super::{Ends, Family, TensorRule, expert, matrix, small, sparse};
use crate::config::{ConfigError, FamilyConfig, MAX_COUNT};
use crate::role::Role;
use crate::rope::{self, MAX_HEAD_DIM, Rope};
use crate::spec::{
    KeyValues, LatentGates, LatentSpec, Mixer, ModelSpec, RankedRouter, Renormalise, RouterScores,
};

pub(super) const FAMILY: Family = Family {
    model_types: &["mistral_large4_text"],
    prefix: "",
    ends: Ends {
        embedding: "tok_embeddings.weight",
        norm: "norm.weight",
        head: "output.weight",
        others: &[(Role::Angles, "lerope.alpha")],
    },
    layer: &[ATTENTION, BLOCKS],
    spec,
};

const ATTENTION: &[TensorRule] = &[
    small(PieceKind::Norms, Role::MixerNorm, "attention_norm.weight"),
    matrix(PieceKind::Attention, Role::Query, "attention.wq.weight"),
    matrix(PieceKind::Attention, Role::KvDown, "attention.wkv_a_with_mqa.weight"),
    matrix(PieceKind::Attention, Role::IndexKey, "attention.indexer.wk.weight"),
    small(PieceKind::Attention, Role::IndexWeights, "attention.indexer.weights_proj.weight"),
    small(PieceKind::Attention, Role::IndexQueryNorm, "attention.indexer.q_input_norm.weight"),
    small(PieceKind::Attention, Role::IndexQueryNormBias, "attention.indexer.q_input_norm.bias"),
    matrix(PieceKind::Attention, Role::IndexQuery, "attention.indexer.wq_b.weight"),
    small(PieceKind::Attention, Role::KvDownNorm, "attention.kv_a_norm.weight"),
    small(PieceKind::Attention, Role::QueryGrowth, "attention.ssmax_scaling.s"),
    small(PieceKind::Attention, Role::QueryGrowthBias, "attention.ssmax_scaling.b"),
    small(PieceKind::Attention, Role::IndexKeyNorm, "attention.indexer.k_norm.weight"),
    small(PieceKind::Attention, Role::IndexKeyNormBias, "attention.indexer.k_norm.bias"),
    small(PieceKind::Attention, Role::IndexGrowth, "attention.indexer.ssmax_scaling.s"),
    small(PieceKind::Attention, Role::IndexGrowthBias, "attention.indexer.ssmax_scaling.b"),
    matrix(PieceKind::Attention, Role::KvUp, "attention.wkv_b.weight"),
    matrix(PieceKind::Attention, Role::Output, "attention.wo.weight"),
];

const BLOCKS: &[TensorRule] = &[
    small(PieceKind::Norms, Role::FfnNorm, "ffn_norm.weight"),
    matrix(PieceKind::Mlp, Role::Gate, "feed_forward.w1.weight"),
    matrix(PieceKind::Mlp, Role::Up, "feed_forward.w3.weight"),
    matrix(PieceKind::Mlp, Role::Down, "feed_forward.w2.weight"),
    small(PieceKind::Router, Role::Router, "gate.weight"),
    matrix(PieceKind::SharedExpert, Role::Gate, "shared_experts.w1.weight"),
    matrix(PieceKind::SharedExpert, Role::Up, "shared_experts.w3.weight"),
    matrix(PieceKind::SharedExpert, Role::Down, "shared_experts.w2.weight"),
    expert(Role::Gate, "experts.#.w1.weight"),
    expert(Role::Up, "experts.#.w3.weight"),
    expert(Role::Down, "experts.#.w2.weight"),
];

const DEFAULTS: FamilyDefaults = FamilyDefaults {
    eps: 1e-5,
    theta: 10_000.0,
    kv_heads: None,
    head_dim: None,
    rotated: None,
    context: 1 << 20,
};

/// Every layer of which this is the number, counted from 1, turns nothing.
const UNTURNED: usize = 4;

fn spec(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    let mut decoder = DecoderParts::read(config, &DEFAULTS)?;
    switched_off(config, "attention_bias")?;
    if let Some(entry) = config.get("num_key_value_heads")
        && entry.size(MAX_COUNT)? != decoder.heads
    {
        return Err(config.unsupported(entry, "as many as `num_attention_heads`"));
    }
    // The class has other angles where nothing is said than any other family.
    rope::given(config)?.ok_or(ConfigError::MissingKey("rope_parameters"))?;
    let rotated_entry = config.need("qk_rope_head_dim")?;
    let rotated = rotated_entry.size(MAX_HEAD_DIM)?;
    if rotated % 2 == 1 {
        return Err(rotated_entry.invalid("and a rotary embedding turns pairs: it must be even"));
    }
    let plain = config.size("qk_nope_head_dim", MAX_HEAD_DIM)?;
    let mut rope = Rope::of(config, rotated, (DEFAULTS.theta, None), decoder.context)?;
    rope.pairs = RopePairs::Interleaved;
    let layers = decoder.layers;
    let sparse = sparse::read(config, layers, rotated)?;
    let turned = turned(config, layers)?;
    let latents = latents(config, &turned)?;
    let scale = 1.0 / ((plain + rotated) as f64).sqrt() * sharpened(config, &rope)?;
    let spec = LatentSpec {
        heads: decoder.heads,
        query_rank: None,
        rank: config.size("kv_lora_rank", MAX_WIDTH)?,
        plain,
        rotated,
        value_dim: config.size("v_head_dim", MAX_HEAD_DIM)?,
        eps: decoder.norm.eps(),
        key_norm: false,
        latent_scale: 1.0,
        scale: scale as f32,
        gates: LatentGates::None,
        sinks: false,
        temperature: None,
        head_growth: true,
        latents: KeyValues::Own,
        rope: Some(0),
        split: false,
        window: None,
        sparse: None,
    };
    let widest = spec.query_width().max(spec.heads * (spec.head_rows() + rotated));
    if widest as u64 > MAX_WIDTH {
        let reason = format!("which with {} elements each no model has", widest / spec.heads);
        return Err(config.need("num_attention_heads")?.invalid(reason));
    }
    let router = RankedRouter {
        scores: RouterScores::Softmax,
        correction: false,
        renormalise: Renormalise::Sum { plus: 1e-20 },
        ..sigmoid(config, &RANKED)?
    };
    let blocks = RankedLayers::ranked(config, &RANKED, router, layers)?;
    let cap = positive_or(config.get("final_logit_softcapping"), 30.0)?;
    decoder.logit_cap = Some(cap as f32);
    let mut model = decoder.model(vec![rope], |l| {
        let own = LatentSpec {
            latents: latents[l],
            sparse: sparse.as_ref().map(|sparse| sparse[l]),
            ..spec
        };
        let unturned = LatentSpec { plain: plain + rotated, rotated: 0, rope: None, ..own };
        (Mixer::Latent(if turned[l] { own } else { unturned }), blocks.ffn(l))
    })?;
    model.learned_angles = true;
    Ok(model)
}

/// True for each layer with a rotary embedding.
fn turned(config: &FamilyConfig, layers: usize) -> Result<Vec<bool>, ConfigError> {
    let Some(entry) = config.get("no_rope_layers") else {
        let every = size_or(config.get("no_rope_layer_interval"), UNTURNED, MAX_COUNT)?;
        return Ok(all_but_every(every, layers));
    };
    let mut turned = Vec::with_capacity(layers);
    for number in first_layers(entry, layers)? {
        turned.push(match number.as_u64() {
            Some(number @ (0 | 1)) => number == 1,
            _ => return Err(config.unsupported(entry, "1 for layers that turn, 0 for the others")),
        });
    }
    Ok(turned)
}

/// The latents that each layer sees: its own, or those of the last earlier layer of its kind whose latents
/// others see.
fn latents(config: &FamilyConfig, turned: &[bool]) -> Result<Vec<KeyValues>, ConfigError> {
    let layers = turned.len();
    let Some(entry) = config.get("kv_source_layers") else {
        return Ok(vec![KeyValues::Own; layers]);
    };
    let list = each_layer(entry, layers)?;
    let supported = "for each layer itself, or the last earlier one of its kind that others see";
    let mut sources = Vec::with_capacity(layers);
    for number in list {
        let Some(Ok(source)) = number.as_u64().map(usize::try_from) else {
            return Err(config.unsupported(entry, supported));
        };
        sources.push(source);
    }
    let mut is_seen = vec![false; layers];
    for (layer, &source) in sources.iter().enumerate() {
        if source < layer {
            is_seen[source] = true;
        }
    }
    // The last layers that others see, unturned and turned.
    let mut last = [None; 2];
    let mut latents = Vec::with_capacity(layers);
    for (layer, &source) in sources.iter().enumerate() {
        let last = &mut last[usize::from(turned[layer])];
        latents.push(match source == layer {
            true => KeyValues::Own,
            false if *last == Some(source) && sources[source] == source => KeyValues::Of(source),
            false => return Err(config.unsupported(entry, supported)),
        });
        if is_seen[layer] {
            *last = Some(layer);
        }
    }
    Ok(latents)
}
