//! Reads of a model's experts through the store, without any computing.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use sws_format::{Clock, PieceId, PieceKind};
use sws_store::{Arena, NVMeWeightStore, PieceLayout, Read, StoreOptions};

use crate::resident;

/// Experts that are read at once.
const SLOTS: usize = 8;

/// Bytes per second when reading at least `bytes` of experts, or of all pieces of a dense model.
pub fn read(model: &Path, bytes: u64) -> Result<f64> {
    let (manifest, _) = resident::open(model)?;
    let store = NVMeWeightStore::open(Arc::new(manifest), model, StoreOptions::default())?;
    let mut ids: Vec<PieceId> = store.manifest().pieces.iter().map(|piece| piece.id).collect();
    if ids.iter().any(is_expert) {
        ids.retain(is_expert);
    }
    let mut largest = 0;
    for &id in &ids {
        largest = largest.max(store.layout(Read::Piece(id))?.slot_len());
    }
    let arena = Arena::new(SLOTS * largest)?;
    // Untouched pages would cost more than the reads.
    arena.take(arena.bytes()).context("an empty arena")?.fill(1);
    let mut selection = Vec::new();
    let mut selected = 0;
    while selected < bytes {
        // Far apart, and each as often as the others.
        let id = ids[selection.len() * 97 % ids.len()];
        let layout = store.layout(Read::Piece(id))?;
        selected += present(&layout);
        selection.push(Read::Piece(id));
    }
    let clock = Clock::real();
    let mut read = 0;
    let mut failed = None;
    for selection in selection.chunks(4 * SLOTS) {
        store.extract_pieces(selection, &arena, |completion| {
            read += present(&completion.layout);
            failed = failed.take().or(completion.result.err());
        })?;
    }
    let seconds = clock.now().as_secs_f64();
    match failed {
        Some(error) => Err(error).with_context(|| format!("`{}`", model.display())),
        None => Ok(read as f64 / seconds),
    }
}

fn is_expert(id: &PieceId) -> bool {
    matches!(id.kind(), PieceKind::Expert(_))
}

/// Bytes that a read of a piece takes from its files.
fn present(layout: &PieceLayout) -> u64 {
    layout.segments().iter().map(|segment| segment.present as u64).sum()
}
