//! The cache: slots, their contents, and the rules of eviction.

mod state;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};

use sws_format::{Pass, PieceId, PieceKind};

use crate::policy::{Policy, RouterChoice};
use state::{SlotDemand, SlotEntry, SlotState};

/// A cache of pieces in a fixed set of slots. A [`Policy`] picks the victim among the evictable
/// pieces. Pieces that are pinned, being read, or needed in the running layer are not evictable.
///
/// A slot is empty, loading or ready; a ready one can be pinned. Its memory is a payload `T`, of
/// which the cache knows only the length. An engine's payload is a `Slot` of the store with
/// its layout, a simulation's is `()`. Payloads move, memory does not: [`begin`](Self::begin) hands
/// out the payload of the slot that it has emptied, and [`ready`](Self::ready) or
/// [`failed`](Self::failed) takes it back.
///
/// ```
/// use sws_cache::{Lookup, Need, PredictiveCache};
/// use sws_cache::policy::{Lru, RouterChoice};
/// use sws_format::{Pass, PieceId};
///
/// // Two slots of 4096 bytes, whose memory is a number.
/// let mut cache = PredictiveCache::new(Box::new(Lru::new()), [(4096, 'a'), (4096, 'b')]);
/// for (position, expert) in [7, 8, 7, 9].into_iter().enumerate() {
///     let pass = Pass::single(position, &[0]);
///     cache.begin_pass(&pass);
///     cache.routed(&RouterChoice { pass: &pass, layer: 0, experts: &[expert] });
///     let piece = PieceId::expert(0, expert);
///     if cache.lookup(piece) == Lookup::Absent {
///         let claim = cache.begin(0, piece, 4000, Need::Now)?;
///         // Here the piece is read into what `claim.payload` stands for.
///         cache.ready(piece, claim.payload);
///     }
///     assert!(cache.get(piece).is_some());
/// }
/// assert!(cache.get(PieceId::expert(0, 8)).is_none());
/// # Ok::<(), sws_cache::NoRoom>(())
/// ```
#[derive(Debug)]
pub struct PredictiveCache<T> {
    entries: Vec<SlotEntry<T>>,
    index: HashMap<PieceId, usize>,
    /// Slots by their length.
    classes: BTreeMap<usize, Class>,
    policy: Box<dyn Policy>,
    running: Option<RunningLayer>,
    /// The current position in the pass.
    now: Option<PieceId>,
    bytes: usize,
    peak: usize,
    /// Bytes of all slots, and their limit.
    memory: usize,
    budget: usize,
    counts: BTreeMap<u32, LookupCounts>,
}

/// Slots of one length.
#[derive(Debug, Default)]
struct Class {
    /// Number of slots.
    slots: usize,
    /// Indices of the empty slots.
    free: Vec<usize>,
}

/// The layer being computed.
#[derive(Debug)]
struct RunningLayer {
    layer: u32,
    /// The layer's experts, ascending. The flag is true once an expert has been computed.
    experts: Vec<(u32, bool)>,
}

/// Result of a [`lookup`](PredictiveCache::lookup).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The piece is in memory.
    Ready,
    /// The piece is being read.
    Loading,
    /// The piece is not in the cache.
    Absent,
}

/// Reason for reading a piece.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Need {
    /// The next computation needs the piece.
    Now,
    /// The piece may be needed in this step, with this probability. It evicts only pieces that are
    /// expected later.
    Forecast(f32),
}

/// Memory for a piece that is going to be read.
#[derive(Debug)]
pub struct Claim<T> {
    /// The memory.
    pub payload: T,
    /// Length of the memory in bytes.
    pub len: usize,
    /// The piece that was evicted from this memory.
    pub evicted: Option<PieceId>,
}

/// Reasons to refuse a piece a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum NoRoom {
    /// No slot is that long.
    #[error("the piece {piece} needs {len} bytes and no slot of the cache is that long")]
    TooLarge {
        piece: PieceId,
        /// Bytes of the piece.
        len: usize,
    },
    /// Every slot that is long enough is pinned, being read, or needed in the running layer.
    #[error("every slot that {piece} would fit into is in use")]
    InUse { piece: PieceId },
    /// Every evictable piece is expected sooner.
    #[error("everything in the cache is expected sooner than {piece}")]
    ExpectedSooner { piece: PieceId },
    /// The victim is worth more than the piece.
    #[error("the piece that {piece} would evict is worth more")]
    NotWorth { piece: PieceId },
    /// The piece is ready or loading.
    #[error("{piece} is in the cache already")]
    Present { piece: PieceId },
}

