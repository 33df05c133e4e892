//! Gains of speculation and of each mechanism around it, over budgets and disks, leaving out one
//! mechanism at a time.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

mod child;

use child::{Run, Task};

use crate::paired::median;
use crate::resident::tokenizer;
use crate::{fio, large};

/// Options of `sws-bench speculation`, a field each.
#[derive(Debug, clap::Args)]
pub struct SpeculationArguments {
    /// Directory of the models: `checkpoint` in bf16, `shards` in bf12, and `stand-ins`, the same
    /// with q4 copies. Missing ones are made from `shards/tales-moe` with experts of 14 MB (10 GB
    /// in all)
    dir: PathBuf,
    /// Shards from which the models are made
    #[arg(long, value_name = "DIR", default_value = "shards/tales-moe")]
    tales: PathBuf,
    /// Memory: the budget that gives bf16 slots for this share of the experts, in percent
    #[arg(long, value_delimiter = ',', default_value = "10,20,30,50,75,100")]
    budgets: Vec<f64>,
    /// Read speeds: `real` for the disk of the models, a number for a limit in GB per second, and
    /// `memory:5` for a limit on a copy in an in-memory file system
    #[arg(long, value_delimiter = ',', default_value = "real,0.5,memory:5")]
    disks: Vec<Disk>,
    /// Ablations to leave out, joined with `+`: none, eviction (use lru), prefetch, promotion,
    /// arrival, bf12 (use bf16)
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "none,eviction,prefetch,promotion,arrival,bf12"
    )]
    without: Vec<Left>,
    /// Add a row with q4 stand-ins in memory, which the default does not keep, and nothing left out
    #[arg(long)]
    with_stand_ins: bool,
    /// Only rows whose name contains these words
    #[arg(long, value_name = "WORDS")]
    only: Option<String>,
    /// Text to continue, which fills the cache
    #[arg(long, value_name = "FILE", default_value = "benchmarks/prompt.txt")]
    prompt: PathBuf,
    /// Tokens to generate
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(2..=512))]
    tokens: u32,
    /// Runs of each row
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// In-memory file system
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    memory: PathBuf,
    /// After each run, let fio read as many bytes
    #[arg(long)]
    fio: bool,
    /// File for the results
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Keep the results that this file already has, and add further runs or rows
    #[arg(long, requires = "json")]
    resume: bool,
}

/// Ablations that can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Without {
    Eviction,
    Prefetch,
    Promotion,
    ArrivalOrder,
    Bf12,
}

/// All mechanisms left out of a run.
#[derive(Clone, Debug)]
struct Left(Vec<Without>);

impl FromStr for Left {
    type Err = anyhow::Error;

    fn from_str(words: &str) -> Result<Left> {
        match words {
            "none" => Ok(Left(Vec::new())),
            words => Ok(Left(words.split('+').map(Without::named).collect::<Result<_>>()?)),
        }
    }
}

impl Without {
    fn named(word: &str) -> Result<Without> {
        match word {
            "eviction" => Ok(Without::Eviction),
            "prefetch" => Ok(Without::Prefetch),
            "promotion" => Ok(Without::Promotion),
            "arrival" => Ok(Without::ArrivalOrder),
            "bf12" => Ok(Without::Bf12),
            _ => bail!("`{word}` cannot be left out"),
        }
    }

    /// The name of a row without it.
    fn row_name(self) -> &'static str {
        match self {
            Without::Eviction => "lru",
            Without::Prefetch => "no prefetch",
            Without::Promotion => "no promotion",
            Without::ArrivalOrder => "no arrival order",
            Without::Bf12 => "bf16",
        }
    }
}

/// Source of the weights.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Disk {
    /// Limit in bytes per second.
    speed: Option<u64>,
    in_memory: bool,
}

impl FromStr for Disk {
    type Err = anyhow::Error;

    fn from_str(word: &str) -> Result<Disk> {
        if word == "real" {
            return Ok(Disk { speed: None, in_memory: false });
        }
        let number = word.strip_prefix("memory:");
        let speed: f64 = number.unwrap_or(word).parse().with_context(|| format!("`{word}`"))?;
        ensure!(speed > 0.0 && speed < 1e3, "`{word}` is no speed in GB a second");
        Ok(Disk { speed: Some((speed * 1e9) as u64), in_memory: number.is_some() })
    }
}

/// One contender.
#[derive(Debug, Serialize, Deserialize)]
struct Row {
    name: String,
    /// Budget of the whole process.
    ram: u64,
    runs: Vec<Run>,
    /// Bytes per second read by fio.
    fio: Vec<f64>,
}

