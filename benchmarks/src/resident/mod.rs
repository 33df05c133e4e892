//! Compares a resident model with the kernel alone on the same weights, and with llama.cpp, in
//! turns.

mod kernel;
mod load;
mod peer;
mod watch;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use sws_format::{Clock, Pass};
use sws_kernels::Tier;
use sws_model::{
    CausalLm, ForwardPass, KvPrecision, Observer, ResidentSource, Routed, Session, SourceError,
    WeightSource, Weights,
};
use sws_text::Sampler;

pub use load::{load, tokenizer};
pub use sws_testing::open;

use kernel::{Kernel, Product, Routes, products};
use peer::llama_bench;
use watch::{BLOCKS, Block, Watched};

use crate::paired::{Ratios, median};

/// Options of `sws-bench resident`.
#[derive(clap::Args, Clone, Debug)]
pub struct ResidentArguments {
    /// Checkpoints or shard directories, measured one after another
    #[arg(required = true)]
    models: Vec<PathBuf>,
    /// Tokens to generate in a turn
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4096))]
    tokens: u32,
    /// Tokens of the prompt
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=4096))]
    prompt: u32,
    /// Turns of each contender; for an odd number the median is one of them
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Threads of each contender
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,
    /// The `llama-bench` of llama.cpp, which alternates with the model
    #[arg(long, value_name = "PROGRAM", requires = "gguf")]
    llama_bench: Option<PathBuf>,
    /// Weights for llama.cpp, those of the (one) model
    #[arg(long, value_name = "FILE", requires = "llama_bench")]
    gguf: Vec<PathBuf>,
    /// File for the results
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Measurements of a model in seconds, one number per round.
#[derive(Debug, Serialize)]
pub struct Report {
    model: String,
    encoding: String,
    tier: String,
    threads: u32,
    /// Bytes of weights read per token.
    bytes_per_token: u64,
    generation: Work,
    prompt: Work,
    prompt_tokens: u32,
    /// Multiplications and additions of the prompt's products.
    prompt_operations: f64,
    /// Those of them that llama.cpp does too: in its last layer it computes experts for one
    /// token only.
    peer_operations: f64,
    peers: Vec<Peer>,
}

/// One kind of work: a token, or a prompt.
#[derive(Debug, Default, Serialize)]
struct Work {
    model: Vec<f64>,
    kernel: Vec<f64>,
    /// Median seconds of the model and the kernel in each block of a pass.
    blocks: Vec<(String, f64, f64)>,
}

/// llama.cpp with one file.
#[derive(Debug, Serialize)]
struct Peer {
    gguf: String,
    /// Seconds per token; `prompt` has those per prompt.
    generation: Vec<f64>,
    prompt: Vec<f64>,
}

/// Measures all models and prints their tables.
pub fn run(arguments: &ResidentArguments) -> Result<()> {
    ensure!(
        arguments.gguf.is_empty() || arguments.models.len() == 1,
        "with --gguf there can be one model only; measure them one after another"
    );
    let threads = arguments.threads as usize;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
    let mut reports = Vec::new();
    for dir in &arguments.models {
        let report = pool.install(|| measure(arguments, dir))?;
        print!("{}", report.table()?);
        reports.push(report);
    }
    if let Some(path) = &arguments.json {
        let json = serde_json::to_string_pretty(&reports)?;
        std::fs::write(path, json).with_context(|| format!("writing `{}`", path.display()))?;
    }
    Ok(())
}

type Watching = Session<Watched<ResidentSource>>;

