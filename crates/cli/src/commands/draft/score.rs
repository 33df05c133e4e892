//! `sws draft score`.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::bail;
use serde::Serialize;
use sws::draft::DraftCandidate;
use sws_cache::policy::PolicyKind;
use sws_cache::replay::Residency;
use sws_draft::{
    Adapting, DEPTH, Draft, DraftSize, ForecastOutcome, ForecastSource, Gates, MicroDraftModel,
    Score,
};
use sws_engine::RouterSet;
use sws_format::{Pass, Progress};

use super::{DraftInput, RecordedSequence};
use crate::args;
use crate::commands::{count, print_report};
use crate::progress::{ProgressMeter, ProgressUnit};
use crate::table::table;
use crate::terminal::note;

#[derive(Serialize)]
struct ScoreReport {
    tokens: usize,
    sequences: usize,
    /// Size of the cache, in percent of all experts. `misses_per_token` counts its misses.
    budget: f64,
    misses_per_token: f64,
    trained: bool,
    adapting: bool,
    /// Memory of the draft in bytes.
    bytes: usize,
    rows: Vec<ScoreRow>,
}

#[derive(Serialize)]
struct ScoreRow {
    forecast: ForecastSource,
    /// Layers between the state and the forecast layer.
    distance: usize,
    #[serde(flatten)]
    score: Score,
    /// Share of the free router's error at this distance that the draft removes.
    error_removed: Option<f64>,
    /// Recall of the first k, by layer.
    by_layer: BTreeMap<usize, f64>,
}

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

pub(super) fn run(args: &args::DraftScore) -> anyhow::Result<ExitCode> {
    let mut recorded = DraftInput::open(&args.recorded)?;
    let (draft, trained) = open(args, &recorded)?;
    let sequences = recorded.sequences();
    if args.pairs {
        return pairs(args, &mut recorded, &draft, &sequences);
    }
    let mut draft = draft;
    draft.set_adapting(if args.frozen { Adapting::History } else { Adapting::All });
    let mut judge = Judge::new(&recorded, args.budget);
    judge.baselines = true;
    let total = sequences.iter().map(|sequence| sequence.tokens.len()).sum::<usize>();
    let meter = ProgressMeter::quiet("scoring", ProgressUnit::Tokens);
    for sequence in &sequences {
        judge.follow(&mut draft, &mut recorded, sequence)?;
        judge.tokens += sequence.tokens.len();
        meter.show(Progress { done: judge.tokens as u64, total: total as u64 });
    }
    meter.finish();
    let report = judge.report(&recorded, sequences.len(), &draft, trained, args);
    print_report(args.json, &report, ScoreReport::text)
}

/// The draft, and true if it was trained.
fn open(args: &args::DraftScore, recorded: &DraftInput) -> anyhow::Result<(MicroDraftModel, bool)> {
    let DraftInput { model, shape, .. } = recorded;
    let limit = args.size.map_or(usize::MAX, |size| size as usize);
    let found = match args.untrained {
        true => None,
        false => DraftCandidate::trained(model, args.draft.as_deref())?,
    };
    if let Some(found) = found {
        if let Some(warning) = found.too_large(limit as u64) {
            note!("sws: {warning}");
        }
        if let Some(draft) = found.make(model, limit as u64)? {
            return Ok((draft, true));
        }
    }
    let vocab = model.spec().vocab.min(1 << 16);
    match DraftSize::within(limit.min(64 << 20), shape, 0, vocab) {
        Some(size) => Ok((MicroDraftModel::new(shape.clone(), size), false)),
        None => bail!("a draft of this model does not fit into --size; give it more"),
    }
}

/// Compares a draft that keeps learning with a frozen one on pairs of consecutive sequences. The
/// second of a pair follows a change of topic.
fn pairs(
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
    let total = 2 * sequences.iter().map(|sequence| sequence.tokens.len()).sum::<usize>();
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
            errors[way] += score.calibration_error.map_or(0.0, |error| error[0]);
            done += first.tokens.len() + second.tokens.len();
            meter.show(Progress { done: done as u64, total: total as u64 });
        }
    }
    meter.finish();
    let n = pairs.len() as f64;
    let mean = |way: usize, i: usize| recalls[way].iter().map(|r| r[i]).sum::<f64>() / n;
    let differences = |i: usize| -> Vec<f64> {
        recalls[0].iter().zip(&recalls[1]).map(|(a, b)| a[i] - b[i]).collect()
    };
    let difference = [0, 1].map(|i| mean(0, i) - mean(1, i));
    let standard_error = [0, 1].map(|i| {
        let squares = differences(i).iter().map(|d| (d - difference[i]).powi(2)).sum::<f64>();
        (squares / (n - 1.0).max(1.0) / n).sqrt()
    });
    let report = PairsReport {
        pairs: pairs.len(),
        budget: args.budget,
        adapting: [0, 1].map(|i| mean(0, i)),
        frozen: [0, 1].map(|i| mean(1, i)),
        difference,
        standard_error,
        better: [0, 1].map(|i| differences(i).iter().filter(|&&d| d > 0.0).count()),
        calibration_error_adapting: errors[0] / n,
        calibration_error_frozen: errors[1] / n,
    };
    print_report(args.json, &report, PairsReport::text)
}

