//! The routers of later layers, asked about a state that is not theirs.

use sws_kernels::functional::{NormWeight, rms_norm};
use sws_kernels::{Input, Output, ThreadScratch, Tier, matmul_rows};
use sws_model::{Ffn, ModelSpec, Norm, Role};
use sws_store::{PieceId, PieceKind};

use crate::pinned::Pinned;

/// What it takes to ask a router that is in memory.
#[derive(Debug)]
pub(crate) struct Routers {
    tier: Tier,
    width: usize,
    /// The norm and the number of experts of each layer; none of a dense one.
    layers: Vec<Option<(Norm, usize)>>,
    normed: Vec<f32>,
    input: Input,
    scratch: ThreadScratch,
}

impl Routers {
    pub(crate) fn new(spec: &ModelSpec) -> Routers {
        let layers = spec.layers.iter().map(|layer| match layer.ffn {
            Ffn::Moe(moe) => Some((layer.norm, moe.experts)),
            _ => None,
        });
        let (normed, input, scratch) = Default::default();
        // No answer depends on it.
        let tier = Tier::best();
        Routers { tier, width: spec.hidden, layers: layers.collect(), normed, input, scratch }
    }

    /// As [`sws_draft::Gates::logits`], on the calling thread: for one token another takes longer to
    /// wake.
    pub(crate) fn logits(
        &mut self,
        pinned: &Pinned,
        layer: usize,
        state: &[f32],
        logits: &mut [f32],
    ) -> bool {
        let Some(&Some((Norm::Rms { eps }, experts))) = self.layers.get(layer) else {
            return false;
        };
        let id = |kind| PieceId::new(layer as u32, kind);
        let norm = pinned.vector(id(PieceKind::Norms), Role::FfnNorm);
        let router = pinned.matrix(id(PieceKind::Router), Role::Router);
        let (Some(norm), Some(router)) = (norm, router) else { return false };
        let tokens = state.len() / self.width;
        if router.row_count() != experts || logits.len() != tokens * experts {
            return false;
        }
        self.normed.clear();
        self.normed.extend_from_slice(state);
        rms_norm(self.tier, &mut self.normed, self.width, NormWeight::Plain(norm), eps);
        self.input.pack(self.tier, &self.normed, tokens, self.width);
        let y = Output::new(logits, tokens, experts);
        matmul_rows(self.tier, &router, &self.input, y, &mut self.scratch);
        true
    }
}
