//! The recent steps of a sequence.

use super::{HALF_LIVES, HistoryScratch, HistoryShape};

/// The recent steps of one sequence in a history.
#[derive(Clone, Debug)]
pub(super) struct SequenceCursor {
    /// The position of the sequence's next step.
    pub(super) next_position: usize,
    /// False before the first step.
    pub(super) stepped: bool,
    pub(super) layers: Vec<Recent>,
}

/// The recent use of a layer's experts by a sequence.
#[derive(Clone, Debug)]
pub(super) struct Recent {
    /// [half-lives, experts]
    pub(super) averages: Vec<f32>,
    /// For each expert, the number of steps since the last use.
    pub(super) age: Vec<f32>,
    /// The experts of the last step, and of the one before.
    pub(super) last: Vec<u32>,
    pub(super) before: Vec<u32>,
    /// The token of the last step, if it is known.
    pub(super) token: Option<u32>,
    /// The projected state that the router saw in the last step; empty if it is unknown.
    pub(super) seen: Vec<f32>,
}

impl SequenceCursor {
    pub(super) fn new(shape: HistoryShape) -> SequenceCursor {
        let experts = shape.experts;
        let even = shape.top_k as f32 / experts.max(1) as f32;
        let recent = Recent {
            averages: vec![even; HALF_LIVES.len() * experts],
            age: vec![0.0; experts],
            last: Vec::new(),
            before: Vec::new(),
            token: None,
            seen: Vec::new(),
        };
        SequenceCursor { next_position: 0, stepped: false, layers: vec![recent; shape.layers] }
    }

    pub(super) fn bytes_for(shape: HistoryShape) -> usize {
        let floats = size_of::<f32>() * (HALF_LIVES.len() + 1);
        let last = 2 * shape.top_k * size_of::<u32>();
        let layer = size_of::<Recent>() + shape.experts * floats + last;
        size_of::<SequenceCursor>() + shape.layers * layer
    }

    /// Begins another text. Its best forecast is the recent use of experts by the latest sequence.
    pub(super) fn begin_after(&mut self, latest: &SequenceCursor) {
        for (layer, latest) in self.layers.iter_mut().zip(&latest.layers) {
            layer.averages.copy_from_slice(&latest.averages);
            layer.age.copy_from_slice(&latest.age);
        }
    }

    /// Forgets the last steps, which the next one does not follow.
    pub(super) fn forget_last(&mut self) {
        for layer in &mut self.layers {
            layer.last.clear();
            layer.before.clear();
            layer.token = None;
            layer.seen.clear();
        }
    }
}

impl Recent {
    /// Records a step, whose experts become `last`. `scratch` then has a 1 for each expert used,
    /// and the experts of two steps earlier. `keep` has the decay of each average.
    pub(super) fn step(&mut self, experts: &[u32], keep: &[f32], scratch: &mut HistoryScratch) {
        let HistoryScratch { used, previous, .. } = scratch;
        used.fill(0.0);
        self.seen.clear();
        std::mem::swap(previous, &mut self.before);
        std::mem::swap(&mut self.before, &mut self.last);
        self.last.clear();
        for &expert in experts {
            if let Some(used) = used.get_mut(expert as usize)
                && *used == 0.0
            {
                *used = 1.0;
                self.last.push(expert);
            }
        }
        for (averages, keep) in self.averages.chunks_exact_mut(used.len().max(1)).zip(keep) {
            for (average, used) in averages.iter_mut().zip(&*used) {
                *average = used + keep * (*average - used);
            }
        }
        for (age, used) in self.age.iter_mut().zip(&*used) {
            *age = (1.0 - used) * (*age + 1.0);
        }
    }
}