/// Follows recordings, and compares forecasts with the experts used.
pub(super) struct Judge {
    layers: usize,
    pub(super) baselines: bool,
    residency: Residency,
    outcomes: BTreeMap<(ForecastSource, usize), ForecastOutcome>,
    by_layer: BTreeMap<(ForecastSource, usize, usize), ForecastOutcome>,
    /// Scores by forecaster, forecast layer (as an index among those with experts) and distance.
    forecasts: BTreeMap<(ForecastSource, usize, usize), Vec<f32>>,
    tokens: usize,
    misses: usize,
}

impl Judge {
    pub(super) fn new(recorded: &DraftInput, budget: f64) -> Judge {
        let trace = recorded.files[0].trace.shape();
        let slots = (budget / 100.0 * (trace.layers * trace.experts) as f64).round() as usize;
        Judge {
            layers: recorded.model.spec().layers.len(),
            baselines: false,
            residency: Residency::new(trace, PolicyKind::Expected, slots.max(1), 1),
            outcomes: BTreeMap::new(),
            by_layer: BTreeMap::new(),
            forecasts: BTreeMap::new(),
            tokens: 0,
            misses: 0,
        }
    }

    pub(super) fn follow(
        &mut self,
        draft: &mut MicroDraftModel,
        recorded: &mut DraftInput,
        sequence: &RecordedSequence,
    ) -> anyhow::Result<()> {
        let DraftInput { shape, routers, files, .. } = recorded;
        let states = &mut files[sequence.file];
        let hidden = shape.hidden;
        let places = shape.layers.len();
        let mut both = Vec::new();
        let mut before: Vec<Vec<u32>> = vec![Vec::new(); places];
        for token in sequence.tokens.clone() {
            states.token(token, &mut both)?;
            let id = states.trace.tokens()[token];
            let pass = Pass::single(token - sequence.tokens.start, &[id]);
            self.residency.begin(&pass);
            draft.begin(&pass);
            self.forecasts.values_mut().for_each(Vec::clear);
            for (place, &layer) in shape.layers.iter().enumerate() {
                let entering = &both[layer * hidden..][..hidden];
                let attended = &both[(self.layers + layer) * hidden..][..hidden];
                // Without shared experts they are the same.
                let routed = (2 * self.layers + layer) * hidden;
                let routed = both.get(routed..routed + hidden).unwrap_or(attended);
                let mut chosen: Vec<u32> = Vec::with_capacity(shape.top_k);
                let all: Vec<u32> =
                    states.trace.experts(token, place).iter().map(|&e| e.into()).collect();
                for &expert in &all {
                    if !chosen.contains(&expert) {
                        chosen.push(expert);
                    }
                }

                let said = draft.entering(layer, entering, routers).unwrap_or_default();
                for (n, said) in said.iter().enumerate().take(if place == 0 { places } else { 1 }) {
                    let who = if n == 0 { ForecastSource::Draft } else { ForecastSource::Token };
                    self.note(who, place + n, 0).extend_from_slice(&said.expert_probs);
                }
                if self.baselines {
                    let scores = self.note(ForecastSource::Router, place, 0);
                    ask(routers, (layer, shape.experts), entering, scores);
                    let scores = self.note(ForecastSource::Control, place, 0);
                    ask(routers, (layer, shape.experts), routed, scores);
                    draft.shares(place, self.note(ForecastSource::Hot, place, 0));
                    let scores = self.note(ForecastSource::Previous, place, 0);
                    draft.shares(place, scores);
                    for &expert in &before[place] {
                        scores[expert as usize] += 1.0;
                    }
                    if let Some(last) = place.checked_sub(1) {
                        let scores = self.note(ForecastSource::Together, place, 0);
                        draft.together(last, 1, &before[last], scores);
                    }
                }
                self.judge(place, layer, &chosen);

                draft.adapt(layer, &all, shape.top_k);
                before[place] = chosen;
                let said = draft.attended(layer, attended, routers).unwrap_or_default();
                for (n, said) in said.iter().enumerate().take(DEPTH) {
                    let scores = self.note(ForecastSource::Draft, place + 1 + n, n + 1);
                    scores.extend_from_slice(&said.expert_probs);
                }
                for distance in 1..=if self.baselines { DEPTH } else { 0 } {
                    let target = place + distance;
                    let Some(&layer) = shape.layers.get(target) else { break };
                    let scores = self.note(ForecastSource::Router, target, distance);
                    ask(routers, (layer, shape.experts), attended, scores);
                    let scores = self.note(ForecastSource::Together, target, distance);
                    draft.together(place, distance, &before[place], scores);
                }
            }
        }
        Ok(())
    }

    fn note(&mut self, who: ForecastSource, place: usize, distance: usize) -> &mut Vec<f32> {
        self.forecasts.entry((who, place, distance)).or_default()
    }

