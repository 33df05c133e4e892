//! The routers of a model, without its other weights.

use sws_draft::Gates;
use sws_format::{PieceId, PieceKind};
use sws_kernels::Tier;
use sws_model::{Inventory, ModelSpec, RouterProbe};
use sws_store::{Arena, NVMeWeightStore, PieceLayout, Read};

use super::resident::{ResidentPieces, ResidentWeights};
use crate::error::StreamError;

/// The routers of a model in memory, without its other weights, for training or judging a draft.
#[derive(Debug)]
pub struct RouterSet {
    spec: ModelSpec,
    pinned: ResidentPieces,
    probe: RouterProbe,
}

/// Buffer size for reading norms before they are widened.
const NORM_BYTES: usize = 8 << 20;

impl RouterSet {
    /// Reads the routers.
    pub fn open(spec: &ModelSpec, store: &NVMeWeightStore) -> Result<RouterSet, StreamError> {
        let inventory = Inventory::new(spec, store.manifest())?;
        let router = |id: &PieceId| id.kind() == PieceKind::Router;
        let mut bytes = NORM_BYTES;
        for id in inventory.pieces().filter(router) {
            let layout = PieceLayout::new(store.manifest(), Read::Piece(id));
            bytes += layout?.slot_len();
        }
        let arena = Arena::new(bytes).map_err(|cause| StreamError::Memory { bytes, cause })?;
        let pinned =
            ResidentPieces::load(store, &arena, &inventory, |id| router(&id), &mut |_| ())?;
        let probe = RouterProbe::new(Tier::best());
        Ok(RouterSet { spec: spec.clone(), pinned, probe })
    }
}

impl Gates for RouterSet {
    fn logits(&mut self, layer: usize, state: &[f32], logits: &mut [f32]) -> bool {
        self.probe.scores(&self.spec, layer, &mut ResidentWeights(&self.pinned), state, logits)
    }
}
