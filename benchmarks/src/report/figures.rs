//! What each figure shows.

use std::path::Path;

use anyhow::{Result, ensure};
use plotters::prelude::{RGBColor, SeriesLabelPosition};

use super::draw::{Axis, Figure, Mark, Panel, Point, Series};
use super::results::{Gate, Kernel, Replay, Streamed, read};
use crate::plans::{self, Judged};

const BLUE: RGBColor = RGBColor(0, 95, 175);
const LIGHT_BLUE: RGBColor = RGBColor(110, 175, 230);
const ORANGE: RGBColor = RGBColor(215, 95, 0);
const LIGHT_ORANGE: RGBColor = RGBColor(245, 170, 95);
const GREEN: RGBColor = RGBColor(0, 135, 95);
const GREY: RGBColor = RGBColor(120, 120, 120);

/// Recorded routes: file and name.
const TRACES: [(&str, &str); 4] = [
    ("replay-gpt-oss-20b.json", "gpt-oss-20b"),
    ("replay-deepseek-v2-lite.json", "DeepSeek-V2-Lite"),
    ("replay-qwen3-30b-a3b.json", "Qwen3-30B-A3B"),
    ("replay-tales-moe.json", "tales-moe"),
];

fn axis(label: &str, range: [f64; 2], numbers: &[f64]) -> Axis {
    let mut ticks = Vec::new();
    for &number in numbers {
        ticks.push((number, number.to_string()));
    }
    Axis { label: label.to_owned(), range: range[0]..range[1], is_log: false, ticks }
}

