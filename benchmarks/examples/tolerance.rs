//! Effect of the tolerance on a model's predictions. The shards must have stand-ins; RAM is a
//! budget such as 20MiB.
//!
//! ```text
//! cargo run --release -p sws-benchmarks --example tolerance -- SHARDS RAM [TOKENS]
//! ```
//!
//! The exact model samples a text. Each row then gives the same tokens to the model with another
//! tolerance, and compares its predictions with those of the exact model.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sws_engine::{
    Exactness, Metrics, Options, ProcessMemory, RamBudget, SpeculativeWeightStreamer, StandInUse,
};
use sws_kernels::functional::argmax;
use sws_model::{CausalLm, ForwardPass};
use sws_store::{NVMeWeightStore, StoreOptions};
use sws_text::{Sampler, Sampling};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let dir: PathBuf = arguments.next().ok_or("which shards?")?.into();
    let ram: RamBudget = arguments.next().ok_or("which budget?")?.parse()?;
    let tokens: usize = arguments.next().map_or(Ok(512), |n| n.parse())?;

    let mut out = std::io::stdout();
    let mut exact = open(&dir, ram, Exactness::Exact, StandInUse::Off, tokens)?;
    let vocab = exact.vocab();
    let seed = 7;
    let mut sampler =
        Sampler::new(Sampling { temperature: 1.0, seed, ..Sampling::default() }, vocab);
    let mut text = vec![0u32];
    let mut truth: Vec<Vec<f64>> = Vec::with_capacity(tokens);
    for _ in 0..tokens {
        let mut logits = exact.decode(text[text.len() - 1])?.to_vec();
        truth.push(log_softmax(&logits));
        text.push(sampler.sample(&mut logits, exact.len())?);
    }

    writeln!(
        out,
        "| tolerance | stand-ins counted | of all uses | perplexity | KL (nats) | same likeliest | mean max logit change | MB read a token |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|---|---|")?;
    for tolerance in [0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, f64::MAX] {
        let mut lm = open(&dir, ram, Exactness::Within(tolerance), StandInUse::All, tokens)?;
        let before = lm.counters();
        let mut loss = 0.0;
        let mut divergence = 0.0;
        let mut same = 0;
        let mut change = 0.0;
        for (pair, truth) in text.windows(2).zip(&truth) {
            let logits = lm.decode(pair[0])?;
            let found = log_softmax(logits);
            same += usize::from(argmax(logits) == most(truth));
            loss -= found[pair[1] as usize];
            divergence += truth.iter().zip(&found).map(|(p, q)| p.exp() * (p - q)).sum::<f64>();
            let changes = truth.iter().zip(&found).map(|(p, q)| (p - q).abs());
            change += changes.fold(0.0, f64::max);
        }
        let metrics = Metrics::between(&before, &lm.counters());
        let stand_ins = metrics.stand_ins.unwrap_or_default();
        let uses: u64 = metrics.experts.layers.iter().map(|l| l.hits + l.late + l.misses).sum();
        let n = tokens as f64;
        writeln!(
            out,
            "| {} | {:.1} % of {} offered | {:.1} % | {:.4} | {:.5} | {:.1} % | {:.4} | {:.2} |",
            if tolerance == f64::MAX { "any".to_owned() } else { tolerance.to_string() },
            100.0 * stand_ins.counted as f64 / stand_ins.offered.max(1) as f64,
            stand_ins.offered,
            100.0 * stand_ins.counted as f64 / uses as f64,
            (loss / n).exp(),
            divergence / n,
            100.0 * same as f64 / n,
            change / n,
            metrics.disk.bytes as f64 / 1e6 / n,
        )?;
    }
    let loss: f64 = text.windows(2).zip(&truth).map(|(pair, truth)| -truth[pair[1] as usize]).sum();
    writeln!(out, "exact: perplexity {:.4} of {tokens} tokens", (loss / tokens as f64).exp())?;
    Ok(())
}

fn open(
    dir: &Path,
    ram: RamBudget,
    exactness: Exactness,
    stand_ins: StandInUse,
    tokens: usize,
) -> Result<SpeculativeWeightStreamer> {
    let (manifest, spec) = sws_testing::open(dir)?;
    let store = NVMeWeightStore::open(Arc::new(manifest), dir, StoreOptions::default())?;
    let process = Some(ProcessMemory::default());
    let context = Some(tokens);
    let options =
        Options { ram_budget: ram, process, exactness, stand_ins, context, ..Options::default() };
    Ok(SpeculativeWeightStreamer::new(ForwardPass::new(spec), Arc::new(store), options)?)
}

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f32::MIN, f32::max);
    let sum: f64 = logits.iter().map(|&x| f64::from(x - largest).exp()).sum();
    logits.iter().map(|&x| f64::from(x - largest) - sum.ln()).collect()
}

fn most(of: &[f64]) -> Option<usize> {
    of.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map(|(at, _)| at)
}
