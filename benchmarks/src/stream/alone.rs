//! Reads of a model's experts through the store, without any computing.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use sws_format::{Clock, PieceKind};
use sws_store::{Arena, NVMeWeightStore, Read, StoreOptions};

use crate::resident;

/// Experts that are read at once.
const SLOTS: usize = 8;

/// Bytes per second when reading at least `bytes` of experts, or of all pieces of a dense model.
pub fn read(model: &Path, bytes: u64) -> Result<f64> {
    let (manifest, _) = resident::open(model)?;
    let store = NVMeWeightStore::open(Arc::new(manifest), model, StoreOptions::default())?;
    let pieces = store.manifest().pieces.iter().map(|piece| piece.id);
    let (experts, others): (Vec<_>, Vec<_>) =
        pieces.partition(|id| matches!(id.kind(), PieceKind::Expert(_)));
    let ids = if experts.is_empty() { others } else { experts };
    let mut largest = 0;
    for &id in &ids {
        largest = largest.max(store.layout(Read::Piece(id))?.slot_len());
    }
    let arena = Arena::new(SLOTS * largest)?;
    // Untouched pages would cost more than the reads.
    arena.take(arena.bytes()).context("an empty arena")?.fill(1);
    // Far apart, and each as often as the others.
    let step = (0..).map(|n: usize| n * 97 % ids.len());
    let mut selection = Vec::new();
    let mut selected = 0;
    for place in step {
        if selected >= bytes {
            break;
        }
        let layout = store.layout(Read::Piece(ids[place]))?;
        selected += layout.segments().iter().map(|segment| segment.present as u64).sum::<u64>();
        selection.push(Read::Piece(ids[place]));
    }
    let clock = Clock::real();
    let mut read = 0;
    let mut failed = None;
    for selection in selection.chunks(4 * SLOTS) {
        store.extract_pieces(selection, &arena, |completion| {
            let present = completion.layout.segments().iter().map(|segment| segment.present as u64);
            read += present.sum::<u64>();
            failed = failed.take().or(completion.result.err());
        })?;
    }
    let seconds = clock.now().as_secs_f64();
    match failed {
        Some(error) => Err(error).with_context(|| format!("`{}`", model.display())),
        None => Ok(read as f64 / seconds),
    }
}
