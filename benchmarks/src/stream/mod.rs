//! Measures a model that streams from its disk, against the same model in memory, llama.cpp and
//! fio.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub mod alone;
pub(crate) mod child;
mod peer;

use child::{Holding, Known, Task, Told};
use peer::Means;

use crate::{fio, paired};

/// Options of `sws-bench stream`, a field each.
#[derive(Debug, clap::Args)]
pub struct StreamArguments {
    /// Checkpoints and shard directories of the same weights, whose answers must be the same
    #[arg(required = true)]
    models: Vec<PathBuf>,
    /// Share of the experts that is cached, in percent; for a dense model, share of its weights
    #[arg(long, value_delimiter = ',', default_value = "100,75,50,25,12")]
    shares: Vec<f64>,
    /// Take shares as memory for the whole process, relative to the weights of the first model, and
    /// the same for every model
    #[arg(long)]
    same_ram: bool,
    /// Eviction policies of the cache
    #[arg(long, value_delimiter = ',', default_value = "expected,lru")]
    policies: Vec<String>,
    /// Also measure with all weights in memory from the start
    #[arg(long)]
    resident: bool,
    /// Text to continue, which also fills the cache
    #[arg(long, value_name = "FILE", conflicts_with = "prompt_tokens")]
    prompt: Option<PathBuf>,
    /// Use this number of arbitrary token ids instead of a text
    #[arg(long, value_name = "N")]
    prompt_tokens: Option<u32>,
    /// Tokens to generate
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(2..=4096))]
    tokens: u32,
    /// Runs of each contender; for an odd number the median is one of them
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Threads of each contender
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,
    /// Positions of the KV cache
    #[arg(long, default_value_t = 1024)]
    context: u32,
    /// The `sws` to measure [default: the one in the directory of this program]
    #[arg(long, value_name = "PROGRAM")]
    sws: Option<PathBuf>,
    /// The `llama-completion` of llama.cpp, which alternates with `sws` in the same memory
    #[arg(long, value_name = "PROGRAM", requires_all = ["gguf", "prompt"])]
    llama: Option<PathBuf>,
    /// Weights for llama.cpp
    #[arg(long, value_name = "FILE", requires = "llama")]
    gguf: Option<PathBuf>,
    /// Tokens that llama.cpp generates [default: as many as `sws`]
    #[arg(long, value_name = "N", requires = "llama")]
    llama_tokens: Option<u32>,
    /// After each run, read as many bytes of its experts without computing
    #[arg(long)]
    alone: bool,
    /// After each run, let fio read as many bytes
    #[arg(long)]
    fio: bool,
    /// Let fio read into huge pages, as the store does; the system must have some reserved
    #[arg(long, requires = "fio")]
    huge_pages: bool,
    /// File for the results
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Keep the results that this file already has, and add further runs of the same rows
    #[arg(long, requires = "json")]
    resume: bool,
}

/// One contender with one amount of memory.
#[derive(Debug, Serialize, Deserialize)]
struct Row {
    /// `None` if all weights are in memory from the start.
    share: Option<f64>,
    what: String,
    policy: String,
    /// Budget of the whole process.
    budget: Option<u64>,
    /// Bytes of weights beyond those that are cached, for a dense model.
    beyond: Option<u64>,
    runs: Vec<Run>,
}

/// Measurements of one run, after its prompt.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) seconds_per_token: f64,
    pub(crate) bytes_per_token: Option<f64>,
    pub(crate) hit_rate: Option<f64>,
    /// Share of the time spent waiting for weights.
    pub(crate) waiting: Option<f64>,
    /// Share of the time neither waiting nor computing.
    #[serde(default)]
    pub(crate) other: Option<f64>,
    /// Share of the time with a read in flight.
    pub(crate) reading: Option<f64>,
    /// Bytes read during the prompt.
    prompt_bytes: Option<u64>,
    /// Memory as counted by the control group.
    pub(crate) group_peak: Option<u64>,
    /// Bytes per second when the store alone reads right after the run.
    #[serde(default)]
    alone: Option<f64>,
    /// Bytes per second when fio reads right after the run.
    fio: Option<f64>,
}

