//! Findings of a gate, as a table and as JSON.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value;
use sws_benchmarks::paired::Ratios;

use crate::task::Done;

/// Findings of a gate.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    gate: u32,
    about: &'static str,
    rows: Vec<Row>,
    ratios: Vec<Ratio>,
    criteria: Vec<Criterion>,
    notes: Vec<String>,
}

/// One run.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) case: String,
    /// Agreement with the resident model, or error against transformers.
    pub(crate) fidelity: String,
    pub(crate) budget_bytes: u64,
    pub(crate) peak_rss_bytes: u64,
    /// High-water mark of a control group that counts, page cache and kernel included.
    pub(crate) counted_bytes: Option<u64>,
    pub(crate) metrics: Value,
}

/// Ratios of one contender to another, mostly of wall time.
#[derive(Debug, Serialize)]
struct Ratio {
    case: String,
    ratios: Ratios,
    median: f64,
    interval: Option<(f64, f64)>,
    /// Upper limit; `None` for a ratio that is only reported.
    bar: Option<f64>,
}

/// A criterion, and its results.
#[derive(Debug, Serialize)]
struct Criterion {
    what: &'static str,
    passed: u64,
    failures: Vec<String>,
}

impl Report {
    pub(crate) fn new(gate: u32, about: &'static str) -> Report {
        Report {
            gate,
            about,
            rows: Vec::new(),
            ratios: Vec::new(),
            criteria: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// True if no case has run.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.ratios.is_empty()
    }

    pub(crate) fn row(&mut self, case: &str, fidelity: String, done: &Done, counted: Option<u64>) {
        self.rows.push(Row {
            case: case.to_owned(),
            fidelity,
            budget_bytes: done.budget,
            peak_rss_bytes: done.peak_rss,
            counted_bytes: counted,
            metrics: done.metrics.clone(),
        });
    }

    /// Records a case against a criterion; `figure` is reported on failure.
    pub(crate) fn check(&mut self, what: &'static str, holds: bool, figure: impl Fn() -> String) {
        let at = match self.criteria.iter().position(|criterion| criterion.what == what) {
            Some(at) => at,
            None => {
                self.criteria.push(Criterion { what, passed: 0, failures: Vec::new() });
                self.criteria.len() - 1
            }
        };
        match holds {
            true => self.criteria[at].passed += 1,
            false => self.criteria[at].failures.push(figure()),
        }
    }

    /// Records a ratio of wall times against its upper limit. It fails if the whole 95 % interval
    /// of the median is above the limit.
    pub(crate) fn ratio(&mut self, what: &'static str, case: &str, ratios: Ratios, bar: f64) {
        let case = case.to_owned();
        let median = ratios.median();
        let interval = ratios.interval();
        self.check(what, !ratios.above(bar), || {
            format!("{case}: {median:.3}, within {}, of {bar:.3}", within(interval))
        });
        self.ratios.push(Ratio { case, ratios, median, interval, bar: Some(bar) });
    }

    /// Records a ratio against a strict upper limit. It fails unless the whole interval is below
    /// the limit.
    pub(crate) fn below(&mut self, what: &'static str, case: &str, ratios: Ratios, bar: f64) {
        let case = case.to_owned();
        let median = ratios.median();
        let interval = ratios.interval();
        self.check(what, interval.is_some_and(|(_, high)| high < bar), || {
            format!("{case}: {median:.3}, within {}, not below {bar:.3}", within(interval))
        });
        self.ratios.push(Ratio { case, ratios, median, interval, bar: Some(bar) });
    }

    /// Reports a ratio without a limit.
    pub(crate) fn tell_ratio(&mut self, case: &str, ratios: Ratios) {
        let case = case.to_owned();
        let median = ratios.median();
        let interval = ratios.interval();
        self.ratios.push(Ratio { case, ratios, median, interval, bar: None });
    }

    /// Records an omission and its reason, or another remark.
    pub(crate) fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    pub(crate) fn failed(&self) -> bool {
        self.criteria.iter().any(|criterion| !criterion.failures.is_empty())
    }

    /// The report as text.
    pub(crate) fn table(&self) -> String {
        let mut text = format!("gate {}: {}\n\n", self.gate, self.about);
        if !self.rows.is_empty() {
            self.write_rows(&mut text);
        }
        if !self.ratios.is_empty() {
            self.write_ratios(&mut text);
        }
        for note in &self.notes {
            let _ = writeln!(text, "note: {note}");
        }
        for Criterion { what, passed, failures } in &self.criteria {
            let verdict = if failures.is_empty() { "ok" } else { "FAILED" };
            let _ = writeln!(
                text,
                "{verdict}: {what} ({passed} of {})",
                *passed + failures.len() as u64
            );
            for failure in failures {
                let _ = writeln!(text, "  {failure}");
            }
        }
        text
    }

    fn write_rows(&self, text: &mut String) {
        let head =
            ["case", "fidelity", "budget", "RSS", "counted", "tok/s", "MB/tok", "hit", "stall"];
        let mut lines = vec![head.map(str::to_owned)];
        lines.extend(self.rows.iter().map(Row::cells));
        write_lines(text, &lines);
        text.push_str("\nbudget, RSS and counted in MiB, stall as a share of the time\n\n");
    }

    fn write_ratios(&self, text: &mut String) {
        let head = ["ratio", "pairs", "median", "95 % within", "at most"];
        let mut lines = vec![head.map(str::to_owned)];
        lines.extend(self.ratios.iter().map(Ratio::cells));
        write_lines(text, &lines);
        text.push_str("\n(the interval of the median by order statistics)\n\n");
    }
}

fn within(interval: Option<(f64, f64)>) -> String {
    interval.map_or("-".to_owned(), |(low, high)| format!("{low:.3} to {high:.3}"))
}

/// Aligned columns, the first one to the left.
fn write_lines<const N: usize>(text: &mut String, lines: &[[String; N]]) {
    let mut widths = [0; N];
    for line in lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = cell.chars().count().max(*width);
        }
    }
    for line in lines {
        for (number, (cell, &width)) in line.iter().zip(&widths).enumerate() {
            let _ = match number {
                0 => write!(text, "{cell:<width$}"),
                _ => write!(text, "  {cell:>width$}"),
            };
        }
        text.push('\n');
    }
}

