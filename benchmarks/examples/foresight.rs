//! The speed that drafts of a given skill have on a real disk, over that without a draft: what better
//! forecasts can gain under the present rules for prefetches.
//!
//! ```text
//! cargo run --release -p sws-benchmarks --example foresight -- DIR RAM [TOKENS [ROUNDS]]
//! ```
//!
//! The model samples a text, and computes it again with each draft: none, ones that name each expert with
//! a given probability, four points less for each layer of distance, and one that knows the text. The
//! order is another one in each round. Every logit is compared.

use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use sws_draft::{Draft, NoDraft};
use sws_engine::{Metrics, Options, ProcessMemory, RamBudget, SpeculativeWeightStreamer};
use sws_model::{CausalLm, ForwardPass};
use sws_store::{NVMeWeightStore, StoreOptions};
use sws_testing::noisy::{Answer, Noisy, hash};
use sws_testing::recorded::Recorded;
use sws_testing::sampled;
use sws_text::Sampler;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Tokens that are not counted: the cache settles.
const WARM: usize = 32;

/// A draft by its skill.
#[derive(Clone, Copy)]
enum Skill {
    None,
    /// Recall of the next layer, and the number of layers that are forecast beyond it.
    Names(f32, usize),
    Knows,
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().ok_or("which model?")?;
    let ram: RamBudget = arguments.next().ok_or("how much memory?")?.parse()?;
    let tokens = arguments.next().map_or(Ok(128), |n| n.parse())?;
    let rounds: usize = arguments.next().map_or(Ok(4), |n| n.parse())?;

    let dir = Path::new(&dir);
    let tokens = WARM + tokens;
    let spec = sws_testing::open(dir)?.1;
    let moe = spec.moes().next().ok_or("a model with experts is needed")?;
    let shape = [spec.moes().count(), moe.experts, moe.top_k];
    if shape[0] != spec.layers.len() {
        return Err("a model is needed all of whose layers have experts".into());
    }
    let answer = answer(dir, ram, tokens)?;
    let all = shape[0] - 1;
    let skills = [
        Skill::None,
        Skill::Names(0.6, 4),
        Skill::Names(0.6, all),
        Skill::Names(0.75, all),
        Skill::Names(0.95, all),
        Skill::Knows,
    ];
    let mut found = vec![Vec::new(); skills.len()];
    for round in 0..rounds {
        for place in 0..skills.len() {
            let at = (place + round) % skills.len();
            found[at].push(run(dir, ram, &answer, shape, skills[at])?);
        }
    }
    let mut out = std::io::stdout();
    writeln!(out, "| draft | tok/s | over none | range | MB a token | ms waiting |")?;
    writeln!(out, "|---|---:|---:|---|---:|---:|")?;
    for (skill, runs) in skills.iter().zip(&found) {
        let mut ratios: Vec<f64> = runs.iter().zip(&found[0]).map(|(a, b)| a[0] / b[0]).collect();
        let [speed, megabytes, waiting] =
            [0, 1, 2].map(|of| median(&mut runs.iter().map(|run| run[of]).collect::<Vec<_>>()));
        let ratio = median(&mut ratios);
        let name = skill.name();
        let least = ratios[0];
        let most = ratios[ratios.len() - 1];
        writeln!(
            out,
            "| {name} | {speed:.1} | {ratio:.3} | {least:.3} to {most:.3} | {megabytes:.1} | {waiting:.1} |"
        )?;
    }
    Ok(())
}

impl Skill {
    fn name(self) -> String {
        match self {
            Skill::None => "none".to_owned(),
            Skill::Names(recall, depth) => format!("names {recall}, {depth} layers ahead"),
            Skill::Knows => "knows the text".to_owned(),
        }
    }

    fn draft(self, answer: &Answer, shape: [usize; 3]) -> Box<dyn Draft> {
        let ids = answer.routes.clone();
        match self {
            Skill::None => Box::new(NoDraft),
            Skill::Names(recall, depth) => Box::new(Noisy::new(shape, ids, recall, depth)),
            Skill::Knows => {
                let [layers, experts, top_k] = shape;
                Box::new(Recorded::oracle((0..layers).collect(), experts, top_k, ids))
            }
        }
    }
}

/// A sampled text with the experts of each token.
fn answer(dir: &Path, ram: RamBudget, tokens: usize) -> Result<Answer> {
    let mut lm = streamer(dir, ram, tokens, Box::new(NoDraft))?;
    let mut sampler = Sampler::new(sampled(), lm.vocab());
    let mut answer = Answer::default();
    let mut token = 5;
    for _ in 0..tokens {
        let mut logits = lm.observed(&[token], &mut answer)?.to_vec();
        answer.tokens.push(token);
        answer.logits.push(hash(&logits));
        token = sampler.sample(&mut logits, lm.len())?;
    }
    Ok(answer)
}

/// Tokens a second, MB a token and milliseconds of waiting.
fn run(
    dir: &Path,
    ram: RamBudget,
    answer: &Answer,
    shape: [usize; 3],
    skill: Skill,
) -> Result<[f64; 3]> {
    let mut lm = streamer(dir, ram, answer.tokens.len(), skill.draft(answer, shape))?;
    let mut before = None;
    for (at, (&token, &expected)) in answer.tokens.iter().zip(&answer.logits).enumerate() {
        if at == WARM {
            before = Some(lm.counters());
        }
        if hash(lm.decode(token)?) != expected {
            return Err("logits differ".into());
        }
    }
    let before = before.ok_or("too few tokens")?;
    let metrics = Metrics::between(&before, &lm.counters());
    let tokens = (answer.tokens.len() - WARM) as f64;
    let waiting = metrics.stalls.seconds * 1e3 / tokens;
    Ok([metrics.tokens_per_second, metrics.disk.bytes as f64 / 1e6 / tokens, waiting])
}

fn streamer(
    dir: &Path,
    ram: RamBudget,
    tokens: usize,
    draft: Box<dyn Draft>,
) -> Result<SpeculativeWeightStreamer> {
    let (manifest, spec) = sws_testing::open(dir)?;
    let store = NVMeWeightStore::open(Arc::new(manifest), dir, StoreOptions::default())?;
    let process = Some(ProcessMemory::default());
    let context = Some(tokens);
    let options = Options { ram_budget: ram, process, context, draft, ..Options::default() };
    Ok(SpeculativeWeightStreamer::new(ForwardPass::new(spec), Arc::new(store), options)?)
}

fn median(of: &mut [f64]) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}