/// Measures all rows and prints the table.
pub fn run(arguments: &StreamArguments) -> Result<()> {
    for share in &arguments.shares {
        ensure!((0.0..=100.0).contains(share), "{share} is not a share in percent");
    }
    let beside = std::env::current_exe()?.with_file_name("sws");
    let program = arguments.sws.as_ref().unwrap_or(&beside);
    let models: Vec<Known> =
        arguments.models.iter().map(|model| Known::new(program, model)).collect::<Result<_>>()?;
    let task = Task {
        prompt: prompt(arguments)?,
        tokens: arguments.tokens,
        context: arguments.context,
        threads: arguments.threads,
    };
    let mut report = Report::new(arguments, &models, &task)?;
    let before = report.resume(arguments)?;
    for round in before..before + arguments.rounds {
        for at in 0..report.rows.len() {
            let at = if round % 2 == 0 { at } else { report.rows.len() - 1 - at };
            report.turn(arguments, &task, at)?;
            report.write(arguments)?;
        }
    }
    print!("{}", report.table()?);
    Ok(())
}

fn prompt(arguments: &StreamArguments) -> Result<Vec<String>> {
    Ok(match (&arguments.prompt, arguments.prompt_tokens) {
        (Some(file), _) => {
            let text = std::fs::read_to_string(file)
                .with_context(|| format!("reading `{}`", file.display()))?;
            vec!["--prompt".into(), text]
        }
        (None, Some(n)) => vec!["--tokens".into(), senseless(n)],
        (None, None) => vec!["--prompt".into(), "Once upon a time".into()],
    })
}

/// Token ids in an order that no predictor of tokens could know.
pub(crate) fn senseless(n: u32) -> String {
    let id = |i: u32| (i.wrapping_mul(2_654_435_761).rotate_left(13) % 256).to_string();
    (0..n).map(id).collect::<Vec<_>>().join(",")
}

struct Report<'a> {
    rows: Vec<Row>,
    /// Contender of each row: a model, or `None` for llama.cpp.
    contenders: Vec<Option<&'a Known>>,
    /// Tokens that all runs must generate.
    tokens: Option<Value>,
}