impl Ratio {
    fn cells(&self) -> [String; 5] {
        [
            self.case.clone(),
            self.ratios.pairs().to_string(),
            format!("{:.3}", self.median),
            within(self.interval),
            self.bar.map_or("-".to_owned(), |bar| format!("{bar:.3}")),
        ]
    }
}

impl Row {
    fn cells(&self) -> [String; 9] {
        let megabytes = match self.metrics.get("bytes_per_token").and_then(Value::as_object) {
            Some(kinds) => {
                let mut sum = 0.0;
                for bytes in kinds.values().filter_map(Value::as_f64) {
                    sum += bytes;
                }
                Some(sum / 1e6)
            }
            None => None,
        };
        let hits = self.number("/experts/hit_rate").map(|rate| 100.0 * rate);
        let stalls = match (self.number("/time/stall"), self.number("/seconds")) {
            (Some(stall), Some(seconds)) => Some(100.0 * stall / seconds),
            _ => None,
        };
        [
            self.case.clone(),
            self.fidelity.clone(),
            mib(self.budget_bytes),
            mib(self.peak_rss_bytes),
            self.counted_bytes.map_or("-".to_owned(), mib),
            show(self.number("/tokens_per_second"), 1, ""),
            show(megabytes, 2, ""),
            show(hits, 1, " %"),
            show(stalls, 1, " %"),
        ]
    }

    fn number(&self, path: &str) -> Option<f64> {
        self.metrics.pointer(path).and_then(Value::as_f64)
    }
}

fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / (1 << 20) as f64)
}

fn show(value: Option<f64>, digits: usize, unit: &str) -> String {
    match value {
        Some(value) => format!("{value:.digits$}{unit}"),
        None => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failing_case_fails_a_gate() {
        let mut report = Report::new(7, "what is asked");
        let metrics = serde_json::json!({
            "tokens_per_second": 12.34, "seconds": 2.0, "time": { "stall": 0.5 },
            "bytes_per_token": { "experts": 2e6, "head": 1e6 }, "experts": { "hit_rate": 0.5 },
        });
        let done = Done { budget: 3 << 20, peak_rss: 2 << 20, metrics, ..Done::default() };
        report.row("a", "64/64".to_owned(), &done, Some(1 << 20));
        report.row("b", "-".to_owned(), &Done::default(), None);
        report.check("holds", true, || unreachable!());
        assert!(!report.failed());
        report.check("holds", false, || "b is 3".to_owned());
        report.note("left out".to_owned());
        assert!(report.failed());
        let ratios = |by: f64| {
            let above: Vec<f64> = (0..9).map(|i| by + f64::from(i) / 100.0).collect();
            Ratios::new(&above, &[1.0; 9])
        };
        report.ratio("is fast", "a over b", ratios(1.0), 1.02);
        report.ratio("is fast", "b over a", ratios(1.2), 1.1);
        report.tell_ratio("c", ratios(2.0));
        report.below("becomes rarer", "d", ratios(0.5), 1.0);
        report.below("becomes rarer", "e", ratios(0.95), 1.0);
        let table = report.table();
        let row = "a        64/64     3.0  2.0      1.0   12.3    3.00  50.0 %  25.0 %";
        for words in [
            row,
            "FAILED: holds (1 of 2)\n  b is 3\n",
            "note: left out",
            "a over b      9   1.040  1.010 to 1.070    1.020",
            "c             9   2.040  2.010 to 2.070        -",
            "FAILED: becomes rarer (1 of 2)\n  e: 0.990, within 0.960 to 1.020, not below 1.000",
            "FAILED: is fast (1 of 2)\n  b over a: 1.240, within 1.210 to 1.270, of 1.100",
        ] {
            assert!(table.contains(words), "{table}");
        }
    }
}
