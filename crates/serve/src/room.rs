//! Memory for structured output. Experts use it while no request has a structure.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use sws_engine::{MemoryUse, Plan};
use sws_text::grammar::{Grammar, GrammarVocabulary, Structure, StructureError};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::app::App;
use crate::failure::Failure;

/// Maximum number of memory units for compiled structures.
const UNITS: usize = 32;
/// Time without structures after which experts get the memory.
const IDLE: Duration = Duration::from_secs(30);
/// Time between two checks of the server's state while a request waits.
const LOOK: Duration = Duration::from_millis(200);

/// Heap bytes for structured output, with this vocabulary and this number of texts at a time.
pub fn structured(vocab: usize, texts: usize) -> u64 {
    Most { units: UNITS, texts: texts.max(1) }.bytes(vocab)
}

fn unit() -> u64 {
    let [_, unit] = Grammar::UNIT;
    unit as u64
}

/// What a given amount of memory suffices for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Most {
    /// Units of memory for compiled structures.
    units: usize,
    /// Texts with a structure at the same time.
    texts: usize,
}

impl Most {
    /// Bytes that these numbers take.
    fn bytes(self, vocab: usize) -> u64 {
        let Most { units, texts } = self;
        GrammarVocabulary::bytes(vocab) + units as u64 * unit() + texts as u64 * Grammar::WRITTEN
    }

    /// Bytes that suffice for this many units and texts.
    fn bytes_with(units: usize, vocab: usize, texts: usize) -> u64 {
        let [one, all] = [Most { units: 1, texts: 1 }.bytes(vocab), structured(vocab, texts)];
        one + ((all - one) * (units - 1) as u64).div_ceil(UNITS as u64 - 1)
    }

    /// Divides memory for structured output, with this vocabulary and up to this many texts at a
    /// time.
    fn within(bytes: u64, vocab: usize, texts: usize) -> Most {
        let [one, all] = [Most { units: 1, texts: 1 }.bytes(vocab), structured(vocab, texts)];
        let Some(rest) = bytes.checked_sub(one) else { return Most { units: 0, texts: 0 } };
        // Texts get their share of the rest, and structures get the remainder.
        let rest = rest.min(all - one);
        let others = texts.saturating_sub(1) as u64 * rest / (all - one);
        let units = ((rest - others * Grammar::WRITTEN) / unit()).min(UNITS as u64 - 1);
        Most { units: 1 + units as usize, texts: 1 + others as usize }
    }
}

/// The memory for structured output.
#[derive(Debug)]
pub(crate) struct Room {
    most: Most,
    /// Size of the vocabulary, and maximum number of texts at a time.
    vocab: usize,
    all_texts: usize,
    /// Semaphore of memory units.
    units: Arc<Semaphore>,
    /// True if the memory can be lent to experts.
    lends: bool,
    state: Mutex<RoomState>,
    taken_back: Notify,
}

#[derive(Debug, Default)]
struct RoomState {
    /// True while the memory is lent to experts.
    is_lent: bool,
    /// True if a request waits for the memory.
    is_wanted: bool,
    /// Time at which a request last had a structure.
    used: Option<Duration>,
    /// The vocabularies as bytes, by the number of the model, built for its first structure.
    vocabularies: BTreeMap<usize, Result<GrammarVocabulary, StructureError>>,
}

impl Room {
    /// The memory that each of these plans has for structures, with this number of tokens in all
    /// vocabularies, and this number of texts at a time.
    pub(crate) fn new(plans: &[&Plan], vocab: usize, texts: usize) -> Room {
        let bytes = plans.iter().map(|plan| plan.ledger.get(MemoryUse::Structured)).min();
        // Without a plan there is no budget.
        let bytes = bytes.unwrap_or(u64::MAX);
        let most = Most::within(bytes, vocab, texts);
        Room {
            most,
            vocab,
            all_texts: texts,
            units: Arc::new(Semaphore::new(most.units)),
            lends: plans.iter().any(|plan| !plan.structured_lent.is_empty()),
            state: Mutex::default(),
            taken_back: Notify::new(),
        }
    }

    /// Maximum number of texts with a structure at a time.
    pub(crate) fn texts(&self) -> usize {
        self.most.texts
    }