/// Results of the lookups of one layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LookupCounts {
    /// Lookups of a ready piece.
    pub hits: u64,
    /// Lookups of a piece that was still being read.
    pub late: u64,
    /// Lookups of an absent piece.
    pub misses: u64,
}

impl<T> PredictiveCache<T> {
    /// Creates a cache from slots, each with its length in bytes and its payload.
    pub fn new(policy: Box<dyn Policy>, slots: impl IntoIterator<Item = (usize, T)>) -> Self {
        let mut cache = PredictiveCache {
            entries: Vec::new(),
            index: HashMap::new(),
            classes: BTreeMap::new(),
            policy,
            running: None,
            now: None,
            bytes: 0,
            peak: 0,
            memory: 0,
            budget: 0,
            counts: BTreeMap::new(),
        };
        cache.extend(slots);
        cache
    }

    /// Adds slots and raises the budget by their length. Returns the number of slots before.
    pub fn extend(&mut self, slots: impl IntoIterator<Item = (usize, T)>) -> usize {
        let before = self.entries.len();
        for (len, payload) in slots {
            let number = self.entries.len();
            self.entries.push(SlotEntry {
                len,
                state: SlotState::Empty(payload),
                demand: SlotDemand::None,
            });
            let class = self.classes.entry(len).or_default();
            class.slots += 1;
            class.free.push(number);
            self.memory += len;
            self.budget += len;
        }
        before
    }

    /// Removes all but the first `slots` slots, whatever they hold, and returns their payloads. The
    /// budget shrinks with them. No read into them should be in flight: the reader owns that
    /// memory.
    pub fn truncate(&mut self, slots: usize) -> Vec<T> {
        let mut given_up = Vec::new();
        while self.entries.len() > slots {
            let number = self.entries.len() - 1;
            if let Some(piece) = self.entries[number].state.piece() {
                self.forget(number, piece);
            }
            let Some(SlotEntry { len, state, .. }) = self.entries.pop() else { break };
            match state {
                SlotState::Gone => continue,
                SlotState::Loading { .. } => {}
                SlotState::Empty(payload) | SlotState::Ready { payload, .. } => {
                    given_up.push(payload)
                }
            }
            let class = self.classes.entry(len).or_default();
            class.slots -= 1;
            class.free.retain(|&slot| slot != number);
            self.memory -= len;
            self.budget = self.budget.saturating_sub(len);
        }
        given_up
    }

    /// Pieces being read into the slots from number `slots` on, which [`truncate`](Self::truncate)
    /// would remove.
    pub fn loading_beyond(&self, slots: usize) -> impl Iterator<Item = PieceId> {
        self.entries.iter().skip(slots).filter_map(|entry| match entry.state {
            SlotState::Loading { piece } => Some(piece),
            _ => None,
        })
    }

    /// Looks up a piece that the next computation needs, and counts the result.
    pub fn lookup(&mut self, piece: PieceId) -> Lookup {
        let counts = self.counts.entry(piece.layer().unwrap_or(0)).or_default();
        let Some(&slot) = self.index.get(&piece) else {
            counts.misses += 1;
            return Lookup::Absent;
        };
        self.policy.used(slot, piece);
        match self.entries[slot].state {
            SlotState::Ready { .. } => {
                counts.hits += 1;
                Lookup::Ready
            }
            _ => {
                counts.late += 1;
                Lookup::Loading
            }
        }
    }

    /// Returns the payload of a ready piece.
    pub fn get(&self, piece: PieceId) -> Option<&T> {
        match &self.entries[*self.index.get(&piece)?].state {
            SlotState::Ready { payload, .. } => Some(payload),
            _ => None,
        }
    }

    /// Looks up a piece without counting, unlike [`lookup`](Self::lookup).
    pub fn find(&self, piece: PieceId) -> Lookup {
        match self.index.get(&piece).map(|&slot| &self.entries[slot].state) {
            Some(SlotState::Ready { .. }) => Lookup::Ready,
            Some(_) => Lookup::Loading,
            None => Lookup::Absent,
        }
    }

    /// True if a piece is ready or loading. Counts nothing.
    pub fn contains(&self, piece: PieceId) -> bool {
        self.index.contains_key(&piece)
    }

    /// Pieces that are ready or loading, in no order.
    pub fn pieces(&self) -> impl Iterator<Item = PieceId> {
        self.index.keys().copied()
    }