impl<'a> Report<'a> {
    fn new(arguments: &StreamArguments, models: &'a [Known], task: &Task) -> Result<Report<'a>> {
        let mut report = Report { rows: Vec::new(), contenders: Vec::new(), tokens: None };
        let shares = arguments.shares.iter().map(|share| Some(*share));
        for share in arguments.resident.then_some(None).into_iter().chain(shares) {
            let mut largest = None;
            for model in models {
                let budget = match share {
                    Some(share) if arguments.same_ram => {
                        let bytes = share / 100.0 * models[0].bytes as f64;
                        Some((bytes as u64) >> 20 << 20)
                    }
                    Some(share) => Some(model.budget(share / 100.0, task)?),
                    None => None,
                };
                // llama.cpp has the weights of the first model.
                largest = largest.or(budget);
                let none = [String::new()];
                let policies = match share {
                    Some(share) if share < 100.0 && model.experts > 0 => &arguments.policies[..],
                    _ => &none,
                };
                for policy in policies {
                    let what = name(&model.model);
                    report.push(Some(model), share, what, policy.clone(), budget);
                }
            }
            if let Some(gguf) = &arguments.gguf {
                report.push(
                    None,
                    share,
                    format!("llama.cpp, {}", name(gguf)),
                    String::new(),
                    largest,
                );
            }
        }
        Ok(report)
    }

    fn push(
        &mut self,
        contender: Option<&'a Known>,
        share: Option<f64>,
        what: String,
        policy: String,
        budget: Option<u64>,
    ) {
        self.contenders.push(contender);
        self.rows.push(Row { share, what, policy, budget, beyond: None, runs: Vec::new() });
    }

    fn turn(&mut self, arguments: &StreamArguments, task: &Task, at: usize) -> Result<()> {
        let row = &mut self.rows[at];
        let run = match (self.contenders[at], &arguments.llama, &arguments.gguf) {
            (Some(model), _, _) => {
                let policy = if row.policy.is_empty() { "expected" } else { &row.policy };
                let holding = match row.budget {
                    Some(budget) => Holding::Budget(budget, policy),
                    None => Holding::Resident,
                };
                let told = model.run(task, holding)?;
                let expected = self.tokens.get_or_insert_with(|| told.tokens.clone());
                ensure!(
                    *expected == told.tokens,
                    "`{}` with {holding:?} generates other tokens than the first run did",
                    row.what
                );
                if model.experts == 0 && row.budget.is_some() {
                    let arena = told.metrics["weight_bytes"].as_u64();
                    row.beyond = arena.map(|arena| model.passed.saturating_sub(arena));
                }
                let mut run = Run::of(&told)?;
                let read = told.metrics["cost"]["generation"]["disk"]["bytes"].as_u64();
                if let Some(read) = read.filter(|read| *read > 0) {
                    if arguments.alone {
                        run.alone = Some(alone::read(&model.model, read)?);
                    }
                    if arguments.fio {
                        let huge = arguments.huge_pages;
                        run.fio = Some(fio::random_reads(&model.model, read, huge)?);
                    }
                }
                run
            }
            (None, Some(llama), Some(gguf)) => {
                let prompt = arguments.prompt.as_deref().context("llama.cpp wants a --prompt")?;
                let means = Means {
                    tokens: arguments.llama_tokens.unwrap_or(arguments.tokens),
                    threads: arguments.threads,
                    limit: row.budget,
                    warm: row.share.is_none_or(|share| share >= 100.0),
                };
                Run::peer(peer::llama(llama, gguf, prompt, means)?)
            }
            (None, _, _) => unreachable!("there is a row for llama.cpp if it was given"),
        };
        eprintln!("{} {} {:?}: {run:?}", row.what, row.policy, row.share);
        row.runs.push(run);
        Ok(())
    }

    /// Adds the runs of an earlier report, and returns the number of their rounds.
    fn resume(&mut self, arguments: &StreamArguments) -> Result<u32> {
        let Some(path) = arguments.json.as_ref().filter(|path| arguments.resume && path.exists())
        else {
            return Ok(0);
        };
        let text = std::fs::read(path).with_context(|| format!("`{}`", path.display()))?;
        let before: Vec<Row> = serde_json::from_slice(&text).with_context(|| {
            format!("`{}` was not written by this command; choose another file", path.display())
        })?;
        let mut rounds = 0;
        for old in before {
            let row =
                self.rows.iter_mut().find(|row| row.key() == old.key()).with_context(|| {
                    format!("`{}` has measured something else; choose another file", path.display())
                })?;
            // The smallest budget for a share differs by a MiB from one start to the next.
            row.budget = old.budget;
            row.beyond = old.beyond;
            rounds = rounds.max(old.runs.len());
            row.runs = old.runs;
        }
        Ok(rounds as u32)
    }

    fn write(&self, arguments: &StreamArguments) -> Result<()> {
        let Some(path) = &arguments.json else { return Ok(()) };
        let json = serde_json::to_string_pretty(&self.rows)?;
        std::fs::write(path, json).with_context(|| format!("writing `{}`", path.display()))
    }

    /// The results as a table.
    fn table(&self) -> Result<String> {
        // Computing time alone, from the same weights in memory.
        let mut computing = BTreeMap::new();
        for row in self.rows.iter().filter(|row| row.share.is_none()) {
            computing.insert(&row.what, row.of(|run| Some(run.seconds_per_token)));
        }
        let mut text = "| cached | what | policy | --ram MiB | most MiB | tok/s | MB a token | hits | waiting | other | a read in flight | prompt MB | over reading alone | over max(computing, reading) | over fio's time | over max(computing, fio) |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n".to_owned();
        for row in &self.rows {
            let time = row.of(|run| Some(run.seconds_per_token));
            let alone = row.of(|run| Some(run.bytes_per_token? / run.alone?));
            let fio = row.of(|run| Some(run.bytes_per_token? / run.fio?));
            let compute = computing.get(&row.what).copied().flatten();
            writeln!(
                text,
                "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                row.share.map_or("resident".to_owned(), |share| format!("{share} %")),
                row.what,
                row.policy,
                show(row.budget.map(|bytes| mib(bytes as f64)), 0),
                show(row.of(|run| Some(run.group_peak? as f64)).map(mib), 0),
                show(time.map(|time| 1.0 / time), 2),
                show(row.of(|run| run.bytes_per_token).map(|bytes| bytes / 1e6), 1),
                show(row.of(|run| run.hit_rate), 3),
                show(row.of(|run| run.waiting), 2),
                show(row.of(|run| run.other), 2),
                show(row.of(|run| run.reading), 2),
                show(row.of(|run| Some(run.prompt_bytes? as f64 / 1e6)), 0),
                show(over(time, alone), 2),
                show(over(time, larger(compute, alone)), 2),
                show(over(time, fio), 2),
                show(over(time, larger(compute, fio)), 2),
            )?;
            if let Some(beyond) = row.beyond {
                let read = row.of(|run| run.bytes_per_token).unwrap_or(f64::NAN);
                writeln!(
                    text,
                    "| | | | | | | {:.3} of what does not fit | | | | | | | | | |",
                    read / beyond as f64
                )?;
            }
        }
        Ok(text)
    }
}

impl Row {
    /// The facts that an earlier report must agree about.
    fn key(&self) -> (Option<u64>, &str, &str) {
        (self.share.map(f64::to_bits), &self.what, &self.policy)
    }

