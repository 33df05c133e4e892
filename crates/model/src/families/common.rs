//! Parts of configurations that all families share.

use sws_kernels::functional::Streams;

use super::entries::{optional_size, size_or};
use super::per_layer::{by_words, each_layer, windows_where};
use super::quantised;
use super::single_layers::check_single;
use crate::config::{ConfigError, FamilyConfig, MAX_COUNT, PAIRED};
use crate::rope::{MAX_HEAD_DIM, Rope};
use crate::spec::{
    AttentionExtras, AttentionSpec, Ffn, HeadSpec, KeptStates, KeyValues, LayerInputs, LayerSpec,
    Mixer, MlpSpec, ModelSpec, MoeSpec, Norm, NormGates, QkNorm, Residual, Router, SharedSpec,
    StreamReads,
};

/// Limits far above any known model; they bound allocations before any weight is read.
const MAX_HIDDEN: u64 = 1 << 20;
pub(super) const MAX_WIDTH: u64 = 1 << 24;
/// Maximum number of values in the state of a recurrent layer.
pub(super) const MAX_STATE: usize = 1 << 28;
const MAX_CONTEXT: u64 = 1 << 32;

/// A family's defaults for absent entries. Most published models have all of them.
pub(super) struct FamilyDefaults {
    pub(super) eps: f32,
    pub(super) theta: f64,
    /// Default number of KV heads; `None` for the number of query heads.
    pub(super) kv_heads: Option<usize>,
    /// Default head size; `None` for the size of the hidden state divided by the number of heads.
    pub(super) head_dim: Option<usize>,
    /// Default share of each head that is rotated; `None` for all of it.
    pub(super) rotated: Option<f64>,
    pub(super) context: usize,
}

/// The parts of a decoder that do not depend on the kind of attention.
pub(super) struct DecoderParts<'a> {
    pub(super) config: &'a FamilyConfig<'a>,
    pub(super) hidden: usize,
    pub(super) vocab: usize,
    pub(super) layers: usize,
    pub(super) heads: usize,
    /// The norm of all layers, and the norm before the head.
    pub(super) norm: Norm,
    /// The way in which all layers add their branches.
    pub(super) residual: Residual,
    pub(super) streams: Option<Streams>,
    pub(super) stream_reads: StreamReads,
    pub(super) kept: Option<KeptStates>,
    pub(super) embedding_scale: f32,
    pub(super) embedding_norm: Option<Norm>,
    pub(super) layer_inputs: Option<LayerInputs>,
    pub(super) head_bias: bool,
    pub(super) logit_scale: f32,
    pub(super) logit_cap: Option<f32>,
    pub(super) context: usize,
}

impl<'a> DecoderParts<'a> {
    pub(super) fn read(
        config: &'a FamilyConfig<'a>,
        defaults: &FamilyDefaults,
    ) -> Result<Self, ConfigError> {
        quantised::check(config)?;
        let is_gemma = matches!(config.model_type(), "gemma2" | "gemma3_text" | "gemma4_text");
        let activation = match config.model_type() {
            _ if is_gemma => ["gelu_pytorch_tanh"; 2],
            // The activation is defined by other entries, and transformers writes another name
            // here.
            "minimax_m3_vl_text" => ["swigluoai", "silu"],
            "kimi_linear" if is_kimi_k3(config) => ["situ", "silu"],
            _ => ["silu", "swish"],
        };
        // Gemma's classes read only the second entry, and files may have any value in the first.
        let keys = ["hidden_act", "hidden_activation"];
        for key in keys.into_iter().skip(usize::from(is_gemma)) {
            if let Some(entry) = config.get(key)
                && !activation.contains(&entry.word()?)
            {
                return Err(config.unsupported(entry, activation[0]));
            }
        }
        let hidden = config.size("hidden_size", MAX_HIDDEN)?;
        let layers = match config.layers()? {
            0 => return Err(config.need("num_hidden_layers")?.invalid("which must be at least 1")),
            layers => layers as usize,
        };
        check_single(config, layers)?;
        // Wrapped files of Gemma 3 omit entries that equal the defaults of their class.
        let is_third = config.model_type() == "gemma3_text";
        let heads = match config.get("num_attention_heads") {
            None if is_third => 8,
            _ => config.size("num_attention_heads", MAX_COUNT)?,
        };
        let vocab = match config.get("vocab_size") {
            None if is_third => 262_208,
            _ => config.size("vocab_size", MAX_WIDTH)?,
        };
        let context =
            size_or(config.get("max_position_embeddings"), defaults.context, MAX_CONTEXT)?;
        let eps = match config.get("rms_norm_eps") {
            Some(entry) => entry.epsilon()? as f32,
            None => defaults.eps,
        };
        let norm = Norm::Rms { eps, one_plus: false };
        Ok(DecoderParts {
            config,
            hidden,
            vocab,
            layers,
            heads,
            norm,
            residual: Residual::default(),
            streams: None,
            stream_reads: StreamReads::Weights,
            kept: None,
            embedding_scale: 1.0,
            embedding_norm: None,
            layer_inputs: None,
            head_bias: false,
            logit_scale: 1.0,
            logit_cap: None,
            context,
        })
    }

