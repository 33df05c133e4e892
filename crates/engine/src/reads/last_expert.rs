//! The last expert of a layer, computed while the last of its matrices is in flight.
//!
//! The device has nothing to read between the last byte of a layer and the next router's choice. If
//! the last expert waited for all of its bytes, its whole computation would fall into that gap.

use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender};
use sws_format::PieceId;
use sws_kernels::Matrix;
use sws_model::{HeldTensor, Inventory, Ready, Role, SourceError, Weights};
use sws_store::{Completion, FetchError, Landed, NVMeWeightStore, PieceLayout, Priority, Ticket};

use super::in_flight::{Arrival, ReadInFlight, ReadsInFlight};
use super::loaded::{held_tensor, matrix, no_vector};
use crate::error::StreamError;
use crate::stand_ins::StandIns;
use crate::wait::Waiter;

/// An expert of which all but the last matrix is resident.
struct LastExpert<'a> {
    id: PieceId,
    layout: Arc<PieceLayout>,
    /// The verified prefix. `None` once the last matrix was requested, as the read cannot end while
    /// the prefix is borrowed.
    landed: Option<Landed<'a>>,
    inventory: &'a Inventory,
    stand_ins: &'a StandIns,
    store: &'a NVMeWeightStore,
    waiter: &'a Waiter,
    reply: &'a Sender<Completion>,
    arrived: &'a Receiver<Completion>,
    /// The read in flight; the second one if the first has failed.
    ticket: Ticket,
    /// Reads that ended while the last matrix was awaited. The last one is this expert's.
    completions: Vec<Completion>,
}

/// Outcome of computing an expert in flight.
#[derive(Debug)]
pub(crate) struct Computed {
    /// Reads that ended meanwhile.
    pub(crate) arrivals: Vec<Arrival>,
    pub(crate) result: Result<(), SourceError>,
}

impl ReadsInFlight {
    /// Computes `expert` of `layer` with `ready` while its last matrix is in flight. Returns `None`
    /// if that is not possible or the read has already ended.
    pub(crate) fn compute_arriving(
        &mut self,
        layer: u32,
        expert: u32,
        ready: Ready<'_>,
    ) -> Result<Option<Computed>, StreamError> {
        let id = PieceId::expert(layer, expert);
        let Some(ReadInFlight { ticket, demanded: true, ending: false, .. }) = self.get(id) else {
            return Ok(None);
        };
        // A piece is checked for non-finite numbers before its first use.
        if !self.is_checked(id) {
            return Ok(None);
        }
        let layout = self.layout(id)?;
        let held = self.inventory.piece(id);
        let Some(len) = before_last(&layout, held, self.store.chunk()) else { return Ok(None) };
        let ReadsInFlight { store, waiter, inventory, stand_ins, reply, arrived, .. } = self;
        let Some(landed) = waiter.landed(store, ticket, len)? else { return Ok(None) };
        let landed = Some(landed);
        let completions = Vec::new();
        let mut weights = LastExpert {
            id,
            layout,
            landed,
            inventory,
            stand_ins,
            store,
            waiter,
            reply,
            arrived,
            ticket,
            completions,
        };
        let result = ready(&[expert], &mut weights);
        let ticket = weights.ticket;
        let completions = std::mem::take(&mut weights.completions);
        drop(weights);
        // The repeated read may still be in flight after an error. It is given up then.
        if let Some(read) = self.in_flight.get_mut(&id) {
            read.ticket = ticket;
        }
        let arrivals = completions.into_iter().map(|completion| self.landed(completion)).collect();
        Ok(Some(Computed { arrivals, result }))
    }
}

/// Length of the slot's prefix that holds everything but the last matrix of an expert and its bias.
/// `None` if the matrices lie in another order, or if less than a chunk would follow the prefix.
fn before_last(layout: &PieceLayout, held: &[HeldTensor], chunk: usize) -> Option<usize> {
    let mut before = 0;
    let mut last = usize::MAX;
    let computed_last = held.iter().rposition(|held| held.role.is_matrix())?;
    for (place, held) in held.iter().enumerate() {
        for part in layout.tensors().get(held.index)?.parts.iter().flatten() {
            match place >= computed_last {
                true => last = last.min(part.start),
                false => before = before.max(part.end),
            }
        }
    }
    (before <= last && before.checked_add(chunk)? < layout.slot_len()).then_some(before)
}

impl LastExpert<'_> {
    fn held(&self, piece: PieceId, role: Role) -> Option<&HeldTensor> {
        if piece == self.id { held_tensor(self.inventory, piece, role) } else { None }
    }

    /// Waits for the whole expert. A read that fails is repeated once.
    fn whole(&mut self) -> Result<&Completion, SourceError> {
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
                    let layout = Arc::clone(&self.layout);
                    let reply = self.reply.clone();
                    let again =
                        self.store.fetch_to(layout, Priority::Demanded, completion.slot, reply);
                    self.ticket = again.map_err(|small| small.to_string())?;
                }
                Err(error) => {
                    // The slot returns to the cache; the error ends the pass.
                    completion.result = Err(FetchError::Cancelled);
                    self.completions.push(completion);
                    return Err(StreamError::from(error).into());
                }
            }
        }
    }
}

impl Weights for LastExpert<'_> {
    fn vector(&self, piece: PieceId, role: Role) -> &[f32] {
        no_vector(piece, role)
    }

    fn matrix(&self, piece: PieceId, role: Role) -> Option<Matrix<'_>> {
        let held = self.held(piece, role)?;
        if let Some(landed) = &self.landed {
            return matrix(&self.layout, landed, held, self.stand_ins);
        }
        // Once the last matrix was requested, the whole expert is resident: its last bias follows.
        let Completion { layout, slot, .. } = self.completions.last()?;
        matrix(layout, slot, held, self.stand_ins)
    }

    fn blocks(
        &mut self,
        piece: PieceId,
        role: Role,
        compute: &mut dyn FnMut(usize, &Matrix<'_>),
    ) -> Result<(), SourceError> {
        let Some(held) = self.held(piece, role).copied() else {
            return Err(StreamError::not_resident(piece, role));
        };
        let stand_ins = self.stand_ins;
        let Completion { layout, slot, .. } = self.whole()?;
        let Some(last) = matrix(layout, slot, &held, stand_ins) else {
            return Err(StreamError::not_resident(piece, role));
        };
        compute(0, &last);
        Ok(())
    }
}
