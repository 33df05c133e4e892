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

use super::pairs::pairs;
use super::{DraftInput, RecordedSequence, limit_of, tokens};
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
    let total = tokens(&sequences);
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
    let limit = limit_of(args.size);
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

/// Follows recordings, and compares forecasts with the experts used.
pub(super) struct Judge {
    layers: usize,
    pub(super) baselines: bool,
    residency: Residency,
    pub(super) outcomes: BTreeMap<(ForecastSource, usize), ForecastOutcome>,
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
                    states.trace.experts(token, place).iter().copied().map(u32::from).collect();
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
    pub(super) fn all(&self) -> ForecastOutcome {
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
            let mut by_layer = BTreeMap::new();
            for &layer in &recorded.shape.layers {
                if let Some(outcome) = self.by_layer.get(&(forecast, distance, layer)) {
                    by_layer.insert(layer, outcome.score().recall[0]);
                }
            }
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
            cells.push(match calibration_error {
                Some([all, _]) => format!("{all:.4}"),
                None => String::new(),
            });
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
