//! The weight source that streams.

use sws_model::{Compute, Ready, Routed, RunAhead, SourceError, WeightSource};
use sws_store::PieceKind;

use crate::assembler::DynamicAssembler;
use crate::infra::Infrastructure;

/// Gives the forward pass its weights within a budget: infrastructure from memory or through the
/// ring, routed experts from slots in which they come and go.
///
/// Experts that are too large for slots flow through the ring like everything else: one after another,
/// each when it is needed. A dense model has none.
#[derive(Debug)]
pub struct StreamingSource {
    infrastructure: Infrastructure,
    assembler: Option<DynamicAssembler>,
}

impl StreamingSource {
    /// Puts the two together; without the second all experts flow through the ring.
    pub fn new(infrastructure: Infrastructure, assembler: Option<DynamicAssembler>) -> Self {
        StreamingSource { infrastructure, assembler }
    }

    /// Everything but routed experts.
    pub fn infrastructure(&mut self) -> &mut Infrastructure {
        &mut self.infrastructure
    }

    /// Who has the experts in slots.
    pub fn assembler(&mut self) -> Option<&mut DynamicAssembler> {
        self.assembler.as_mut()
    }

    /// Does one step of a pass; after an error nothing of it is left under way, and the next pass
    /// begins anew.
    fn step<T>(
        &mut self,
        step: impl FnOnce(&mut Infrastructure, Option<&mut DynamicAssembler>) -> Result<T, SourceError>,
    ) -> Result<T, SourceError> {
        let result = step(&mut self.infrastructure, self.assembler.as_mut());
        if result.is_err() {
            self.infrastructure.interrupt();
            if let Some(assembler) = &mut self.assembler {
                assembler.abandon();
            }
        }
        result
    }
}

impl WeightSource for StreamingSource {
    fn embed(&mut self, tokens: &[u32], rows: &mut [f32]) -> Result<(), SourceError> {
        self.step(|infrastructure, assembler| {
            if let Some(assembler) = assembler {
                assembler.tokens(tokens);
            }
            Ok(infrastructure.embed(tokens, rows)?)
        })
    }

    fn entering(&mut self, layer: usize, hidden: &[f32]) -> Result<(), SourceError> {
        self.step(|infrastructure, assembler| {
            infrastructure.read_ahead()?;
            let Some(assembler) = assembler else { return Ok(()) };
            Ok(assembler.entering(layer, hidden, infrastructure)?)
        })
    }

    fn infrastructure(
        &mut self,
        _: usize,
        _: &[PieceKind],
        compute: Compute<'_>,
    ) -> Result<(), SourceError> {
        self.step(|infrastructure, _| compute(infrastructure))
    }

    fn routed(&mut self, layer: usize, routed: &Routed) -> Result<(), SourceError> {
        self.step(|infrastructure, assembler| match assembler {
            Some(assembler) => Ok(assembler.routed(layer, routed)?),
            None => Ok(infrastructure.routed(layer, &routed.distinct)?),
        })
    }

    fn attended(&mut self, layer: usize, state: &[f32], shared: &[f32]) -> Result<(), SourceError> {
        self.step(|infrastructure, assembler| {
            let Some(assembler) = assembler else { return Ok(()) };
            Ok(assembler.attended(layer, state, shared, infrastructure)?)
        })
    }

    fn experts(
        &mut self,
        layer: usize,
        routed: &Routed,
        ready: Ready<'_>,
    ) -> Result<(), SourceError> {
        self.step(|infrastructure, assembler| match assembler {
            Some(assembler) => assembler.experts(layer, routed, ready),
            // One at a time: so its matrices are asked for in the order in which they are read.
            None => routed.distinct.chunks(1).try_for_each(|expert| ready(expert, infrastructure)),
        })
    }

    fn run_ahead(&mut self, step: RunAhead) -> Result<bool, SourceError> {
        self.step(|_, assembler| {
            assembler.map_or(Ok(false), |assembler| Ok(assembler.run_ahead(step)?))
        })
    }

    fn head(&mut self, compute: Compute<'_>) -> Result<(), SourceError> {
        self.step(|infrastructure, _| compute(infrastructure))
    }
}
