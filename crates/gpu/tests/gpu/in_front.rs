//! The weights of a model in memory, with experts on a device in front of them. The engine has them as a tier.

use sws_format::{Pass, PieceId, PieceKind};
use sws_gpu::VramExperts;
use sws_kernels::Matrix;
use sws_model::{
    Compute, ExpertBatch, ExpertExecutor, FindRows, Observer, PassSource, Ready, Role, Routed,
    RunAhead, SourceError, TakeRow, WeightSource, Weights,
};

/// A source whose experts are computed on a device where it holds them, and from the source itself otherwise.
#[derive(Debug)]
pub(crate) struct VramSource<S> {
    /// The source of all weights.
    pub(crate) inner: S,
    /// The experts on the device.
    pub(crate) vram: VramExperts,
}

impl<S: WeightSource> WeightSource for VramSource<S> {
    fn embed(&mut self, tokens: &[u32], rows: &mut [f32]) -> Result<(), SourceError> {
        self.inner.embed(tokens, rows)
    }

    fn expect_rows(&mut self, layer: usize, find: FindRows<'_>) -> Result<(), SourceError> {
        self.inner.expect_rows(layer, find)
    }

    fn look_up(
        &mut self,
        layer: usize,
        find: FindRows<'_>,
        take: TakeRow<'_>,
    ) -> Result<(), SourceError> {
        self.inner.look_up(layer, find, take)
    }

    fn infrastructure(
        &mut self,
        layer: usize,
        pieces: &[PieceKind],
        compute: Compute<'_>,
    ) -> Result<(), SourceError> {
        self.inner.infrastructure(layer, pieces, compute)
    }

    fn experts(
        &mut self,
        layer: usize,
        routed: &Routed,
        ready: Ready<'_>,
    ) -> Result<(), SourceError> {
        let vram = &mut self.vram;
        self.inner.experts(layer, routed, &mut |experts, weights| {
            let is_held = |expert: &u32| vram.holds(PieceId::expert(layer as u32, *expert));
            let (there, mut here): (Vec<u32>, Vec<u32>) =
                experts.iter().copied().partition(is_held);
            if !there.is_empty() {
                let mut on_device = OnDevice { vram, refused: Vec::new() };
                ready(&there, &mut on_device)?;
                here.append(&mut on_device.refused);
            }
            if here.is_empty() { Ok(()) } else { ready(&here, weights) }
        })
    }

    fn head(&mut self, compute: Compute<'_>) -> Result<(), SourceError> {
        self.inner.head(compute)
    }
}

impl<S: Observer> Observer for VramSource<S> {
    fn pass_begins(&mut self, pass: &Pass) -> Result<(), SourceError> {
        self.inner.pass_begins(pass)
    }

    fn layer_begins(
        &mut self,
        pass: &Pass,
        layer: usize,
        hidden: &[f32],
    ) -> Result<(), SourceError> {
        self.inner.layer_begins(pass, layer, hidden)
    }

    fn routing(&mut self, pass: &Pass, layer: usize, state: &[f32]) -> Result<(), SourceError> {
        self.inner.routing(pass, layer, state)
    }

    fn routed(&mut self, pass: &Pass, layer: usize, routed: &Routed) -> Result<(), SourceError> {
        self.inner.routed(pass, layer, routed)
    }

    fn attended(
        &mut self,
        pass: &Pass,
        layer: usize,
        state: &[f32],
        shared: &[f32],
    ) -> Result<(), SourceError> {
        self.inner.attended(pass, layer, state, shared)
    }

    fn takes_states(&self) -> bool {
        self.inner.takes_states()
    }

    fn states(&mut self, width: usize, states: &[f32]) {
        self.inner.states(width, states);
    }

    fn logits(&mut self, first: usize, logits: &[f32]) {
        self.inner.logits(first, logits);
    }
}

impl<S: PassSource> PassSource for VramSource<S> {
    fn run_ahead(&mut self, step: RunAhead) -> Result<bool, SourceError> {
        self.inner.run_ahead(step)
    }
}

/// Experts that are computed on the device: their matrices are out of reach.
struct OnDevice<'a> {
    vram: &'a mut VramExperts,
    /// Experts that the device did not compute.
    refused: Vec<u32>,
}

impl Weights for OnDevice<'_> {
    fn vector(&self, _: PieceId, _: Role) -> &[f32] {
        &[]
    }

    fn matrix(&self, _: PieceId, _: Role) -> Option<Matrix<'_>> {
        None
    }

    fn executor(&mut self) -> Option<&mut dyn ExpertExecutor> {
        Some(self)
    }

    fn blocks(
        &mut self,
        piece: PieceId,
        _: Role,
        _: &mut dyn FnMut(usize, &Matrix<'_>),
    ) -> Result<(), SourceError> {
        Err(format!("{piece} lies on a device, which alone computes it").into())
    }
}

impl ExpertExecutor for OnDevice<'_> {
    fn compute(
        &mut self,
        batch: &ExpertBatch<'_>,
        outputs: &mut [f32],
    ) -> Result<Vec<u32>, SourceError> {
        let refused = self.vram.compute(batch, outputs)?;
        self.refused.extend(&refused);
        Ok(refused)
    }
}
