//! The routes of the last tokens, kept for plans of later runs.

use sws_format::{Dtype, Pass};

use crate::choice::{ChoiceRow, RouterChoice};
use crate::saved::{SavedError, SavedTensors};
use crate::shape::HistoryShape;
use crate::trace::Trace;

/// Number of tokens kept. A replay of them gives hit rates within a few percent, and they take 240
/// KiB for the largest models.
const TOKENS: usize = 256;
const ROUTES: &str = "recent.routes";
const FIRST: &str = "recent.first";

/// The experts of the last tokens, without the token ids. Tokens of different sequences follow each
/// other. Of a pass over several sequences, only the tokens of the first sequence are kept.
#[derive(Clone, Debug)]
pub(crate) struct RecentTokens {
    shape: HistoryShape,
    /// Ring buffer of [TOKENS, layers, top_k] expert ids.
    ids: Vec<u16>,
    /// For each token, 1 if it is the first of its pass.
    first: Vec<u8>,
    /// Tokens before the running pass.
    before: usize,
    /// Tokens of the running pass.
    running: usize,
}

impl RecentTokens {
    pub(crate) fn new(shape: HistoryShape) -> RecentTokens {
        let ids = vec![0; RecentTokens::len(shape)];
        let first = vec![0; TOKENS];
        RecentTokens { shape, ids, first, before: 0, running: 0 }
    }

    pub(crate) fn begin(&mut self, pass: &Pass) {
        self.before += self.running;
        self.running = pass.spans.first().map_or(0, |span| span.tokens);
        for token in 0..self.running {
            self.first[(self.before + token) % TOKENS] = u8::from(token == 0);
        }
    }

    /// Records the choice of a layer. `layer` is an index among the layers with experts.
    pub(crate) fn routed(&mut self, layer: usize, choice: &RouterChoice<'_>) {
        let Some(first) = choice.pass.spans.first() else { return };
        let HistoryShape { layers, top_k, .. } = self.shape;
        let rows = choice.rows().filter(|row| row.sequence == first.sequence).take(self.running);
        for (token, ChoiceRow { experts, .. }) in (self.before..).zip(rows) {
            let at = (token % TOKENS * layers + layer) * top_k;
            // A layer may use fewer experts. The first one fills the rest.
            let padding = std::iter::repeat(experts.first().unwrap_or(&0));
            if let Some(ids) = self.ids.get_mut(at..at + top_k) {
                for (id, &expert) in ids.iter_mut().zip(experts.iter().chain(padding)) {
                    *id = expert as u16;
                }
            }
        }
    }

    /// Adds the routes to `to`, oldest first.
    pub(crate) fn save(&self, to: &mut SavedTensors) {
        let HistoryShape { layers, top_k, .. } = self.shape;
        let end = self.before + self.running;
        let each = layers * top_k;
        let tokens = end.saturating_sub(TOKENS)..end;
        let mut bytes = Vec::new();
        let mut first = Vec::new();
        for token in tokens.clone() {
            let at = token % TOKENS;
            for id in &self.ids[at * each..][..each] {
                bytes.extend(id.to_le_bytes());
            }
            first.push(self.first[at]);
        }
        to.push(ROUTES, Dtype::U16, &[tokens.len(), layers, top_k], bytes);
        to.push(FIRST, Dtype::U8, &[tokens.len()], first);
    }

    /// Restores what [`save`](Self::save) added. Restores nothing from a state without routes.
    pub(crate) fn recall(&mut self, saved: &SavedTensors) -> Result<(), SavedError> {
        let Some((ids, first)) = read(saved, self.shape)? else { return Ok(()) };
        (self.before, self.running) = (first.len(), 0);
        self.ids[..ids.len()].copy_from_slice(&ids);
        self.first[..first.len()].copy_from_slice(first);
        Ok(())
    }

    fn len(HistoryShape { layers, top_k, .. }: HistoryShape) -> usize {
        TOKENS * layers * top_k
    }

    /// Memory held for a model of this shape, in bytes.
    pub(crate) fn bytes_for(shape: HistoryShape) -> usize {
        RecentTokens::len(shape) * size_of::<u16>() + TOKENS
    }
}

/// The experts of tokens, and for each token 1 if it is the first of its pass.
type RecentRoutes<'s> = (Vec<u16>, &'s [u8]);

/// The saved routes; `None` if there are none.
fn read(saved: &SavedTensors, shape: HistoryShape) -> Result<Option<RecentRoutes<'_>>, SavedError> {
    if !saved.contains(ROUTES) {
        return Ok(None);
    }
    let HistoryShape { layers, experts, top_k } = shape;
    let fits =
        |found: &[usize]| found.len() == 3 && found[0] <= TOKENS && found[1..] == [layers, top_k];
    let ids = saved.get(ROUTES, Dtype::U16, fits)?.as_chunks().0;
    let ids: Vec<u16> = ids.iter().copied().map(u16::from_le_bytes).collect();
    if ids.iter().any(|&id| usize::from(id) >= experts) {
        return Err(SavedError::Tensor(ROUTES.to_owned()));
    }
    let each = layers * top_k;
    let fits = |n: &[usize]| n.len() == 1 && n[0] <= TOKENS && n[0] * each == ids.len();
    let first = saved.get(FIRST, Dtype::U8, fits)?;
    Ok(Some((ids, first)))
}

