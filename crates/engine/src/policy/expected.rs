//! The default: what is expected to be needed last.

use sws_draft::history::{History, Shape};
use sws_draft::{Saved, SavedError};
use sws_model::ModelSpec;
use sws_store::{ModelNumber, Pass, PieceId, PieceKind};

use super::{Choice, Key, Now, Policy};

/// Gives up the piece whose next use is expected last.
///
/// Times are counted in steps, of which each goes through all layers, and compared by their binary
/// logarithm: the expected logarithm closes more of the distance to the optimum than the expected
/// time (a step more or less matters when it is one of two, not when it is one of a hundred).
///
/// When the next use of an expert comes is a distribution over five spans, in which a
/// [`History`] says how probable each is: the next time computing comes to its layer, within 4 steps,
/// 16, 64, later. A piece that every step uses is the case without doubt: it comes with the next
/// time its turn comes. So one rule keeps a fixed part of what is used in turn, without the cliff
/// that what was used longest ago has there, and keeps the likely experts.
#[derive(Debug, Default)]
pub struct ExpectedUse {
    models: Vec<Model>,
    /// Pieces used in turn, and those of models that nobody has told of.
    cyclic: Vec<(usize, Key)>,
    scores: Vec<f32>,
}

/// The layers of a model.
#[derive(Clone, Debug)]
pub struct Layers {
    /// All of them.
    pub count: u32,
    /// Those with experts, ascending.
    pub with_experts: Vec<u32>,
    /// Experts of such a layer; the most there are.
    pub experts: usize,
    /// Experts that a token uses of a layer; the most there are.
    pub top_k: usize,
}

impl Layers {
    /// Those of a model.
    pub fn of(spec: &ModelSpec) -> Layers {
        let layers = spec.layers.iter().zip(0u32..);
        Layers {
            count: spec.layers.len() as u32,
            with_experts: layers
                .filter(|(layer, _)| layer.moe().is_some())
                .map(|(_, number)| number)
                .collect(),
            experts: spec.moes().map(|moe| moe.experts).max().unwrap_or(0),
            top_k: spec.max_top_k(),
        }
    }
}

#[derive(Debug)]
struct Model {
    number: ModelNumber,
    layers: Layers,
    history: History,
    experts: Vec<Experts>,
    /// For each distance in layers, the binary logarithm of the time to each span.
    spans: Vec<[f32; 4]>,
    at: PieceId,
}

/// The experts of a layer.
#[derive(Clone, Debug)]
struct Experts {
    /// In which slot each is, or `ABSENT`.
    slots: Vec<u32>,
    present: usize,
    /// For each span, how probable each expert's next use is in it; the last times its logarithm.
    spans: [Vec<f32>; 5],
    stale: bool,
    /// How probably each is used when the layer comes next, as far as a forecast has said so since
    /// it came last.
    foreseen: Vec<f32>,
    foresees: bool,
}

const ABSENT: u32 = u32::MAX;

/// A time in each span but the first, in steps, the distance of the layer to be added. The first
/// is what the last is for experts: everything from 64 steps on.
const TIMES: [f32; 4] = [0.5, 1.8, 8.0, 31.0];
const NEVER: f32 = 150.0;

impl ExpectedUse {
    /// One that has seen nothing and knows no model.
    pub fn new() -> ExpectedUse {
        ExpectedUse::default()
    }

    /// Tells of a model.
    pub fn add(&mut self, number: ModelNumber, layers: Layers) {
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
            foreseen: vec![0.0; layers.experts],
            foresees: false,
        };
        let count = layers.count.max(1);
        let spans = (1..=count)
            .map(|distance| TIMES.map(|t| (t + distance as f32 / count as f32).log2()))
            .collect();
        self.models.push(Model {
            number,
            history: History::with_tokens(shape),
            experts: vec![experts; shape.layers],
            layers,
            spans,
            at: PieceId::EMBED,
        });
    }

    /// Memory held for one model of this shape.
    pub fn bytes_for(shape: Shape) -> usize {
        let expert = size_of::<u32>() + (TIMES.len() + 2) * size_of::<f32>();
        History::bytes_for(shape)
            + History::bytes_of_tokens(shape)
            + shape.layers * (size_of::<Experts>() + shape.experts * expert)
    }

    /// The history of a model's experts.
    pub fn history(&mut self, number: ModelNumber) -> Option<&mut History> {
        self.models.iter_mut().find(|model| model.number == number).map(|model| &mut model.history)
    }

    /// The expected binary logarithm of the steps until a piece is used that will be used with this
    /// probability when its turn comes; none for what was foreseen of it.
    fn score(&mut self, now: Now, key: Key, probability: Option<f32>) -> f32 {
        self.set(now);
        let Some(model) = self.models.iter_mut().find(|model| model.number == key.model) else {
            return turn(None, key.piece);
        };
        match model.expert(key.piece) {
            Some((layer, expert)) => {
                model.refresh(layer);
                let probability = probability.unwrap_or(model.experts[layer].foreseen[expert]);
                mix(model.score(layer, expert), turn(Some(model), key.piece), probability)
            }
            None => turn(Some(model), key.piece),
        }
    }

    fn set(&mut self, now: Now) {
        if let Some(model) = self.models.iter_mut().find(|model| model.number == now.model) {
            model.at = now.piece;
        }
    }

    /// The place of an expert among those that a model's history is kept of.
    fn place(&mut self, key: Key) -> Option<(&mut Experts, usize)> {
        let model = self.models.iter_mut().find(|model| model.number == key.model)?;
        let (layer, expert) = model.expert(key.piece)?;
        Some((&mut model.experts[layer], expert))
    }
}