/// Measures all rows and prints the table.
pub fn run(arguments: &SpeculationArguments) -> Result<()> {
    let mut contenders = Vec::new();
    for &disk in &arguments.disks {
        for &budget in &arguments.budgets {
            ensure!((0.0..=100.0).contains(&budget), "{budget} is not a share in percent");
            let whole = &Left(Vec::new());
            let without = arguments.without.iter().map(|left| (left, false));
            for (left, stand_ins) in
                without.chain(arguments.with_stand_ins.then_some((whole, true)))
            {
                let name = name(disk, budget, left, stand_ins);
                if arguments.only.as_ref().is_none_or(|words| name.contains(words)) {
                    contenders.push((name, disk, budget, left.clone(), stand_ins));
                }
            }
        }
    }
    ensure!(!contenders.is_empty(), "there is no such row");
    let text = std::fs::read_to_string(&arguments.prompt).with_context(|| {
        format!("`{}` cannot be read; name a text with --prompt", arguments.prompt.display())
    })?;
    large::make(&arguments.tales, &arguments.dir, 14_000_000, arguments.with_stand_ins)?;
    let prompt = tokenizer(&arguments.dir.join("shards"))?.encode(&text, true)?;
    let mut copies = Copies { dir: &arguments.dir, memory: &arguments.memory, made: Vec::new() };
    let mut rows = Vec::new();
    let mut tasks = Vec::new();
    for (name, disk, budget, left, stand_ins) in contenders {
        let ram = child::budget(&arguments.dir.join("checkpoint"), budget / 100.0)?;
        let model = match () {
            () if left.0.contains(&Without::Bf12) => "checkpoint",
            () if stand_ins => "stand-ins",
            () => "shards",
        };
        let model = copies.of(model, disk.in_memory)?;
        rows.push(Row { name, ram, runs: Vec::new(), fio: Vec::new() });
        tasks.push(Task {
            model,
            ram,
            disk: disk.speed,
            without: left.0,
            stand_ins,
            prompt: prompt.clone(),
            tokens: arguments.tokens as usize,
        });
    }
    let mut before = if arguments.resume { read(arguments)? } else { Vec::new() };
    let mut text = before.iter().flat_map(|row| &row.runs).map(|run| run.text.clone()).next();
    for row in &mut rows {
        if let Some(at) = before.iter().position(|old| old.name == row.name) {
            let old = before.remove(at);
            // The smallest budget for a share differs by a MiB from one start to the next.
            row.ram = old.ram;
            row.runs = old.runs;
            row.fio = old.fio;
        }
    }
    let done = rows.iter().map(|row| row.runs.len()).max().unwrap_or(0);
    for round in done..done + arguments.rounds as usize {
        for at in order(&rows, round) {
            let row = &mut rows[at];
            let task = &mut tasks[at];
            task.ram = row.ram;
            let run = task.run().with_context(|| row.name.clone())?;
            let same = text.get_or_insert_with(|| run.text.clone());
            let common = same.len().min(run.text.len());
            ensure!(same[..common] == run.text[..common], "{}: another text", row.name);
            eprintln!(
                "{}: {:.2} tok/s, {:.1} MB a token",
                row.name,
                run.tokens_per_second,
                run.bytes_per_token / 1e6
            );
            if arguments.fio && run.bytes_per_token > 1e6 {
                let bytes = (run.bytes_per_token * task.tokens as f64) as u64;
                row.fio.push(fio::random_reads(&task.model, bytes, false)?);
            }
            row.runs.push(run);
            if let Some(path) = &arguments.json {
                let all: Vec<&Row> = before.iter().chain(&rows).collect();
                std::fs::write(path, serde_json::to_string(&all)?)?;
            }
        }
    }
    before.append(&mut rows);
    print!("{}", table(&before)?);
    Ok(())
}

/// Order of a round. The rows of one budget and disk stay together, forward and backward
/// alternately, and each time start with another row: the speed of a process depends a little on
/// those before it.
fn order(rows: &[Row], round: usize) -> Vec<usize> {
    let place = |at: usize| rows[at].name.rsplit_once(" | ").map(|(place, _)| place);
    let mut order: Vec<usize> = (0..rows.len()).collect();
    for together in order.chunk_by_mut(|&a, &b| place(a) == place(b)) {
        together.rotate_left(round / 2 % together.len());
        if round % 2 == 1 {
            together.reverse();
        }
    }
    order
}

/// Reads earlier results.
fn read(arguments: &SpeculationArguments) -> Result<Vec<Row>> {
    let Some(path) = arguments.json.as_ref().filter(|path| path.exists()) else {
        return Ok(Vec::new());
    };
    serde_json::from_slice(&std::fs::read(path)?).with_context(|| {
        format!("`{}` was not written by this command; choose another file", path.display())
    })
}

