//! Simulates replicas of the server behind a router, in virtual time.
//!
//! Clients ask for [`Texts`] with recorded routes, a [`Router`] chooses the replica, and there the
//! server's scheduler and the engine's cache decide; only a pass is not computed, it takes the time that
//! [`Costs`] say.

mod costs;
mod replayed;
mod report;
mod routing;
mod simulate;
#[cfg(test)]
mod tests;
mod texts;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rayon::prelude::*;
use sws::Threads;
use sws_testing::tales;

use crate::size::parse_size;

pub use costs::{Alone, Costs, Work};
pub use report::Report;
pub use routing::{Router, Routing};
pub use simulate::{Case, Outcome, simulate};
pub use texts::{Text, Texts, asked};

/// Options of `sws-bench replicas`.
#[derive(clap::Args, Clone, Debug)]
pub struct ReplicasArguments {
    /// Recorded routes, as `sws replay` takes them [default: tales, told by the bundled model]
    trace: Option<PathBuf>,
    /// Model that tells the tales
    #[arg(long, value_name = "DIR", conflicts_with = "trace")]
    model: Option<PathBuf>,
    /// Topics of the tales: prefixes
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u16).range(1..=40))]
    topics: u16,
    /// Tales of each topic; of a trace, sequences that are one topic
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=400))]
    per_topic: u16,
    /// Tokens of a prompt, of a trace; tales have their own
    #[arg(long, value_name = "TOKENS", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=4096))]
    prompt: u16,
    /// New tokens of an answer
    #[arg(long, value_name = "TOKENS", default_value_t = 32, value_parser = clap::value_parser!(u16).range(2..=512))]
    new: u16,
    /// Numbers of replicas
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,4,16,64", value_parser = clap::value_parser!(u16).range(1..=64))]
    replicas: Vec<u16>,
    /// Numbers of clients, each of which has one request at a time
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,10,100,1000", value_parser = clap::value_parser!(u16).range(1..=1000))]
    clients: Vec<u16>,
    /// Choices of the replica for a request
    #[arg(long, value_delimiter = ',', default_value = "affinity,random,least-loaded")]
    routing: Vec<Routing>,
    /// Requests of all clients together; at least four of each
    #[arg(long, value_name = "N", default_value_t = 400, value_parser = clap::value_parser!(u32).range(2..=100_000))]
    requests: u32,
    /// Share of the experts in memory
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=100))]
    budget: u16,
    /// Slots for experts, instead of --budget
    #[arg(long, value_name = "N", conflicts_with = "budget")]
    slots: Option<usize>,
    /// Further slots while no prompt is computed
    #[arg(long, value_name = "N", default_value_t = 0)]
    lent: usize,
    /// Texts at a time of each replica
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=128))]
    parallel: u16,
    /// Seconds that a text may wait for the turns of others
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    max_gap: u32,
    /// Bytes of an expert
    #[arg(long, value_parser = parse_size, value_name = "SIZE", default_value = "9.4MB")]
    expert_bytes: u64,
    /// Bytes of everything else
    #[arg(long, value_parser = parse_size, value_name = "SIZE", default_value = "50MB")]
    other_bytes: u64,
    /// Bytes a second from memory
    #[arg(long, value_parser = parse_size, value_name = "SPEED", default_value = "50GB")]
    memory: u64,
    /// Bytes a second from the drive of a replica
    #[arg(long, value_parser = parse_size, value_name = "SPEED", default_value = "3.5GB")]
    disk: u64,
    /// Bytes a second from object storage, for what a replica reads the first time; 0 if all is on its
    /// drive already
    #[arg(long, value_parser = parse_size, value_name = "SPEED", default_value = "1.25GB")]
    link: u64,
    /// Microseconds of computing for each token of a pass, beside reading
    #[arg(long, value_name = "N", default_value_t = 100.0, value_parser = microseconds)]
    token_us: f64,
    /// File with measured costs, which replace sizes and speeds: benchmarks/replicas.py writes one
    #[arg(long, value_name = "FILE")]
    costs: Option<PathBuf>,
    /// Seed of the router
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// File for the results
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the tales with their routes to a directory instead: routes.safetensors and texts.json
    #[arg(long, value_name = "DIR", conflicts_with = "trace")]
    record: Option<PathBuf>,
}

/// Simulates, and prints a table.
pub fn run(arguments: &ReplicasArguments) -> Result<()> {
    let ReplicasArguments { prompt, new, per_topic, .. } = *arguments;
    let [prompt, new, per_topic] = [prompt, new, per_topic].map(usize::from);
    let texts = match &arguments.trace {
        Some(trace) => Texts::read(trace, prompt, new, per_topic)?,
        None => {
            let model = arguments.model.clone().unwrap_or_else(tales);
            let (texts, prompts) = Texts::record(&model, arguments.topics.into(), per_topic, new)?;
            if let Some(dir) = &arguments.record {
                return report::record(dir, &texts, &prompts);
            }
            texts
        }
    };
    let costs = Costs::of(arguments)?;
    let texts = Arc::new(texts);
    let cases = cases(arguments, &texts)?;
    let threads = Threads::one_per_core()?;
    let outcomes: Result<Vec<Outcome>> = threads.run(|| {
        cases
            .par_iter()
            .map(|&case| {
                let outcome = simulate(&texts, costs, case, &threads)?;
                eprintln!("{case:?}: {:.1} tok/s", outcome.tokens_per_second);
                Ok(outcome)
            })
            .collect()
    });
    let report = Report::new(&texts, costs, &cases, outcomes?);
    if let Some(path) = &arguments.json {
        let name = path.display();
        std::fs::write(path, report.json()?).with_context(|| format!("writing `{name}`"))?;
    }
    print!("{}", report.table());
    Ok(())
}

/// All cases, those that take longest first.
fn cases(arguments: &ReplicasArguments, texts: &Texts) -> Result<Vec<Case>> {
    let shape = texts.trace().shape();
    let all = shape.layers * shape.experts;
    let share = f64::from(arguments.budget) / 100.0;
    let slots = arguments.slots.unwrap_or(((share * all as f64).round() as usize).max(1));
    ensure!(slots > 0, "--slots is above 0");
    let mut cases = Vec::new();
    for &clients in &arguments.clients {
        for &replicas in &arguments.replicas {
            for &routing in &arguments.routing {
                let clients = usize::from(clients);
                cases.push(Case {
                    replicas: replicas.into(),
                    clients,
                    routing,
                    requests: (arguments.requests as usize).max(4 * clients),
                    slots,
                    lent: arguments.lent,
                    parallel: arguments.parallel.into(),
                    gap: Duration::from_secs(arguments.max_gap.into()),
                    seed: arguments.seed,
                });
            }
        }
    }
    Ok(cases)
}

/// Parses a time.
fn microseconds(word: &str) -> Result<f64, String> {
    let number = word.parse().ok().filter(|number| (0.0..1e9).contains(number));
    number.ok_or_else(|| format!("a number of microseconds is from 0 on, not {word}"))
}