    /// The specification of the model; `layer` returns the mixer and feed-forward block of each
    /// layer.
    pub(super) fn model<M: Into<Mixer>>(
        self,
        ropes: Vec<Rope>,
        layer: impl Fn(usize) -> (M, Ffn),
    ) -> Result<ModelSpec, ConfigError> {
        let tied = self.config.tied()?;
        let DecoderParts { norm, residual, .. } = self;
        let mut layers = Vec::with_capacity(self.layers);
        for l in 0..self.layers {
            let (mixer, ffn) = layer(l);
            let mixer = mixer.into();
            let norm_gates = NormGates::default();
            layers.push(LayerSpec { norm, norm_gates, residual, ngrams: None, mixer, ffn });
        }
        let head = HeadSpec {
            norm: self.norm,
            rows: [self.vocab; 2],
            bias: self.head_bias,
            scale: self.logit_scale,
            cap: self.logit_cap,
        };
        Ok(ModelSpec {
            model_type: self.config.model_type().to_owned(),
            wrapper: self.config.wrapper().map(str::to_owned),
            hidden: self.hidden,
            vocab: self.vocab,
            context: self.context,
            tied,
            layers,
            looped: None,
            ropes,
            learned_angles: false,
            streams: self.streams,
            stream_reads: self.stream_reads,
            kept: self.kept,
            embedding_scale: self.embedding_scale,
            embedding_norm: self.embedding_norm,
            layer_inputs: self.layer_inputs,
            head,
        })
    }
}

/// A decoder whose attention has grouped heads.
pub(super) struct Common<'a> {
    pub(super) decoder: DecoderParts<'a>,
    pub(super) layers: usize,
    /// The attention without biases, norms and window.
    pub(super) attention: AttentionSpec,
    /// All rotary embeddings. `attention` refers to the first.
    pub(super) ropes: Vec<Rope>,
}

impl<'a> Common<'a> {
    /// Reads a decoder with one rotary embedding for all layers.
    pub(super) fn read(
        config: &'a FamilyConfig<'a>,
        defaults: &FamilyDefaults,
    ) -> Result<Self, ConfigError> {
        let mut common = Common::unrotated(config, defaults)?;
        let dim = common.attention.head_dim;
        let context = common.decoder.context;
        let rope = Rope::of(config, dim, (defaults.theta, defaults.rotated), context)?;
        common.ropes.push(rope);
        Ok(common)
    }

    /// Adds the rotary embedding of the layers of one kind, and returns its index.
    pub(super) fn add_rope(
        &mut self,
        kind: &'static str,
        theta: f64,
        rotated: Option<f64>,
    ) -> Result<usize, ConfigError> {
        let DecoderParts { config, context, .. } = self.decoder;
        let dim = self.attention.head_dim;
        self.ropes.push(Rope::of_kind(config, kind, dim, (theta, rotated), context)?);
        Ok(self.ropes.len() - 1)
    }

    /// Reads a decoder without its rotary embeddings, which rotate pairs of elements.
    pub(super) fn unrotated(
        config: &'a FamilyConfig<'a>,
        defaults: &FamilyDefaults,
    ) -> Result<Self, ConfigError> {
        let common = Common::never_rotated(config, defaults)?;
        let dim = common.attention.head_dim;
        if dim.is_multiple_of(2) {
            return Ok(common);
        }
        Err(match config.get("head_dim") {
            Some(entry) => entry.invalid("and a rotary embedding turns pairs: it must be even"),
            None => {
                let hidden = common.decoder.hidden;
                config.need("num_attention_heads")?.invalid(format!(
                    "which leaves {dim} of the {hidden} elements of the hidden state for a head, \
                     where an even number is needed"
                ))
            }
        })
    }

