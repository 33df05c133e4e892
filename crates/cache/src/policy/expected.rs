//! The default policy: evicts the piece with the latest expected use.

use sws_format::{Pass, PieceId, PieceKind};

use crate::correction::Corrections;
use crate::history::{History, HistoryShape};
use crate::recent::RecentTokens;
use crate::{SavedError, SavedTensors};

use super::sharing::Sharing;
use super::spans::{NEVER, SpanTimes, Spans, TIMES};
use super::trial::{LAYERS, Trial};
use super::{ChoiceRow, Policy, RouteLearner, RouterChoice, SharedMisses, UseForecast};

/// Evicts the piece whose next use is expected last.
///
/// Times are counted in steps and compared by their binary logarithm. A step goes through all
/// layers; a layer that a pass visits several times has as many shorter ones. The expected
/// logarithm closes more of the distance to the optimum than the expected time: one step more or
/// less matters when it is one of two, not when it is one of a hundred.
///
/// The time to the next use of an expert is a distribution over five spans: the next turn of its
/// layer, within 4 steps, within 16, within 64, and later. A [`History`] gives the probability of
/// each. A piece that every step uses is the certain case: its next use is its next turn. One rule
/// therefore keeps a fixed share of the cyclic pieces, without the cliff of LRU, and keeps the
/// likely experts.
#[derive(Debug)]
pub struct ExpectedUse {
    layers: ExpertLayers,
    history: History,
    recent: RecentTokens,
    experts: Vec<Experts>,
    /// For each distance in layers, the times to the spans.
    spans: Vec<SpanTimes>,
    /// For each layer with experts, the binary logarithm of its visits in a pass.
    sooner: Vec<f32>,
    at: PieceId,
    /// Cyclic pieces: the pieces that every pass uses.
    cyclic: Vec<(usize, PieceId)>,
    scores: Vec<f32>,
    /// Forecasts for shared passes, with several sequences only.
    sharing: Option<Sharing>,
    /// The trial of a correction, with a correction only.
    trial: Option<Trial>,
    /// True once a piece had to be evicted, because the cache is full.
    evicts: bool,
    /// For each expert, true if the layer that chose last uses it. Only with a correction.
    used: Vec<bool>,
}

/// The layers of a model.
#[derive(Clone, Debug)]
pub struct ExpertLayers {
    /// Number of layers.
    pub count: u32,
    /// Layers with experts, ascending.
    pub with_experts: Vec<u32>,
    /// Number of visits of each of these layers in a pass; empty if a pass visits each once.
    pub visits: Vec<u32>,
    /// Experts per layer: the maximum over all layers.
    pub experts: usize,
    /// Experts that a token uses per layer: the maximum over all layers.
    pub top_k: usize,
    /// Number of sequences that can exist at the same time.
    pub sequences: usize,
}

/// The experts of a layer.
#[derive(Clone, Debug)]
struct Experts {
    /// Slot of each expert, or `ABSENT`.
    slots: Vec<u32>,
    present: usize,
    spans: Spans,
    stale: bool,
    /// Forecast probability of each expert's use in the next turn of the layer; 0 without a
    /// forecast since its last turn.
    forecast: Vec<f32>,
    has_forecast: bool,
}

const ABSENT: u32 = u32::MAX;

impl ExpectedUse {
    /// A policy for a model with these layers, with an empty history.
    pub fn new(layers: ExpertLayers) -> ExpectedUse {
        ExpectedUse::corrected(layers, Corrections::None)
    }

    /// Like [`new`](Self::new), with a correction of the forecasts, which is active while it saves
    /// misses.
    pub fn corrected(layers: ExpertLayers, corrections: Corrections) -> ExpectedUse {
        let shape = HistoryShape {
            layers: layers.with_experts.len(),
            experts: layers.experts,
            top_k: layers.top_k,
        };
        let experts = Experts {
            slots: vec![ABSENT; layers.experts],
            present: 0,
            spans: Spans::new(layers.experts),
            stale: true,
            forecast: vec![0.0; layers.experts],
            has_forecast: false,
        };
        let count = layers.count.max(1);
        let spans = (1..=count)
            .map(|distance| {
                let [a, b, c, d] = TIMES.map(|t| (t + distance as f32 / count as f32).log2());
                [a, b, c, d, NEVER.log2()]
            })
            .collect();
        let visits = layers.visits.iter().copied().chain(std::iter::repeat(1)).take(shape.layers);
        let sooner = visits.map(|visits| (visits.max(1) as f32).log2()).collect();
        let mut history = History::with_tokens(shape, layers.sequences);
        history.correct(corrections);
        ExpectedUse {
            trial: history.is_corrected().then(|| Trial::new(shape)),
            used: if history.is_corrected() { vec![false; shape.experts] } else { Vec::new() },
            history,
            evicts: false,
            recent: RecentTokens::new(shape),
            experts: vec![experts; shape.layers],
            sharing: (layers.sequences > 1).then(|| Sharing::new(shape)),
            layers,
            spans,
            sooner,
            at: PieceId::EMBED,
            cyclic: Vec::new(),
            scores: Vec::new(),
        }
    }