/// An axis of names, one at each whole number.
fn names(label: &str, names: &[String]) -> Axis {
    let mut ticks = Vec::new();
    for (i, name) in names.iter().enumerate() {
        ticks.push((i as f64, name.clone()));
    }
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
    let panels = vec![
        speed_panel(
            "bf16",
            &rows,
            &[
                ("sws, bf12 shards", BLUE),
                ("sws, bf16 in place", LIGHT_BLUE),
                ("BigMoeOnEdge, bf16", GREEN),
                ("llama.cpp with mmap, bf16", ORANGE),
                ("llama.cpp without mmap, bf16", GREY),
            ],
        )?,
        speed_panel(
            "Q4_K_M of the same weights",
            &rows,
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

fn speed_panel(title: &str, rows: &[Streamed], contenders: &[(&str, RGBColor)]) -> Result<Panel> {
    let mut lines = Vec::new();
    for &(what, colour) in contenders {
        let mut points = Vec::new();
        for row in rows {
            if let Some(share) = row.share
                && row.what == what
                && row.has_run()
            {
                points.push(Point::new(share, 1.0 / row.seconds_per_token()));
            }
        }
        ensure!(!points.is_empty(), "a contender has no row");
        lines.push(series(what, colour, Mark::Line, points));
    }
    let ticks = [0.01, 0.1, 1.0, 10.0, 100.0];
    Ok(Panel {
        title: title.to_owned(),
        x: axis("memory, % of the bf16 weights", [15.0, 120.0], &[25.0, 50.0, 110.0]),
        // Room for the legend below the slowest.
        y: Axis { is_log: true, ..axis("tokens per second", [0.01, 500.0], &ticks) },
        series: lines,
        legend: Some(SeriesLabelPosition::LowerRight),
    })
}

/// Misses by policy, for each trace.
pub(super) fn reads(dir: &Path) -> Result<Figure> {
    let policies =
        [("lru", "LRU", ORANGE), ("expected", "default policy", BLUE), ("belady", "optimum", GREY)];
    let mut panels = Vec::new();
    for (file, name) in TRACES {
        let replay: Replay = read(dir, file)?;
        let mut lines = Vec::new();
        for (policy, label, colour) in policies {
            let mut points = Vec::new();
            for run in &replay.runs {
                if run.policy == policy {
                    points.push(Point::new(run.budget, 100.0 * (1.0 - run.hit_rate)));
                }
            }
            ensure!(!points.is_empty(), "`{file}` lacks a policy");
            lines.push(series(label, colour, Mark::Line, points));
        }
        panels.push(Panel {
            title: name.to_owned(),
            x: axis("% of the experts cached", [0.0, 95.0], &[10.0, 30.0, 50.0, 75.0, 90.0]),
            y: axis("% read from disk", [0.0, 100.0], &[0.0, 25.0, 50.0, 75.0, 100.0]),
            series: lines,
            legend: Some(SeriesLabelPosition::UpperRight),
        });
    }
    Ok(Figure { title: "Experts of a token that are read from disk".to_owned(), panels })
}

/// Parts of a token's time by share of experts cached.
pub(super) fn token(dir: &Path) -> Result<Figure> {
    let rows: Vec<Streamed> = read(dir, "stream.json")?;
    let mut shares = Vec::new();
    let mut parts = [const { Vec::new() }; 3];
    for row in &rows {
        let share = row.share.map_or("resident".to_owned(), |share| format!("{share} %"));
        if shares.last() != Some(&share) {
            shares.push(share);
        }
        let side = if row.what == "bf16" { -0.2 } else { 0.2 };
        let ms = 1e3 * row.seconds_per_token();
        let x = (shares.len() - 1) as f64 + side;
        let waiting = ms * row.waiting();
        let other = ms * row.other();
        let ends = [0.0, ms - waiting - other, ms - waiting, ms];
        for (part, ends) in parts.iter_mut().zip(ends.windows(2)) {
            part.push(Point { low: ends[0], ..Point::new(x, ends[1]) });
        }
    }
    let bar = Mark::Bars(0.36);
    let [computing, other, waiting] = parts;
    Ok(alone(
        "Time of a token, default policy, no draft",
        Panel {
            title: String::new(),
            x: names("share of the experts cached; bf16 on the left, bf12 on the right", &shares),
            y: axis("ms per token", [0.0, 60.0], &[0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0]),
            series: vec![
                series("waiting for the disk", ORANGE, bar, waiting),
                series("other", GREY, bar, other),
                series("computing", BLUE, bar, computing),
            ],
            legend: Some(SeriesLabelPosition::UpperLeft),
        },
    ))
}

/// Gain of the default draft by budget, with its intervals.
pub(super) fn prefetch(dir: &Path) -> Result<Figure> {
    let gate: Gate = read(dir, "gate-2-wall.json")?;
    let mut labels = Vec::new();
    let mut points = Vec::new();
    for ratio in &gate.ratios {
        let Some(case) = ratio.case.strip_prefix("wall, ") else { continue };
        // Ratios of the time spent waiting are reported under longer names.
        if let Some((share, " with our draft over without")) = case.split_once(',') {
            points.push(Point {
                x: labels.len() as f64,
                y: gain(ratio.median),
                low: gain(ratio.interval.1),
                high: gain(ratio.interval.0),
            });
            labels.push(share.to_owned());
        }
    }
    ensure!(!points.is_empty(), "the gate has no ratios of times");
    let x = names("share of the experts cached", &labels);
    let zero = [x.range.start, x.range.end].map(|x| Point::new(x, 0.0));
    Ok(alone(
        "Speed gained by prefetching, 95 % interval",
        Panel {
            title: String::new(),
            x,
            y: axis("% faster than without", [-30.0, 50.0], &[-20.0, 0.0, 20.0, 40.0]),
            series: vec![
                series("", GREY, Mark::Rule, zero.into()),
                series("", BLUE, Mark::Intervals, points),
            ],
            legend: None,
        },
    ))
}

/// Percent by which the first contender is faster, from the ratio of its time.
fn gain(ratio: f64) -> f64 {
    100.0 * (1.0 / ratio - 1.0)
}

/// The encodings, and the speed of a tier's kernels over the sum.
fn over_sum<'k>(records: &'k [Kernel], tier: &str) -> Vec<(&'k str, f64)> {
    let mut all = Vec::new();
    for record in records {
        if let Some(over_sum) = record.over_sum
            && record.contender == tier
        {
            all.push((record.encoding.as_str(), over_sum));
        }
    }
    all
}

/// A bar for each encoding that a tier has kernels of, at the place of the encoding and `shift`.
fn bars(records: &[Kernel], tier: &str, encodings: &[(&str, f64)], shift: f64) -> Vec<Point> {
    let mut bars = Vec::new();
    for (name, ratio) in over_sum(records, tier) {
        if let Some(row) = encodings.iter().position(|encoding| encoding.0 == name) {
            bars.push(Point::new(ratio, row as f64 + shift));
        }
    }
    bars
}

/// A line from one end of the vertical axis to the other.
fn upright(x: f64, y: &Axis) -> Vec<Point> {
    vec![Point::new(x, y.range.start), Point::new(x, y.range.end)]
}

/// Speed of the kernels relative to a plain sum of the same bytes, fastest first.
pub(super) fn kernels(dir: &Path) -> Result<Figure> {
    let records: Vec<Kernel> = read(dir, "kernels-one.json")?;
    let mut encodings = over_sum(&records, "avx512");
    encodings.sort_by(|a, b| a.1.total_cmp(&b.1));
    let labels: Vec<String> = encodings.iter().map(|encoding| encoding.0.to_owned()).collect();
    let y = names("encoding of the weights", &labels);
    let wide = bars(&records, "avx512", &encodings, 0.2);
    let narrow = bars(&records, "avx2", &encodings, -0.2);
    let ticks = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0];
    Ok(alone(
        "One token, two threads: bytes per second relative to memory",
        Panel {
            title: String::new(),
            x: axis("speed / speed of a plain sum of the same bytes", [0.0, 1.2], &ticks),
            series: vec![
                series("AVX-512", BLUE, Mark::Rows(0.38), wide),
                series("AVX2", LIGHT_BLUE, Mark::Rows(0.38), narrow),
                series("memory", GREY, Mark::Rule, upright(1.0, &y)),
                series("target of AVX-512", ORANGE, Mark::Rule, upright(0.6, &y)),
            ],
            y,
            legend: Some(SeriesLabelPosition::LowerRight),
        },
    ))
}

/// Tokens per second as planned and as measured, before and after an earlier run of the model.
pub(super) fn plan(dir: &Path) -> Result<Figure> {
    let points = plans::read(&dir.join("plans.json"))?;
    let judged = plans::judged(&points);
    let panels = vec![
        plan_panel("before any run of the model", &judged, |it| it.before)?,
        plan_panel("after a run", &judged, |it| it.after)?,
    ];
    Ok(Figure { title: "Speed, planned and measured".to_owned(), panels })
}

fn plan_panel(title: &str, judged: &[Judged<'_>], ratio: fn(&Judged<'_>) -> f64) -> Result<Panel> {
    let line = [4.0, 2500.0].map(|rate| Point::new(rate, rate));
    let mut all = vec![series("as planned", GREY, Mark::Rule, line.into())];
    let mut shown = 0;
    for (model, label, colour) in [
        ("tales-moe", "tales-moe", BLUE),
        ("tales-4MiB", "tales, 4 MiB", LIGHT_BLUE),
        ("qwen3-30b-a3b", "Qwen3-30B shape", GREEN),
        ("mixtral-8x7b", "Mixtral shape", ORANGE),
    ] {
        let mut dots = Vec::new();
        for it in judged {
            if it.point.model == model {
                let found = 1.0 / it.point.seconds;
                dots.push(Point::new(ratio(it) * found, found));
            }
        }
        shown += dots.len();
        all.push(series(label, colour, Mark::Dots, dots));
    }
    ensure!(shown == judged.len(), "a model of `plans.json` is not in the figure");
    Ok(Panel {
        title: title.to_owned(),
        x: rates("planned, tokens per second", 4.0),
        // Below the slowest there is room for the legend.
        y: rates("measured, tokens per second", 1.0),
        series: all,
        legend: Some(SeriesLabelPosition::LowerRight),
    })
}

/// A logarithmic axis of tokens per second, from `low` on.
fn rates(label: &str, low: f64) -> Axis {
    let ticks = [5.0, 20.0, 100.0, 500.0, 2000.0];
    Axis { is_log: true, ..axis(label, [low, 2500.0], &ticks) }
}