fn measure(arguments: &ResidentArguments, dir: &Path) -> Result<Report> {
    let (spec, encoding, source) = load(dir)?;
    let tier = Tier::from_env()?;
    let vocab = spec.vocab as u32;
    let context = arguments.prompt.max(arguments.tokens) as usize;
    ensure!(context <= spec.context, "the context of the model ends at {}", spec.context);
    let model = ForwardPass::with_tier(spec.clone(), tier);
    let mut session = Session::new(model, Watched::new(source), context, KvPrecision::F32);
    session.set_chunk(context);
    // An order that no predictor of tokens could know.
    let token = |i: u32| i.wrapping_mul(2_654_435_761).rotate_left(13) % vocab;
    let prompt: Vec<u32> = (0..arguments.prompt).map(token).collect();
    let tokens: Vec<u32> = (0..arguments.tokens).map(|i| token(i + 10_000)).collect();

    // One unmeasured run of everything: buffers grow, and the routers' choices are recorded.
    let mut kernel = Kernel::new(tier);
    let mut routes = Recorder::default();
    let mut steps = Vec::new();
    for &token in &tokens {
        session.observed(&[token], &mut routes)?;
        steps.push(products(&spec, &std::mem::take(&mut routes.0), 1));
    }
    session.clear();
    session.observed(&prompt, &mut routes)?;
    let whole = products(&spec, &routes.0, prompt.len());
    let mut bytes = 0;
    let mut operations = (0.0, 0.0);
    reach(&mut session, |weights| {
        steps.iter().chain([&whole]).for_each(|products| kernel.prepare(weights, products));
        bytes = steps.iter().map(|step| kernel.bytes(weights, step)).sum::<usize>() / steps.len();
        operations = kernel.operations(weights, &whole);
    })?;

    let mut report = Report {
        model: dir.file_name().unwrap_or(dir.as_os_str()).to_string_lossy().into_owned(),
        encoding,
        tier: tier.to_string(),
        threads: arguments.threads,
        bytes_per_token: bytes as u64,
        generation: Work::default(),
        prompt: Work::default(),
        prompt_tokens: arguments.prompt,
        prompt_operations: operations.0,
        peer_operations: operations.1,
        peers: Vec::new(),
    };
    for gguf in &arguments.gguf {
        let name = gguf.file_name().unwrap_or(gguf.as_os_str()).to_string_lossy().into_owned();
        report.peers.push(Peer { gguf: name, generation: Vec::new(), prompt: Vec::new() });
    }
    // Sampled as users do it; the next token is fixed nevertheless.
    let sampling = sws_testing::sampled();
    let mut logits = vec![0.0; spec.vocab];
    let clock = Clock::real();
    let mut blocks = [Blocks::default(), Blocks::default()];
    for round in 0..arguments.rounds {
        let mut turns = [Turn::Model, Turn::Kernel, Turn::Peers];
        if round % 2 == 1 {
            turns.reverse();
        }
        for turn in turns {
            match turn {
                Turn::Model => {
                    session.clear();
                    session.source().restart();
                    let mut sampler = Sampler::new(sampling.clone(), spec.vocab);
                    let start = clock.now();
                    for &token in &tokens {
                        logits.copy_from_slice(session.decode(token)?);
                        sampler.sample(&mut logits, session.len())?;
                        session.source().lap(Block::Sampling);
                    }
                    let time = (clock.now() - start).as_secs_f64() / tokens.len() as f64;
                    report.generation.model.push(time);
                    blocks[0].model.push(session.source().spent.map(|s| s / tokens.len() as f64));
                    session.clear();
                    session.source().restart();
                    let start = clock.now();
                    session.prefill(&prompt)?;
                    report.prompt.model.push((clock.now() - start).as_secs_f64());
                    blocks[1].model.push(session.source().spent);
                }
                Turn::Kernel => {
                    let timed = |weights: &dyn Weights, products: &[Product]| {
                        let start = clock.now();
                        kernel.run(weights, products);
                        (clock.now() - start).as_secs_f64()
                    };
                    reach(&mut session, |weights| {
                        let time: f64 = steps.iter().map(|step| timed(weights, step)).sum();
                        report.generation.kernel.push(time / steps.len() as f64);
                        report.prompt.kernel.push(timed(weights, &whole));
                        for (step, blocks) in [&steps[0], &whole].into_iter().zip(&mut blocks) {
                            blocks.kernel.push(BLOCKS.map(|block| {
                                let mut part = step.clone();
                                part.retain(|product| product.block == block);
                                timed(weights, &part)
                            }));
                        }
                    })?;
                }
                Turn::Peers => {
                    let Some(program) = &arguments.llama_bench else { continue };
                    for (gguf, peer) in arguments.gguf.iter().zip(&mut report.peers) {
                        let amounts = (prompt.len(), tokens.len());
                        let speed =
                            llama_bench(program, gguf, arguments.threads as usize, amounts)?;
                        peer.generation.push(1.0 / speed.generation);
                        peer.prompt.push(prompt.len() as f64 / speed.prompt);
                    }
                }
            }
        }
    }
    for (work, blocks) in [&mut report.generation, &mut report.prompt].into_iter().zip(&blocks) {
        work.blocks = blocks.medians();
    }
    Ok(report)
}

