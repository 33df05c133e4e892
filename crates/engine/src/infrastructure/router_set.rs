//! The routers of a model in memory, and nothing else of it.

use sws_draft::Gates;
use sws_kernels::Functionals;
use sws_model::{Inventory, ModelSpec, RouterProbe};
use sws_store::{Arena, NVMeWeightStore, PieceId, PieceKind, PieceLayout, Read};

use super::resident::{ResidentPieces, ResidentWeights};
use crate::error::StreamError;

/// The routers of a model in memory, and nothing else of it: to train a draft, or to judge one.
#[derive(Debug)]
pub struct RouterSet {
    spec: ModelSpec,
    pinned: ResidentPieces,
    probe: RouterProbe,
}

/// RingBuffer in which norms are read before they are widened.
const PASSING: usize = 8 << 20;

impl RouterSet {
    /// Reads them.
    pub fn open(spec: &ModelSpec, store: &NVMeWeightStore) -> Result<RouterSet, StreamError> {
        let inventory = Inventory::new(spec, store.manifest())?;
        let router = |id: &PieceId| id.kind() == PieceKind::Router;
        let mut bytes = PASSING;
        for id in inventory.pieces().filter(router) {
            let layout = PieceLayout::new(store.manifest(), Read::Piece(id));
            bytes += layout?.slot_len();
        }
        let arena = Arena::new(bytes).map_err(|cause| StreamError::Memory { bytes, cause })?;
        let pinned = ResidentPieces::load(store, &arena, &inventory, |id| router(&id))?;
        let probe = RouterProbe::new(Functionals::best());
        Ok(RouterSet { spec: spec.clone(), pinned, probe })
    }
}

impl Gates for RouterSet {
    fn logits(&mut self, layer: usize, state: &[f32], logits: &mut [f32]) -> bool {
        self.probe.scores(&self.spec, layer, &mut ResidentWeights(&self.pinned), state, logits)
    }
}