    fn judge(&mut self, place: usize, layer: usize, chosen: &[u32]) {
        let missed = self.residency.layer(place, chosen).to_vec();
        self.misses += missed.len();
        for (&(who, of, distance), scores) in &self.forecasts {
            if of != place || scores.is_empty() {
                continue;
            }
            let probabilities = matches!(who, ForecastSource::Draft | ForecastSource::Token);
            let outcome = self.outcomes.entry((who, distance)).or_default();
            outcome.add(scores, chosen, &missed, probabilities);
            if self.baselines {
                let outcome = self.by_layer.entry((who, distance, layer)).or_default();
                outcome.add(scores, chosen, &missed, probabilities);
            }
        }
    }

    /// Recall on misses of the first k of a layer's forecasts at a distance. `None` without misses.
    pub(super) fn recall_on_misses(
        &self,
        who: ForecastSource,
        distance: usize,
        layer: usize,
    ) -> Option<f64> {
        let score = self.by_layer.get(&(who, distance, layer))?.score();
        (score.misses > 0).then_some(score.recall_on_misses[0])
    }

    /// Outcome of the draft over all distances.
    fn all(&self) -> ForecastOutcome {
        let mut all = ForecastOutcome::default();
        for ((source, _), outcome) in &self.outcomes {
            if *source == ForecastSource::Draft {
                all.merge(outcome);
            }
        }
        all
    }

    fn report(
        &self,
        recorded: &DraftInput,
        sequences: usize,
        draft: &MicroDraftModel,
        trained: bool,
        args: &args::DraftScore,
    ) -> ScoreReport {
        let mut rows = Vec::new();
        for (&(forecast, distance), outcome) in &self.outcomes {
            let score = outcome.score();
            let error_removed = match self.outcomes.get(&(ForecastSource::Router, distance)) {
                Some(router) if forecast == ForecastSource::Draft => {
                    let error = 1.0 - router.score().recall[0];
                    Some(1.0 - (1.0 - score.recall[0]) / error.max(1e-9))
                }
                _ => None,
            };
            let layers = recorded.shape.layers.iter().filter_map(|&layer| {
                let outcome = self.by_layer.get(&(forecast, distance, layer))?;
                Some((layer, outcome.score().recall[0]))
            });
            let by_layer = layers.collect();
            rows.push(ScoreRow { forecast, distance, error_removed, by_layer, score });
        }
        ScoreReport {
            tokens: self.tokens,
            sequences,
            budget: args.budget,
            misses_per_token: self.misses as f64 / self.tokens.max(1) as f64,
            trained,
            adapting: !args.frozen,
            bytes: draft.bytes(),
            rows,
        }
    }
}

/// Writes the scores that a layer's router gives its experts in a state; none if a table gives the
/// experts.
fn ask(
    routers: &mut RouterSet,
    (layer, experts): (usize, usize),
    state: &[f32],
    scores: &mut Vec<f32>,
) {
    scores.resize(experts, 0.0);
    if !routers.logits(layer, state, scores) {
        scores.clear();
    }
}

impl ScoreReport {
    fn text(&self) -> String {
        let mut recalls = Vec::new();
        let mut precisions = Vec::new();
        for row in &self.rows {
            let Score { recall, recall_on_misses, precision, calibration_error, .. } = row.score;
            let mut cells = row.name().to_vec();
            cells.extend(recall.into_iter().map(three_digits));
            cells.extend(recall_on_misses.into_iter().map(three_digits));
            recalls.push(cells);
            let mut cells = row.name().to_vec();
            cells.extend(precision.into_iter().map(three_digits));
            cells.push(row.error_removed.map_or(String::new(), three_digits));
            cells.push(calibration_error.map_or(String::new(), |[all, _]| format!("{all:.4}")));
            precisions.push(cells);
        }
        let more = "1.5k";
        let twice = "2k";
        let forecast = "forecast";
        let distance = "distance";
        let heading = [forecast, distance, "recall k", more, twice, "on misses k", more, twice];
        let further =
            [forecast, distance, "precision k", more, twice, "error removed", "calibration"];
        format!(
            "{} draft{}; {} in {}\ncache of {} % of the experts, {:.1} misses a token\n\n{}\n{}",
            if self.trained { "trained" } else { "untrained" },
            if self.adapting { ", adapting" } else { ", frozen" },
            count(self.tokens as u64, "token"),
            count(self.sequences as u64, "sequence"),
            self.budget,
            self.misses_per_token,
            table(&heading, &recalls),
            table(&further, &precisions),
        )
    }
}

fn three_digits(share: f64) -> String {
    format!("{share:.3}")
}

impl ScoreRow {
    /// The forecast, and how many layers it looks ahead.
    fn name(&self) -> [String; 2] {
        let name = match self.forecast {
            ForecastSource::Draft => "draft",
            ForecastSource::Token => "token alone",
            ForecastSource::Router => "free router",
            ForecastSource::Together => "co-activation",
            ForecastSource::Previous => "previous token",
            ForecastSource::Hot => "hot list",
            ForecastSource::Control => "control",
        };
        let distance = match self.forecast {
            ForecastSource::Token | ForecastSource::Previous | ForecastSource::Hot => {
                "-".to_owned()
            }
            _ => self.distance.to_string(),
        };
        [name.to_owned(), distance]
    }
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