enum Turn {
    Model,
    Kernel,
    Peers,
}

/// Seconds in each of [`BLOCKS`], a row per round.
#[derive(Default)]
struct Blocks {
    model: Vec<[f64; BLOCKS.len()]>,
    kernel: Vec<[f64; BLOCKS.len()]>,
}

impl Blocks {
    fn medians(&self) -> Vec<(String, f64, f64)> {
        let mut rows = Vec::new();
        for (i, block) in BLOCKS.into_iter().enumerate() {
            let model = median(self.model.iter().map(|row| row[i]));
            let kernel = median(self.kernel.iter().map(|row| row[i]));
            rows.push((format!("{block:?}").to_lowercase(), model, kernel));
        }
        rows
    }
}

/// Records the routers' choices.
#[derive(Default)]
struct Recorder(Routes);

impl Observer for Recorder {
    fn routed(&mut self, _: &Pass, layer: usize, routed: &Routed) -> Result<(), SourceError> {
        // Layers without experts have no choices.
        self.0.resize(layer, Vec::new());
        let mut experts = Vec::new();
        for expert in &routed.distinct {
            let rows = routed.choices.iter().filter(|&choice| choice == expert).count();
            experts.push((*expert, rows));
        }
        self.0.push(experts);
        Ok(())
    }
}

/// Calls `use_them` with all weights; those of a resident model are always available.
fn reach(session: &mut Watching, mut use_them: impl FnMut(&dyn Weights)) -> Result<()> {
    let reached = session.source().source.head(&mut |weights| {
        use_them(weights);
        Ok(())
    });
    reached.map_err(|error| anyhow::anyhow!("{error}"))
}

fn ratio(above: &[f64], below: &[f64]) -> f64 {
    Ratios::new(above, below).median()
}

impl Report {
    /// The results as a table.
    fn table(&self) -> Result<String> {
        let ms = |seconds: &[f64]| 1e3 * median(seconds.iter().copied());
        let token = &self.generation;
        let prompt = &self.prompt;
        let gb = self.bytes_per_token as f64 / 1e9;
        let kernel = median(token.kernel.iter().copied());
        let gflops = self.prompt_operations / median(prompt.kernel.iter().copied()) / 1e9;
        let mut text = format!(
            "{}, {}, {}, {} threads: a token reads {gb:.2} GB\n\n\
             | | model ms | kernel alone ms | ratio |\n|---|---|---|---|\n\
             | a token | {:.1} | {:.1} ({:.1} GB/s) | {:.2} of the kernel's time |\n\
             | {} tokens | {:.0} | {:.0} ({gflops:.0} GFLOP/s) | {:.2} of the kernel's rate |\n",
            self.model,
            self.encoding,
            self.tier,
            self.threads,
            ms(&token.model),
            ms(&token.kernel),
            gb / kernel,
            ratio(&token.model, &token.kernel),
            self.prompt_tokens,
            ms(&prompt.model),
            ms(&prompt.kernel),
            ratio(&prompt.kernel, &prompt.model),
        );
        text += "\n| ms, model / kernel alone | a token | prompt |\n|---|---|---|\n";
        for (token, prompt) in token.blocks.iter().zip(&prompt.blocks) {
            writeln!(
                text,
                "| {} | {:.2} / {:.2} | {:.1} / {:.1} |",
                token.0,
                1e3 * token.1,
                1e3 * token.2,
                1e3 * prompt.1,
                1e3 * prompt.2,
            )?;
        }
        if !self.peers.is_empty() {
            text += "\n| llama.cpp | its ms a token | our speed / its | its ms for the prompt | its GFLOP/s | our GFLOP/s / its |\n|---|---|---|---|---|---|\n";
        }
        for peer in &self.peers {
            writeln!(
                text,
                "| {} | {:.1} | {:.2} | {:.0} | {:.0} | {:.2} |",
                peer.gguf,
                ms(&peer.generation),
                ratio(&peer.generation, &token.model),
                ms(&peer.prompt),
                self.peer_operations / ms(&peer.prompt) / 1e6,
                ratio(&peer.prompt, &prompt.model) * self.prompt_operations / self.peer_operations,
            )?;
        }
        Ok(text + "\n")
    }
}
