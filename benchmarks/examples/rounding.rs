//! Effect of rounded activations, or of rounded keys and values, on a model's predictions, beside exact
//! ones.
//!
//! ```text
//! cargo run --release -p sws-benchmarks --example rounding -- MODEL [TEXT] [TOKENS]
//! ```
//!
//! TEXT is a file; without one, or with `-`, the exact model samples the text. All kinds then get the same
//! tokens.

use std::io::Write;

use sws::{Activations, KvPrecision, LoadedModel, Model, Needs, Options, TextCodec};
use sws_kernels::functional::argmax;
use sws_model::Observer;
use sws_text::{Sampler, Sampling};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let model = Model::open(arguments.next().ok_or("which model?")?)?;
    let file = arguments.next().filter(|file| file != "-");
    let count: usize = arguments.next().map_or(Ok(512), |n| n.parse())?;

    let mut exact = load(&model, Options::default(), count)?;
    let mut tokens = match &file {
        Some(file) => {
            TextCodec::open(&model)?.encode(&model, &std::fs::read_to_string(file)?, true)?
        }
        None => sampled(&mut exact, count)?,
    };
    tokens.truncate(count);
    let truth = scored(&mut exact, &tokens)?;
    drop(exact);

    let mut out = std::io::stdout();
    writeln!(
        out,
        "| rounded | tokens | perplexity, f32 | rounded | same likeliest | KL (nats) | largest change of a logit |"
    )?;
    writeln!(out, "|---|---:|---:|---:|---:|---:|---:|")?;
    for (what, activations, kv) in [
        ("--activations int8", Activations::Int8, KvPrecision::F32),
        ("--kv bf16", Activations::F32, KvPrecision::Bf16),
        ("--kv q8", Activations::F32, KvPrecision::Q8),
    ] {
        let options = Options { activations, kv, ..Options::default() };
        let found = scored(&mut load(&model, options, count)?, &tokens)?;
        writeln!(out, "| {what} {}", compared(&truth, &found, &tokens))?;
    }
    Ok(())
}

/// Cells of a line.
fn compared(truth: &[Vec<f32>], found: &[Vec<f32>], tokens: &[u32]) -> String {
    let mut losses = [0.0; 2];
    let mut divergence = 0.0;
    let mut same = 0;
    let mut change = 0f32;
    let pairs = truth.iter().zip(found).zip(&tokens[1..]);
    for ((truth, found), &next) in pairs {
        same += usize::from(argmax(truth) == argmax(found));
        let largest = truth.iter().fold(0f32, |largest, x| largest.max(x.abs()));
        let error = truth.iter().zip(found).fold(0f32, |most, (a, b)| most.max((a - b).abs()));
        change = change.max(error / largest);
        let [truth, found] = [truth, found].map(|logits| log_softmax(logits));
        losses[0] -= truth[next as usize];
        losses[1] -= found[next as usize];
        divergence += truth.iter().zip(&found).map(|(p, q)| p.exp() * (p - q)).sum::<f64>();
    }
    let n = (tokens.len() - 1) as f64;
    format!(
        "| {n} | {:.4} | {:.4} | {:.2} % | {:.6} | {change:.4} of the largest |",
        (losses[0] / n).exp(),
        (losses[1] / n).exp(),
        100.0 * same as f64 / n,
        divergence / n,
    )
}

fn load(model: &Model, options: Options, positions: usize) -> Result<LoadedModel> {
    let options = Options { resident: true, ..options };
    let needs = Needs { positions, all_logits: true, ..Needs::default() };
    Ok(model.with(options).needs(needs).text(TextCodec::default()).load()?)
}

/// A text of the model's own.
fn sampled(model: &mut LoadedModel, count: usize) -> Result<Vec<u32>> {
    let vocab = model.causal_lm().vocab();
    let mut tokens = vec![0u32];
    let mut sampler =
        Sampler::new(Sampling { temperature: 1.0, seed: 7, ..Sampling::default() }, vocab);
    while tokens.len() < count {
        let mut logits = model.causal_lm().decode(tokens[tokens.len() - 1])?.to_vec();
        tokens.push(sampler.sample(&mut logits, tokens.len())?);
    }
    model.causal_lm().clear();
    Ok(tokens)
}

/// The logits after each token but the last.
fn scored(model: &mut LoadedModel, tokens: &[u32]) -> Result<Vec<Vec<f32>>> {
    struct Kept(usize, Vec<Vec<f32>>);
    impl Observer for Kept {
        fn logits(&mut self, _: usize, logits: &[f32]) {
            self.1.extend(logits.chunks(self.0).map(<[f32]>::to_vec));
        }
    }
    let mut kept = Kept(model.causal_lm().vocab(), Vec::new());
    model.causal_lm().score(&tokens[..tokens.len() - 1], &mut kept)?;
    Ok(kept.1)
}

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f32::MIN, f32::max);
    let sum: f64 = logits.iter().map(|&x| f64::from(x - largest).exp()).sum();
    logits.iter().map(|&x| f64::from(x - largest) - sum.ln()).collect()
}
