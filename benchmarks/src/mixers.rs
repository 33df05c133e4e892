//! Compares layers that remember in a fixed number of values with a layer of attention of the same
//! width, on prompts, in turns.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::{Value, json};
use sws_format::Clock;
use sws_kernels::Tier;
use sws_model::{Chunk, ForwardPass, ForwardState, KvPrecision, ResidentSource};

use crate::paired::{Ratios, median};
use crate::published::Published;
use crate::random::write_random;
use crate::resident::load;

/// The width of all layers.
const HIDDEN: usize = 2048;

/// Tokens of a pass.
const CHUNK: usize = 512;

/// The least share of attention's speed that is wanted.
const TARGET: f64 = 0.5;

/// Options of `sws-bench mixers`.
#[derive(clap::Args, Clone, Debug)]
pub struct MixersArguments {
    /// New directory for checkpoints of one layer, 450 MB in all, deleted afterwards
    #[arg(long, value_name = "DIR")]
    scratch: PathBuf,
    /// Tokens of the prompts
    #[arg(long, value_delimiter = ',', default_values_t = [512, 2048], value_parser = clap::value_parser!(u32).range(1..=32768))]
    prompts: Vec<u32>,
    /// Turns of each layer
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Threads of each layer
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,
    /// File for the results
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Seconds of layers, one number for each round.
#[derive(Debug, Serialize)]
pub struct Report {
    tier: String,
    threads: u32,
    layers: Vec<Measured>,
}

/// One layer.
#[derive(Debug, Serialize)]
struct Measured {
    layer: String,
    /// Multiplications of a token with weights.
    weights: u64,
    /// Length of a prompt, and the seconds that it took in each round.
    prompts: Vec<(u32, Vec<f64>)>,
}

/// A layer, ready to run.
struct Contender {
    model: ForwardPass,
    source: ResidentSource,
    state: ForwardState,
    sequence: usize,
}

/// Measures all layers, prints their table, and deletes the checkpoints.
pub fn run(arguments: &MixersArguments) -> Result<()> {
    let scratch = &arguments.scratch;
    let told = || format!("creating the directory `{}`", scratch.display());
    std::fs::create_dir(scratch).with_context(told)?;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(arguments.threads as usize).build()?;
    let report = pool.install(|| measure(arguments));
    std::fs::remove_dir_all(scratch)
        .with_context(|| format!("deleting the directory `{}`", scratch.display()))?;
    let report = report?;
    print!("{}", report.table());
    if let Some(path) = &arguments.json {
        let json = serde_json::to_string_pretty(&report)?;
        std::fs::write(path, json).with_context(|| format!("writing `{}`", path.display()))?;
    }
    Ok(())
}

fn measure(arguments: &MixersArguments) -> Result<Report> {
    let tier = Tier::from_env()?;
    let most = arguments.prompts.iter().copied().max().unwrap_or(0) as usize;
    let mut report = Report { tier: tier.to_string(), threads: arguments.threads, layers: vec![] };
    let mut contenders = Vec::new();
    for (name, config) in layers() {
        let config = Published::of(config);
        let dir = arguments.scratch.join(name.replace(' ', "-"));
        let tensors = config.tensors()?;
        let mut weights = 0;
        for tensor in &tensors {
            if tensor.shape.len() == 2 && is_of_mixer(&tensor.name) {
                weights += tensor.shape.iter().product::<usize>() as u64;
            }
        }
        write_random(&[("config.json", config.config())], &tensors, &dir, 5 << 30, 0)?;
        contenders.push(Contender::load(&dir, tier, most)?);
        let prompts = arguments.prompts.iter().map(|&tokens| (tokens, Vec::new())).collect();
        report.layers.push(Measured { layer: name.to_owned(), weights, prompts });
    }
    let clock = Clock::real();
    // One round first that is not measured: buffers grow.
    for round in 0..=arguments.rounds {
        for (n, &tokens) in arguments.prompts.iter().enumerate() {
            let mut order: Vec<usize> = (0..contenders.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for which in order {
                let seconds = contenders[which].prompt(tokens as usize, &clock)?;
                if round > 0 {
                    report.layers[which].prompts[n].1.push(seconds);
                }
            }
        }
    }
    Ok(report)
}

impl Contender {
    fn load(dir: &Path, tier: Tier, positions: usize) -> Result<Contender> {
        let (spec, _, source) = load(dir)?;
        let mut state = ForwardState::new(&spec, positions, KvPrecision::F32);
        let sequence = state.add_sequence(&spec);
        Ok(Contender { model: ForwardPass::with_tier(spec, tier), source, state, sequence })
    }

    /// Seconds of the first layer's mixer and its norm, for a prompt.
    fn prompt(&mut self, tokens: usize, clock: &Clock) -> Result<f64> {
        let Contender { model, source, state, sequence } = self;
        state.clear(*sequence);
        let vocab = model.spec().vocab as u32;
        let prompt: Vec<u32> = (0..tokens as u32)
            .map(|i| i.wrapping_mul(2_654_435_761).rotate_left(13) % vocab)
            .collect();
        let mut seconds = 0.0;
        for tokens in prompt.chunks(CHUNK) {
            model.begin(state, &[Chunk { sequence: *sequence, tokens }], source)?;
            let start = clock.now();
            model.attend(0, state, source)?;
            seconds += (clock.now() - start).as_secs_f64();
            model.share(0, state, source)?;
            model.finish(0, state, source)?;
            for layer in 1..model.spec().layers.len() {
                model.layer(layer, state, source)?;
            }
        }
        Ok(seconds)
    }
}

fn is_of_mixer(name: &str) -> bool {
    let others = ["mlp", "feed_forward", "embed", "lm_head", "layers.1."];
    !others.iter().any(|other| name.contains(other))
}

/// A configuration with these entries and those that all models have.
fn model(entries: Value) -> Value {
    let mut all = json!({
        "hidden_size": HIDDEN, "intermediate_size": 64, "vocab_size": 256,
        "num_hidden_layers": 1, "max_position_embeddings": 32768, "tie_word_embeddings": false,
    });
    if let Value::Object(all) = &mut all
        && let Value::Object(own) = entries
    {
        all.extend(own);
    }
    all
}

/// Names of layers and models that begin with them, with small MLPs. The first is the attention
/// that the others are compared with.
fn layers() -> [(&'static str, Value); 6] {
    [
        (
            "attention",
            model(json!({
                "model_type": "qwen3", "num_attention_heads": 32, "num_key_value_heads": 4,
                "head_dim": 128, "rope_theta": 1e6, "rms_norm_eps": 1e-6,
            })),
        ),
        (
            "attention with gates",
            model(json!({
                "model_type": "qwen3_5_text", "num_attention_heads": 16, "num_key_value_heads": 2,
                "head_dim": 256, "layer_types": ["full_attention"], "linear_conv_kernel_dim": 4,
                "linear_key_head_dim": 128, "linear_value_head_dim": 128,
                "linear_num_key_heads": 16, "linear_num_value_heads": 32, "rms_norm_eps": 1e-6,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
            })),
        ),
        (
            "gated delta net",
            model(json!({
                "model_type": "qwen3_5_text", "num_attention_heads": 16, "num_key_value_heads": 2,
                "head_dim": 256, "layer_types": ["linear_attention"], "linear_conv_kernel_dim": 4,
                "linear_key_head_dim": 128, "linear_value_head_dim": 128,
                "linear_num_key_heads": 16, "linear_num_value_heads": 32, "rms_norm_eps": 1e-6,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
            })),
        ),
        (
            "Kimi delta attention",
            model(json!({
                "model_type": "kimi_linear", "num_attention_heads": 32, "num_key_value_heads": 32,
                "model_max_length": 32768, "first_k_dense_replace": 1, "kv_lora_rank": 512,
                "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
                "v_head_dim": 128, "moe_intermediate_size": 64, "num_experts": 2,
                "num_experts_per_token": 1, "num_shared_experts": 1, "rms_norm_eps": 1e-5,
                "linear_attn_config": {
                    "full_attn_layers": [], "kda_layers": [1], "num_heads": 32, "head_dim": 128,
                    "short_conv_kernel_size": 4,
                },
            })),
        ),
        (
            "state space",
            model(json!({
                "model_type": "nemotron_h", "num_hidden_layers": 2, "hybrid_override_pattern": "M-",
                "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128,
                "mamba_num_heads": 64, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8,
                "n_routed_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 64,
            })),
        ),
        (
            "short convolution",
            model(json!({
                "model_type": "lfm2_moe", "num_attention_heads": 32, "num_key_value_heads": 8,
                "layer_types": ["conv"], "num_dense_layers": 1, "conv_L_cache": 3,
                "conv_bias": false, "norm_eps": 1e-5, "rope_theta": 1e6, "num_experts": 2,
                "num_experts_per_tok": 1, "moe_intermediate_size": 64,
            })),
        ),
    ]
}

impl Report {
    /// The results as a table: speed-ups over the first layer, with their intervals.
    fn table(&self) -> String {
        let Report { tier, threads, layers } = self;
        let [attention, others @ ..] = &layers[..] else { return String::new() };
        let mut text = format!("{tier}, {threads} threads, {HIDDEN} wide\n\n| layer | weights |");
        let mut line = "\n|---|---:|".to_owned();
        for (tokens, _) in &attention.prompts {
            let _ = write!(text, " {tokens} tokens, ms | over attention | 95 % interval |");
            line += "---:|---:|---:|";
        }
        text += &line;
        for layer in std::iter::once(attention).chain(others) {
            let _ = write!(text, "\n| {} | {:.1} M |", layer.layer, layer.weights as f64 / 1e6);
            for ((_, of_attention), (_, seconds)) in attention.prompts.iter().zip(&layer.prompts) {
                let ratios = Ratios::new(of_attention, seconds);
                let interval = ratios.interval().map_or(String::new(), |(low, high)| {
                    let met = if high < TARGET { ", missed" } else { "" };
                    format!("{low:.2} to {high:.2}{met}")
                });
                let ms = 1e3 * median(seconds.iter().copied());
                let _ = write!(text, " {ms:.1} | {:.2} | {interval} |", ratios.median());
            }
        }
        text + "\n"
    }
}