impl SavedTensors {
    /// The routes of the last tokens of earlier runs, as one sequence of unknown tokens; `None` if
    /// there are none.
    pub fn routes(&self, shape: HistoryShape) -> Result<Option<Trace>, SavedError> {
        let Some((ids, first)) = read(self, shape)? else { return Ok(None) };
        if first.is_empty() {
            return Ok(None);
        }
        let mut ends = Vec::new();
        for (token, &is_first) in first.iter().enumerate().skip(1) {
            if is_first != 0 {
                ends.push(token);
            }
        }
        ends.push(first.len());
        match Trace::of_unknown(shape, ids, ends) {
            Ok(trace) => Ok(Some(trace)),
            Err(_) => Err(SavedError::Tensor(ROUTES.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: HistoryShape = HistoryShape { layers: 2, experts: 400, top_k: 2 };

    /// The routes after passes of so many tokens each. A token uses its number and the next one in the
    /// first layer.
    fn recent(passes: &[usize]) -> RecentTokens {
        let mut recent = RecentTokens::new(SHAPE);
        let mut token = 0;
        for &count in passes {
            let pass = Pass::single(token as usize, &vec![0; count]);
            recent.begin(&pass);
            let tokens = token..token + count as u32;
            let of = |least: u32| tokens.clone().flat_map(|t| [t % 399, least + t % 300]).collect();
            let choices: [Vec<u32>; 2] = [of(1), of(9)];
            for (layer, experts) in (0..).zip(&choices) {
                let choice = RouterChoice { pass: &pass, layer, experts };
                recent.routed(layer as usize, &choice);
            }
            token += count as u32;
        }
        recent
    }

    fn routes(recent: &RecentTokens) -> Option<Trace> {
        let mut saved = SavedTensors::default();
        recent.save(&mut saved);
        saved.routes(SHAPE).unwrap()
    }

    #[test]
    fn last_tokens_are_kept_in_order() {
        // Passes; the first token that is kept, their number, and the ends of the first two passes.
        type Case = (&'static [usize], u16, usize, &'static [usize]);
        let cases: [Case; 5] = [
            (&[], 0, 0, &[]),
            (&[1], 0, 1, &[1]),
            (&[200, 1, 1], 0, 202, &[200, 201]),
            (&[200, 1, 80], 25, 256, &[175, 176]),
            (&[700, 1], 445, 256, &[255, 256]),
        ];
        for (passes, first, count, two) in cases {
            let kept = recent(passes);
            let mut recalled = RecentTokens::new(SHAPE);
            let mut saved = SavedTensors::default();
            kept.save(&mut saved);
            recalled.recall(&saved).unwrap();
            for recent in [&kept, &recalled] {
                let trace = routes(recent);
                assert_eq!(trace.as_ref().map_or(0, Trace::token_count), count, "{passes:?}");
                let Some(trace) = trace else { continue };
                let mut ends: Vec<usize> = trace.passes(0..count).map(|pass| pass.end).collect();
                ends.truncate(2);
                assert_eq!(ends, two, "{passes:?}");
                for (at, token) in (first..).enumerate().take(count) {
                    assert_eq!(trace.experts(at, 0), [token % 399, 1 + token % 300], "{passes:?}");
                    assert_eq!(trace.experts(at, 1), [token % 399, 9 + token % 300], "{passes:?}");
                }
            }
        }
    }

    #[test]
    fn recall_goes_on_where_the_last_run_ended() {
        let mut saved = SavedTensors::default();
        recent(&[250]).save(&mut saved);
        let mut after = RecentTokens::new(SHAPE);
        after.recall(&saved).unwrap();
        for token in 0..10 {
            let pass = Pass::single(token, &[0]);
            after.begin(&pass);
            for layer in 0..2 {
                after
                    .routed(layer as usize, &RouterChoice { pass: &pass, layer, experts: &[7, 8] });
            }
        }
        let trace = routes(&after).unwrap();
        assert_eq!(trace.token_count(), 256);
        assert_eq!(trace.experts(0, 0), [4, 5]);
        assert_eq!(trace.experts(245, 0), [249, 250]);
        assert_eq!(trace.experts(246, 1), [7, 8]);
    }

    #[test]
    fn routes_of_another_shape_are_refused() {
        let mut saved = SavedTensors::default();
        assert!(saved.routes(SHAPE).unwrap().is_none());
        recent(&[3]).save(&mut saved);
        for shape in [
            HistoryShape { layers: 1, ..SHAPE },
            HistoryShape { top_k: 3, ..SHAPE },
            HistoryShape { experts: 3, ..SHAPE },
            HistoryShape { layers: 0, ..SHAPE },
            HistoryShape { top_k: 0, ..SHAPE },
        ] {
            assert!(saved.routes(shape).is_err(), "{shape:?}");
            assert!(RecentTokens::new(shape).recall(&saved).is_err(), "{shape:?}");
        }
    }
}