    /// Memory for this many sequences of a model of this shape, in bytes.
    pub fn bytes_for(shape: HistoryShape, sequences: usize) -> usize {
        let expert = size_of::<u32>() + size_of::<f32>() + Spans::bytes_for(1);
        History::bytes_for(shape, sequences)
            + History::bytes_of_tokens(shape)
            + ExpectedUse::bytes_of_routes(shape)
            + if sequences > 1 { ExpectedUse::bytes_of_sharing(shape) } else { 0 }
            + shape.layers * (size_of::<Experts>() + shape.experts * expert)
    }

    /// Additional memory for corrections of the forecasts, with this many sequences.
    pub(super) fn bytes_of(
        corrections: &Corrections,
        shape: HistoryShape,
        sequences: usize,
    ) -> usize {
        match corrections.bytes(shape, sequences) {
            0 => 0,
            bytes => bytes + ExpectedUse::bytes_of_trial(shape),
        }
    }

    fn bytes_of_trial(shape: HistoryShape) -> usize {
        Trial::bytes_for(shape) + size_of::<bool>() * shape.experts
    }

    /// Additional memory for the routes of the last tokens: 240 KiB for 58 layers of 8 experts a token.
    pub fn bytes_of_routes(shape: HistoryShape) -> usize {
        RecentTokens::bytes_for(shape)
    }

    /// Additional memory to forecast the [misses](UseForecast::shared_misses) of several sequences:
    /// 190 KiB for 58 layers of 256 experts.
    pub fn bytes_of_sharing(shape: HistoryShape) -> usize {
        Sharing::bytes_for(shape)
    }

    /// Expected binary logarithm of the steps until a piece is used. `probability` is that of a use
    /// in its next turn; `None` takes the recorded forecast.
    fn score(&mut self, now: PieceId, piece: PieceId, probability: Option<f32>) -> f32 {
        self.at = now;
        let turn = self.turn(piece);
        let Some((layer, expert)) = self.expert(piece) else { return turn };
        self.refresh(layer);
        let probability = probability.unwrap_or(self.experts[layer].forecast[expert]);
        let soon = turn - self.sooner[layer];
        mix(self.experts[layer].spans.score(expert, self.times(layer)), soon, probability)
    }

    /// Tables of an expert's layer, and the expert's index in them; `None` for a cyclic piece.
    fn entry(&mut self, piece: PieceId) -> Option<(&mut Experts, usize)> {
        let (layer, expert) = self.expert(piece)?;
        Some((&mut self.experts[layer], expert))
    }

    /// Index of an expert's layer among those with experts, and the expert's number; `None` for a
    /// cyclic piece and for experts of unknown layers.
    fn expert(&self, piece: PieceId) -> Option<(usize, usize)> {
        let PieceKind::Expert(expert) = piece.kind() else { return None };
        let layer = self.layers.with_experts.binary_search(&piece.layer()?).ok()?;
        let expert = expert as usize;
        (expert < self.layers.experts).then_some((layer, expert))
    }

    fn refresh(&mut self, layer: usize) {
        let experts = &mut self.experts[layer];
        if !std::mem::take(&mut experts.stale) {
            return;
        }
        experts.spans.set(self.history.absence(layer));
    }

    fn mark_stale(&mut self) {
        for experts in &mut self.experts {
            experts.stale = true;
        }
    }

    /// Compares the forecasts for a layer with a correction and without it.
    fn try_correction(&mut self, layer: usize) {
        let Some(mut trial) = self.trial.take() else { return };
        let room = trial.layers().map(|layer| self.experts[layer].present).sum();
        let all = trial.layers().count() * self.layers.experts;
        if let Some(place) = trial.place(layer)
            && self.history.tells(layer)
            && self.evicts
            && self.used.iter().filter(|&&used| used).count() <= room
            && room < all
        {
            self.at = PieceId::expert(self.layers.with_experts[layer], 0);
            let mut times = [SpanTimes::default(); LAYERS];
            for (times, layer) in times.iter_mut().zip(trial.layers()) {
                *times = self.times(layer);
            }
            let times = &times[..trial.layers().count()];
            let slots = self.experts.iter().map(|experts| experts.present).sum();
            if trial.adapts(slots) {
                self.count_correction(!self.history.learns());
            }
            trial.turn(place, &self.used, self.history.both(layer), room, times);
        }
        self.trial = Some(trial);
        self.judge();
    }

