//! Share of tokens on which a model and its draft agree, where the draft has stand-ins for all
//! experts. The shards must have stand-ins.
//!
//! ```text
//! cargo run --release -p sws-benchmarks --example acceptance -- SHARDS [TOKENS [TEXTS]]
//! ```
//!
//! The model samples texts, each with another seed. The draft gets the same tokens, and samples
//! with the same Gumbel noise. For comparison, both also sample with one uniform number per
//! position, by inversion over the tokens in ascending order of ids. The distance of the two
//! distributions gives two bounds: a lower one for any two distributions that share Gumbel noise,
//! and an upper one for any way of sampling.

use std::borrow::Cow;
use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};

use sws_format::{Manifest, Piece};
use sws_model::{CausalLm, ForwardPass, KvPrecision, ResidentSource, Session};
use sws_testing::sampled;
use sws_text::{Sampler, Sampling, SplitMix64};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let dir: PathBuf = arguments.next().ok_or("which shards?")?.into();
    let tokens: usize = arguments.next().map_or(Ok(512), |n| n.parse())?;
    let texts: u64 = arguments.next().map_or(Ok(8), |n| n.parse())?;

    let manifest = Manifest::load(&dir)?;
    let mut exact = resident(&dir, &manifest)?;
    let mut draft = resident(&dir, &drafted(&manifest)?)?;
    let mut out = std::io::stdout();
    writeln!(out, "| seed | tokens | at least | same token | at most | of one uniform number |")?;
    writeln!(out, "|---|---|---|---|---|---|")?;
    let mut total = Agreement::default();
    for seed in 1..=texts {
        let found = text(&mut exact, &mut draft, seed, tokens)?;
        writeln!(out, "| {seed} | {}", found.row())?;
        total.add(&found);
    }
    writeln!(out, "| all | {}", total.row())?;
    Ok(())
}

/// Sums over positions.
#[derive(Default)]
struct Agreement {
    tokens: f64,
    least: f64,
    same: f64,
    most: f64,
    walked: f64,
}

impl Agreement {
    fn add(&mut self, other: &Agreement) {
        self.tokens += other.tokens;
        self.least += other.least;
        self.same += other.same;
        self.most += other.most;
        self.walked += other.walked;
    }

    fn row(&self) -> String {
        let [least, same, most, walked] =
            [self.least, self.same, self.most, self.walked].map(|sum| sum / self.tokens);
        format!("{} | {least:.3} | {same:.3} | {most:.3} | {walked:.3} |", self.tokens)
    }
}

fn text(
    exact: &mut dyn CausalLm,
    draft: &mut dyn CausalLm,
    seed: u64,
    tokens: usize,
) -> Result<Agreement> {
    let mut sampler = Sampler::new(Sampling { seed, ..sampled() }, exact.vocab());
    let mut uniform = SplitMix64::new(seed);
    let mut found = Agreement::default();
    let mut token = 0;
    exact.clear();
    draft.clear();
    for _ in 0..tokens {
        let logits = exact.decode(token)?.to_vec();
        let drafted = draft.decode(token)?.to_vec();
        let p = sampler.distribution(&mut logits.clone())?;
        let q = sampler.distribution(&mut drafted.clone())?;
        let distance = distance(&p, &q);
        found.tokens += 1.0;
        found.least += (1.0 - distance) / (1.0 + distance);
        found.most += 1.0 - distance;
        let number = uniform.next_unit();
        found.walked += f64::from(walked(&p, number) == walked(&q, number));
        let position = exact.len();
        let guess = sampler.sample(&mut drafted.clone(), position)?;
        token = sampler.sample(&mut logits.clone(), position)?;
        found.same += f64::from(guess == token);
    }
    Ok(found)
}

/// Total variation distance: half of Σ |p - q|.
fn distance(p: &[(u32, f64)], q: &[(u32, f64)]) -> f64 {
    let of = |all: &[(u32, f64)], id| all.iter().find(|other| other.0 == id).map_or(0.0, |x| x.1);
    1.0 - p.iter().map(|&(id, p)| p.min(of(q, id))).sum::<f64>()
}

/// The token at which a uniform number falls, by ascending id.
fn walked(p: &[(u32, f64)], number: f64) -> Option<u32> {
    let mut sum = 0.0;
    let here = |&&(_, p): &&(u32, f64)| {
        sum += p;
        sum > number
    };
    p.iter().find(here).or(p.last()).map(|&(id, _)| id)
}

/// The same model with stand-ins for experts.
fn drafted(manifest: &Manifest) -> Result<Manifest> {
    let mut drafted = manifest.clone();
    let mut changed = false;
    for piece in &mut drafted.pieces {
        let stand_in = piece.stand_in_tensors().map(Cow::into_owned);
        if let Some(tensors) = stand_in {
            *piece = Piece { id: piece.id, tensors, stand_in: None };
            changed = true;
        }
    }
    changed
        .then_some(drafted)
        .ok_or("these shards have no stand-ins; make some with `sws shard --stand-ins q4` or `--encoding nested`".into())
}

fn resident(dir: &Path, manifest: &Manifest) -> Result<Session<ResidentSource>> {
    let spec = sws_testing::spec(dir);
    let source = sws_testing::resident(dir, manifest, &spec)?;
    Ok(Session::new(ForwardPass::new(spec), source, usize::MAX, KvPrecision::F32))
}
