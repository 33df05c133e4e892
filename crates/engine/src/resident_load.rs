//! Loading all weights into memory.

use std::ops::ControlFlow;

use sws_format::Progress;
use sws_model::{LoadError, ModelSpec, ResidentLoader, ResidentSource};
use sws_store::{Completion, NVMeWeightStore, Read};

use crate::error::{StreamError, arena_of};

/// Memory for reads in flight, beside the largest piece.
const LOADING_BYTES: u64 = 64 << 20;

/// All weights of a model, to be read from a store into memory: every byte is verified, and every
/// number checked.
#[derive(Debug)]
pub struct ResidentLoad<'s> {
    store: &'s NVMeWeightStore,
    weights: ResidentLoader<'s>,
    wanted: Vec<Read>,
    total: u64,
    largest: u64,
}

impl<'s> ResidentLoad<'s> {
    /// Checks that the weights match `spec`.
    pub fn new(
        spec: &ModelSpec,
        store: &'s NVMeWeightStore,
    ) -> Result<ResidentLoad<'s>, StreamError> {
        let weights = ResidentLoader::new(spec, store.manifest()).map_err(LoadError::from)?;
        let wanted: Vec<Read> = weights.wanted().into_iter().map(Read::Piece).collect();
        let mut total = 0;
        let mut largest = 0;
        for read in &wanted {
            let len = store.layout(read.clone())?.slot_len() as u64;
            total += len;
            largest = largest.max(len);
        }
        Ok(ResidentLoad { store, weights, wanted, total, largest })
    }

    /// The memory that loading needs.
    pub fn needed(&self) -> u64 {
        self.total + self.largest
    }

    /// Loads the weights. Returns `None` if `report` returns false, which ends it.
    pub fn load(
        self,
        mut report: impl FnMut(Progress) -> bool,
    ) -> Result<Option<ResidentSource>, StreamError> {
        let ResidentLoad { store, mut weights, wanted, total, largest } = self;
        let bytes = (largest + LOADING_BYTES.min(total)) as usize;
        let arena = arena_of(bytes)?;
        let mut done = 0;
        // Reading the first piece may take long, so progress is reported before it.
        if !report(Progress { done, total }) {
            return Ok(None);
        }
        let mut loaded: Result<bool, StreamError> = Ok(true);
        store.extract_while(&wanted, &arena, |completion| {
            done += completion.layout.slot_len() as u64;
            loaded = match report(Progress { done, total }) {
                true => add(&mut weights, completion).map(|()| true),
                false => Ok(false),
            };
            if matches!(loaded, Ok(true)) {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })?;
        Ok(if loaded? { Some(weights.finish()) } else { None })
    }
}

/// Adds a piece that was read.
fn add(weights: &mut ResidentLoader<'_>, completion: Completion) -> Result<(), StreamError> {
    completion.result?;
    let layout = &completion.layout;
    let tensors = layout.tensors();
    Ok(weights.add(layout.read().piece(), |_, (tensor, part), into| {
        let found = tensors.iter().find(|t| t.index == tensor);
        let bytes = found.and_then(|t| t.part(&completion.slot, part));
        into.copy_from_slice(bytes.ok_or("the read left out a tensor")?);
        Ok(())
    })?)
}
