//! The default: evicts the piece with the latest expected use.

use crate::history::{History, Shape};
use crate::recent::Recent;
use crate::{Saved, SavedError};
use sws_store::{Pass, PieceId, PieceKind};

use super::sharing::Sharing;
use super::{Choice, Policy, Row, SharedMisses};

/// Evicts the piece whose next use is expected last.
///
/// Times are counted in steps and compared by their binary logarithm. A step goes through all
/// layers. The expected logarithm closes more of the distance to the optimum than the expected
/// time: one step more or less matters when it is one of two, not when it is one of a hundred.
///
/// The time to the next use of an expert is a distribution over five spans: the next turn of its
/// layer, within 4 steps, within 16, within 64, and later. A [`History`] gives the probability of
/// each. A piece that every step uses is the certain case: its next use is its next turn. One rule
/// therefore keeps a fixed share of the cyclic pieces, without the cliff of LRU, and keeps the
/// likely experts.
#[derive(Debug)]
pub struct ExpectedUse {
    layers: Layers,
    history: History,
    recent: Recent,
    experts: Vec<Experts>,
    /// For each distance in layers, the binary logarithm of the time to each span.
    spans: Vec<[f32; 4]>,
    at: PieceId,
    /// Cyclic pieces: the pieces that every pass uses.
    cyclic: Vec<(usize, PieceId)>,
    scores: Vec<f32>,
    /// Of several sequences only.
    sharing: Option<Sharing>,
}

/// The layers of a model.
#[derive(Clone, Debug)]
pub struct Layers {
    /// Number of layers.
    pub count: u32,
    /// Layers with experts, ascending.
    pub with_experts: Vec<u32>,
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
    /// By span and expert: probability that the next use is in the span. That of the last span is
    /// multiplied by the logarithm of its time.
    spans: [Vec<f32>; 5],
    stale: bool,
    /// Forecast probability of each expert's use in the next turn of the layer; 0 without a
    /// forecast since its last turn.
    forecast: Vec<f32>,
    has_forecast: bool,
}

const ABSENT: u32 = u32::MAX;

/// Representative time of each span but the last, in steps, to which the distance of the layer is
/// added; and that of the last span: everything from 64 steps on.
const TIMES: [f32; 4] = [0.5, 1.8, 8.0, 31.0];
const NEVER: f32 = 150.0;

impl ExpectedUse {
    /// A policy for a model with these layers, with an empty history.
    pub fn new(layers: Layers) -> ExpectedUse {
        let shape = Shape {
            layers: layers.with_experts.len(),
            experts: layers.experts,
            top_k: layers.top_k,
        };
        let experts = Experts {
            slots: vec![ABSENT; layers.experts],
            present: 0,
            spans: std::array::from_fn(|_| vec![0.0; layers.experts]),
            stale: true,
            forecast: vec![0.0; layers.experts],
            has_forecast: false,
        };
        let count = layers.count.max(1);
        let spans = (1..=count)
            .map(|distance| TIMES.map(|t| (t + distance as f32 / count as f32).log2()))
            .collect();
        ExpectedUse {
            history: History::with_tokens(shape, layers.sequences),
            recent: Recent::new(shape),
            experts: vec![experts; shape.layers],
            sharing: (layers.sequences > 1).then(|| Sharing::new(shape)),
            layers,
            spans,
            at: PieceId::EMBED,
            cyclic: Vec::new(),
            scores: Vec::new(),
        }
    }

    /// Memory held for so many sequences of a model of this shape, in bytes.
    pub fn bytes_for(shape: Shape, sequences: usize) -> usize {
        let expert = size_of::<u32>() + (TIMES.len() + 2) * size_of::<f32>();
        History::bytes_for(shape, sequences)
            + History::bytes_of_tokens(shape)
            + ExpectedUse::bytes_of_routes(shape)
            + if sequences > 1 { ExpectedUse::bytes_of_sharing(shape) } else { 0 }
            + shape.layers * (size_of::<Experts>() + shape.experts * expert)
    }

    /// Additional memory for the routes of the last tokens: 240 KiB for 58 layers of 8 experts a token.
    pub fn bytes_of_routes(shape: Shape) -> usize {
        Recent::bytes_for(shape)
    }

    /// Additional memory of several sequences for the forecast of what they
    /// [share](Policy::shared_misses): 190 KiB for 58 layers of 256 experts.
    pub fn bytes_of_sharing(shape: Shape) -> usize {
        Sharing::bytes_for(shape)
    }

    /// The history of the experts.
    pub fn history(&mut self) -> &mut History {
        &mut self.history
    }

    /// Expected binary logarithm of the steps until a piece is used. `probability` is that of its
    /// use in its next turn; `None` takes the recorded forecast.
    fn score(&mut self, now: PieceId, piece: PieceId, probability: Option<f32>) -> f32 {
        self.at = now;
        let turn = self.turn(piece);
        let Some((layer, expert)) = self.expert(piece) else { return turn };
        self.refresh(layer);
        let probability = probability.unwrap_or(self.experts[layer].forecast[expert]);
        mix(self.experts[layer].score(expert, self.times(layer)), turn, probability)
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
        let absence = self.history.absence(layer);
        let [first, second, third, fourth, last] = &mut experts.spans;
        for e in 0..first.len() {
            first[e] = 1.0 - absence.within_1[e];
            second[e] = absence.within_1[e] - absence.within_4[e];
            third[e] = absence.within_4[e] - absence.within_16[e];
            fourth[e] = absence.within_16[e] - absence.within_64[e];
            last[e] = absence.within_64[e] * NEVER.log2();
        }
    }