fn name(disk: Disk, budget: f64, Left(left): &Left, stand_ins: bool) -> String {
    let disk = match disk {
        Disk { speed: None, .. } => "real disk".to_owned(),
        Disk { speed: Some(speed), in_memory } => {
            let from = if in_memory { ", from memory" } else { "" };
            format!("{} GB/s{from}", speed as f64 / 1e9)
        }
    };
    let left: Vec<&str> = left.iter().copied().map(Without::row_name).collect();
    let left = match left.is_empty() {
        true if stand_ins => "all, stand-ins".to_owned(),
        true => "all".to_owned(),
        false => left.join(" + "),
    };
    format!("{disk} | {budget} % | {left}")
}

/// Copies of the models on an in-memory file system, made by this process so that they are not
/// charged to any budget.
struct Copies<'a> {
    dir: &'a Path,
    memory: &'a Path,
    made: Vec<PathBuf>,
}

impl Copies<'_> {
    fn of(&mut self, model: &str, in_memory: bool) -> Result<PathBuf> {
        let from = self.dir.join(model);
        if !in_memory {
            return Ok(from);
        }
        let to = self.memory.join(format!("sws-bench-{}-{model}", std::process::id()));
        if !self.made.contains(&to) {
            self.made.push(to.clone());
            copy(&from, &to)?;
        }
        Ok(to)
    }
}

impl Drop for Copies<'_> {
    fn drop(&mut self) {
        for made in &self.made {
            let _ = std::fs::remove_dir_all(made);
        }
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir(to).with_context(|| format!("`{}`", to.display()))?;
    for entry in from.read_dir()? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy(&entry.path(), &to)?,
            false => drop(std::fs::copy(entry.path(), &to)?),
        }
    }
    Ok(())
}

/// The results as a table.
fn table(rows: &[Row]) -> Result<String> {
    let mut text = "| disk | memory | without | --ram MiB | runs | tok/s | MB a token | hits | waiting | recall on misses | waste | on | fio GB/s |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n".to_owned();
    for Row { name, ram, runs, fio } in rows {
        let of = |value: fn(&Run) -> f64| median(runs.iter().map(value));
        writeln!(
            text,
            "| {name} | {} | {} | {:.2} | {:.1} | {:.3} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} |",
            ram >> 20,
            runs.len(),
            of(|run| run.tokens_per_second),
            of(|run| run.bytes_per_token / 1e6),
            of(|run| run.hit_rate.unwrap_or(f64::NAN)),
            of(|run| run.stall_share),
            of(|run| run.recall_on_misses),
            of(|run| run.waste),
            of(|run| run.on),
            median(fio.iter().map(|speed| speed / 1e9)),
        )?;
    }
    Ok(text)
}

/// Entry point of a child.
pub fn child() -> Result<()> {
    child::main()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_budget_stay_together_and_each_is_first_equally_often() {
        let names =
            ["a | 10 % | x", "a | 10 % | y", "a | 10 % | z", "a | 20 % | x", "a | 20 % | y"];
        let row =
            |name: &str| Row { name: name.to_owned(), ram: 0, runs: Vec::new(), fio: Vec::new() };
        let rows = names.map(row);
        let orders: Vec<Vec<usize>> = (0..12).map(|round| order(&rows, round)).collect();
        assert_eq!(orders[..3], [[0, 1, 2, 3, 4], [2, 1, 0, 4, 3], [1, 2, 0, 4, 3]]);
        for (at, places) in [(0..3, 3), (3..5, 2)].into_iter().enumerate() {
            let (rows, count) = places;
            let begins = [0, 3][at];
            for row in rows {
                let first = orders.iter().filter(|order| order[begins] == row).count();
                assert_eq!(first, 12 / count, "{row}: {orders:?}");
            }
        }
    }

    #[test]
    fn rows_are_named_by_disk_budget_and_omissions() {
        #[rustfmt::skip]
        let cases = [
            ("real", 25.0, "none", "real disk | 25 % | all"),
            ("0.5", 12.5, "eviction", "0.5 GB/s | 12.5 % | lru"),
            ("memory:5", 100.0, "bf12+eviction+prefetch", "5 GB/s, from memory | 100 % | bf16 + lru + no prefetch"),
        ];
        for (disk, budget, left, expected) in cases {
            let disk = disk.parse().unwrap();
            let left = left.parse().unwrap();
            assert_eq!(name(disk, budget, &left, false), expected);
        }
        for word in ["", "-1", "memory:", "memory:x", "1e9", "NaN", "unreal"] {
            assert!(word.parse::<Disk>().is_err(), "{word}");
        }
        assert!("eviction+luck".parse::<Left>().is_err());
    }
}