    /// Reserves memory for the structure requested by a field. Fails with
    /// [`Failure::until_taken_back`] while the memory is lent to experts: the thread that prepares
    /// requests waits for none of them.
    pub(crate) fn take(
        &self,
        field: &str,
        structure: &Structure,
        plan: Option<&Plan>,
    ) -> Result<OwnedSemaphorePermit, Failure> {
        let [part, _] = Grammar::UNIT;
        let units = match structure.bytes() {
            // A structure that is too large is refused before it is compiled.
            bytes if bytes > UNITS * part => 1,
            bytes => bytes.div_ceil(part).max(1),
        };
        if units > self.most.units {
            return Err(self.too_small(plan, field, units));
        }
        let mut state = self.lock();
        if state.is_lent {
            state.is_wanted = true;
            return Err(Failure::until_taken_back());
        }
        let permit = Arc::clone(&self.units).try_acquire_many_owned(units as u32);
        permit.map_err(|_| {
            Failure::busy("other requests have as many structured answers as there is memory for; try again later")
        })
    }

    /// Waits until the memory is not lent to experts any more, up to the time `end`. The worker takes
    /// it back between two passes.
    pub(crate) async fn taken_back(&self, app: &App, end: Duration) -> Result<(), Failure> {
        loop {
            let taken_back = pin!(self.taken_back.notified());
            if !self.is_lent() {
                return Ok(());
            }
            if app.is_draining() {
                return Err(Failure::unavailable("the server is about to end; try another"));
            }
            if app.clock.now() >= end {
                return Err(Failure::waited());
            }
            app.queue.wake();
            let _ = timeout(LOOK, taken_back).await;
        }
    }

    /// True if the memory is lent to experts. Never waits: the worker takes it back with the lock held, and may
    /// wait for reads meanwhile.
    fn is_lent(&self) -> bool {
        match self.state.try_lock() {
            Ok(state) => state.is_lent,
            Err(TryLockError::Poisoned(state)) => state.into_inner().is_lent,
            Err(TryLockError::WouldBlock) => true,
        }
    }

    /// Calls `lend` to lend the memory to experts if no request has had a structure for some time,
    /// and to take it back once a request has one. The worker calls this between passes.
    pub(crate) fn settle(&self, now: Duration, lend: impl FnOnce(bool)) {
        let mut state = self.lock();
        let is_wanted = std::mem::take(&mut state.is_wanted);
        if is_wanted || self.units.available_permits() < self.most.units {
            state.used = Some(now);
            if std::mem::take(&mut state.is_lent) {
                lend(false);
                self.taken_back.notify_waiters();
            }
        } else if self.lends && !state.is_lent && state.used.is_none_or(|used| now >= used + IDLE) {
            state.vocabularies.clear();
            lend(true);
            state.is_lent = true;
        }
    }

    /// Records that the model is gone to which the memory may have been lent.
    pub(crate) fn end(&self) {
        self.lock().is_lent = false;
        self.taken_back.notify_waiters();
    }

    /// The vocabulary of a model for structures, built if necessary. The caller has reserved memory
    /// for a structure, and there is one caller at a time.
    pub(crate) fn vocabulary(
        &self,
        model: usize,
        make: impl FnOnce() -> Result<GrammarVocabulary, StructureError>,
    ) -> Result<GrammarVocabulary, StructureError> {
        if let Some(known) = self.lock().vocabularies.get(&model).cloned() {
            return known;
        }
        let made = make();
        self.lock().vocabularies.insert(model, made.clone());
        made
    }

    /// Refuses a structure that takes so many units.
    fn too_small(&self, plan: Option<&Plan>, field: &str, units: usize) -> Failure {
        let bytes = Most::bytes_with(units, self.vocab, self.all_texts);
        let budget = plan.map_or(0, |plan| plan.ram_for_structured(bytes));
        let message = format!(
            "{field} asks for a structure of the answer, for which the server has too little memory; start it with --ram {}MiB or more, or leave {field} out",
            budget >> 20
        );
        Failure::unsupported(field, message)
    }

    /// Lends the memory, as [`Room::settle`] does.
    #[cfg(test)]
    pub(crate) fn lend(&self) {
        self.lock().is_lent = true;
    }

