//! Prefixes that texts reuse, and prefixes that are kept of them.

use std::time::Duration;

use sws_store::BlobsError;

use super::{Batch, Event, Running};
use crate::prefix_cache::disk::{PrefixDisk, PrefixDiskCounts};
use crate::prefix_cache::{PrefixEntry, common};

/// Minimum number of tokens of a state that is kept in the middle of a text, and of a shared prefix
/// that is worth waiting for.
const LEAST: usize = 32;

/// The start of a text: its known tokens, and the text that it waits for.
#[derive(Debug, Default)]
pub(super) struct Begun {
    /// Tokens of the prompt that are in its sequence already.
    pub(super) known: usize,
    /// Number of the text that is about to compute more of the prompt, and the number of tokens to
    /// wait for.
    pub(super) follows: Option<(usize, usize)>,
    /// Positions at which the state of the text is kept.
    pub(super) marks: Vec<usize>,
}

impl Batch<'_> {
    /// Bytes for the token ids of kept prefixes that need no room of sequences. A budget has room
    /// for them if [`Needs::heap`](crate::Needs::heap) has.
    pub const TOKENS: u64 = 1 << 20;

    /// Lets prefixes be stored and found on disk; see [`store`](Self::store).
    pub fn with_disk(mut self, disk: PrefixDisk) -> Self {
        // Without a KV cache there is nothing to store.
        let streamer = self.model.lm.streamer();
        self.disk = streamer.map(|streamer| disk.laid_out(&streamer.empty_prefix().layout()));
        self
    }

    /// Ends the use of the [disk](Self::with_disk), and returns it for another batch of the model.
    pub fn take_disk(&mut self) -> Option<PrefixDisk> {
        self.disk.take()
    }

    /// Writes one block of the kept prefixes to the [disk](Self::with_disk). Returns true if there
    /// is more to write. Blocks the batch meanwhile, so it is for times without texts.
    pub fn store(&mut self) -> bool {
        let Some(disk) = &mut self.disk else { return false };
        let Some(entry) = self.prefixes.unstored() else { return false };
        entry.is_stored = entry.tokens.len() < LEAST || !disk.store(entry);
        true
    }

    /// Counters of the [disk](Self::with_disk).
    pub fn disk_counts(&self) -> Option<PrefixDiskCounts> {
        self.disk.as_ref().map(PrefixDisk::counts)
    }

    /// Errors of the [disk](Self::with_disk) since the last call. After a failed write, nothing
    /// more is written.
    pub fn disk_faults(&mut self) -> Vec<BlobsError> {
        self.disk.as_mut().map(PrefixDisk::faults).unwrap_or_default()
    }

    /// Maximum bytes of running sequences and kept prefixes, and the bytes available to them.
    pub fn memory(&mut self) -> [u64; 2] {
        let held = self.held();
        self.held = Some(held);
        [held, self.room]
    }

    /// Number of prefixes in the cache.
    pub fn kept_prefixes(&self) -> usize {
        self.prefixes.len()
    }

    /// Starts a sequence with the longest known prefix of a prompt, from finished, cancelled or
    /// running texts of its owner. With `anew` the sequence starts empty.
    pub(super) fn begin(
        &mut self,
        sequence: usize,
        prompt: &[u32],
        owner: u64,
        anew: bool,
    ) -> Begun {
        self.held = None;
        self.model.release(sequence);
        if anew {
            return Begun::default();
        }
        // The last token is computed in any case, for its logits.
        let begins = &prompt[..prompt.len() - 1];
        let here = self.prefixes.best(begins, owner, self.goes_back);
        let here = self.load(begins, owner, here);
        self.held = None;
        let mut known = length(here);
        let mut follows = None;
        let mut from = None;
        let mut spared = known;
        let mut most = 0;
        for (at, text) in self.running.iter().enumerate() {
            if text.request.owner != owner || text.sequence == sequence || text.follows.is_some() {
                continue;
            }
            let all = common(begins, &text.request.tokens);
            most = most.max(all);
            let done = text.done();
            let now = if self.goes_back || done <= all { done.min(all) } else { 0 };
            if now > known {
                (known, from) = (now, Some(at));
            }
            // Sharing a few tokens is not worth waiting for.
            if all > done && all >= spared.max(known) + LEAST {
                (spared, follows) = (all, Some(at));
            }
        }
        if let Some(at) = follows
            && spared > known
        {
            let goes_back = self.goes_back;
            let text = &mut self.running[at];
            if !goes_back {
                text.mark(spared);
            }
            return Begun { follows: Some((text.number, spared)), ..Begun::default() };
        }
        let begun = match (from, here) {
            (Some(at), _) => match self.model.prefix(self.running[at].sequence) {
                Some(prefix) => self.model.begin_with(sequence, &prefix, known),
                None => false,
            },
            (None, Some((at, len))) => {
                self.prefixes.hit(at);
                self.model.begin_with(sequence, &self.prefixes.get(at).prefix, len)
            }
            (None, None) => false,
        };
        let known = if begun { known } else { 0 };
        let mut marks = Vec::new();
        let branch = self.prefixes.most_common(begins, owner).max(most);
        if !self.goes_back && branch >= LEAST && branch > known {
            marks.push(branch);
        }
        Begun { known, follows: None, marks }
    }

    /// Loads the prefix of a prompt from disk, if it is longer than the prefix `here` in memory.
    /// Returns the place and the length of the longest kept prefix.
    fn load(
        &mut self,
        begins: &[u32],
        owner: u64,
        here: Option<(usize, usize)>,
    ) -> Option<(usize, usize)> {
        let Some(disk) = &self.disk else { return here };
        let found = disk.find(begins, owner, self.goes_back);
        if found < LEAST || found <= length(here) {
            return here;
        }
        let Some(streamer) = self.model.lm.streamer() else { return here };
        let mut prefix = streamer.empty_prefix();
        let has_room = self.make_room(&[], prefix.growth(found));
        // Making room may have dropped that prefix.
        let here = self.prefixes.best(begins, owner, self.goes_back);
        if !has_room {
            return here;
        }
        let Some(disk) = &mut self.disk else { return here };
        let read = disk.load(&mut prefix, (&begins[..found], owner), self.goes_back);
        if read == 0 {
            return here;
        }
        disk.read(read);
        let mut entry = PrefixEntry::new(prefix, begins[..read].to_vec(), owner);
        entry.is_stored = true;
        self.keep_prefix(entry);
        self.prefixes.best(begins, owner, self.goes_back)
    }

    /// Begins waiting texts whose shared prefix has been computed, or never will be.
    pub(super) fn begin_followers(&mut self, each: &mut dyn FnMut(usize, Event)) {
        for at in 0..self.running.len() {
            let text = &self.running[at];
            let Some((number, common)) = text.follows else { continue };
            let computes = |other: &Running<'_>| {
                other.number == number && other.follows.is_none() && other.done() < common
            };
            if self.running.iter().any(computes) {
                continue;
            }
            let sequence = text.sequence;
            let owner = text.request.owner;
            let prompt = text.request.tokens.clone();
            let begun = self.begin(sequence, &prompt, owner, false);
            let text = &mut self.running[at];
            text.next = prompt[begun.known..].to_vec();
            (text.follows, text.marks) = (begun.follows, begun.marks);
            if text.follows.is_none() {
                each(text.number, Event::Begun(begun.known));
            }
        }
    }

    /// Keeps the states of texts whose sequences cannot be cut later. A state is kept at each mark.
    /// One before each part of a prompt is kept until the next part, since a cancelled pass leaves
    /// no state.
    pub(super) fn keep_states(&mut self, texts: &mut [Running<'_>], parts: &[usize]) {
        if self.goes_back {
            return;
        }
        for (text, &part) in texts.iter_mut().zip(parts) {
            let done = text.done();
            let is_mark = text.marks.first() == Some(&done);
            text.marks.retain(|&mark| mark > done);
            let is_part = part > 0 && done >= LEAST;
            if text.has_begun() || text.follows.is_some() || !is_mark && !is_part {
                continue;
            }
            let Some(prefix) = self.model.prefix(text.sequence) else { continue };
            let mut entry =
                PrefixEntry::new(prefix, text.request.tokens[..done].to_vec(), text.request.owner);
            entry.short_lived = text.request.short_lived;
            entry.trail = (!is_mark).then_some(text.number);
            self.keep_prefix(entry);
        }
    }

    pub(super) fn keep_prefix(&mut self, entry: PrefixEntry) {
        let bytes = entry.prefix.bytes();
        self.prefixes.add(entry.sized(bytes), self.goes_back);
        self.held = None;
        self.make_room(&[], 0);
    }

    /// Drops the least valuable prefixes until there is room for the growth of sequences by `parts`
    /// and for `more` bytes. Returns false if there is not that much.
    pub(super) fn make_room(&mut self, parts: &[(usize, usize)], more: u64) -> bool {
        loop {
            let growth = match self.model.lm.streamer() {
                Some(streamer) => streamer.state().growth(parts) + more,
                None => more,
            };
            let is_counted = self.held.is_none();
            let held = self.held();
            self.held = Some(held + growth);
            let has_room = held + growth <= self.room;
            // The earlier bound may be too high.
            if has_room || is_counted && !self.prefixes.drop_one() {
                let idle = self.room.saturating_sub(held + growth);
                self.experts = match self.model.lm.streamer() {
                    Some(streamer) => streamer.lend_context(Some(idle)),
                    None => 0,
                };
                return has_room;
            }
            self.held = None;
        }
    }

    /// Charges kept prefixes for the time that texts have waited for experts. A prefix is dropped
    /// once its bytes, used for experts, would have saved as much time as computing it again takes.
    pub(super) fn pay_rent(&mut self, waited: Duration) {
        if self.experts == 0 || waited.is_zero() {
            return;
        }
        // Memory shared by several prefixes, or with a running text, would hardly be freed by
        // dropping one of them.
        let [held, _] = self.memory();
        let own = (held as f64 / self.prefixes.bytes().max(1) as f64).min(1.0);
        // Model: one percent more memory means about one percent fewer expert reads.
        self.prefixes.charge(own * waited.as_secs_f64() / self.experts as f64);
        if let Some(token) = self.portion.token()
            && self.prefixes.drop_unpaid(token, self.disk.is_some())
        {
            self.held = None;
        }
    }

    /// Upper bound on the bytes held by sequences and kept prefixes, counted if it is not known.
    fn held(&mut self) -> u64 {
        match self.held {
            Some(held) => held,
            None => self.count(),
        }
    }

    /// Bytes held by sequences and kept prefixes.
    pub(super) fn count(&mut self) -> u64 {
        let tokens = self.prefixes.token_bytes().saturating_sub(Batch::TOKENS);
        let prefixes = &mut self.prefixes.prefixes();
        match self.model.lm.streamer() {
            Some(streamer) => streamer.state().held(prefixes) + tokens,
            None => tokens,
        }
    }
}

/// Length of a prefix that was found with its place; 0 if none was.
fn length(found: Option<(usize, usize)>) -> usize {
    match found {
        Some((_, len)) => len,
        None => 0,
    }
}