    /// Reads a decoder without any rotation, so a head may have an odd number of elements.
    pub(super) fn never_rotated(
        config: &'a FamilyConfig<'a>,
        defaults: &FamilyDefaults,
    ) -> Result<Self, ConfigError> {
        let decoder = DecoderParts::read(config, defaults)?;
        let &DecoderParts { hidden, layers, heads, .. } = &decoder;
        let kv_heads = match (config.raw("num_key_value_heads"), defaults.kv_heads) {
            (None, Some(default)) => default,
            _ => size_or(config.get("num_key_value_heads"), heads, MAX_COUNT)?,
        };
        if !heads.is_multiple_of(kv_heads) {
            let reason = format!("which is not a multiple of the {kv_heads} key and value heads");
            return Err(config.need("num_attention_heads")?.invalid(reason));
        }
        let head_dim = match config.get("head_dim") {
            Some(entry) => entry.size(MAX_HEAD_DIM)?,
            None => match defaults.head_dim.unwrap_or(hidden / heads) {
                0 => {
                    let reason = format!(
                        "which leaves 0 of the {hidden} elements of the hidden state for a head, \
                         where an even number is needed"
                    );
                    return Err(config.need("num_attention_heads")?.invalid(reason));
                }
                dim => dim,
            },
        };
        if heads.saturating_mul(head_dim) as u64 > MAX_WIDTH {
            let reason = format!("which with {head_dim} elements each no model has");
            return Err(config.need("num_attention_heads")?.invalid(reason));
        }
        let paired_rows = config.flag(PAIRED, false)?;
        Ok(Common {
            layers,
            attention: AttentionSpec {
                heads,
                kv_heads,
                head_dim,
                value_dim: head_dim,
                qkv_bias: false,
                output_bias: false,
                qk_norm: QkNorm::None,
                rope: Some(0),
                window: None,
                scale: (1.0 / (head_dim as f64).sqrt()) as f32,
                sinks: false,
                gate: None,
                key_values: KeyValues::Own,
                extras: AttentionExtras { paired_rows, ..AttentionExtras::default() },
            },
            ropes: Vec::new(),
            decoder,
        })
    }

    /// The specification of the model; `layer` returns the mixer and feed-forward block of each
    /// layer.
    pub(super) fn model<M: Into<Mixer>>(
        self,
        layer: impl Fn(usize) -> (M, Ffn),
    ) -> Result<ModelSpec, ConfigError> {
        self.decoder.model(self.ropes, layer)
    }
}

/// A gated MLP whose width is the entry `key`.
pub(super) fn dense(
    config: &FamilyConfig,
    key: &'static str,
    bias: bool,
) -> Result<Ffn, ConfigError> {
    Ok(Ffn::Dense(MlpSpec { bias, ..MlpSpec::silu(width(config, key)?) }))
}

/// Experts whose width is the entry `key`, chosen by softmax.
pub(super) fn moe(
    config: &FamilyConfig,
    key: &'static str,
    renormalise: bool,
    shared: Option<SharedSpec>,
) -> Result<Ffn, ConfigError> {
    let expert = MlpSpec::silu(width(config, key)?);
    let router = Router::Softmax { renormalise };
    Ok(Ffn::Moe(MoeSpec { shared, ..MoeSpec::of(chosen(config)?, expert, router) }))
}

/// The number of experts in a layer, and the number that a token uses.
pub(super) fn chosen(config: &FamilyConfig) -> Result<(usize, usize), ConfigError> {
    let experts = config.some_experts()? as usize;
    let entry = config.top_k()?.alike()?;
    let top_k = entry.size(MAX_COUNT)?;
    if top_k > experts {
        return Err(entry.invalid(format!("and there are only {experts} experts to choose from")));
    }
    Ok((experts, top_k))
}

/// The share of a head that is rotated, from the entry `rotary_dim`, which counts elements.
pub(super) fn rotated_share(
    config: &FamilyConfig,
    head_dim: usize,
) -> Result<Option<f64>, ConfigError> {
    let Some(entry) = config.get("rotary_dim") else { return Ok(None) };
    let head_dim = size_or(config.get("head_dim"), head_dim, MAX_HEAD_DIM)?;
    Ok(Some(entry.size(MAX_HEAD_DIM)? as f64 / head_dim as f64))
}

/// The width of an MLP.
pub(super) fn width(config: &FamilyConfig, key: &'static str) -> Result<usize, ConfigError> {
    config.size(key, MAX_WIDTH)
}

/// The width of the shared expert.
pub(super) fn shared_width(
    config: &FamilyConfig,
    key: &'static str,
    default: usize,
) -> Result<usize, ConfigError> {
    size_or(config.get(key), default, MAX_WIDTH)
}