    /// Activates the correction if it wins its trial, and deactivates it otherwise.
    fn judge(&mut self) {
        let Some(trial) = &self.trial else { return };
        self.count_correction(trial.judge(self.history.counts_correction()));
    }

    fn count_correction(&mut self, counts: bool) {
        if self.history.count_correction(counts) {
            self.mark_stale();
        }
    }

    /// Times to the spans of a layer's experts from the current position.
    fn times(&self, layer: usize) -> SpanTimes {
        let count = self.layers.count.max(1);
        let here = self.at.layer().unwrap_or(0);
        let there = self.layers.with_experts[layer];
        // The experts of this very layer are needed in the next step.
        let distance = (there + count - here % count) % count;
        let times = self.spans[(if distance == 0 { count } else { distance }) as usize - 1];
        times.map(|time| time - self.sooner[layer])
    }

    /// Binary logarithm of the steps until the next turn of a piece.
    fn turn(&self, piece: PieceId) -> f32 {
        if piece == PieceId::EXTRA {
            return NEVER.log2();
        }
        let layers = self.layers.count.max(1) as f32;
        // A pass begins with the embedding and ends with the final norm and the head.
        let cycle = layers + 2.0;
        let forward = (position(piece, layers) - position(self.at, layers)) / cycle;
        let distance = if forward > 0.0 { forward } else { forward + 1.0 };
        (TIMES[0] + distance).log2()
    }
}

impl Policy for ExpectedUse {
    fn name(&self) -> &'static str {
        "expected"
    }

    fn arrived(&mut self, slot: usize, piece: PieceId) {
        match self.entry(piece) {
            Some((experts, expert)) => {
                experts.slots[expert] = slot as u32;
                experts.present += 1;
            }
            None => self.cyclic.push((slot, piece)),
        }
    }

    fn used(&mut self, _: usize, _: PieceId) {}

    fn left(&mut self, slot: usize, piece: PieceId) {
        match self.entry(piece) {
            Some((experts, expert)) => {
                experts.slots[expert] = ABSENT;
                experts.present -= 1;
            }
            None => self.cyclic.retain(|&(other, _)| other != slot),
        }
    }

    fn victim(&mut self, now: PieceId, evictable: &dyn Fn(usize) -> bool) -> Option<usize> {
        self.at = now;
        self.evicts = true;
        let mut last = Latest(None);
        for &(slot, piece) in &self.cyclic {
            last.consider(self.turn(piece), slot, evictable);
        }
        for layer in 0..self.experts.len() {
            if self.experts[layer].present == 0 {
                continue;
            }
            self.refresh(layer);
            let times = self.times(layer);
            let turn = self.turn(PieceId::expert(self.layers.with_experts[layer], 0));
            let soon = turn - self.sooner[layer];
            let experts = &self.experts[layer];
            experts.spans.scores(times, &mut self.scores);
            if experts.has_forecast {
                for (score, &probability) in self.scores.iter_mut().zip(&experts.forecast) {
                    *score = mix(*score, soon, probability);
                }
            }
            for (&score, &slot) in self.scores.iter().zip(&experts.slots) {
                if slot != ABSENT {
                    last.consider(score, slot as usize, evictable);
                }
            }
        }
        last.candidate()
    }

    fn save(&self, to: &mut SavedTensors) {
        self.history.save(to);
        self.recent.save(to);
        if let Some(trial) = &self.trial
            && self.history.learns()
        {
            trial.save(to);
        }
    }

    fn recall(&mut self, saved: &SavedTensors) -> Result<(), SavedError> {
        let mut recent = self.recent.clone();
        recent.recall(saved)?;
        let known = Trial::known(saved)?;
        // The saved trial belongs to the saved correction.
        let goes_on = self.history.recall(saved)?;
        self.recent = recent;
        if goes_on
            && let Some(trial) = &mut self.trial
            && let Some(known) = known
        {
            trial.resume(known);
            self.judge();
        }
        self.mark_stale();
        Ok(())
    }

    fn bytes(&self) -> usize {
        let shape = self.history.shape();
        ExpectedUse::bytes_for(shape, self.layers.sequences)
            + self.history.bytes_of_correction()
            + if self.trial.is_some() { ExpectedUse::bytes_of_trial(shape) } else { 0 }
            + self.cyclic.capacity() * size_of::<(usize, PieceId)>()
    }
}

