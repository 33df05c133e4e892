//! The results of all shapes, as JSON, as a table, and against the targets.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::paired::median;
use crate::stream::Run;

/// Smallest share of the time with a read in flight, with a small cache.
const READING: f64 = 0.92;
/// Largest share of a token's time that is neither computing nor waiting.
const OTHER: f64 = 0.05;
const MIB: f64 = 1_048_576.0;

/// One model within one budget.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) shape: String,
    /// Bytes of all weights.
    pub(super) disk: u64,
    pub(super) what: String,
    /// Budget of the whole process, and limit of its control group.
    pub(super) budget: u64,
    /// Counts of speculation of the last run.
    pub(super) speculation: Value,
    /// Hits and misses of each layer of the last run.
    pub(super) layers: Value,
    pub(super) runs: Vec<Run>,
}

/// All rows.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Report {
    pub(super) rows: Vec<Row>,
}

/// One run, for those who wait.
pub(super) fn line(run: &Run) -> String {
    let time = run.seconds_per_token;
    let read = run.bytes_per_token.unwrap_or(f64::NAN);
    format!(
        "{:.2} tok/s, {:.2} GB/s, a read in flight {:.3}, waiting {:.3}, other {:.3}, hits {:.2}, {} MiB",
        1.0 / time,
        read / time / 1e9,
        run.reading.unwrap_or(f64::NAN),
        run.waiting.unwrap_or(f64::NAN),
        run.other.unwrap_or(f64::NAN),
        run.hit_rate.unwrap_or(f64::NAN),
        run.group_peak.unwrap_or(0) >> 20,
    )
}

impl Row {
    fn of(&self, value: impl Fn(&Run) -> Option<f64>) -> f64 {
        median(self.runs.iter().filter_map(value))
    }

    fn is_small(&self) -> bool {
        self.what.starts_with("small")
    }

    /// Experts read before they were chosen: those that were, and all.
    fn read_ahead(&self) -> String {
        match (self.speculation["useful"].as_u64(), self.speculation["issued"].as_u64()) {
            (_, None | Some(0)) => "-".to_owned(),
            (useful, Some(issued)) => format!("{} of {issued}", useful.unwrap_or(0)),
        }
    }

    /// The targets that it misses.
    fn missed(&self) -> Vec<String> {
        let mut missed = Vec::new();
        let reading = self.of(|run| run.reading);
        if self.is_small() && reading < READING {
            missed.push(format!("a read in flight {reading:.3} (at least {READING})"));
        }
        let other = self.of(|run| run.other);
        if other >= OTHER {
            missed.push(format!("other {other:.3} (below {OTHER})"));
        }
        let peak = self.runs.iter().filter_map(|run| run.group_peak).max();
        if peak.is_none_or(|peak| peak > self.budget) {
            missed.push(format!("peak {peak:?} of {} bytes", self.budget));
        }
        missed
    }
}

impl Report {
    /// Reads what [`write`](Self::write) has written.
    pub(super) fn read(path: &Path) -> Result<Report> {
        let told = || format!("`{}` is not a file of `sws-bench shapes --json`", path.display());
        serde_json::from_slice(&std::fs::read(path).with_context(told)?).with_context(told)
    }

    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let json = serde_json::to_string_pretty(self)? + "\n";
        std::fs::write(path, json).with_context(|| format!("writing `{}`", path.display()))
    }

    /// The table, and a line for each missed target.
    pub(super) fn text(&self) -> String {
        let mut text = "| shape | on disk | cache | `--ram` MiB | most MiB | tok/s | MB a token | GB/s | hits | a read in flight | computing | other | read ahead |\n|---|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n".to_owned();
        let mut before = "";
        for row in &self.rows {
            let (shape, disk) = match before == row.shape {
                true => ("", String::new()),
                false => (row.shape.as_str(), format!("{:.1} GB", row.disk as f64 / 1e9)),
            };
            before = &row.shape;
            let time = row.of(|run| Some(run.seconds_per_token));
            let read = row.of(|run| run.bytes_per_token);
            let computing = row.of(|run| Some(1.0 - run.waiting? - run.other?));
            let peak = row.runs.iter().filter_map(|run| run.group_peak).max().unwrap_or(0);
            writeln!(
                text,
                "| {shape} | {disk} | {} | {:.0} | {:.0} | {:.2} | {:.0} | {:.2} | {:.2} | {:.3} | {:.2} | {:.3} | {} |",
                row.what,
                row.budget as f64 / MIB,
                peak as f64 / MIB,
                1.0 / time,
                read / 1e6,
                row.of(|run| Some(run.bytes_per_token? / run.seconds_per_token / 1e9)),
                row.of(|run| run.hit_rate),
                row.of(|run| run.reading),
                computing,
                row.of(|run| run.other),
                row.read_ahead(),
            )
            .expect("writing to a string");
        }
        text.push('\n');
        let mut missed = 0;
        for row in &self.rows {
            for target in row.missed() {
                missed += 1;
                writeln!(text, "missed: {}, {}: {target}", row.shape, row.what)
                    .expect("writing to a string");
            }
        }
        if missed == 0 {
            text.push_str("All targets are met.\n");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(what: &str, reading: f64, other: f64, peak: u64) -> Row {
        let run = serde_json::json!({
            "seconds_per_token": 0.5, "bytes_per_token": 1e9, "hit_rate": 0.25, "waiting": 0.75,
            "other": other, "reading": reading, "prompt_bytes": 1, "group_peak": peak, "fio": null,
        });
        let runs = vec![serde_json::from_value(run).unwrap()];
        let speculation = Value::Null;
        let layers = Value::Null;
        let shape = "a".to_owned();
        let what = what.to_owned();
        Row { shape, disk: 12_000_000_000, what, budget: 1 << 20, speculation, layers, runs }
    }

    #[test]
    fn targets_are_of_the_cache() {
        let cases = [
            ("small, on demand", 0.92, 0.049, 1 << 20, &[][..]),
            ("small, as shipped", 0.919, 0.01, 1, &["in flight 0.919"]),
            ("large, as shipped", 0.1, 0.05, 1, &["other 0.050"]),
            ("large, as shipped", 0.1, 0.01, (1 << 20) + 1, &["peak Some(1048577) of 1048576"]),
        ];
        for (what, reading, other, peak, expected) in cases {
            let missed = row(what, reading, other, peak).missed();
            assert_eq!(missed.len(), expected.len(), "{missed:?}");
            assert!(missed.iter().zip(expected).all(|(found, part)| found.contains(part)));
        }
    }

    #[test]
    fn tables_name_a_shape_once() {
        let rows = ["small, on demand", "large, as shipped"].map(|what| row(what, 0.95, 0.01, 1));
        let text = Report { rows: rows.into() }.text();
        let lines: Vec<_> = text.lines().collect();
        assert!(
            lines[2].starts_with("| a | 12.0 GB | small, on demand | 1 | 0 | 2.00 | 1000 | 2.00 |"),
            "{text}"
        );
        assert!(lines[3].starts_with("|  |  | large"), "{text}");
        assert!(text.ends_with("All targets are met.\n"), "{text}");
    }
}
