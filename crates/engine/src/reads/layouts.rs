//! Layouts of experts.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use sws_format::PieceId;
use sws_store::{LayoutError, NVMeWeightStore, PieceLayout, Read};

use crate::stand_ins::StandIns;

/// Cached layouts of pieces. Computing one takes a dozen allocations. The plan accounts for a
/// layout of every piece.
#[derive(Debug, Default)]
pub(super) struct Layouts(HashMap<PieceId, Arc<PieceLayout>>);

impl Layouts {
    /// The layout of a piece, without the tensors that a resident stand-in shares with it.
    pub(super) fn of(
        &mut self,
        store: &NVMeWeightStore,
        stand_ins: &StandIns,
        id: PieceId,
    ) -> Result<&Arc<PieceLayout>, LayoutError> {
        let read = if stand_ins.contains(id) { Read::Beside } else { Read::Piece };
        Ok(match self.0.entry(id) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => unknown.insert(store.layout(read(id))?),
        })
    }

    /// Sorts pieces by their position on the disk.
    pub(super) fn sort(
        &mut self,
        store: &NVMeWeightStore,
        stand_ins: &StandIns,
        ids: &mut [PieceId],
    ) {
        if ids.len() < 2 {
            return;
        }
        ids.sort_by_cached_key(|&id| place(self.of(store, stand_ins, id).ok()?));
    }
}

/// File and offset at which a read begins.
fn place(layout: &PieceLayout) -> Option<(u32, u64)> {
    let first = layout.segments().first()?;
    Some((first.file, first.offset))
}