impl RouteLearner for ExpectedUse {
    fn begin(&mut self, pass: &Pass) {
        self.recent.begin(pass);
        if self.history.begin(pass) {
            self.mark_stale();
        }
    }

    fn routed(&mut self, choice: &RouterChoice<'_>) {
        if let Ok(layer) = self.layers.with_experts.binary_search(&choice.layer) {
            for ChoiceRow { sequence, token, experts } in choice.rows() {
                self.history.step(layer, sequence, experts, token);
            }
            self.recent.routed(layer, choice);
            self.used.fill(false);
            for &expert in choice.experts {
                if let Some(used) = self.used.get_mut(expert as usize) {
                    *used = true;
                }
            }
            let experts = &mut self.experts[layer];
            experts.stale = true;
            if std::mem::take(&mut experts.has_forecast) {
                experts.forecast.fill(0.0);
            }
        }
    }

    fn hidden(&self) -> usize {
        self.history.hidden()
    }

    fn on_router_state(&mut self, layer: u32, sequence: usize, state: &[f32]) {
        if let Ok(layer) = self.layers.with_experts.binary_search(&layer) {
            self.history.note_state(layer, sequence, state);
            self.experts[layer].stale = true;
        }
    }

    fn on_layer_demanded(&mut self, layer: u32) {
        if let Ok(layer) = self.layers.with_experts.binary_search(&layer) {
            self.try_correction(layer);
            self.history.learn(layer);
        }
    }
}

impl UseForecast for ExpectedUse {
    fn least_urgent(
        &mut self,
        now: PieceId,
        evictable: &dyn Fn(PieceId) -> bool,
    ) -> Option<PieceId> {
        self.at = now;
        let mut last = Latest(None);
        for layer in 0..self.experts.len() {
            self.refresh(layer);
            self.experts[layer].spans.scores(self.times(layer), &mut self.scores);
            for (&score, expert) in self.scores.iter().zip(0..) {
                let piece = PieceId::expert(self.layers.with_experts[layer], expert);
                last.consider(score, piece, evictable);
            }
        }
        last.candidate()
    }

    fn is_needed_later(
        &mut self,
        now: PieceId,
        old: PieceId,
        new: PieceId,
        probability: f32,
    ) -> bool {
        self.score(now, old, None) > self.score(now, new, Some(probability))
    }

    fn set_forecast(&mut self, _: usize, piece: PieceId, probability: f32) {
        if let Some((experts, expert)) = self.entry(piece) {
            experts.forecast[expert] = probability;
            experts.has_forecast = true;
        }
    }

    fn use_probability(&mut self, piece: PieceId, steps: usize) -> f32 {
        let Some((layer, expert)) = self.expert(piece) else { return 1.0 };
        let absence = self.history.absence(layer);
        let horizon = match steps {
            0..=1 => absence.within_1,
            2..=4 => absence.within_4,
            5..=16 => absence.within_16,
            _ => absence.within_64,
        };
        1.0 - horizon[expert]
    }

    fn shared_misses(
        &mut self,
        sequences: &[usize],
        slots: usize,
        turn: usize,
    ) -> Option<SharedMisses> {
        self.sharing.as_mut()?.misses(&mut self.history, sequences, slots, turn)
    }
}

/// The candidate for eviction with the latest expected use so far, after its score.
struct Latest<T>(Option<(f32, T)>);

impl<T: Copy> Latest<T> {
    #[inline]
    fn consider(&mut self, score: f32, candidate: T, evictable: &dyn Fn(T) -> bool) {
        if self.0.is_none_or(|(latest, _)| score > latest) && evictable(candidate) {
            self.0 = Some((score, candidate));
        }
    }

    fn candidate(self) -> Option<T> {
        Some(self.0?.1)
    }
}

/// Mean of `soon` with the given probability, and of `otherwise` with the remaining one.
fn mix(otherwise: f32, soon: f32, probability: f32) -> f32 {
    otherwise + probability * (soon - otherwise)
}

/// Position in a pass at which a piece is used, in layers.
fn position(piece: PieceId, layers: f32) -> f32 {
    let within = match piece.kind() {
        PieceKind::Embed => return 0.0,
        PieceKind::FinalNorm => return 1.0 + layers,
        PieceKind::LmHead | PieceKind::Extra => return 1.5 + layers,
        PieceKind::Norms | PieceKind::Table(_) => 0.0,
        PieceKind::Attention => 0.2,
        PieceKind::Router => 0.4,
        PieceKind::SharedExpert | PieceKind::Mlp => 0.6,
        PieceKind::Expert(_) => 0.8,
        PieceKind::LayerInput => 0.9,
    };
    1.0 + piece.layer().unwrap_or(0) as f32 + within
}