/// The window in `sliding_window`. Null means none; the default for an absent entry depends on the
/// family.
pub(super) fn window(
    config: &FamilyConfig,
    default: Option<usize>,
) -> Result<Option<usize>, ConfigError> {
    match config.raw("sliding_window") {
        None => Ok(default),
        Some(_) => optional_size(config.get("sliding_window"), MAX_CONTEXT),
    }
}

/// Same as [`window`], for families that have a switch for it.
pub(super) fn switched_window(config: &FamilyConfig) -> Result<Option<usize>, ConfigError> {
    match config.flag("use_sliding_window", false)? {
        true => window(config, Some(4096)),
        false => Ok(None),
    }
}

/// The window of each layer. Without `layer_types`, the layers that `otherwise` marks have one.
pub(super) fn windows(
    config: &FamilyConfig,
    window: Option<usize>,
    otherwise: &[bool],
) -> Result<Vec<Option<usize>>, ConfigError> {
    let Some(entry) = config.get("layer_types") else {
        return Ok(windows_where(window, otherwise));
    };
    let mut windows = Vec::with_capacity(otherwise.len());
    for kind in each_layer(entry, otherwise.len())? {
        windows.push(match (kind.as_str(), window) {
            (Some("full_attention"), _) => None,
            (Some("sliding_attention"), Some(window)) => Some(window),
            (Some("sliding_attention"), None) => {
                let reason = "with sliding attention, and no `sliding_window` is in use";
                return Err(entry.invalid(reason));
            }
            _ => return Err(config.unsupported(entry, "full_attention and sliding_attention")),
        });
    }
    Ok(windows)
}

/// Refuses an entry that is not null.
pub(super) fn absent(config: &FamilyConfig, key: &'static str) -> Result<(), ConfigError> {
    match config.get(key) {
        Some(entry) => Err(config.unsupported(entry, "null")),
        None => Ok(()),
    }
}

/// Refuses rotary entries outside the objects for each kind of layer. Without those objects,
/// nothing would read these entries.
pub(super) fn without_ropes_of_kinds(
    config: &FamilyConfig,
    keys: &[&'static str],
) -> Result<(), ConfigError> {
    match config.any(keys) {
        Some(entry) if config.get("rope_parameters").is_none() => {
            Err(config.unsupported(entry, "`rope_parameters` for each kind of layer"))
        }
        _ => Ok(()),
    }
}

/// Refuses an entry that is true.
pub(super) fn switched_off(config: &FamilyConfig, key: &'static str) -> Result<(), ConfigError> {
    match config.get(key) {
        Some(entry) if entry.flag()? => Err(config.unsupported(entry, "false")),
        _ => Ok(()),
    }
}

/// Refuses an entry that is false.
pub(super) fn switched_on(config: &FamilyConfig, key: &'static str) -> Result<(), ConfigError> {
    match config.get(key) {
        Some(entry) if !entry.flag()? => Err(config.unsupported(entry, "true")),
        _ => Ok(()),
    }
}

/// For families without `layer_types`: refuses a list that differs from `window` in any layer.
pub(super) fn same_window(
    config: &FamilyConfig,
    layers: usize,
    window: Option<usize>,
) -> Result<(), ConfigError> {
    match config.get("layer_types") {
        Some(entry) if windows(config, window, &vec![true; layers])? != vec![window; layers] => {
            Err(config.unsupported(entry, "in every layer what `sliding_window` says"))
        }
        _ => Ok(()),
    }
}

/// True for each layer whose kind in `layer_types` is full attention, false for those of kind
/// `other`; None without such an entry. All other kinds are refused; `supported` names these two.
pub(super) fn full_layers(
    config: &FamilyConfig,
    layers: usize,
    other: &str,
    supported: &'static str,
) -> Result<Option<Vec<bool>>, ConfigError> {
    let Some(entry) = config.get("layer_types") else { return Ok(None) };
    let kinds = [("full_attention", true), (other, false)];
    by_words(config, entry, each_layer(entry, layers)?, &kinds, supported).map(Some)
}

/// True for a configuration with any entry that Kimi Linear does not have.
pub(super) fn is_kimi_k3(config: &FamilyConfig) -> bool {
    let own = ["attn_res_block_size", "routed_expert_hidden_size", "activation_situ_beta"];
    let situ = config.get("hidden_act").is_some_and(|entry| entry.value.as_str() == Some("situ"));
    situ || config.any(&own).is_some() || config.wrapper() == Some("kimi_k3")
}
