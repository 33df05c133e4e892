//! What each figure shows.

use std::path::Path;

use anyhow::{Result, ensure};
use plotters::prelude::{RGBColor, SeriesLabelPosition};

use super::draw::{Axis, Figure, Mark, Panel, Point, Series};
use super::results::{Compared, Gate, Kernel, Replay, Streamed, read};

const BLUE: RGBColor = RGBColor(0, 95, 175);
const LIGHT_BLUE: RGBColor = RGBColor(110, 175, 230);
const ORANGE: RGBColor = RGBColor(215, 95, 0);
const LIGHT_ORANGE: RGBColor = RGBColor(245, 170, 95);
const GREEN: RGBColor = RGBColor(0, 135, 95);
const GREY: RGBColor = RGBColor(120, 120, 120);

/// Recorded routes: file, name, colour in a scatter.
const TRACES: [(&str, &str, RGBColor); 4] = [
    ("replay-gpt-oss-20b.json", "gpt-oss-20b", ORANGE),
    ("replay-deepseek-v2-lite.json", "DeepSeek-V2-Lite", GREY),
    ("replay-qwen3-30b-a3b.json", "Qwen3-30B-A3B", GREEN),
    ("replay-tales-moe.json", "tales-moe", BLUE),
];

fn axis(label: &str, range: [f64; 2], ticks: &[f64]) -> Axis {
    let ticks = ticks.iter().map(|tick| (*tick, tick.to_string())).collect();
    Axis { label: label.to_owned(), range: range[0]..range[1], is_log: false, ticks }
}

/// An axis of names, one at each whole number.
fn names(label: &str, names: &[String]) -> Axis {
    let ticks = names.iter().enumerate().map(|(i, name)| (i as f64, name.clone())).collect();
    let end = names.len() as f64 - 0.4;
    Axis { label: label.to_owned(), range: -0.6..end, is_log: false, ticks }
}

fn series(label: &str, colour: RGBColor, mark: Mark, points: Vec<Point>) -> Series {
    Series { label: label.to_owned(), colour, mark, points }
}

fn alone(title: &str, panel: Panel) -> Figure {
    Figure { title: title.to_owned(), panels: vec![panel] }
}

/// Tokens per second by memory, next to peers. A contender has no point where it was killed.
pub(super) fn speed(dir: &Path) -> Result<Figure> {
    let rows: Vec<Streamed> = read(dir, "peers.json")?;
    let panel = |title: &str, contenders: &[(&str, RGBColor)]| {
        let lines = contenders.iter().map(|(what, colour)| {
            let rows = rows.iter().filter(|row| row.what == *what && row.has_run());
            let points = rows.filter_map(|row| Some((row.share?, 1.0 / row.seconds_per_token())));
            series(what, *colour, Mark::Line, points.map(|(x, y)| Point::new(x, y)).collect())
        });
        let lines: Vec<Series> = lines.collect();
        ensure!(lines.iter().all(|line| !line.points.is_empty()), "a contender has no row");
        let ticks = [0.01, 0.1, 1.0, 10.0, 100.0];
        Ok(Panel {
            title: title.to_owned(),
            x: axis("memory, % of the bf16 weights", [15.0, 120.0], &[25.0, 50.0, 110.0]),
            // Room for the legend below the slowest.
            y: Axis { is_log: true, ..axis("tokens per second", [0.01, 500.0], &ticks) },
            series: lines,
            legend: Some(SeriesLabelPosition::LowerRight),
        })
    };
    let panels = vec![
        panel(
            "bf16",
            &[
                ("sws, bf12 shards", BLUE),
                ("sws, bf16 in place", LIGHT_BLUE),
                ("BigMoeOnEdge, bf16", GREEN),
                ("llama.cpp with mmap, bf16", ORANGE),
                ("llama.cpp without mmap, bf16", GREY),
            ],
        )?,
        panel(
            "Q4_K_M of the same weights",
            &[
                ("sws, Q4_K_M in place", BLUE),
                ("BigMoeOnEdge, Q4_K_M", GREEN),
                ("llama.cpp with mmap, Q4_K_M", ORANGE),
                ("llama.cpp with mmap, Q4_K_M, --no-repack", LIGHT_ORANGE),
                ("llama.cpp without mmap, Q4_K_M", GREY),
            ],
        )?,
    ];
    Ok(Figure { title: "Speed by memory, side by side".to_owned(), panels })
}

