//! Access to the verified prefix of a fetch in flight.

use std::ops::Deref;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::NVMeWeightStore;
use crate::fetch::Ticket;
use crate::integrity::Transfer;
use crate::scheduler::HeldPrefix;

/// The first bytes of a slot that is being read into, all of them verified. The fetch does not end
/// while they are borrowed.
pub struct Landed<'s> {
    store: &'s NVMeWeightStore,
    ticket: Ticket,
    transfer: Arc<Transfer>,
    len: usize,
}

/// Reasons why the prefix of a fetch is not available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotLanded {
    /// The prefix has not landed yet.
    Later,
    /// The fetch is over, or about to fail: see its completion. Always the case in virtual time,
    /// where a fetch arrives as a whole.
    Over,
}

impl NVMeWeightStore {
    /// Returns the first `len` bytes of a fetch's slot, once they have been read and verified.
    /// Waits at most `timeout`, and may return [`NotLanded::Later`] earlier.
    pub fn landed(
        &self,
        ticket: Ticket,
        len: usize,
        timeout: Duration,
    ) -> Result<Landed<'_>, NotLanded> {
        if self.simulation.is_some() {
            return Err(NotLanded::Over);
        }
        let mut state = self.shared.lock();
        if !timeout.is_zero() && !state.queue.has_landed(ticket, len) {
            let watch = (ticket, len);
            state.watched.push(watch);
            let woken = self.shared.progress.wait_timeout(state, timeout);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
            if let Some(at) = state.watched.iter().position(|&other| other == watch) {
                state.watched.swap_remove(at);
            }
        }
        match state.queue.hold(ticket, len) {
            HeldPrefix::Now(transfer) => Ok(Landed { store: self, ticket, transfer, len }),
            HeldPrefix::Later => Err(NotLanded::Later),
            HeldPrefix::Over => Err(NotLanded::Over),
        }
    }
}

impl Deref for Landed<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `hold` has counted this as one more job of the fetch. The queue therefore keeps
        // the slot, which nothing else can reach, until this is dropped. `hold` has also checked
        // that all bytes below `len` are verified, and no thread writes to verified bytes.
        unsafe { self.transfer.memory.slice(0..self.len) }
    }
}

impl Drop for Landed<'_> {
    fn drop(&mut self) {
        let now = self.store.clock().now();
        self.store.shared.lock().queue.done(self.ticket, Ok(()), now);
    }
}

impl std::fmt::Debug for Landed<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Landed").field("ticket", &self.ticket).field("len", &self.len).finish()
    }
}
