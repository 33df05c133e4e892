//! The last expert of a layer, computed with while the last of its matrices is on its way.
//!
//! The device has nothing to read between the last byte of a layer and the next router's choice. An
//! expert computed with as a whole when all of it is there would add all of its computing to that.

use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender};
use sws_kernels::Matrix;
use sws_model::{Held, Inventory, Ready, Role, SourceError, Weights};
use sws_store::{
    Completion, FetchError, Landed, NVMeWeightStore, PieceId, PieceLayout, Priority, Ticket,
};

use super::DynamicAssembler;
use super::reading::Reading;
use super::weights::{matrix, no_vector};
use crate::error::StreamError;
use crate::wait::Waiter;

/// An expert of which everything but the last matrix is there.
struct Arriving<'a> {
    id: PieceId,
    layout: Arc<PieceLayout>,
    /// None once the last matrix was asked for: the fetch cannot end before.
    landed: Option<Landed<'a>>,
    inventory: &'a Inventory,
    store: &'a NVMeWeightStore,
    waiter: &'a Waiter,
    reply: &'a Sender<Completion>,
    arrived: &'a Receiver<Completion>,
    /// The fetch, the second if the first failed.
    ticket: Ticket,
    /// What came while the last matrix was waited for, in the end this expert.
    completions: Vec<Completion>,
}

impl DynamicAssembler {
    /// If nothing is left of the layer but one expert that is being read, computes with it as it comes.
    /// False if there is no such, or if it is there as a whole, or will not be.
    pub(super) fn compute_arriving(&mut self, ready: Ready<'_>) -> Result<bool, SourceError> {
        let &[expert] = &self.needed[..] else { return Ok(false) };
        let id = PieceId::expert(self.layer, expert);
        let Some(&Reading { ticket, demanded: true, ending: false, .. }) = self.reading.get(&id)
        else {
            return Ok(false);
        };
        // What is read for the first time is looked at before it is computed with.
        if !self.looked_at.contains(&id) || self.failed.contains(&id) {
            return Ok(false);
        }
        let layout = self.layout(id).map_err(StreamError::from)?;
        let held = self.inventory.piece(id);
        let Some(len) = before_last(&layout, held, self.store.chunk()) else { return Ok(false) };
        let DynamicAssembler { store, waiter, inventory, reply, arrived, .. } = self;
        let Some(landed) = waiter.landed(store, ticket, len)? else { return Ok(false) };
        let (landed, completions) = (Some(landed), Vec::new());
        let mut weights = Arriving {
            id,
            layout,
            landed,
            inventory,
            store,
            waiter,
            reply,
            arrived,
            ticket,
            completions,
        };
        let result = ready(&[expert], &mut weights);
        let (ticket, completions) = (weights.ticket, std::mem::take(&mut weights.completions));
        drop(weights);
        // What is given up after an error is what is being read.
        if let Some(reading) = self.reading.get_mut(&id) {
            reading.ticket = ticket;
        }
        let mut kept = Ok(());
        for completion in completions {
            kept = kept.and(self.land(completion));
        }
        result?;
        kept?;
        self.cache.computed(PieceId::expert(self.layer, expert));
        self.needed.clear();
        Ok(true)
    }
}

/// The length of the slot's beginning in which everything but the last matrix of an expert lies. None if
/// it does not lie before that matrix, or if no whole read is to come after it.
fn before_last(layout: &PieceLayout, held: &[Held], chunk: usize) -> Option<usize> {
    let (mut before, mut last) = (0, usize::MAX);
    let computed_last = held.iter().rfind(|held| held.role.is_matrix())?.role;
    for held in held {
        for part in layout.tensors().get(held.index)?.parts.iter().flatten() {
            match held.role == computed_last {
                true => last = last.min(part.start),
                false => before = before.max(part.end),
            }
        }
    }
    (before <= last && before.checked_add(chunk)? < layout.slot_len()).then_some(before)
}

impl Arriving<'_> {
    fn held(&self, piece: PieceId, role: Role) -> Option<&Held> {
        let held = self.inventory.piece(piece).iter().find(|held| held.role == role);
        held.filter(|_| piece == self.id)
    }

    /// The rest of the expert. A read that fails is made once more.
    fn rest(&mut self) -> Result<&Completion, SourceError> {
        self.landed = None;
        let mut failed = false;
        loop {
            let mut completion = self.waiter.wait(self.store, self.arrived)?;
            let ours = completion.layout.read().piece() == self.id;
            match std::mem::replace(&mut completion.result, Ok(())) {
                Ok(()) => {
                    self.completions.push(completion);
                    if ours {
                        return Ok(&self.completions[self.completions.len() - 1]);
                    }
                }
                Err(error) if !ours => {
                    completion.result = Err(error);
                    self.completions.push(completion);
                }
                Err(_) if !std::mem::replace(&mut failed, true) => {
                    let (layout, reply) = (Arc::clone(&self.layout), self.reply.clone());
                    let again =
                        self.store.fetch_to(layout, Priority::Demanded, completion.slot, reply);
                    self.ticket = again.map_err(|small| small.to_string())?;
                }
                Err(error) => {
                    // The slot goes back, and the error goes with the pass.
                    completion.result = Err(FetchError::Cancelled);
                    self.completions.push(completion);
                    return Err(StreamError::from(error).into());
                }
            }
        }
    }
}

impl Weights for Arriving<'_> {
    fn vector(&self, piece: PieceId, role: Role) -> &[f32] {
        no_vector(piece, role)
    }

    fn matrix(&self, piece: PieceId, role: Role) -> Option<Matrix<'_>> {
        let held = self.held(piece, role)?;
        matrix(&self.layout, self.landed.as_ref()?, held)
    }

    fn blocks(
        &mut self,
        piece: PieceId,
        role: Role,
        compute: &mut dyn FnMut(usize, &Matrix<'_>),
    ) -> Result<(), SourceError> {
        let held = self
            .held(piece, role)
            .copied()
            .ok_or_else(|| StreamError::not_resident(piece, role))?;
        let Completion { layout, slot, .. } = self.rest()?;
        let last =
            matrix(layout, slot, &held).ok_or_else(|| StreamError::not_resident(piece, role))?;
        compute(0, &last);
        Ok(())
    }
}