    /// Number of pieces that are ready or loading.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// True if no piece is ready or loading.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.classes.values().map(|class| class.slots).sum()
    }

    /// Passes a forecast to the policy: the probability that a piece is used in the next turn of
    /// its layer. Has no effect on a piece that is not in the cache.
    pub fn foresee(&mut self, piece: PieceId, probability: f32) {
        if let Some(&slot) = self.index.get(&piece) {
            self.policy.set_forecast(slot, piece, probability);
        }
    }

    /// Makes room for a piece of `len` bytes while `layer` is computed. The piece is then loading.
    pub fn begin(
        &mut self,
        layer: u32,
        piece: PieceId,
        len: usize,
        need: Need,
    ) -> Result<Claim<T>, NoRoom> {
        self.begin_if(layer, piece, len, need, |_, _| true)
    }

    /// Like [`begin`](Self::begin), but evicts a victim only if `worth` returns true for it.
    pub fn begin_if(
        &mut self,
        layer: u32,
        piece: PieceId,
        len: usize,
        need: Need,
        worth: impl FnOnce(&mut dyn Policy, PieceId) -> bool,
    ) -> Result<Claim<T>, NoRoom> {
        if self.index.contains_key(&piece) {
            return Err(NoRoom::Present { piece });
        }
        self.now = Some(match need {
            Need::Now => piece,
            Need::Forecast(_) => PieceId::new(layer, PieceKind::Router),
        });
        let empty = self.classes.range_mut(len..).find_map(|(_, class)| class.free.pop());
        let slot = match empty {
            Some(slot) => slot,
            None => {
                let slot = self.choose(piece, len, need)?;
                let old = self.entries[slot].state.piece();
                if old.is_some_and(|old| !worth(self.policy.as_mut(), old)) {
                    return Err(NoRoom::NotWorth { piece });
                }
                slot
            }
        };
        let demand = self.demand(piece);
        let entry = &mut self.entries[slot];
        entry.demand = demand;
        let old = std::mem::replace(&mut entry.state, SlotState::Loading { piece });
        let (payload, evicted) = match old {
            SlotState::Empty(payload) => (payload, None),
            SlotState::Ready { payload, piece, .. } => (payload, Some(piece)),
            SlotState::Loading { .. } | SlotState::Gone => {
                unreachable!("neither is free or chosen")
            }
        };
        if let Some(old) = evicted {
            self.index.remove(&old);
            self.policy.left(slot, old);
        } else {
            self.bytes += self.entries[slot].len;
            self.peak = self.peak.max(self.bytes);
        }
        self.index.insert(piece, slot);
        self.policy.arrived(slot, piece);
        if let Need::Forecast(probability) = need {
            self.policy.set_forecast(slot, piece, probability);
        }
        Ok(Claim { payload, len: self.entries[slot].len, evicted })
    }

    /// Marks a loading piece as ready. Returns the payload if the piece is not loading.
    pub fn ready(&mut self, piece: PieceId, payload: T) -> Option<T> {
        let Some(slot) = self.loading(piece) else { return Some(payload) };
        self.entries[slot].state = SlotState::Ready { piece, payload, pins: 0 };
        None
    }

    /// Empties the slot of a loading piece whose read has failed. Returns the payload if the piece
    /// is not loading.
    pub fn failed(&mut self, piece: PieceId, payload: T) -> Option<T> {
        let Some(slot) = self.loading(piece) else { return Some(payload) };
        self.forget(slot, piece);
        let entry = &mut self.entries[slot];
        entry.state = SlotState::Empty(payload);
        self.classes.entry(entry.len).or_default().free.push(slot);
        None
    }

    /// Empties the slot of a ready piece. Returns false if the piece is not ready, pinned, or needed by the
    /// running layer.
    pub fn release(&mut self, piece: PieceId) -> bool {
        let Some(&slot) = self.index.get(&piece) else { return false };
        let entry = &self.entries[slot];
        let is_idle = matches!(entry.state, SlotState::Ready { pins: 0, .. });
        if !is_idle || entry.demand == SlotDemand::Needed {
            return false;
        }
        self.forget(slot, piece);
        let entry = &mut self.entries[slot];
        let state = std::mem::replace(&mut entry.state, SlotState::Gone);
        if let SlotState::Ready { payload, .. } = state {
            entry.state = SlotState::Empty(payload);
            self.classes.entry(entry.len).or_default().free.push(slot);
        }
        true
    }

    /// Keeps a ready piece until it is unpinned as often as it was pinned. Returns false if it is
    /// not ready.
    pub fn pin(&mut self, piece: PieceId) -> bool {
        match self.state_mut(piece) {
            Some(SlotState::Ready { pins, .. }) => {
                *pins += 1;
                true
            }
            _ => false,
        }
    }

    /// Removes a pin. Returns false if there is none.
    pub fn unpin(&mut self, piece: PieceId) -> bool {
        match self.state_mut(piece) {
            Some(SlotState::Ready { pins, .. }) if *pins > 0 => {
                *pins -= 1;
                true
            }
            _ => false,
        }
    }

    /// Tells the policy that a pass begins.
    pub fn begin_pass(&mut self, pass: &Pass) {
        self.policy.begin(pass);
    }

    /// Makes a layer the running one, after its router has chosen. Its experts are not evicted
    /// until they are [`computed`](Self::computed) or another layer runs.
    pub fn routed(&mut self, choice: &RouterChoice<'_>) {
        self.policy.routed(choice);
        self.runs(choice.layer, choice.experts);
    }

    /// Like [`routed`](Self::routed), without telling the policy. A choice that may turn out wrong
    /// is reported through [`policy_mut`](Self::policy_mut) once it is known to be right.
    pub fn runs(&mut self, layer: u32, experts: &[u32]) {
        self.now = Some(PieceId::new(layer, PieceKind::Router));
        let mut distinct = match self.stop() {
            Some(running) => running.experts,
            None => Vec::new(),
        };
        distinct.clear();
        distinct.extend(experts.iter().map(|&expert| (expert, false)));
        distinct.sort_unstable();
        distinct.dedup();
        for &(expert, _) in &distinct {
            if let Some(&slot) = self.index.get(&PieceId::expert(layer, expert)) {
                self.entries[slot].demand = SlotDemand::Needed;
            }
        }
        self.running = Some(RunningLayer { layer, experts: distinct });
    }

    /// Marks an expert of the running layer as computed. It is evicted only if there is no other
    /// victim.
    pub fn computed(&mut self, piece: PieceId) {
        let Some(running) = &mut self.running else { return };
        let Some(at) = running.find(piece) else { return };
        running.experts[at].1 = true;
        if let Some(&slot) = self.index.get(&piece) {
            self.entries[slot].demand = SlotDemand::Computed;
        }
    }

    /// Ends the running layer.
    pub fn idle(&mut self) {
        self.stop();
    }

    /// Removes slots until at most `budget` bytes are left, and returns their payloads. Pieces that
    /// are pinned, loading or needed stay; a later call removes the remaining excess.
    pub fn trim_to_budget(&mut self, budget: usize) -> Vec<T> {
        self.budget = budget;
        let mut given_up = Vec::new();
        while self.memory > budget {
            // Empty slots are removed first, the longest of them first.
            let empty = self.classes.values_mut().rev().find_map(|class| class.free.pop());
            let Some(slot) = empty.or_else(|| self.victim(0)) else { break };
            if let Some(piece) = self.entries[slot].state.piece() {
                self.forget(slot, piece);
            }
            let entry = &mut self.entries[slot];
            self.memory -= entry.len;
            self.classes.entry(entry.len).or_default().slots -= 1;
            match std::mem::replace(&mut entry.state, SlotState::Gone) {
                SlotState::Empty(payload) | SlotState::Ready { payload, .. } => {
                    given_up.push(payload)
                }
                SlotState::Loading { .. } | SlotState::Gone => {}
            }
        }
        given_up
    }

    /// Checks the invariants of the cache, for tests.
    ///
    /// # Panics
    ///
    /// If the accounting is inconsistent, or slots exceed the budget although they could be
    /// trimmed.
    pub fn assert_within_budget(&self) {
        let mut memory = 0;
        let mut bytes = 0;
        let mut held = 0;
        let mut stuck = 0;
        for entry in &self.entries {
            match entry.state {
                SlotState::Gone => {}
                SlotState::Empty(_) => memory += entry.len,
                SlotState::Loading { .. } | SlotState::Ready { .. } => {
                    memory += entry.len;
                    bytes += entry.len;
                    held += 1;
                    if !entry.is_evictable(true) {
                        stuck += entry.len;
                    }
                }
            }
        }
        assert_eq!(self.memory, memory, "the length of all slots");
        assert_eq!(self.bytes, bytes, "bytes held");
        assert_eq!(self.index.len(), held, "one name for each piece held");
        for (piece, &slot) in &self.index {
            assert_eq!(self.entries[slot].state.piece(), Some(*piece), "a name leads to its piece");
        }
        assert!(
            self.memory <= self.budget.max(stuck),
            "{} bytes of slots and a budget of {}",
            self.memory,
            self.budget
        );
    }

    /// Bytes of the slots whose piece is ready or loading.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Maximum of [`bytes`](Self::bytes) since the last [`reset_counts`](Self::reset_counts).
    pub fn peak_bytes(&self) -> usize {
        self.peak
    }

    /// Bytes of all slots.
    pub fn capacity(&self) -> usize {
        self.memory
    }

    /// Lookup counts of each layer.
    pub fn counts(&self) -> &BTreeMap<u32, LookupCounts> {
        &self.counts
    }

    /// Resets the counts and the peak.
    pub fn reset_counts(&mut self) {
        self.counts.clear();
        self.peak = self.bytes;
    }

    /// The policy that picks victims.
    pub fn policy(&self) -> &dyn Policy {
        self.policy.as_ref()
    }

    /// The policy, for training it.
    pub fn policy_mut(&mut self) -> &mut dyn Policy {
        self.policy.as_mut()
    }

    fn choose(&mut self, piece: PieceId, len: usize, need: Need) -> Result<usize, NoRoom> {
        let Some(slot) = self.victim(len) else {
            return Err(match self.class_for(len) {
                Some(_) => NoRoom::InUse { piece },
                None => NoRoom::TooLarge { piece, len },
            });
        };
        if let Need::Forecast(probability) = need
            && let Some(now) = self.now
            && let Some(old) = self.entries[slot].state.piece()
            && !self.policy.is_needed_later(now, old, piece, probability)
        {
            return Err(NoRoom::ExpectedSooner { piece });
        }
        Ok(slot)
    }

    /// Length of the shortest slots that hold pieces of `len` bytes.
    fn class_for(&self, len: usize) -> Option<usize> {
        self.classes.range(len..).find(|(_, class)| class.slots > 0).map(|(&len, _)| len)
    }

    /// Returns the slot to evict for a piece of `len` bytes. Slots made for longer pieces are
    /// considered only if none made for this length is evictable. Computed experts of the running
    /// layer are considered last.
    fn victim(&mut self, len: usize) -> Option<usize> {
        let now = self.now?;
        let class = self.class_for(len)?;
        let entries = &self.entries;
        let policy = &mut self.policy;
        for computed_too in [false, true] {
            let own = |slot: usize| {
                entries[slot].len == class && entries[slot].is_evictable(computed_too)
            };
            let any =
                |slot: usize| entries[slot].len >= len && entries[slot].is_evictable(computed_too);
            let own = if len > 0 { policy.victim(now, &own) } else { None };
            if let Some(slot) = own.or_else(|| policy.victim(now, &any)) {
                return Some(slot);
            }
        }
        None
    }

    fn loading(&self, piece: PieceId) -> Option<usize> {
        let slot = *self.index.get(&piece)?;
        matches!(self.entries[slot].state, SlotState::Loading { .. }).then_some(slot)
    }

    fn state_mut(&mut self, piece: PieceId) -> Option<&mut SlotState<T>> {
        Some(&mut self.entries[*self.index.get(&piece)?].state)
    }

    fn forget(&mut self, slot: usize, piece: PieceId) {
        self.index.remove(&piece);
        self.policy.left(slot, piece);
        self.bytes -= self.entries[slot].len;
        self.entries[slot].demand = SlotDemand::None;
    }

    fn demand(&self, piece: PieceId) -> SlotDemand {
        let Some(running) = &self.running else { return SlotDemand::None };
        match running.find(piece) {
            None => SlotDemand::None,
            Some(at) if running.experts[at].1 => SlotDemand::Computed,
            Some(_) => SlotDemand::Needed,
        }
    }

    fn stop(&mut self) -> Option<RunningLayer> {
        let running = self.running.take()?;
        for &(expert, _) in &running.experts {
            let piece = PieceId::expert(running.layer, expert);
            if let Some(&slot) = self.index.get(&piece) {
                self.entries[slot].demand = SlotDemand::None;
            }
        }
        Some(running)
    }
}

impl RunningLayer {
    fn find(&self, piece: PieceId) -> Option<usize> {
        let PieceKind::Expert(expert) = piece.kind() else { return None };
        if piece.layer() != Some(self.layer) {
            return None;
        }
        self.experts.binary_search_by_key(&expert, |&(expert, _)| expert).ok()
    }
}
