//! Routes and logits of passes.

use sws::{Cancel, ModelSpec, Observer, Pass, Routed, SourceError};
use sws_cache::Trace;
use sws_cache::history::HistoryShape;

use crate::arrays::LogitArray;
use crate::score::Ranks;

/// Observer that records what was asked for: nothing by default.
#[derive(Default)]
pub(crate) struct Recorder {
    /// Handle that ends its passes at the next layer.
    pub(crate) cancel: Cancel,
    /// Index of each layer among those with experts; `None` for the others.
    places: Vec<Option<usize>>,
    /// Experts of the pass in progress, by layer.
    experts: Vec<Vec<u32>>,
    /// `None` if routes were not asked for, and in a model without experts.
    pub(crate) routes: Option<Trace>,
    /// `None` if logits were not asked for.
    pub(crate) logits: Option<LogitArray>,
    /// Probabilities of the tokens; `None` if they were not asked for.
    pub(crate) ranks: Option<Ranks>,
}

impl Recorder {
    /// Records routes, if the model has experts.
    pub(crate) fn with_routes(mut self, spec: &ModelSpec) -> Recorder {
        let mut layers = 0;
        self.places = Vec::with_capacity(spec.visits());
        for layer in spec.in_order() {
            let is_moe = layer.moe().is_some();
            self.places.push(is_moe.then_some(layers));
            layers += usize::from(is_moe);
        }
        self.experts = vec![Vec::new(); layers];
        let experts = spec.moes().map(|moe| moe.experts).max().unwrap_or(0);
        let shape = HistoryShape { layers, experts, top_k: spec.max_top_k() };
        self.routes = Trace::new(shape).ok();
        self
    }

    /// True if anything of a text is to be recorded.
    pub(crate) fn records(&self) -> bool {
        self.routes.is_some() || self.logits.is_some()
    }

    /// The sentence of an error of recording.
    pub(crate) fn failure(&self) -> Option<&String> {
        self.logits.as_ref()?.failure.as_ref()
    }
}

impl Observer for Recorder {
    fn layer_begins(&mut self, _: &Pass, _: usize, _: &[f32]) -> Result<(), SourceError> {
        match self.cancel.is_cancelled() {
            true => Err("the pass was cancelled".into()),
            false => Ok(()),
        }
    }

    fn routed(&mut self, pass: &Pass, layer: usize, routed: &Routed) -> Result<(), SourceError> {
        let Some(trace) = &mut self.routes else { return Ok(()) };
        let Some(Some(place)) = self.places.get(layer).copied() else { return Ok(()) };
        self.experts[place].clone_from(&routed.choices);
        if place + 1 == self.experts.len() {
            trace.push(&pass.tokens, &self.experts)?;
        }
        Ok(())
    }

    fn logits(&mut self, first: usize, logits: &[f32]) {
        if let Some(all) = &mut self.logits {
            all.push(logits);
        }
        if let Some(ranks) = &mut self.ranks {
            ranks.take(first, logits);
        }
    }
}
