//! Time of a pass by block, measured at its source of weights.

use std::time::Duration;

use sws_format::{Clock, Pass, PieceKind};
use sws_model::{
    Compute, FindRows, Observer, PassSource, Ready, Routed, SourceError, TakeRow, WeightSource,
};

/// The work between two calls to a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Block {
    /// Embeddings, norms, attention, and the router's product.
    Attention,
    /// Choice of experts.
    Routing,
    /// Experts, or an MLP.
    Experts,
    /// Sum of the experts' outputs.
    Sum,
    /// Last norm and head.
    Head,
    /// Choice of a token.
    Sampling,
}

/// All blocks, in the order of a pass.
pub(super) const BLOCKS: [Block; 6] =
    [Block::Attention, Block::Routing, Block::Experts, Block::Sum, Block::Head, Block::Sampling];

/// A source that measures the time between calls.
pub(super) struct Watched<S> {
    pub(super) source: S,
    clock: Clock,
    since: Duration,
    /// Seconds in each of [`BLOCKS`].
    pub(super) spent: [f64; BLOCKS.len()],
}

impl<S> Watched<S> {
    pub(super) fn new(source: S) -> Self {
        Watched { source, clock: Clock::real(), since: Duration::ZERO, spent: [0.0; BLOCKS.len()] }
    }

    /// Starts a new measurement.
    pub(super) fn restart(&mut self) {
        self.spent = [0.0; BLOCKS.len()];
        self.since = self.clock.now();
    }

    /// Adds the time since the last call to `block`.
    pub(super) fn lap(&mut self, block: Block) {
        let now = self.clock.now();
        self.spent[block as usize] += (now - self.since).as_secs_f64();
        self.since = now;
    }
}

impl<S: WeightSource> WeightSource for Watched<S> {
    fn embed(&mut self, tokens: &[u32], rows: &mut [f32]) -> Result<(), SourceError> {
        self.source.embed(tokens, rows)
    }

    fn look_up(
        &mut self,
        layer: usize,
        find: FindRows<'_>,
        take: TakeRow<'_>,
    ) -> Result<(), SourceError> {
        self.source.look_up(layer, find, take)
    }

    fn infrastructure(
        &mut self,
        layer: usize,
        pieces: &[PieceKind],
        compute: Compute<'_>,
    ) -> Result<(), SourceError> {
        let done = self.source.infrastructure(layer, pieces, compute);
        let attention = pieces.contains(&PieceKind::Attention);
        self.lap(if attention { Block::Attention } else { Block::Experts });
        done
    }

    fn experts(
        &mut self,
        layer: usize,
        routed: &Routed,
        ready: Ready<'_>,
    ) -> Result<(), SourceError> {
        let done = self.source.experts(layer, routed, ready);
        self.lap(Block::Experts);
        done
    }

    fn head(&mut self, compute: Compute<'_>) -> Result<(), SourceError> {
        self.lap(Block::Sum);
        let done = self.source.head(compute);
        self.lap(Block::Head);
        done
    }
}

impl<S: WeightSource> PassSource for Watched<S> {}

impl<S: WeightSource> Observer for Watched<S> {
    fn layer_begins(&mut self, _: &Pass, layer: usize, _: &[f32]) -> Result<(), SourceError> {
        self.lap(if layer == 0 { Block::Attention } else { Block::Sum });
        Ok(())
    }

    fn routed(&mut self, _: &Pass, _: usize, _: &Routed) -> Result<(), SourceError> {
        self.lap(Block::Routing);
        Ok(())
    }
}
