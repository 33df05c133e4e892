//! `sws draft score --pairs`.

use std::process::ExitCode;

use anyhow::bail;
use serde::Serialize;
use sws_draft::{Adapting, MicroDraftModel};
use sws_format::Progress;

use super::score::Judge;
use super::{DraftInput, RecordedSequence, tokens};
use crate::args;
use crate::commands::print_report;
use crate::progress::{ProgressMeter, ProgressUnit};
use crate::table::table;

#[derive(Serialize)]
struct PairsReport {
    pairs: usize,
    budget: f64,
    /// Recall on misses of the first k and of the first 2 k at all distances, averaged over pairs.
    adapting: [f64; 2],
    frozen: [f64; 2],
    /// Mean difference, followed by its standard error and the number of pairs in which adapting is
    /// better.
    difference: [f64; 2],
    standard_error: [f64; 2],
    better: [usize; 2],
    calibration_error_adapting: f64,
    calibration_error_frozen: f64,
}

/// Compares a draft that keeps learning with a frozen one on pairs of consecutive sequences. The
/// second of a pair follows a change of topic.
pub(super) fn pairs(
    args: &args::DraftScore,
    recorded: &mut DraftInput,
    draft: &MicroDraftModel,
    sequences: &[RecordedSequence],
) -> anyhow::Result<ExitCode> {
    let pairs = sequences.as_chunks::<2>().0;
    if pairs.is_empty() {
        bail!("a pair is two sequences and there is one; name more recordings");
    }
    let meter = ProgressMeter::quiet("scoring", ProgressUnit::Tokens);
    let total = 2 * tokens(sequences);
    let mut done = 0;
    let mut recalls: [Vec<[f64; 2]>; 2] = Default::default();
    let mut errors = [0.0; 2];
    for [first, second] in pairs {
        for (way, adapting) in [Adapting::All, Adapting::History].into_iter().enumerate() {
            let mut draft = draft.clone();
            draft.set_adapting(adapting);
            let mut judge = Judge::new(recorded, args.budget);
            judge.follow(&mut draft, recorded, first)?;
            judge.outcomes.clear();
            judge.follow(&mut draft, recorded, second)?;
            let score = judge.all().score();
            recalls[way].push([score.recall_on_misses[0], score.recall_on_misses[2]]);
            errors[way] += score.calibration_error.unwrap_or_default()[0];
            done += first.tokens.len() + second.tokens.len();
            meter.show(Progress { done: done as u64, total: total as u64 });
        }
    }
    meter.finish();
    let n = pairs.len() as f64;
    let mut report = PairsReport {
        pairs: pairs.len(),
        budget: args.budget,
        adapting: [0.0; 2],
        frozen: [0.0; 2],
        difference: [0.0; 2],
        standard_error: [0.0; 2],
        better: [0; 2],
        calibration_error_adapting: errors[0] / n,
        calibration_error_frozen: errors[1] / n,
    };
    for i in [0, 1] {
        report.adapting[i] = mean(&recalls[0], i);
        report.frozen[i] = mean(&recalls[1], i);
        let difference = report.adapting[i] - report.frozen[i];
        let mut squares = 0.0;
        for (adapting, frozen) in recalls[0].iter().zip(&recalls[1]) {
            let of_pair = adapting[i] - frozen[i];
            squares += (of_pair - difference).powi(2);
            report.better[i] += usize::from(of_pair > 0.0);
        }
        report.difference[i] = difference;
        report.standard_error[i] = (squares / (n - 1.0).max(1.0) / n).sqrt();
    }
    print_report(args.json, &report, PairsReport::text)
}

/// The mean of one of the recalls.
fn mean(recalls: &[[f64; 2]], i: usize) -> f64 {
    recalls.iter().map(|recall| recall[i]).sum::<f64>() / recalls.len() as f64
}

impl PairsReport {
    fn text(&self) -> String {
        let heading = ["recall on misses", "adapting", "frozen", "difference", "better in"];
        let mut rows = Vec::new();
        for (i, name) in ["first k", "first 2 k"].into_iter().enumerate() {
            rows.push(vec![
                name.to_owned(),
                format!("{:.4}", self.adapting[i]),
                format!("{:.4}", self.frozen[i]),
                format!("{:+.4} ± {:.4}", self.difference[i], self.standard_error[i]),
                format!("{} of {}", self.better[i], self.pairs),
            ]);
        }
        format!(
            "{}\ncalibration error {:.4} adapting, {:.4} frozen; cache of {} % of the experts\n",
            table(&heading, &rows),
            self.calibration_error_adapting,
            self.calibration_error_frozen,
            self.budget,
        )
    }
}
