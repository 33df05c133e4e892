//! What is in memory of the pieces that come and go.

mod state;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};

use sws_store::{Pass, PieceId, PieceKind};

use crate::policy::{Choice, Policy};
use state::{Demand, Entry, State};

/// Books of a fixed set of slots in which pieces come and go. Which piece goes is for a [`Policy`];
/// what must not go is decided here: a piece that is pinned, being read, or needed in the running
/// layer.
///
/// A slot is empty, loading or ready; a ready one can be pinned. Its memory is a payload `T`, of
/// which the cache knows the length and nothing else: an engine's payload is a
/// [`Slot`](sws_store::Slot) with what lies in it, a simulation's is `()`. Payloads move, memory
/// does not: [`begin`](Self::begin) hands out the payload of the slot that it has emptied,
/// [`ready`](Self::ready) or [`failed`](Self::failed) takes it back.
///
/// ```
/// use sws_cache::{Lookup, Need, PredictiveCache};
/// use sws_cache::policy::{Choice, Lru};
/// use sws_store::{Pass, PieceId};
///
/// // Two slots of 4096 bytes, whose memory is a number.
/// let mut cache = PredictiveCache::new(Box::new(Lru::new()), [(4096, 'a'), (4096, 'b')]);
/// for expert in [7, 8, 7, 9] {
///     let pass = Pass::default();
///     cache.routed(&Choice { pass: &pass, layer: 0, experts: &[expert], per_step: 1 });
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
    entries: Vec<Entry<T>>,
    index: HashMap<PieceId, usize>,
    /// By the length of their slots.
    classes: BTreeMap<usize, Class>,
    policy: Box<dyn Policy>,
    running: Option<Running>,
    /// Where computing stood last.
    now: Option<PieceId>,
    bytes: usize,
    peak: usize,
    /// The length of all slots, and what it shall not exceed.
    memory: usize,
    budget: usize,
    counts: BTreeMap<u32, Counts>,
}

/// Slots of one length.
#[derive(Debug, Default)]
struct Class {
    /// How many there are.
    slots: usize,
    /// Those that are empty.
    free: Vec<usize>,
}

/// The layer being computed.
#[derive(Debug)]
struct Running {
    layer: u32,
    /// Its experts, ascending, and which of them have been computed.
    experts: Vec<(u32, bool)>,
}

/// What a [`lookup`](PredictiveCache::lookup) finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The piece.
    Ready,
    /// It is being read.
    Loading,
    /// Nothing.
    Absent,
}

/// Why a piece shall come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Need {
    /// It is computed with next.
    Now,
    /// It will perhaps be needed in this step, with this probability. It pushes out only what is
    /// expected later.
    Forecast(f32),
}

/// Room for a piece that is going to be read.
#[derive(Debug)]
pub struct Claim<T> {
    /// The memory.
    pub payload: T,
    /// Its length.
    pub len: usize,
    /// What was in it.
    pub evicted: Option<PieceId>,
}

/// Why there is no room for a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoRoom {
    /// No slot is that long.
    #[error("the piece {piece} needs {len} bytes and no slot of the cache is that long")]
    TooLarge {
        /// The piece.
        piece: PieceId,
        /// What it needs.
        len: usize,
    },
    /// Every slot that is long enough is pinned, being read, or needed in the running layer.
    #[error("every slot that {piece} would fit into is in use")]
    InUse {
        /// The piece.
        piece: PieceId,
    },
    /// Everything that could go is expected sooner.
    #[error("everything in the cache is expected sooner than {piece}")]
    ExpectedSooner {
        /// The piece.
        piece: PieceId,
    },
    /// What would have to go is worth more.
    #[error("what {piece} would push out is worth more")]
    NotWorth {
        /// The piece.
        piece: PieceId,
    },
    /// It is in the cache or on its way.
    #[error("{piece} is in the cache already")]
    Present {
        /// The piece.
        piece: PieceId,
    },
}

/// What became of the lookups of one layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The piece was there.
    pub hits: u64,
    /// It was being read already.
    pub late: u64,
    /// It was not there.
    pub misses: u64,
}

impl<T> PredictiveCache<T> {
    /// Takes the memory of its slots: each with its length in bytes.
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

