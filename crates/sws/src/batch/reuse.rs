//! What texts take from others that begin as they do, and what is kept of them.

use std::time::Duration;

use sws_store::BlobsError;

use super::{Batch, Running};
use crate::prefix_cache::disk::{PrefixDisk, PrefixDiskCounts};
use crate::prefix_cache::{PrefixEntry, common};

/// Tokens of a state that is kept in the middle of a text, and tokens that are worth a wait, at least.
const LEAST: usize = 32;

/// How a text begins.
#[derive(Debug, Default)]
pub(super) struct Begun {
    /// Tokens of its prompt in its sequence.
    pub(super) known: usize,
    /// The text that computes more of them, by its number, and how many; it has to be waited for.
    pub(super) follows: Option<(usize, usize)>,
    /// Numbers of tokens at which its state is kept.
    pub(super) marks: Vec<usize>,
}

impl Begun {
    /// Tokens that the text does not have to compute.
    pub(super) fn spared(&self) -> usize {
        self.follows.map_or(self.known, |(_, common)| common)
    }
}

impl Batch<'_> {
    /// Bytes of the tokens of kept prefixes that need no room of sequences. A budget has room for them if
    /// [`Needs::heap`](crate::Needs::heap) has.
    pub const TOKENS: u64 = 1 << 20;

    /// Lets prefixes be stored and found on disk; see [`store`](Self::store).
    pub fn with_disk(mut self, disk: PrefixDisk) -> Self {
        // Without a KV cache there is nothing to store.
        let streamer = self.model.lm.streamer();
        self.disk = streamer.map(|streamer| disk.laid_out(&streamer.empty_prefix().layout()));
        self
    }

    /// Writes a block of what is kept to the [disk](Self::with_disk). Returns true if there is more to
    /// write. Nothing else happens meanwhile, so it is for times without texts.
    pub fn store(&mut self) -> bool {
        let Some(disk) = &mut self.disk else { return false };
        let Some(entry) = self.prefixes.unstored() else { return false };
        entry.is_stored = entry.tokens.len() < LEAST || !disk.store(entry);
        true
    }

    /// Counts of the [disk](Self::with_disk).
    pub fn disk_counts(&self) -> Option<PrefixDiskCounts> {
        self.disk.as_ref().map(PrefixDisk::counts)
    }

    /// Errors of the [disk](Self::with_disk) since the last call. After one of writing, nothing more is
    /// written.
    pub fn disk_faults(&mut self) -> Vec<BlobsError> {
        self.disk.as_mut().map(PrefixDisk::faults).unwrap_or_default()
    }

    /// Bytes of the states of running texts and of what is kept, at most, and bytes that there is room for.
    pub fn memory(&mut self) -> [u64; 2] {
        let held = self.held.unwrap_or_else(|| self.count());
        self.held = Some(held);
        [held, self.room]
    }

    /// Number of prefixes in the cache.
    pub fn kept_prefixes(&self) -> usize {
        self.prefixes.len()
    }

    /// Puts a sequence at the beginning of a prompt, as far as that is known from texts of its owner:
    /// those that are over, were cancelled or run. With `anew` it begins with nothing.
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
        let mut known = here.map_or(0, |(_, len)| len);
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
            // A few tokens are no reason to wait.
            if all > done && all >= spared.max(known) + LEAST {
                (spared, follows) = (all, Some(at));
            }
        }
        if let Some(at) = follows.filter(|_| spared > known) {
            let goes_back = self.goes_back;
            let text = &mut self.running[at];
            if !goes_back {
                text.mark(spared);
            }
            return Begun { follows: Some((text.number, spared)), ..Begun::default() };
        }
        let begun = match (from, here) {
            (Some(at), _) => {
                let prefix = self.model.prefix(self.running[at].sequence);
                prefix.is_some_and(|prefix| self.model.begin_with(sequence, &prefix, known))
            }
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

    /// Reads what the disk has of a prompt, if that is more than what is `here`. Returns the place of the
    /// longest prefix that is kept, and its length.
    fn load(
        &mut self,
        begins: &[u32],
        owner: u64,
        here: Option<(usize, usize)>,
    ) -> Option<(usize, usize)> {
        let Some(disk) = &self.disk else { return here };
        let found = disk.find(begins, owner, self.goes_back);
        if found < LEAST || found <= here.map_or(0, |(_, len)| len) {
            return here;
        }
        let Some(streamer) = self.model.lm.streamer() else { return here };
        let mut prefix = streamer.empty_prefix();
        let has_room = self.make_room(&[], prefix.growth(found));
        // Another may have gone for it.
        let here = self.prefixes.best(begins, owner, self.goes_back);
        let Some(disk) = self.disk.as_mut().filter(|_| has_room) else { return here };
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

    /// Begins the texts whose others have computed what they have in common, or never will.
    pub(super) fn begin_followers(&mut self) {
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
        }
    }

    /// Keeps what was computed of a text, where its state cannot be cut later: at a mark, and before each
    /// part of a prompt until the next, since a pass that is cut off leaves no state.
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

    /// Drops what is worth least until sequences have room for so many more tokens each, and so many
    /// more bytes. Returns false if there is not that much.
    pub(super) fn make_room(&mut self, parts: &[(usize, usize)], more: u64) -> bool {
        loop {
            let growth =
                self.model.lm.streamer().map_or(0, |streamer| streamer.state().growth(parts))
                    + more;
            let is_counted = self.held.is_none();
            let held = self.held.unwrap_or_else(|| self.count());
            self.held = Some(held + growth);
            let has_room = held + growth <= self.room;
            // What was counted before may be less by now.
            if has_room || is_counted && !self.prefixes.drop_one() {
                let idle = self.room.saturating_sub(held + growth);
                let streamer = self.model.lm.streamer();
                self.experts = streamer.map_or(0, |streamer| streamer.lend_context(Some(idle)));
                return has_room;
            }
            self.held = None;
        }
    }

    /// Counts the time that texts have waited for experts. What is kept goes once its bytes would have
    /// saved, as memory of experts, as much time as it takes to compute it again.
    pub(super) fn pay_rent(&mut self, waited: Duration) {
        if self.experts == 0 || waited.is_zero() {
            return;
        }
        // What several share, or a running text, would hardly be free without one of them.
        let [held, _] = self.memory();
        let own = (held as f64 / self.prefixes.bytes().max(1) as f64).min(1.0);
        // With a hundredth more memory about a hundredth fewer experts are read.
        self.prefixes.charge(own * waited.as_secs_f64() / self.experts as f64);
        if let Some(token) = self.portion.token()
            && self.prefixes.drop_unpaid(token, self.disk.is_some())
        {
            self.held = None;
        }
    }

    /// Bytes held by sequences and what is kept.
    pub(super) fn count(&mut self) -> u64 {
        let tokens = self.prefixes.token_bytes().saturating_sub(Batch::TOKENS);
        let prefixes = &mut self.prefixes.prefixes();
        self.model.lm.streamer().map_or(0, |streamer| streamer.state().held(prefixes)) + tokens
    }
}
