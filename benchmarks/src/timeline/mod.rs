//! Shows when and why the disk is idle while a model generates text.

use std::fmt::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sws::{DraftChoice, Model, Options, Prompt, RamBudget, Request, Streaming, Threads};
use sws_engine::StandInUse;
use sws_engine::watch::{RecordedRead, RecordedStep, Recording, RecordingStep};
use sws_text::GenerationOptions;

mod analysis;

use crate::stream::alone;
use analysis::{Cause, Timeline};

/// The most reads of a recording, and the most steps.
const LIMIT: usize = 1 << 20;
/// Depths of the table; greater ones share the last row.
const DEPTHS: usize = 8;

/// Options of `sws-bench timeline`.
#[derive(clap::Args, Clone, Debug)]
pub struct TimelineArguments {
    /// A model with a tokenizer
    model: PathBuf,
    /// Memory for the whole process, of which the recording takes more
    #[arg(long, value_name = "SIZE")]
    ram: RamBudget,
    /// Text to continue, which is not recorded
    #[arg(long, value_name = "FILE")]
    prompt: PathBuf,
    /// Tokens to record
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    tokens: u16,
    /// Threads that compute
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,
    /// Positions of the KV cache
    #[arg(long, default_value_t = 1024)]
    context: usize,
    /// Read on demand only
    #[arg(long)]
    no_draft: bool,
    /// Verify tokens that the model drafts on all of its stand-ins
    #[arg(long)]
    proposals: bool,
    /// File for the results, with every read and step
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Records a run, and prints what it shows.
pub fn run(arguments: &TimelineArguments) -> Result<()> {
    let recording = record(arguments)?;
    let timeline = Timeline::of(&recording);
    ensure!(timeline.passes > 0, "nothing was recorded; ask for more tokens");
    let alone = match timeline.bytes {
        0 => None,
        bytes => Some(alone::read(&arguments.model, bytes)?),
    };
    print!("{}", text(&timeline, alone, recording.left_out)?);
    if let Some(path) = &arguments.json {
        let all = json!({
            "timeline": timeline,
            "alone_bytes_per_second": alone,
            "left_out": recording.left_out,
            "reads": recording.reads.iter().map(read).collect::<Vec<_>>(),
            "steps": recording.steps.iter().map(step).collect::<Vec<_>>(),
        });
        std::fs::write(path, all.to_string()).with_context(|| format!("`{}`", path.display()))?;
    }
    Ok(())
}

/// Generates a text, and records the passes after its prompt.
fn record(arguments: &TimelineArguments) -> Result<Recording> {
    let prompt = std::fs::read_to_string(&arguments.prompt)
        .with_context(|| format!("`{}`", arguments.prompt.display()))?;
    let draft = if arguments.no_draft { DraftChoice::Off } else { DraftChoice::Auto };
    let stand_ins = arguments.proposals.then_some(StandInUse::All);
    let options = Options {
        ram: arguments.ram,
        context: Some(arguments.context),
        speculative: arguments.proposals,
        streaming: Streaming { draft, stand_ins, warm_start: false, ..Streaming::default() },
        ..Options::default()
    };
    let model = Model::open(&arguments.model)?;
    let threads = Threads::start(arguments.threads.into())?;
    let mut loaded = model.with(options).threads(&threads).load()?;
    let gauge = loaded.gauge().context("the backend does not measure")?;
    let options = GenerationOptions {
        temperature: Some(1.0),
        top_k: Some(40),
        top_p: Some(0.95),
        seed: Some(7),
        // The first token is that of the prompt's pass.
        max_new_tokens: Some(usize::from(arguments.tokens) + 1),
        ignore_eos: true,
        ..GenerationOptions::default()
    };
    let request = Request { prompt: Prompt::Text(prompt.trim_end().to_owned()), options };
    let mut pieces = loaded.generate(request)?;
    pieces.next().context("the text ended with its prompt")??;
    gauge.watch().record(LIMIT);
    for piece in pieces {
        piece?;
    }
    Ok(gauge.watch().recorded())
}

/// The tables.
fn text(timeline: &Timeline, alone: Option<f64>, left_out: u64) -> Result<String> {
    let mut text = String::new();
    let seconds = timeline.seconds.max(1e-9);
    let passes = timeline.passes as f64;
    let speed = timeline.bytes as f64 / seconds;
    writeln!(
        text,
        "{} passes in {seconds:.2} s, {:.2} a second; {:.1} MB a pass in {} reads",
        timeline.passes,
        passes / seconds,
        timeline.bytes as f64 / passes / 1e6,
        timeline.reads,
    )?;
    write!(text, "{:.2} GB/s", speed / 1e9)?;
    if let Some(alone) = alone {
        write!(text, ", and the reader alone {:.2} GB/s: {:.3}", alone / 1e9, speed / alone)?;
    }
    writeln!(
        text,
        "; no read on the device for {:.1} %",
        100.0 * timeline.idle_seconds() / seconds
    )?;
    if left_out > 0 {
        writeln!(text, "{left_out} reads and steps are left out; ask for fewer tokens")?;
    }

    writeln!(text, "\n| reads on the device | % of the time |\n|---:|---:|")?;
    let percent = |part: f64| 100.0 * part / seconds;
    for (depth, time) in timeline.at_depth.iter().enumerate().take(DEPTHS) {
        writeln!(text, "| {depth} | {:.1} |", percent(*time))?;
    }
    if let Some(deeper @ [_, ..]) = timeline.at_depth.get(DEPTHS..) {
        writeln!(text, "| {DEPTHS} and more | {:.1} |", percent(deeper.iter().sum()))?;
    }
    let means: Vec<String> = timeline.over_time.iter().map(|mean| format!("{mean:.1}")).collect();
    writeln!(text, "\nmean over time: {}", means.join(" "))?;

    writeln!(
        text,
        "\n| ms of a read | median | 90 % | 99 % | longest |\n|---|---:|---:|---:|---:|"
    )?;
    for (what, times) in [("until issued", timeline.queued), ("from then", timeline.latency)] {
        let [median, ninety, most, longest] = times.map(|time| 1e3 * time);
        writeln!(text, "| {what} | {median:.2} | {ninety:.2} | {most:.2} | {longest:.2} |")?;
    }

    writeln!(
        text,
        "\n| idle | % of the time | times a pass | longest, ms |\n|---|---:|---:|---:|"
    )?;
    for cause in Cause::ALL {
        let idle = timeline.idle.get(&cause).copied().unwrap_or_default();
        let share = percent(idle.seconds);
        let times = idle.gaps as f64 / passes;
        let longest = 1e3 * idle.longest;
        writeln!(text, "| {} | {share:.1} | {times:.2} | {longest:.2} |", cause.name())?;
    }

    writeln!(text, "\n| layer | ms | idle, ms | misses |\n|---:|---:|---:|---:|")?;
    for (number, layer) in &timeline.layers {
        let each = |of: f64| of / layer.passes.max(1) as f64;
        let time = 1e3 * each(layer.seconds);
        let idle = 1e3 * each(layer.idle);
        writeln!(text, "| {number} | {time:.2} | {idle:.2} | {:.2} |", each(layer.misses as f64))?;
    }
    Ok(text)
}

/// A read as JSON: times in seconds.
fn read(read: &RecordedRead) -> Value {
    json!({
        "piece": read.piece.to_string(),
        "bytes": read.bytes,
        "submitted": read.submitted.as_secs_f64(),
        "started": read.started.map(|started| started.as_secs_f64()),
        "finished": read.finished.as_secs_f64(),
    })
}

/// A step as JSON.
fn step(step: &RecordedStep) -> Value {
    let (name, layer, count) = match step.step {
        RecordingStep::Passes => ("passes", None, None),
        RecordingStep::Pass { tokens } => ("pass", None, Some(tokens)),
        RecordingStep::Layer { layer } => ("layer", Some(layer), None),
        RecordingStep::Chosen { layer } => ("chosen", Some(layer), None),
        RecordingStep::Compared { layer, misses } => ("compared", Some(layer), Some(misses)),
        RecordingStep::Requested { layer } => ("requested", Some(layer), None),
        RecordingStep::Waits => ("waits", None, None),
        RecordingStep::Waited => ("waited", None, None),
        RecordingStep::Computed { layer } => ("computed", Some(layer), None),
        RecordingStep::Over => ("over", None, None),
    };
    json!({ "at": step.at.as_secs_f64(), "step": name, "layer": layer, "count": count })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::analysis::{Idle, Layer};
    use super::*;

    #[test]
    fn the_tables_have_every_cause_and_layer() {
        let idle = Idle { seconds: 0.2, gaps: 4, longest: 0.1 };
        let layer = Layer { passes: 2, seconds: 1.0, idle: 0.5, misses: 3 };
        let timeline = Timeline {
            seconds: 2.0,
            passes: 2,
            tokens: 2,
            reads: 6,
            bytes: 4_000_000_000,
            at_depth: vec![0.5, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.5],
            over_time: vec![1.5; 20],
            queued: [0.001, 0.002, 0.003, 0.004],
            latency: [0.005, 0.006, 0.007, 0.008],
            idle: BTreeMap::from([(Cause::Slots, idle)]),
            layers: BTreeMap::from([(3, layer)]),
        };
        let text = text(&timeline, Some(2.5e9), 0).unwrap();
        for line in [
            "2 passes in 2.00 s, 1.00 a second; 2000.0 MB a pass in 6 reads\n",
            "2.00 GB/s, and the reader alone 2.50 GB/s: 0.800; no read on the device for 25.0 %\n",
            "| 1 | 25.0 |\n",
            "| 8 and more | 50.0 |\n",
            "| from then | 5.00 | 6.00 | 7.00 | 8.00 |\n",
            "| no slot for a miss | 10.0 | 2.00 | 100.00 |\n",
            "| router | 0.0 | 0.00 | 0.00 |\n",
            "| 3 | 500.00 | 250.00 | 1.50 |\n",
        ] {
            assert!(text.contains(line), "no {line:?} in {text}");
        }
    }
}