    /// Takes the memory of further slots; the budget grows with them. Returns how many there were.
    pub fn extend(&mut self, slots: impl IntoIterator<Item = (usize, T)>) -> usize {
        let before = self.entries.len();
        for (len, payload) in slots {
            let number = self.entries.len();
            self.entries.push(Entry { len, state: State::Empty(payload), demand: Demand::None });
            let class = self.classes.entry(len).or_default();
            class.slots += 1;
            class.free.push(number);
            self.memory += len;
            self.budget += len;
        }
        before
    }

    /// Gives up all slots but the first so many, whatever is in them, and returns their memory; the
    /// budget shrinks with them. Nothing should be being read into them: that memory is the reader's.
    pub fn truncate(&mut self, slots: usize) -> Vec<T> {
        let mut given_up = Vec::new();
        while self.entries.len() > slots {
            let number = self.entries.len() - 1;
            if let Some(piece) = self.entries[number].state.piece() {
                self.forget(number, piece);
            }
            let Some(Entry { len, state, .. }) = self.entries.pop() else { break };
            match state {
                State::Gone => continue,
                State::Loading { .. } => {}
                State::Empty(payload) | State::Ready { payload, .. } => given_up.push(payload),
            }
            let class = self.classes.entry(len).or_default();
            class.slots -= 1;
            class.free.retain(|&slot| slot != number);
            self.memory -= len;
            self.budget = self.budget.saturating_sub(len);
        }
        given_up
    }

    /// Asks for a piece that is about to be computed with, and counts the answer.
    pub fn lookup(&mut self, piece: PieceId) -> Lookup {
        let counts = self.counts.entry(piece.layer().unwrap_or(0)).or_default();
        let Some(&slot) = self.index.get(&piece) else {
            counts.misses += 1;
            return Lookup::Absent;
        };
        self.policy.used(slot, piece);
        match self.entries[slot].state {
            State::Ready { .. } => {
                counts.hits += 1;
                Lookup::Ready
            }
            _ => {
                counts.late += 1;
                Lookup::Loading
            }
        }
    }

    /// A piece that is ready.
    pub fn get(&self, piece: PieceId) -> Option<&T> {
        match &self.entries[*self.index.get(&piece)?].state {
            State::Ready { payload, .. } => Some(payload),
            _ => None,
        }
    }

    /// What a [`lookup`](Self::lookup) would find. Counts nothing.
    pub fn find(&self, piece: PieceId) -> Lookup {
        match self.index.get(&piece).map(|&slot| &self.entries[slot].state) {
            Some(State::Ready { .. }) => Lookup::Ready,
            Some(_) => Lookup::Loading,
            None => Lookup::Absent,
        }
    }

    /// Whether a piece is ready or on its way. Counts nothing.
    pub fn contains(&self, piece: PieceId) -> bool {
        self.index.contains_key(&piece)
    }

    /// What is ready or on its way, in no order.
    pub fn pieces(&self) -> impl Iterator<Item = PieceId> {
        self.index.keys().copied()
    }

    /// How many these are.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// How many slots there are.
    pub fn slots(&self) -> usize {
        self.classes.values().map(|class| class.slots).sum()
    }

    /// A piece will be used when its layer comes next, with that probability: whether it stays until
    /// then is for the policy to say. Nothing if it is not here.
    pub fn foresee(&mut self, piece: PieceId, probability: f32) {
        if let Some(&slot) = self.index.get(&piece) {
            self.policy.foreseen(slot, piece, probability);
        }
    }

    /// Makes room for a piece of `len` bytes, which is then loading, while `layer` is computed.
    pub fn begin(
        &mut self,
        layer: u32,
        piece: PieceId,
        len: usize,
        need: Need,
    ) -> Result<Claim<T>, NoRoom> {
        self.begin_if(layer, piece, len, need, |_, _| true)
    }