impl Policy for ExpectedUse {
    fn name(&self) -> &'static str {
        "expected"
    }

    fn arrived(&mut self, slot: usize, key: Key) {
        match self.place(key) {
            Some((experts, expert)) => {
                experts.slots[expert] = slot as u32;
                experts.present += 1;
            }
            None => self.cyclic.push((slot, key)),
        }
    }

    fn used(&mut self, _: usize, _: Key) {}

    fn left(&mut self, slot: usize, key: Key) {
        match self.place(key) {
            Some((experts, expert)) => {
                experts.slots[expert] = ABSENT;
                experts.present -= 1;
            }
            None => self.cyclic.retain(|&(other, _)| other != slot),
        }
    }

    fn begin(&mut self, number: ModelNumber, pass: &Pass) {
        if let Some(model) = self.models.iter_mut().find(|model| model.number == number) {
            model.history.announce(&pass.tokens);
        }
    }

    fn routed(&mut self, choice: &Choice<'_>) {
        let Some(model) = self.models.iter_mut().find(|model| model.number == choice.model) else {
            return;
        };
        if let Ok(layer) = model.layers.with_experts.binary_search(&choice.layer) {
            let steps = choice.steps().len();
            let each = choice.pass.len().checked_div(steps).unwrap_or(0);
            for (number, step) in choice.steps().enumerate() {
                model.history.step_of(layer, step, &choice.pass.tokens[number * each..][..each]);
            }
            model.experts[layer].stale = true;
            if std::mem::take(&mut model.experts[layer].foresees) {
                model.experts[layer].foreseen.fill(0.0);
            }
        }
    }

    fn victim(&mut self, now: Now, may: &dyn Fn(usize) -> bool) -> Option<usize> {
        self.set(now);
        let mut last: Option<(f32, usize)> = None;
        let mut consider = |score: f32, slot: usize| {
            if last.is_none_or(|(latest, _)| score > latest) && may(slot) {
                last = Some((score, slot));
            }
        };
        for &(slot, key) in &self.cyclic {
            let model = self.models.iter().find(|model| model.number == key.model);
            consider(turn(model, key.piece), slot);
        }
        for model in &mut self.models {
            for layer in 0..model.experts.len() {
                if model.experts[layer].present == 0 {
                    continue;
                }
                model.refresh(layer);
                let times = model.times(layer);
                let experts = &model.experts[layer];
                experts.scores(times, &mut self.scores);
                if experts.foresees {
                    let piece = PieceId::expert(model.layers.with_experts[layer], 0);
                    let soon = turn(Some(model), piece);
                    for (score, &probability) in self.scores.iter_mut().zip(&experts.foreseen) {
                        *score = mix(*score, soon, probability);
                    }
                }
                for (&score, &slot) in self.scores.iter().zip(&experts.slots) {
                    if slot != ABSENT {
                        consider(score, slot as usize);
                    }
                }
            }
        }
        last.map(|(_, slot)| slot)
    }

    fn last(&mut self, now: Now, may: &dyn Fn(PieceId) -> bool) -> Option<PieceId> {
        self.set(now);
        let model = self.models.iter_mut().find(|model| model.number == now.model)?;
        let mut last: Option<(f32, PieceId)> = None;
        for layer in 0..model.experts.len() {
            model.refresh(layer);
            model.experts[layer].scores(model.times(layer), &mut self.scores);
            for (&score, expert) in self.scores.iter().zip(0..) {
                let piece = PieceId::expert(model.layers.with_experts[layer], expert);
                if last.is_none_or(|(latest, _)| score > latest) && may(piece) {
                    last = Some((score, piece));
                }
            }
        }
        last.map(|(_, piece)| piece)
    }

    fn later(&mut self, now: Now, old: Key, new: Key, probability: f32) -> bool {
        self.score(now, old, None) > self.score(now, new, Some(probability))
    }

    fn foreseen(&mut self, _: usize, key: Key, probability: f32) {
        if let Some((experts, expert)) = self.place(key) {
            experts.foreseen[expert] = probability;
            experts.foresees = true;
        }
    }

    fn within(&mut self, key: Key, steps: usize) -> f32 {
        let Some(model) = self.models.iter_mut().find(|model| model.number == key.model) else {
            return 1.0;
        };
        let Some((layer, expert)) = model.expert(key.piece) else { return 1.0 };
        let absence = model.history.absence(layer);
        let horizon = match steps {
            0..=1 => absence.within_1,
            2..=4 => absence.within_4,
            5..=16 => absence.within_16,
            _ => absence.within_64,
        };
        1.0 - horizon[expert]
    }

    fn save(&self, number: ModelNumber, to: &mut Saved) {
        if let Some(model) = self.models.iter().find(|model| model.number == number) {
            model.history.save(to);
        }
    }

    fn recall(&mut self, number: ModelNumber, saved: &Saved) -> Result<(), SavedError> {
        let Some(model) = self.models.iter_mut().find(|model| model.number == number) else {
            return Ok(());
        };
        model.history.recall(saved)?;
        model.experts.iter_mut().for_each(|experts| experts.stale = true);
        Ok(())
    }

    fn bytes(&self) -> usize {
        let of = |model: &Model| ExpectedUse::bytes_for(model.history.shape());
        self.models.iter().map(of).sum::<usize>()
            + self.cyclic.capacity() * size_of::<(usize, Key)>()
    }
}

