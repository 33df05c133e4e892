//! Loading all weights into memory.

use std::ops::ControlFlow;

use sws_model::ResidentSource;
use sws_store::shard::Progress;
use sws_store::{Arena, Read, remedy};

use crate::{Error, Loader, Result};

/// Memory for reads in flight during loading, in addition to the largest piece.
const LOADING_BYTES: usize = 64 << 20;

/// Loads all weights, with every byte verified and every number checked.
pub(crate) fn load(loader: &mut Loader<'_>) -> Result<ResidentSource> {
    let (model, cancel) = (loader.model, loader.cancel.clone());
    let mut weights =
        sws_model::Loader::new(model.spec(), model.manifest()).map_err(|e| model.error(e))?;
    let store = model.store_with(loader.open_reader()?)?;
    let wanted: Vec<Read> = weights.wanted().into_iter().map(Read::Piece).collect();
    let (mut total, mut largest) = (0, 0);
    for read in &wanted {
        let len = store.layout(read.clone())?.slot_len();
        total += len as u64;
        largest = largest.max(len);
    }
    let otherwise = "shard it in a smaller encoding (`sws shard --encoding q4`)";
    model.check_memory(total + largest as u64, otherwise)?;
    let arena = Arena::new(largest + LOADING_BYTES.min(total as usize))
        .map_err(|e| model.error(format!("{e}; {}", remedy(&e, "close other programs"))))?;

    let mut done = 0;
    let mut failure = None;
    store.extract_while(&wanted, &arena, |completion| {
        if cancel.is_cancelled() {
            failure = Some(Error::Cancelled);
            return ControlFlow::Break(());
        }
        done += completion.layout.slot_len() as u64;
        loader.report(Progress { done, total });
        let added = completion.result.map_err(Error::from).and_then(|()| {
            let layout = &completion.layout;
            let tensors = layout.tensors();
            let add = weights.add(layout.read().piece(), |_, (tensor, part), into| {
                let found = tensors.iter().find(|t| t.index == tensor);
                let bytes = found.and_then(|t| t.part(&completion.slot, part));
                into.copy_from_slice(bytes.ok_or("the read left out a tensor")?);
                Ok(())
            });
            add.map_err(|e| model.error(e))
        });
        failure = added.err();
        if failure.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    match failure {
        Some(error) => Err(error),
        None => Ok(weights.finish()),
    }
}
