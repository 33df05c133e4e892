//! Outcomes as a table and as JSON, and recorded texts as files.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::json;
use sws_cache::history::HistoryShape;

use super::{Case, Costs, Outcome, Routing, Texts};

/// What was simulated, and what it gave.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Layers with experts, experts of a layer, and experts of a token in a layer.
    shape: [usize; 3],
    topics: usize,
    texts: usize,
    slots: usize,
    parallel: usize,
    costs: Costs,
    outcomes: Vec<Outcome>,
}

impl Report {
    /// Of cases, in their order.
    pub fn new(texts: &Texts, costs: Costs, cases: &[Case], outcomes: Vec<Outcome>) -> Report {
        let HistoryShape { layers, experts, top_k } = texts.trace().shape();
        let [slots, parallel] = cases.first().map_or([0, 0], |case| [case.slots, case.parallel]);
        let shape = [layers, experts, top_k];
        let topics = texts.topics();
        Report { shape, topics, texts: texts.all().len(), slots, parallel, costs, outcomes }
    }

    /// One line for each outcome.
    pub fn json(&self) -> Result<String> {
        let outcomes: Result<Vec<String>, _> =
            self.outcomes.iter().map(serde_json::to_string).collect();
        let mut about = serde_json::to_value(self)?;
        about["outcomes"] = json!([]);
        let about = serde_json::to_string(&about)?;
        let rows = format!("\"outcomes\":[\n {}\n]", outcomes?.join(",\n "));
        Ok(about.replace("\"outcomes\":[]", &rows) + "\n")
    }

    /// The outcomes in Markdown.
    pub fn table(&self) -> String {
        let [layers, experts, top_k] = self.shape;
        let share = 100.0 * self.slots as f64 / (layers * experts) as f64;
        let mut table = format!(
            "{layers} layers of {experts} experts, {top_k} a token; {} texts of {} topics; {share:.0} % of the \
             experts in memory, {} texts at a time\n\n\
             | clients | replicas | routing | tok/s of all | times one replica | first token s: 50, 95, 99 % | \
             between tokens ms: 50, 95, 99 % | hits | from object storage GB | busiest replica |\n\
             |---:|---:|---|---:|---:|---:|---:|---:|---:|---:|\n",
            self.texts, self.topics, self.parallel,
        );
        for outcome in &self.outcomes {
            self.row(outcome, &mut table);
        }
        table
    }

    fn row(&self, outcome: &Outcome, table: &mut String) {
        let Outcome {
            replicas, clients, routing, tokens_per_second: speed, hit_rate, busiest, ..
        } = outcome;
        let alone = |one: &&Outcome| {
            one.replicas == 1 && one.clients == *clients && one.routing == *routing
        };
        let times = self
            .outcomes
            .iter()
            .find(alone)
            .map(|one| format!("{:.1}", speed / one.tokens_per_second));
        let routing = match routing {
            Routing::Affinity => "affinity",
            Routing::Random => "random",
            Routing::LeastLoaded => "least loaded",
        };
        let [first, between] = [outcome.first, outcome.between.map(|seconds| 1e3 * seconds)];
        let first = first.map(|seconds| format!("{seconds:.2}")).join(", ");
        let between = between.map(|ms| format!("{ms:.0}")).join(", ");
        let hits = 100.0 * hit_rate;
        let fetched = outcome.fetched_bytes as f64 / 1e9;
        let times = times.unwrap_or_default();
        let _ = writeln!(
            table,
            "| {clients} | {replicas} | {routing} | {speed:.0} | {times} | {first} | {between} | {hits:.1} % | \
             {fetched:.1} | {busiest:.2} |"
        );
    }
}

/// Writes texts and their routes into a directory.
pub(super) fn record(dir: &Path, texts: &Texts, prompts: &[Vec<u32>]) -> Result<()> {
    let name = dir.display();
    std::fs::create_dir_all(dir).with_context(|| format!("`{name}` cannot be made"))?;
    let list: Vec<_> = texts
        .all()
        .iter()
        .zip(prompts)
        .map(|(text, prompt)| {
            json!({"topic": text.topic, "prompt": prompt, "new": text.new, "seed": text.seed})
        })
        .collect();
    let write = |file: &str, bytes: &[u8]| {
        let path = dir.join(file);
        std::fs::write(&path, bytes).with_context(|| format!("writing `{}`", path.display()))
    };
    write("routes.safetensors", &texts.trace().write())?;
    write("texts.json", &serde_json::to_vec(&list)?)?;
    println!("{name}: {} texts of {} topics", list.len(), texts.topics());
    Ok(())
}
