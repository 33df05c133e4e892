//! The weight source that streams.

use sws_model::{Compute, Ready, Routed, RunAhead, SourceError, WeightSource};
use sws_store::PieceKind;

use crate::assembler::DynamicAssembler;
use crate::infra::Infrastructure;

/// Gives the forward pass its weights within a budget: infrastructure from memory or through the
/// ring, routed experts from whoever has them.
#[derive(Debug)]
pub struct StreamingSource<E = ThroughRing> {
    infrastructure: Infrastructure,
    experts: E,
}

/// Who has the routed experts.
///
/// After an error of any of these, or of anything else in the pass, [`interrupt`](Self::interrupt)
/// is called; the next pass begins anew.
pub trait ExpertSource: Send {
    /// These tokens go through the layers next.
    fn tokens(&mut self, tokens: &[u32]) -> Result<(), SourceError> {
        let _ = tokens;
        Ok(())
    }

    /// As [`WeightSource::entering`].
    fn entering(
        &mut self,
        layer: usize,
        hidden: &[f32],
        infrastructure: &mut Infrastructure,
    ) -> Result<(), SourceError> {
        let _ = (layer, hidden, infrastructure);
        Ok(())
    }

    /// As [`WeightSource::routed`].
    fn routed(
        &mut self,
        layer: usize,
        routed: &Routed,
        infrastructure: &mut Infrastructure,
    ) -> Result<(), SourceError>;

    /// As [`WeightSource::attended`].
    fn attended(
        &mut self,
        layer: usize,
        state: &[f32],
        shared: &[f32],
        infrastructure: &mut Infrastructure,
    ) -> Result<(), SourceError> {
        let _ = (layer, state, shared, infrastructure);
        Ok(())
    }

    /// As [`WeightSource::experts`].
    fn experts(
        &mut self,
        layer: usize,
        routed: &Routed,
        infrastructure: &mut Infrastructure,
        ready: Ready<'_>,
    ) -> Result<(), SourceError>;

    /// As [`WeightSource::run_ahead`].
    fn run_ahead(&mut self, step: RunAhead) -> Result<bool, SourceError> {
        let _ = step;
        Ok(false)
    }

    /// The head is next, and with it the end of the pass.
    fn finished(&mut self) -> Result<(), SourceError> {
        Ok(())
    }

    /// The pass is over, somewhere in the middle.
    fn interrupt(&mut self) {}
}

/// Experts that flow through the ring like everything else: one after another, each when it is
/// needed. For those too large for slots, and for dense models, which have none.
#[derive(Clone, Copy, Debug, Default)]
pub struct ThroughRing;

impl ExpertSource for ThroughRing {
    fn routed(
        &mut self,
        layer: usize,
        routed: &Routed,
        infrastructure: &mut Infrastructure,
    ) -> Result<(), SourceError> {
        Ok(infrastructure.routed(layer, &routed.distinct)?)
    }

    fn experts(
        &mut self,
        _: usize,
        routed: &Routed,
        infrastructure: &mut Infrastructure,
        ready: Ready<'_>,
    ) -> Result<(), SourceError> {
        // One at a time: so its matrices are asked for in the order in which they are read.
        routed.distinct.chunks(1).try_for_each(|expert| ready(expert, infrastructure))
    }
}

impl ExpertSource for DynamicAssembler {
    fn tokens(&mut self, tokens: &[u32]) -> Result<(), SourceError> {
        self.tokens(tokens);
        Ok(())
    }

    fn entering(
        &mut self,
        layer: usize,
        hidden: &[f32],
        infrastructure: &mut Infrastructure,
    ) -> Result<(), SourceError> {
        Ok(self.entering(layer, hidden, infrastructure)?)
    }

    fn routed(
        &mut self,
        layer: usize,
        routed: &Routed,
        _: &mut Infrastructure,
    ) -> Result<(), SourceError> {
        Ok(self.routed(layer, routed)?)
    }

    fn attended(
        &mut self,
        layer: usize,
        state: &[f32],
        shared: &[f32],
        infrastructure: &mut Infrastructure,
    ) -> Result<(), SourceError> {
        Ok(self.attended(layer, state, shared, infrastructure)?)
    }

    fn experts(
        &mut self,
        layer: usize,
        routed: &Routed,
        _: &mut Infrastructure,
        ready: Ready<'_>,
    ) -> Result<(), SourceError> {
        self.experts(layer, routed, ready)
    }

    fn run_ahead(&mut self, step: RunAhead) -> Result<bool, SourceError> {
        Ok(self.run_ahead(step)?)
    }

    fn interrupt(&mut self) {
        self.abandon();
    }
}

impl<E: ExpertSource> StreamingSource<E> {
    /// Puts the two together.
    pub fn new(infrastructure: Infrastructure, experts: E) -> Self {
        StreamingSource { infrastructure, experts }
    }

    /// Everything but routed experts.
    pub fn infrastructure(&mut self) -> &mut Infrastructure {
        &mut self.infrastructure
    }

    /// Who has the experts.
    pub fn experts(&mut self) -> &mut E {
        &mut self.experts
    }

    /// Does one step of a pass; after an error nothing of it is left under way.
    fn step<T>(
        &mut self,
        step: impl FnOnce(&mut Infrastructure, &mut E) -> Result<T, SourceError>,
    ) -> Result<T, SourceError> {
        let result = step(&mut self.infrastructure, &mut self.experts);
        if result.is_err() {
            self.infrastructure.interrupt();
            self.experts.interrupt();
        }
        result
    }
}

impl<E: ExpertSource> WeightSource for StreamingSource<E> {
    fn embed(&mut self, tokens: &[u32], rows: &mut [f32]) -> Result<(), SourceError> {
        self.step(|infrastructure, experts| {
            experts.tokens(tokens)?;
            Ok(infrastructure.embed(tokens, rows)?)
        })
    }

    fn entering(&mut self, layer: usize, hidden: &[f32]) -> Result<(), SourceError> {
        self.step(|infrastructure, experts| {
            infrastructure.read_ahead()?;
            experts.entering(layer, hidden, infrastructure)
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
        self.step(|infrastructure, experts| experts.routed(layer, routed, infrastructure))
    }

    fn attended(&mut self, layer: usize, state: &[f32], shared: &[f32]) -> Result<(), SourceError> {
        self.step(|infrastructure, experts| experts.attended(layer, state, shared, infrastructure))
    }

    fn experts(
        &mut self,
        layer: usize,
        routed: &Routed,
        ready: Ready<'_>,
    ) -> Result<(), SourceError> {
        self.step(|infrastructure, experts| experts.experts(layer, routed, infrastructure, ready))
    }

    fn run_ahead(&mut self, step: RunAhead) -> Result<bool, SourceError> {
        self.step(|_, experts| experts.run_ahead(step))
    }

    fn head(&mut self, compute: Compute<'_>) -> Result<(), SourceError> {
        self.step(|infrastructure, experts| {
            compute(infrastructure)?;
            experts.finished()
        })
    }
}
