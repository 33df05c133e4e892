//! The time to the next use of a layer's experts, as a distribution over spans.

use crate::history::Absence;

/// Representative time of each span but the last, in steps, without the distance of the layer. The
/// last span, from 64 steps on, has a time of its own.
pub(super) const TIMES: [f32; 4] = [0.5, 1.8, 8.0, 31.0];
pub(super) const NEVER: f32 = 150.0;

/// Binary logarithms of the times to the spans.
pub(super) type SpanTimes = [f32; 5];

/// Probability that the next use of an expert is in a span, by span and expert.
#[derive(Clone, Debug)]
pub(super) struct Spans([Vec<f32>; 5]);

impl Spans {
    pub(super) fn new(experts: usize) -> Spans {
        Spans(std::array::from_fn(|_| vec![0.0; experts]))
    }

    pub(super) fn bytes_for(experts: usize) -> usize {
        5 * size_of::<f32>() * experts
    }

    pub(super) fn set(&mut self, absence: Absence<'_>) {
        let Spans([first, second, third, fourth, last]) = self;
        for e in 0..first.len() {
            first[e] = 1.0 - absence.within_1[e];
            second[e] = absence.within_1[e] - absence.within_4[e];
            third[e] = absence.within_4[e] - absence.within_16[e];
            fourth[e] = absence.within_16[e] - absence.within_64[e];
            last[e] = absence.within_64[e];
        }
    }

    /// Expected binary logarithm of the steps until an expert is used.
    pub(super) fn score(&self, expert: usize, times: SpanTimes) -> f32 {
        self.0.iter().zip(times).map(|(span, time)| span[expert] * time).sum()
    }

    /// Scores of all experts, one span after the other, so that the compiler emits vector code.
    pub(super) fn scores(&self, times: SpanTimes, scores: &mut Vec<f32>) {
        let Spans([nearer @ .., last]) = self;
        let [.., never] = times;
        scores.clear();
        scores.extend(last.iter().map(|span| span * never));
        for (span, time) in nearer.iter().zip(times) {
            for (score, span) in scores.iter_mut().zip(span) {
                *score += span * time;
            }
        }
    }
}

#[cfg(test)]
impl Spans {
    pub(super) fn held_bytes(&self) -> usize {
        self.0.iter().map(|span| size_of::<f32>() * span.capacity()).sum()
    }
}
