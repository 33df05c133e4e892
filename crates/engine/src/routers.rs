//! The routers of later layers, asked about a state that is not theirs.

use sws_draft::Gates;
use sws_kernels::functional::{NormWeight, rms_norm};
use sws_kernels::{Functionals, Input, Output, ThreadScratch, matmul_rows};
use sws_model::{Ffn, Inventory, ModelSpec, Norm, Role};
use sws_store::{Arena, NVMeWeightStore, PieceId, PieceKind, PieceLayout, Read};

use crate::error::StreamError;
use crate::pinned::Pinned;
use crate::streamer::StreamerError;

/// What it takes to ask a router that is in memory.
#[derive(Debug)]
pub(crate) struct Routers {
    functionals: Functionals,
    width: usize,
    /// The norm and the number of experts of each layer; none of a dense one.
    layers: Vec<Option<(Norm, usize)>>,
    normed: Vec<f32>,
    input: Input,
    scratch: ThreadScratch,
}

impl Routers {
    pub(crate) fn new(spec: &ModelSpec, functionals: Functionals) -> Routers {
        let layers = spec.layers.iter().map(|layer| match layer.ffn {
            Ffn::Moe(moe) => Some((layer.norm, moe.experts)),
            _ => None,
        });
        let (normed, input, scratch) = Default::default();
        let (width, layers) = (spec.hidden, layers.collect());
        Routers { functionals, width, layers, normed, input, scratch }
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
        let Functionals { norm: normer, linear, .. } = self.functionals;
        rms_norm(normer, &mut self.normed, self.width, NormWeight::Plain(norm), eps);
        self.input.pack(linear, &self.normed, tokens, self.width);
        let y = Output::new(logits, tokens, experts);
        matmul_rows(linear, &router, &self.input, y, &mut self.scratch);
        true
    }
}

/// The routers of a model in memory, and nothing else of it: to train a draft, or to judge one.
#[derive(Debug)]
pub struct RouterSet {
    pinned: Pinned,
    routers: Routers,
}

/// Room in which norms are read before they are widened.
const PASSING: usize = 8 << 20;

impl RouterSet {
    /// Reads them.
    pub fn open(spec: &ModelSpec, store: &NVMeWeightStore) -> Result<RouterSet, StreamerError> {
        let inventory = Inventory::new(spec, store.manifest())?;
        let router = |id: &PieceId| id.kind() == PieceKind::Router;
        let mut bytes = PASSING;
        for id in inventory.pieces().filter(router) {
            let layout = PieceLayout::new(store.manifest(), Read::Piece(id));
            bytes += layout.map_err(StreamError::from)?.slot_len();
        }
        let arena = Arena::new(bytes).map_err(|cause| StreamerError::Memory { bytes, cause })?;
        let pinned = Pinned::load(store, &arena, &inventory, |id| router(&id))?;
        Ok(RouterSet { pinned, routers: Routers::new(spec, Functionals::best()) })
    }
}

impl Gates for RouterSet {
    fn logits(&mut self, layer: usize, state: &[f32], logits: &mut [f32]) -> bool {
        self.routers.logits(&self.pinned, layer, state, logits)
    }
}