/// Misses by policy, for each trace.
pub(super) fn reads(dir: &Path) -> Result<Figure> {
    let policies =
        [("lru", "LRU", ORANGE), ("expected", "default policy", BLUE), ("belady", "optimum", GREY)];
    let mut panels = Vec::new();
    for (file, name, _) in TRACES {
        let replay: Replay = read(dir, file)?;
        let lines = policies.map(|(policy, label, colour)| {
            let runs = replay.runs.iter().filter(|run| run.policy == policy);
            let points = runs.map(|run| Point::new(run.budget, 100.0 * (1.0 - run.hit_rate)));
            series(label, colour, Mark::Line, points.collect())
        });
        ensure!(lines.iter().all(|line| !line.points.is_empty()), "`{file}` lacks a policy");
        panels.push(Panel {
            title: name.to_owned(),
            x: axis("% of the experts cached", [0.0, 95.0], &[10.0, 30.0, 50.0, 75.0, 90.0]),
            y: axis("% read from disk", [0.0, 100.0], &[0.0, 25.0, 50.0, 75.0, 100.0]),
            series: lines.into(),
            legend: Some(SeriesLabelPosition::UpperRight),
        });
    }
    Ok(Figure { title: "Experts of a token that are read from disk".to_owned(), panels })
}

/// Parts of a token's time by share of experts cached.
pub(super) fn token(dir: &Path) -> Result<Figure> {
    let rows: Vec<Streamed> = read(dir, "stream.json")?;
    let (mut shares, mut waiting, mut rest) = (Vec::new(), Vec::new(), Vec::new());
    for row in rows.iter().filter(|row| row.policy != "lru") {
        let share = row.share.map_or("resident".to_owned(), |share| format!("{share} %"));
        if shares.last() != Some(&share) {
            shares.push(share);
        }
        let side = if row.what == "bf16" { -0.2 } else { 0.2 };
        let (ms, x) = (1e3 * row.seconds_per_token(), (shares.len() - 1) as f64 + side);
        let other = ms * (1.0 - row.waiting());
        rest.push(Point::new(x, other));
        waiting.push(Point { low: other, ..Point::new(x, ms) });
    }
    let bar = Mark::Bars(0.36);
    Ok(alone(
        "Time of a token, default policy, no draft",
        Panel {
            title: String::new(),
            x: names("share of the experts cached; bf16 on the left, bf12 on the right", &shares),
            y: axis("ms per token", [0.0, 120.0], &[0.0, 20.0, 40.0, 60.0, 80.0, 100.0, 120.0]),
            series: vec![
                series("waiting for the disk", ORANGE, bar, waiting),
                series("computing and the rest", BLUE, bar, rest),
            ],
            legend: Some(SeriesLabelPosition::UpperLeft),
        },
    ))
}

/// Gain of the default draft by budget, with its intervals.
pub(super) fn prefetch(dir: &Path) -> Result<Figure> {
    let gate: Gate = read(dir, "gate-2-wall.json")?;
    let gain = |ratio: f64| 100.0 * (1.0 / ratio - 1.0);
    let labels: Vec<String> = gate.ratios.iter().map(|ratio| ratio.case.clone()).collect();
    let points = gate.ratios.iter().enumerate().map(|(i, ratio)| {
        let (low, high) = (gain(ratio.interval.1), gain(ratio.interval.0));
        Point { x: i as f64, y: gain(ratio.median), low, high }
    });
    let x = names("share of the experts cached", &labels);
    let zero = [x.range.start, x.range.end].map(|x| Point::new(x, 0.0));
    Ok(alone(
        "Speed gained by prefetching, 95 % interval",
        Panel {
            title: String::new(),
            x,
            y: axis("% faster than without", [-5.0, 7.0], &[-4.0, -2.0, 0.0, 2.0, 4.0, 6.0]),
            series: vec![
                series("", GREY, Mark::Rule, zero.into()),
                series("", BLUE, Mark::Intervals, points.collect()),
            ],
            legend: None,
        },
    ))
}

