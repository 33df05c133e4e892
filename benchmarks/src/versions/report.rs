//! Results of comparing two versions, as a table and as JSON.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::cases::{Case, Prepared};
use crate::paired::{Ratios, median};

pub(super) const OLD_AND_NEW: [&str; 2] = ["old", "new"];

#[derive(Serialize)]
pub(super) struct Report {
    old: PathBuf,
    new: PathBuf,
    bar: f64,
    pub(super) cases: Vec<Measured>,
}

/// Measurements of a case.
#[derive(Serialize)]
pub(super) struct Measured {
    case: &'static str,
    command: String,
    unit: &'static str,
    /// The pair that is not counted.
    warm_up: Option<Pair>,
    /// Pairs in the order of measurement.
    pairs: Vec<Pair>,
    /// Speed of the new version relative to the old: the median of the pairs.
    speed_up: Option<f64>,
    /// Interval of the true median at a confidence of 95 %.
    interval: Option<(f64, f64)>,
    met: bool,
}

/// Speeds of two runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Pair {
    pub(super) first: &'static str,
    pub(super) old: f64,
    pub(super) new: f64,
}

impl Report {
    pub(super) fn new([old, new]: [&Path; 2], bar: f64) -> Report {
        Report { old: old.to_owned(), new: new.to_owned(), bar, cases: Vec::new() }
    }

    /// True if every case has met the bar.
    pub(super) fn met(&self) -> bool {
        self.cases.iter().all(|case| case.met)
    }

    /// The results as a table.
    pub(super) fn table(&self) -> String {
        let mut text = format!(
            "| case | unit | old | new | speed-up new/old | 95 % interval | pairs | lower end at least {} |\n|---|---|---|---|---|---|---|---|\n",
            self.bar
        );
        for case in &self.cases {
            let [old, new] = case.medians();
            let render = |value: f64| format!("{value:.*}", if value < 10.0 { 3 } else { 1 });
            let met = if case.met { "met" } else { "*missed*" };
            let ratio = case.speed_up.unwrap_or(f64::NAN);
            let between = case.between();
            let row = [case.case, case.unit, &render(old), &render(new), &format!("{ratio:.4}")];
            let row = row.join(" | ");
            let pairs = case.pairs.len();
            writeln!(text, "| {row} | {between} | {pairs} | {met} |").expect("text");
        }
        text + "\nold and new: medians; one warm-up pair per case is not counted\n"
    }
}

impl Measured {
    pub(super) fn new(case: &Case, prepared: &Prepared) -> Measured {
        let words = prepared.arguments.iter().map(|word| word.to_string_lossy());
        Measured::of(case.name, words.collect::<Vec<_>>().join(" "), prepared.unit())
    }

    fn of(case: &'static str, command: String, unit: &'static str) -> Measured {
        Measured {
            case,
            command,
            unit,
            warm_up: None,
            pairs: Vec::new(),
            speed_up: None,
            interval: None,
            met: false,
        }
    }

    /// Adds a pair; pair 0 is the warm-up.
    pub(super) fn push(&mut self, number: u32, pair: Pair, bar: f64) {
        if number == 0 {
            self.warm_up = Some(pair);
            return;
        }
        self.pairs.push(pair);
        let new: Vec<f64> = self.pairs.iter().map(|pair| pair.new).collect();
        let old: Vec<f64> = self.pairs.iter().map(|pair| pair.old).collect();
        let ratios = Ratios::new(&new, &old);
        self.speed_up = Some(ratios.median());
        self.interval = ratios.interval();
        self.met = self.interval.is_some_and(|(low, _)| low >= bar);
    }

    fn medians(&self) -> [f64; 2] {
        let old = median(self.pairs.iter().map(|pair| pair.old));
        let new = median(self.pairs.iter().map(|pair| pair.new));
        [old, new]
    }

    fn between(&self) -> String {
        self.interval.map_or("-".to_owned(), |(low, high)| format!("{low:.4} to {high:.4}"))
    }

    /// The progress line of this case.
    pub(super) fn progress(&self, pairs: u32) -> String {
        let case = self.case;
        let unit = self.unit;
        let done = self.pairs.len();
        match (self.speed_up, self.warm_up) {
            (Some(ratio), _) => {
                format!("{case}: {done} of {pairs} pairs, {ratio:.4} ({})", self.between())
            }
            (None, Some(pair)) => {
                format!("{case}: warmed up, old {:.1} {unit}, new {:.1} {unit}", pair.old, pair.new)
            }
            (None, None) => format!("{case}: nothing yet"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(speeds: impl IntoIterator<Item = f64>, bar: f64) -> Measured {
        let mut measured = Measured::of("case", "run".to_owned(), "tok/s");
        // Not counted, as it is the warm-up.
        measured.push(0, Pair { first: "old", old: 1.0, new: 1e9 }, bar);
        for (number, new) in (1..).zip(speeds) {
            measured.push(number, Pair { first: "new", old: 100.0, new }, bar);
        }
        measured
    }

    #[test]
    fn the_lower_end_of_the_interval_decides() {
        // For nine pairs the interval is between the second smallest and the second largest ratio.
        let nine = || (95..=103).map(f64::from);
        for (bar, met) in [(0.95, true), (0.96, true), (0.961, false), (0.985, false)] {
            let case = measured(nine(), bar);
            assert_eq!(case.met, met, "{bar}");
            assert_eq!((case.speed_up, case.interval), (Some(0.99), Some((0.96, 1.02))));
            let mut report = Report::new([Path::new("a"), Path::new("b")], bar);
            report.cases = vec![measured([200.0; 9], bar), case];
            assert_eq!(report.met(), met, "one missed bar is enough");
            assert_eq!(report.table().contains("missed"), !met);
        }
    }

    #[test]
    fn too_few_pairs_meet_no_bar() {
        let case = measured([200.0; 5], 0.985);
        assert_eq!((case.met, case.interval), (false, None));
    }

    #[test]
    fn every_run_is_in_the_json() {
        let mut report = Report::new([Path::new("a"), Path::new("b")], 0.985);
        report.cases.push(measured([101.0, 99.0], 0.985));
        let json = serde_json::to_value(&report).unwrap();
        let case = &json["cases"][0];
        assert_eq!(case["warm_up"]["new"], 1e9);
        assert_eq!(case["pairs"].as_array().map(Vec::len), Some(2));
        assert_eq!(case["pairs"][1]["new"], 99.0);
        assert_eq!(case["speed_up"], 1.0);
    }
}
