//! One point of the grid: a plan, a probe of the machine and a run in one process.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use sws::{
    DraftChoice, Dry, LoadedModel, Metrics, Model, Options, RamBudget, Streaming, Threads,
    disk_speed, memory_speed,
};
use sws_engine::PerToken;
use sws_format::Clock;
use sws_kernels::Tier;
use sws_store::ReaderKind;
use sws_testing::{child, sampled};
use sws_text::Sampler;

use crate::paired::median;

const CONTEXT: usize = 512;
const MIB: u64 = 1 << 20;

/// A run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) model: String,
    pub(super) encoding: String,
    pub(super) dir: PathBuf,
    pub(super) room: Room,
    pub(super) prompt: Vec<u32>,
    /// Tokens of a text after it, the first ones of which do not count.
    pub(super) text: Vec<u32>,
    pub(super) warm: usize,
    /// True for an earlier run, which only keeps what it learns.
    pub(super) learns: bool,
}

/// Memory of a run.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Room {
    /// For a share of the experts, in percent.
    Share(u32),
    /// A budget of the process.
    Budget(u64),
}

/// A measured point.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Point {
    /// The model, in all encodings.
    pub model: String,
    /// Encoding of its weights.
    pub encoding: String,
    /// Share of the experts in memory, in percent.
    pub share: u32,
    /// Memory budget of the process.
    pub ram: u64,
    /// The plan of a token before any run.
    pub planned: PerToken,
    /// The hit rate that it expects after an earlier run.
    pub own_hits: f64,
    /// Seconds of computing a token, as probed before the run.
    pub computing: f64,
    /// Bytes per second, as probed before the run.
    pub disk: f64,
    /// The same of memory.
    pub memory: f64,
    /// Measured hit rate, bytes read from disk per token, and seconds of a token.
    pub hit_rate: f64,
    /// Bytes read from disk per token.
    pub bytes: f64,
    /// Seconds of a token.
    pub seconds: f64,
    /// Seconds of a token in which it waited for reads.
    pub waiting: f64,
}

impl Point {
    /// The medians of several runs of a point; of what does not vary, that of the first.
    pub(super) fn of(runs: &[Point]) -> Point {
        let of = |field: fn(&Point) -> f64| median(runs.iter().map(field));
        Point {
            computing: of(|run| run.computing),
            disk: of(|run| run.disk),
            memory: of(|run| run.memory),
            hit_rate: of(|run| run.hit_rate),
            bytes: of(|run| run.bytes),
            seconds: of(|run| run.seconds),
            waiting: of(|run| run.waiting),
            ..runs[0].clone()
        }
    }
}

impl Task {
    /// Runs it in a process of its own, which keeps what it learns in `cache`. None from an earlier run.
    pub(super) fn run(&self, cache: &Path) -> Result<Option<Point>> {
        let output = child::run_learning("plans-child", self, cache)?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{} ({}): {self:?}", said.trim(), output.status);
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    fn work(self) -> Result<Option<Point>> {
        let model = Model::open(&self.dir)?;
        let threads = Threads::one_per_core()?;
        // On demand and from an empty cache, as no plan knows forecasts and statistics.
        let options = |ram| Options {
            ram,
            context: Some(CONTEXT),
            streaming: Streaming {
                draft: DraftChoice::Off,
                warm_start: self.learns,
                ..Streaming::default()
            },
            ..Options::default()
        };
        let loader = |ram| model.with(options(ram)).threads(&threads);
        let ram = match self.room {
            Room::Budget(ram) => ram,
            Room::Share(share) => {
                let planner = loader(RamBudget::Auto).planning()?.planner;
                let most = planner.smallest() + 2 * planner.weights();
                let slots = planner.plan(most)?.most_experts();
                let enough = (slots as f64 * f64::from(share) / 100.0).round() as usize;
                let least =
                    planner.smallest_with(most, MIB, |plan| plan.most_experts() >= enough)?;
                // Margin for a process that has grown since.
                least + 2 * MIB
            }
        };
        if self.learns {
            self.compute(&model, &mut loader(RamBudget::Bytes(ram)).load()?)?;
            return Ok(None);
        }
        // Loaded before anything that needs memory is probed.
        let mut loaded = loader(RamBudget::Bytes(ram)).load()?;
        let plan = loaded.plan().context("no plan")?;
        let planned = plan.per_token;
        let slots = plan.most_experts();
        let experts: usize = model.spec().moes().map(|moe| moe.experts).sum();
        let earlier = model.earlier_hits().context("there was no earlier run")?;
        let own_hits = earlier.rate(slots as f64 / experts as f64);
        let disk = disk_speed(model.manifest(), model.dir(), ReaderKind::Direct);
        let memory = memory_speed(&threads);
        let (disk, memory) = disk.zip(memory).context("the machine could not be probed")?;
        let computing = Dry::new(Tier::best(), &threads)
            .and_then(|mut dry| dry.token(model.spec(), model.manifest()))
            .context("computing could not be probed")?;

        let (metrics, seconds) = self.compute(&model, &mut loaded)?;
        let tokens = (self.text.len() - self.warm) as f64;
        Ok(Some(Point {
            model: self.model,
            encoding: self.encoding,
            share: match self.room {
                Room::Share(share) => share,
                Room::Budget(_) => (100 * slots / experts.max(1)) as u32,
            },
            ram,
            planned,
            own_hits,
            computing: computing.seconds(&planned),
            disk,
            memory,
            hit_rate: metrics.experts.hit_rate.context("no experts")?,
            bytes: metrics.disk.bytes as f64 / tokens,
            seconds,
            waiting: metrics.stalls.seconds / tokens,
        }))
    }

    /// Computes the text after the prompt. Returns what was measured, and the seconds of a token that
    /// counts.
    fn compute(&self, model: &Model, loaded: &mut LoadedModel) -> Result<(Metrics, f64)> {
        let gauge = loaded.gauge().context("the backend does not measure")?;
        let vocab = model.spec().vocab;
        let mut sampler = Sampler::new(sampled(), vocab);
        let lm = loaded.causal_lm();
        let mut logits = lm.prefill(&self.prompt)?.to_vec();
        sampler.prompt(&self.prompt)?;
        let clock = Clock::real();
        let (warm, counted) = self.text.split_at(self.warm);
        let mut compute = |tokens: &[u32]| -> Result<()> {
            for &token in tokens {
                // Sampled as users do it; the next token is fixed nevertheless.
                sampler.sample(&mut logits, lm.len())?;
                logits.copy_from_slice(lm.decode(token)?);
            }
            Ok(())
        };
        compute(warm)?;
        let before = gauge.read();
        let started = clock.now();
        compute(counted)?;
        let seconds = (clock.now() - started).as_secs_f64() / counted.len() as f64;
        Ok((Metrics::between(&before, &gauge.read()), seconds))
    }
}

/// Entry point of a child.
pub fn main() -> Result<()> {
    child::serve(Task::work)
}