/// Speed of the kernels relative to a plain sum of the same bytes.
pub(super) fn kernels(dir: &Path) -> Result<Figure> {
    let records: Vec<Kernel> = read(dir, "kernels.json")?;
    let records: Vec<&Kernel> = records.iter().filter(|record| record.tokens == 1).collect();
    let mut encodings: Vec<String> = Vec::new();
    for record in &records {
        if !encodings.contains(&record.encoding) {
            encodings.push(record.encoding.clone());
        }
    }
    let bars = |tier: &str, shift: f64| {
        let of = |record: &&&Kernel| record.contender == tier;
        let point = |record: &&Kernel| {
            let x = encodings.iter().position(|encoding| *encoding == record.encoding)? as f64;
            Some(Point::new(x + shift, record.over_sum?))
        };
        records.iter().filter(of).filter_map(point).collect::<Vec<Point>>()
    };
    let x = names("encoding of the weights", &encodings);
    let memory = [x.range.start, x.range.end].map(|x| Point::new(x, 1.0));
    Ok(alone(
        "One token, two threads: bytes per second relative to memory",
        Panel {
            title: String::new(),
            x,
            y: axis("speed / speed of a plain sum", [0.0, 1.4], &[0.0, 0.25, 0.5, 0.75, 1.0, 1.25]),
            series: vec![
                series("AVX-512", BLUE, Mark::Bars(0.36), bars("avx512", -0.19)),
                series("AVX2", LIGHT_BLUE, Mark::Bars(0.36), bars("avx2", 0.19)),
                series("memory", GREY, Mark::Rule, memory.into()),
            ],
            legend: Some(SeriesLabelPosition::UpperRight),
        },
    ))
}

/// Hit rates that `sws plan` assumes, and those of runs and replays.
pub(super) fn plan(dir: &Path) -> Result<Figure> {
    let percent = |rate: f64| 100.0 * rate;
    let assumed: Replay = read(dir, "replay-deepseek-v2-lite.json")?;
    let of = |replay: &Replay, budget: f64| {
        let run = |policy: &str| {
            replay.runs.iter().find(|run| run.policy == policy && run.budget == budget)
        };
        run("expected").map(|run| percent(run.hit_rate))
    };
    let mut dots = Vec::new();
    for (file, name, colour) in TRACES {
        if name == "DeepSeek-V2-Lite" {
            continue;
        }
        let replay: Replay = read(dir, file)?;
        let budgets = assumed.runs.iter().filter(|run| run.policy == "expected");
        let points = budgets
            .filter_map(|run| Some(Point::new(percent(run.hit_rate), of(&replay, run.budget)?)));
        dots.push(series(&format!("{name}, replayed"), colour, Mark::Dots, points.collect()));
    }
    let compared: Vec<Compared> = read(dir, "plan-tales-moe.json")?;
    let points = compared.iter().flat_map(|row| {
        let planned = percent(row.planned.hit_rate);
        row.measured.iter().map(move |run| Point::new(planned, percent(run.hit_rate)))
    });
    dots.push(series("tales-moe, run", LIGHT_BLUE, Mark::Dots, points.collect()));
    let even = [0.0, 100.0].map(|x| Point::new(x, x));
    dots.insert(0, series("as planned", GREY, Mark::Rule, even.into()));
    let ticks = [0.0, 20.0, 40.0, 60.0, 80.0, 100.0];
    Ok(alone(
        "Hit rates: planned and found",
        Panel {
            title: String::new(),
            x: axis("planned, %", [0.0, 102.0], &ticks),
            y: axis("found, %", [0.0, 102.0], &ticks),
            series: dots,
            legend: Some(SeriesLabelPosition::LowerRight),
        },
    ))
}