    /// The median of a value of all runs.
    fn of(&self, value: fn(&Run) -> Option<f64>) -> Option<f64> {
        median(self.runs.iter().filter_map(value))
    }
}

fn show(value: Option<f64>, digits: usize) -> String {
    match value {
        Some(value) => format!("{value:.digits$}"),
        None => "-".to_owned(),
    }
}

fn over(time: Option<f64>, other: Option<f64>) -> Option<f64> {
    Some(time? / other?)
}

fn larger(computing: Option<f64>, reading: Option<f64>) -> Option<f64> {
    Some(computing?.max(reading?))
}

fn mib(bytes: f64) -> f64 {
    bytes / 1048576.0
}

impl Run {
    /// The measurements that a run reports.
    pub(crate) fn of(told: &Told) -> Result<Run> {
        let cost = &told.metrics["cost"];
        let generation = &cost["generation"];
        let tokens = number(&generation["tokens"])?;
        let seconds = number(&generation["seconds"])?;
        let read = number(&generation["disk"]["bytes"])?;
        Ok(Run {
            seconds_per_token: seconds / tokens,
            bytes_per_token: Some(read / tokens),
            hit_rate: generation["experts"]["hit_rate"].as_f64(),
            waiting: Some(number(&generation["stalls"]["seconds"])? / seconds),
            other: Some(number(&generation["time"]["other"])? / seconds),
            reading: Some(number(&generation["disk"]["busy"])?),
            prompt_bytes: cost["prompt"]["disk"]["bytes"].as_u64(),
            group_peak: told.group_peak,
            alone: None,
            fio: None,
        })
    }

    fn peer(seconds_per_token: f64) -> Run {
        Run {
            seconds_per_token,
            bytes_per_token: None,
            hit_rate: None,
            waiting: None,
            other: None,
            reading: None,
            prompt_bytes: None,
            group_peak: None,
            alone: None,
            fio: None,
        }
    }
}

fn number(value: &Value) -> Result<f64> {
    value.as_f64().context("the metrics of `sws run` have changed")
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    Some(paired::median(values)).filter(|median| !median.is_nan())
}