    /// The same if it is worth the piece in whose place it comes.
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
        let old = std::mem::replace(&mut entry.state, State::Loading { piece });
        let (payload, evicted) = match old {
            State::Empty(payload) => (payload, None),
            State::Ready { payload, piece, .. } => (payload, Some(piece)),
            State::Loading { .. } | State::Gone => unreachable!("neither is free or chosen"),
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
            self.policy.foreseen(slot, piece, probability);
        }
        Ok(Claim { payload, len: self.entries[slot].len, evicted })
    }

    /// A piece that was loading has been read. Returns the payload if nobody was waiting for it.
    pub fn ready(&mut self, piece: PieceId, payload: T) -> Option<T> {
        let Some(slot) = self.loading(piece) else { return Some(payload) };
        self.entries[slot].state = State::Ready { piece, payload, pins: 0 };
        None
    }

    /// A piece that was loading has not been read: its slot is empty again. Returns the payload if
    /// nobody was waiting for it.
    pub fn failed(&mut self, piece: PieceId, payload: T) -> Option<T> {
        let Some(slot) = self.loading(piece) else { return Some(payload) };
        self.forget(slot, piece);
        let entry = &mut self.entries[slot];
        entry.state = State::Empty(payload);
        self.classes.entry(entry.len).or_default().free.push(slot);
        None
    }

    /// Keeps a ready piece until it is unpinned as often as it was pinned. False if it is not ready.
    pub fn pin(&mut self, piece: PieceId) -> bool {
        match self.state_mut(piece) {
            Some(State::Ready { pins, .. }) => {
                *pins += 1;
                true
            }
            _ => false,
        }
    }

    /// Takes a pin away. False if there is none.
    pub fn unpin(&mut self, piece: PieceId) -> bool {
        match self.state_mut(piece) {
            Some(State::Ready { pins, .. }) if *pins > 0 => {
                *pins -= 1;
                true
            }
            _ => false,
        }
    }

    /// A pass begins.
    pub fn begin_pass(&mut self, pass: &Pass) {
        self.policy.begin(pass);
    }

    /// The router of a layer has selected: the layer is running, and its experts stay until they are
    /// [`computed`](Self::computed) or another layer runs.
    pub fn routed(&mut self, choice: &Choice<'_>) {
        let &Choice { layer, experts, .. } = choice;
        self.policy.routed(choice);
        self.now = Some(PieceId::new(layer, PieceKind::Router));
        let mut distinct = self.stop().map_or_else(Vec::new, |running| running.experts);
        distinct.clear();
        distinct.extend(experts.iter().map(|&expert| (expert, false)));
        distinct.sort_unstable();
        distinct.dedup();
        for &(expert, _) in &distinct {
            if let Some(&slot) = self.index.get(&PieceId::expert(layer, expert)) {
                self.entries[slot].demand = Demand::Needed;
            }
        }
        self.running = Some(Running { layer, experts: distinct });
    }

    /// The running layer has used one of its experts. It goes if nothing else can.
    pub fn computed(&mut self, piece: PieceId) {
        if let Some((running, at)) = self.running.as_mut().and_then(|r| Some((r.find(piece)?, r))) {
            at.experts[running].1 = true;
            if let Some(&slot) = self.index.get(&piece) {
                self.entries[slot].demand = Demand::Computed;
            }
        }
    }

    /// No layer is running any more.
    pub fn idle(&mut self) {
        self.stop();
    }

    /// Gives slots up until their length is at most `budget`, and returns their memory. What is
    /// pinned, loading or needed stays: memory that is still too much goes with a later call.
    pub fn trim_to_budget(&mut self, budget: usize) -> Vec<T> {
        self.budget = budget;
        let mut given_up = Vec::new();
        while self.memory > budget {
            // Empty ones first; among them the longest.
            let empty = self.classes.values_mut().rev().find_map(|class| class.free.pop());
            let Some(slot) = empty.or_else(|| self.victim(0)) else { break };
            if let Some(piece) = self.entries[slot].state.piece() {
                self.forget(slot, piece);
            }
            let entry = &mut self.entries[slot];
            self.memory -= entry.len;
            self.classes.entry(entry.len).or_default().slots -= 1;
            match std::mem::replace(&mut entry.state, State::Gone) {
                State::Empty(payload) | State::Ready { payload, .. } => given_up.push(payload),
                State::Loading { .. } | State::Gone => {}
            }
        }
        given_up
    }

    /// For tests: panics if the books are wrong, or hold more than the budget although nothing
    /// prevents them from trimming.
    pub fn assert_within_budget(&self) {
        let live = self.entries.iter().filter(|e| !matches!(e.state, State::Gone));
        let held = live.clone().filter(|e| !matches!(e.state, State::Empty(_)));
        assert_eq!(self.memory, live.map(|e| e.len).sum::<usize>(), "the length of all slots");
        assert_eq!(self.bytes, held.clone().map(|e| e.len).sum::<usize>(), "bytes held");
        assert_eq!(self.index.len(), held.clone().count(), "one name for each piece held");
        for (piece, &slot) in &self.index {
            assert_eq!(self.entries[slot].state.piece(), Some(*piece), "a name leads to its piece");
        }
        let stuck: usize = held.filter(|e| !e.may_go(true)).map(|e| e.len).sum();
        assert!(
            self.memory <= self.budget.max(stuck),
            "{} bytes of slots and a budget of {}",
            self.memory,
            self.budget
        );
    }

    /// Bytes of the slots with a piece in them or on its way.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The most that [`bytes`](Self::bytes) has been.
    pub fn peak_bytes(&self) -> usize {
        self.peak
    }

    /// Bytes of all slots.
    pub fn capacity(&self) -> usize {
        self.memory
    }

    /// What the lookups of each layer found.
    pub fn counts(&self) -> &BTreeMap<u32, Counts> {
        &self.counts
    }

    /// Begins to count anew.
    pub fn reset_counts(&mut self) {
        self.counts.clear();
        self.peak = self.bytes;
    }

    /// Who decides what goes.
    pub fn policy(&self) -> &dyn Policy {
        self.policy.as_ref()
    }

    /// The same, to teach it.
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
            && let (Some(now), Some(old)) = (self.now, self.entries[slot].state.piece())
            && !self.policy.later(now, old, piece, probability)
        {
            return Err(NoRoom::ExpectedSooner { piece });
        }
        Ok(slot)
    }

    /// The length of the slots made for pieces of `len` bytes.
    fn class_for(&self, len: usize) -> Option<usize> {
        self.classes.range(len..).find(|(_, class)| class.slots > 0).map(|(&len, _)| len)
    }

    /// Whom to push out for a piece of `len` bytes. A piece in a slot made for longer ones goes only
    /// if none in the slots made for this length can; and an expert of the running layer, even if
    /// computed, only if nothing else can.
    fn victim(&mut self, len: usize) -> Option<usize> {
        let (now, class) = (self.now?, self.class_for(len)?);
        let (entries, policy) = (&self.entries, &mut self.policy);
        for computed_too in [false, true] {
            let own =
                |slot: usize| entries[slot].len == class && entries[slot].may_go(computed_too);
            let any = |slot: usize| entries[slot].len >= len && entries[slot].may_go(computed_too);
            let own = if len > 0 { policy.victim(now, &own) } else { None };
            if let Some(slot) = own.or_else(|| policy.victim(now, &any)) {
                return Some(slot);
            }
        }
        None
    }

    fn loading(&self, piece: PieceId) -> Option<usize> {
        let slot = *self.index.get(&piece)?;
        matches!(self.entries[slot].state, State::Loading { .. }).then_some(slot)
    }

    fn state_mut(&mut self, piece: PieceId) -> Option<&mut State<T>> {
        Some(&mut self.entries[*self.index.get(&piece)?].state)
    }

    fn forget(&mut self, slot: usize, piece: PieceId) {
        self.index.remove(&piece);
        self.policy.left(slot, piece);
        self.bytes -= self.entries[slot].len;
        self.entries[slot].demand = Demand::None;
    }

    fn demand(&self, piece: PieceId) -> Demand {
        match self.running.as_ref().and_then(|r| Some(r.experts[r.find(piece)?].1)) {
            None => Demand::None,
            Some(false) => Demand::Needed,
            Some(true) => Demand::Computed,
        }
    }

    fn stop(&mut self) -> Option<Running> {
        let running = self.running.take()?;
        for &(expert, _) in &running.experts {
            let piece = PieceId::expert(running.layer, expert);
            if let Some(&slot) = self.index.get(&piece) {
                self.entries[slot].demand = Demand::None;
            }
        }
        Some(running)
    }
}

impl Running {
    fn find(&self, piece: PieceId) -> Option<usize> {
        let PieceKind::Expert(expert) = piece.kind() else { return None };
        if piece.layer() != Some(self.layer) {
            return None;
        }
        self.experts.binary_search_by_key(&expert, |&(expert, _)| expert).ok()
    }
}
