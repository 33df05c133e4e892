//! A model that streams: its infrastructure, and the experts in slots.

use sws_format::Pass;
use sws_model::{Ready, Routed, RunAhead, SourceError};

use crate::error::StreamError;
use crate::experts::DynamicAssembler;
use crate::infrastructure::Infrastructure;

#[derive(Debug)]
pub(super) struct StreamedModel {
    pub(super) infrastructure: Infrastructure,
    /// `None` if all experts flow through the ring.
    pub(super) assembler: Option<DynamicAssembler>,
}

impl StreamedModel {
    pub(super) fn experts(
        &mut self,
        layer: usize,
        routed: &Routed,
        drafting: bool,
        ready: Ready<'_>,
    ) -> Result<(), SourceError> {
        match &mut self.assembler {
            Some(assembler) if drafting => assembler.draft(routed, ready),
            Some(assembler) => assembler.experts(layer, routed, ready),
            None => {
                // Experts come one at a time, so that their matrices are requested in the order in
                // which they are read.
                for expert in routed.distinct.chunks(1) {
                    ready(expert, &mut self.infrastructure)?;
                }
                Ok(())
            }
        }
    }

    pub(super) fn pass_begins(&mut self, pass: &Pass) {
        let Some(assembler) = &mut self.assembler else { return };
        assembler.begin(pass);
        for (layer, experts) in self.infrastructure.known_experts(&pass.tokens) {
            assembler.expect_known(layer, &experts);
        }
    }

    pub(super) fn layer_begins(&mut self, layer: usize, hidden: &[f32]) -> Result<(), StreamError> {
        self.infrastructure.read_ahead()?;
        let Some(assembler) = &mut self.assembler else { return Ok(()) };
        assembler.entering(layer, hidden, &mut self.infrastructure)
    }

    pub(super) fn routed(
        &mut self,
        pass: &Pass,
        layer: usize,
        routed: &Routed,
    ) -> Result<(), StreamError> {
        match &mut self.assembler {
            Some(assembler) => assembler.routed(pass, layer, routed),
            None => self.infrastructure.routed(layer, &routed.distinct),
        }
    }

    pub(super) fn attended(
        &mut self,
        layer: usize,
        state: &[f32],
        shared: &[f32],
    ) -> Result<(), StreamError> {
        let Some(assembler) = &mut self.assembler else { return Ok(()) };
        assembler.attended(layer, state, shared, &mut self.infrastructure)
    }

    pub(super) fn run_ahead(&mut self, step: RunAhead) -> Result<bool, StreamError> {
        let Some(assembler) = &mut self.assembler else { return Ok(false) };
        assembler.run_ahead(step)
    }
}