    fn lock(&self) -> MutexGuard<'_, RoomState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn memory_is_divided_among_structure_and_their_texts() {
        let one = 21 * MIB;
        let all = structured(4096, 4);
        assert_eq!(all, 131 * MIB);
        for (bytes, units, texts) in [
            (0, 0, 0),
            (one - 1, 0, 0),
            (one, 1, 1),
            (one + 2 * MIB, 2, 1),
            (one + 40 * MIB, 13, 2),
            (all - 1, 32, 3),
            (all, 32, 4),
            (u64::MAX, 32, 4),
        ] {
            assert_eq!(Most::within(bytes, 4096, 4), Most { units, texts }, "{bytes}");
        }
    }

    /// Structures and texts together never take more than there is, and all of it gives all of them.
    #[test]
    fn structures_and_texts_stay_within_their_memory() {
        for (vocab, texts) in [(1, 1), (4096, 2), (32_000, 16), (151_936, 4), (262_144, 1024)] {
            let one = Most::bytes_with(1, vocab, texts);
            let all = structured(vocab, texts);
            for part in 0..240 {
                let bytes = all / 200 * part;
                let most = Most::within(bytes, vocab, texts);
                let taken = most.bytes(vocab);
                let none = most == Most { units: 0, texts: 0 };
                assert!(if none { bytes < one } else { taken <= bytes }, "{bytes}: {most:?}");
                assert_eq!(most.units > 0, most.texts > 0);
            }
            assert_eq!(Most::within(all, vocab, texts), Most { units: UNITS, texts });
            for units in 1..=UNITS {
                let bytes = Most::bytes_with(units, vocab, texts);
                assert!(Most::within(bytes, vocab, texts).units >= units && bytes <= all);
            }
        }
    }

    /// The worker may wait for reads while it takes the memory back; connections go on meanwhile.
    #[test]
    fn nobody_waits_for_memory_that_is_being_taken_back() {
        let room = Room { lends: true, ..Room::new(&[], 4096, 4) };
        room.settle(Duration::ZERO, |is_idle| assert!(is_idle && room.is_lent()));
        assert!(room.is_lent());
        room.lock().is_wanted = true;
        room.settle(Duration::ZERO, |is_idle| assert!(!is_idle && room.is_lent()));
        assert!(!room.is_lent());
    }

    #[test]
    fn memory_is_lent_unless_a_request_has_a_structure() {
        let second = Duration::from_secs;
        let room = Room { lends: true, ..Room::new(&[], 4096, 4) };
        let taken = AtomicUsize::new(0);
        let settle = |at| {
            let mut said = None;
            room.settle(second(at), |idle| said = Some(idle));
            said
        };
        // Seconds, true if a request has a structure, and what is said to the worker.
        let mut held = None;
        for (at, is_structured, said) in [
            (0, false, Some(true)),
            (1, false, None),
            (2, true, Some(false)),
            (3, true, None),
            (40, true, None),
            (41, false, None),
            (69, false, None),
            (70, false, Some(true)),
            (71, true, Some(false)),
        ] {
            held = is_structured
                .then(|| held.unwrap_or_else(|| Arc::clone(&room.units).try_acquire_owned()));
            assert_eq!(settle(at), said, "{at} seconds");
            let make = || {
                taken.fetch_add(1, Ordering::Relaxed);
                Err(StructureError::TooDeep)
            };
            if is_structured {
                room.vocabulary(0, make).unwrap_err();
            }
        }
        // The vocabulary went with the memory.
        assert_eq!(taken.load(Ordering::Relaxed), 2);
        let none = Room::new(&[], 4096, 4);
        none.settle(second(0), |_| panic!("nothing can be lent"));
    }

    #[test]
    fn memory_that_a_request_waits_for_is_taken_back_for_a_while() {
        let room = Room { lends: true, ..Room::new(&[], 4096, 4) };
        let structure = Structure::Regex("[a-z]".to_owned());
        let take = || room.take("guided_regex", &structure, None);
        // Seconds, what is said to the worker, and true if a request then gets memory.
        for (at, said, is_there) in [
            (0, Some(true), false),
            (1, Some(false), true),
            (2, None, true),
            (30, None, true),
            (31, Some(true), false),
            (32, Some(false), true),
        ] {
            let mut heard = None;
            room.settle(Duration::from_secs(at), |idle| heard = Some(idle));
            assert_eq!(heard, said, "{at} seconds");
            let taken = take();
            let waits = taken.as_ref().is_err_and(Failure::is_until_taken_back);
            assert_eq!((taken.is_ok(), waits), (is_there, !is_there), "{at} seconds");
        }
    }
}