    /// Times to the spans of a layer's experts from the current position, as logarithms.
    fn times(&self, layer: usize) -> [f32; 4] {
        let count = self.layers.count.max(1);
        let here = self.at.layer().unwrap_or(0);
        let there = self.layers.with_experts[layer];
        // The experts of this very layer are needed in the next step.
        let distance = (there + count - here % count) % count;
        self.spans[(if distance == 0 { count } else { distance }) as usize - 1]
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

    fn begin(&mut self, pass: &Pass) {
        self.recent.begin(pass);
        if self.history.begin(pass) {
            self.experts.iter_mut().for_each(|experts| experts.stale = true);
        }
    }

    fn routed(&mut self, choice: &Choice<'_>) {
        if let Ok(layer) = self.layers.with_experts.binary_search(&choice.layer) {
            for Row { sequence, token, experts } in choice.rows() {
                self.history.step(layer, sequence, experts, token);
            }
            self.recent.routed(layer, choice);
            let experts = &mut self.experts[layer];
            experts.stale = true;
            if std::mem::take(&mut experts.has_forecast) {
                experts.forecast.fill(0.0);
            }
        }
    }

    fn saw(&mut self, layer: u32, sequence: usize, projected: &[f32]) {
        if let Ok(layer) = self.layers.with_experts.binary_search(&layer) {
            self.history.saw(layer, sequence, projected);
            self.experts[layer].stale = true;
        }
    }

    fn victim(&mut self, now: PieceId, evictable: &dyn Fn(usize) -> bool) -> Option<usize> {
        self.at = now;
        let mut last: Option<(f32, usize)> = None;
        let mut consider = |score: f32, slot: usize| {
            if last.is_none_or(|(latest, _)| score > latest) && evictable(slot) {
                last = Some((score, slot));
            }
        };
        for &(slot, piece) in &self.cyclic {
            consider(self.turn(piece), slot);
        }
        for layer in 0..self.experts.len() {
            if self.experts[layer].present == 0 {
                continue;
            }
            self.refresh(layer);
            let times = self.times(layer);
            let soon = self.turn(PieceId::expert(self.layers.with_experts[layer], 0));
            let experts = &self.experts[layer];
            experts.scores(times, &mut self.scores);
            if experts.has_forecast {
                for (score, &probability) in self.scores.iter_mut().zip(&experts.forecast) {
                    *score = mix(*score, soon, probability);
                }
            }
            for (&score, &slot) in self.scores.iter().zip(&experts.slots) {
                if slot != ABSENT {
                    consider(score, slot as usize);
                }
            }
        }
        last.map(|(_, slot)| slot)
    }

    fn least_urgent(
        &mut self,
        now: PieceId,
        evictable: &dyn Fn(PieceId) -> bool,
    ) -> Option<PieceId> {
        self.at = now;
        let mut last: Option<(f32, PieceId)> = None;
        for layer in 0..self.experts.len() {
            self.refresh(layer);
            self.experts[layer].scores(self.times(layer), &mut self.scores);
            for (&score, expert) in self.scores.iter().zip(0..) {
                let piece = PieceId::expert(self.layers.with_experts[layer], expert);
                if last.is_none_or(|(latest, _)| score > latest) && evictable(piece) {
                    last = Some((score, piece));
                }
            }
        }
        last.map(|(_, piece)| piece)
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

    fn save(&self, to: &mut Saved) {
        self.history.save(to);
        self.recent.save(to);
    }

    fn recall(&mut self, saved: &Saved) -> Result<(), SavedError> {
        self.history.recall(saved)?;
        self.recent.recall(saved)?;
        self.experts.iter_mut().for_each(|experts| experts.stale = true);
        Ok(())
    }

    fn bytes(&self) -> usize {
        ExpectedUse::bytes_for(self.history.shape(), self.layers.sequences)
            + self.history.bytes_of_correction()
            + self.cyclic.capacity() * size_of::<(usize, PieceId)>()
    }
}

impl Experts {
    fn score(&self, expert: usize, times: [f32; 4]) -> f32 {
        let spans = self.spans.iter().zip(times.into_iter().chain([1.0]));
        spans.map(|(span, time)| span[expert] * time).sum()
    }

    /// Scores of all experts, one span after the other, so that the compiler emits vector code.
    fn scores(&self, times: [f32; 4], scores: &mut Vec<f32>) {
        let [first, second, third, fourth, last] = &self.spans;
        scores.clear();
        scores.extend_from_slice(last);
        for (span, time) in [first, second, third, fourth].into_iter().zip(times) {
            for (score, span) in scores.iter_mut().zip(span) {
                *score += span * time;
            }
        }
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
