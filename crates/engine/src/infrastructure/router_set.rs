//! The routers of a model, without its other weights.

use std::collections::HashSet;

use sws_draft::Gates;
use sws_format::PieceKind;
use sws_kernels::Tier;
use sws_model::{Inventory, ModelSpec, RouterProbe};
use sws_store::{NVMeWeightStore, PieceLayout, Read};

use super::resident::{ResidentPieces, ResidentWeights};
use crate::error::{StreamError, arena_of};

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
        let mut routers = HashSet::new();
        let mut bytes = NORM_BYTES;
        for id in inventory.pieces() {
            if id.kind() == PieceKind::Router {
                let layout = PieceLayout::new(store.manifest(), Read::Piece(id));
                bytes += layout?.slot_len();
                routers.insert(id);
            }
        }
        let arena = arena_of(bytes)?;
        let pinned = ResidentPieces::load(store, &arena, &inventory, &routers, &mut |_| ())?;
        let probe = RouterProbe::new(Tier::best());
        Ok(RouterSet { spec: spec.clone(), pinned, probe })
    }
}

impl Gates for RouterSet {
    fn logits(&mut self, layer: usize, state: &[f32], logits: &mut [f32]) -> bool {
        self.probe.scores(&self.spec, layer, &mut ResidentWeights(&self.pinned), state, logits)
    }
}