impl Model {
    /// The place of a layer among those with experts, and the expert.
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

    /// The times to the spans of a layer's experts, seen from where computing stands.
    fn times(&self, layer: usize) -> [f32; 4] {
        let count = self.layers.count.max(1);
        let here = self.at.layer().unwrap_or(0);
        let there = self.layers.with_experts[layer];
        // The experts of this very layer are needed in the next step.
        let distance = (there + count - here % count) % count;
        self.spans[(if distance == 0 { count } else { distance }) as usize - 1]
    }

    fn score(&self, layer: usize, expert: usize) -> f32 {
        self.experts[layer].score(expert, self.times(layer))
    }
}

impl Experts {
    fn score(&self, expert: usize, times: [f32; 4]) -> f32 {
        let spans = self.spans.iter().zip(times.into_iter().chain([1.0]));
        spans.map(|(span, time)| span[expert] * time).sum()
    }

    /// Those of all experts: a span after the other, which the compiler turns into vector code.
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

/// What is expected if `soon` is as probable as that, and `otherwise` is expected if not.
fn mix(otherwise: f32, soon: f32, probability: f32) -> f32 {
    otherwise + probability * (soon - otherwise)
}

/// The same measure for a piece that is used whenever its turn comes.
fn turn(model: Option<&Model>, piece: PieceId) -> f32 {
    if piece == PieceId::EXTRA {
        return NEVER.log2();
    }
    let distance = model.map_or(1.0, |model| {
        let layers = model.layers.count.max(1) as f32;
        // A pass begins with the embedding and ends with norm and head.
        let cycle = layers + 2.0;
        let ahead = (place(piece, layers) - place(model.at, layers)) / cycle;
        if ahead > 0.0 { ahead } else { ahead + 1.0 }
    });
    (TIMES[0] + distance).log2()
}

/// Where in a pass a piece is used, in layers.
fn place(piece: PieceId, layers: f32) -> f32 {
    let within = match piece.kind() {
        PieceKind::Embed => return 0.0,
        PieceKind::FinalNorm => return 1.0 + layers,
        PieceKind::LmHead | PieceKind::Extra => return 1.5 + layers,
        PieceKind::Norms => 0.0,
        PieceKind::Attention => 0.2,
        PieceKind::Router => 0.4,
        PieceKind::SharedExpert | PieceKind::Mlp => 0.6,
        PieceKind::Expert(_) => 0.8,
    };
    1.0 + piece.layer().unwrap_or(0) as f32 + within
}
