//! The state of a forward pass: the hidden state of a batch, and the caches of its sequences.

use sws_format::{Pass, Span};

use crate::layer_state::{KvPrecision, SequenceSnapshot, SequenceState, SharedPage};
use crate::prefix::Prefix;
use crate::source::Routed;
use crate::spec::{Mixer, ModelSpec};
use crate::workspace::{Middle, Selection, Workspace};

/// The hidden state of the current batch, and the KV cache of every sequence.
#[derive(Debug)]
pub struct ForwardState {
    limit: usize,
    precision: KvPrecision,
    page: usize,
    pub(crate) sequences: Vec<SequenceState>,
    /// Numbers of sequences that were removed.
    vacant: Vec<usize>,
    /// Number of sequences added and removed so far.
    changes: u64,
    pub(crate) pass: Pass,
    /// [tokens, hidden]
    pub(crate) hidden: Vec<f32>,
    pub(crate) progress: BatchProgress,
    pub(crate) work: Workspace,
}

/// Progress of the batch through the layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchProgress {
    /// A step failed, or is running.
    Interrupted,
    /// This layer comes next.
    Before(usize),
    /// The shared expert of this layer comes next if there is one, otherwise its feed-forward
    /// block.
    Attended(usize),
    /// The feed-forward block of this layer comes next.
    Shared(usize),
}

/// A saved state. While one exists, sequences keep overwritten rows. Pass it to
/// [`ForwardState::rewind`] or [`ForwardState::keep`].
#[derive(Debug)]
#[must_use]
pub struct SavedState {
    hidden: Vec<f32>,
    pass: Pass,
    progress: BatchProgress,
    /// The inputs of the experts, if saved in the middle of a layer.
    middle: Option<Middle>,
    /// The sum of experts that is added at the end of the next layer, if there is one.
    later: Vec<f32>,
    /// The per-layer inputs, if saved in the middle of a pass.
    inputs: Vec<f32>,
    /// The positions that sparse attention has selected, if saved in the middle of a pass.
    selection: Option<Selection>,
    sequences: Vec<SequenceSnapshot>,
    changes: u64,
}

impl ForwardState {
    /// A state for sequences of up to `limit` positions, capped at the model's context length.
    pub fn new(spec: &ModelSpec, limit: usize, precision: KvPrecision) -> ForwardState {
        ForwardState {
            limit: limit.min(spec.context),
            precision,
            page: usize::MAX,
            sequences: Vec::new(),
            vacant: Vec::new(),
            changes: 0,
            pass: Pass::default(),
            hidden: Vec::new(),
            progress: BatchProgress::Before(0),
            work: Workspace::default(),
        }
    }

    /// Stores the KV cache of sequences added from now on in pages of this many positions,
    /// rounded up to a power of two from 64 on, instead of in one page. Sequences then take memory
    /// as they grow, and forks share the pages they have in common. Short pages slow down attention
    /// over thousands of positions; pages of 512 hardly do.
    pub fn with_pages(mut self, positions: usize) -> ForwardState {
        self.page = positions;
        self
    }

    /// Like [`with_pages`](Self::with_pages), for sequences added or released from now on.
    pub fn set_pages(&mut self, positions: usize) {
        self.page = positions;
    }

    /// Adds an empty sequence and returns its number. Numbers of removed sequences are reused.
    pub fn add_sequence(&mut self, spec: &ModelSpec) -> usize {
        self.insert(SequenceState::new(spec, self.limit, self.precision, self.page))
    }

    fn insert(&mut self, sequence: SequenceState) -> usize {
        self.changes += 1;
        match self.vacant.pop() {
            Some(number) => {
                self.sequences[number] = sequence;
                number
            }
            None => {
                self.sequences.push(sequence);
                self.sequences.len() - 1
            }
        }
    }

    /// Removes a sequence and frees its memory.
    ///
    /// # Panics
    ///
    /// If there is no such sequence.
    pub fn remove(&mut self, sequence: usize) {
        *self.existing(sequence) = SequenceState::vacant();
        self.vacant.push(sequence);
        self.changes += 1;
    }

    /// The sequence with a number.
    ///
    /// # Panics
    ///
    /// If there is none.
    fn existing(&mut self, sequence: usize) -> &mut SequenceState {
        assert!(self.has(sequence), "the sequence {sequence} was removed");
        &mut self.sequences[sequence]
    }

    /// True unless a sequence was removed.
    pub(crate) fn has(&self, sequence: usize) -> bool {
        !self.vacant.contains(&sequence)
    }

    /// The maximum size in bytes of one sequence's caches in all layers, for `limit` positions.
    pub fn cache_bytes(spec: &ModelSpec, limit: usize, precision: KvPrecision) -> u64 {
        ForwardState::paged_bytes(spec, limit, precision, usize::MAX)
    }

    /// Like [`cache_bytes`](Self::cache_bytes), for sequences in [pages](Self::with_pages), the
    /// last of which is whole.
    pub fn paged_bytes(spec: &ModelSpec, limit: usize, precision: KvPrecision, page: usize) -> u64 {
        SequenceState::bytes_for(spec, limit.min(spec.context), precision, page)
    }

    /// The maximum bytes that sequences keep of earlier states while a state is saved, for a pass
    /// of `tokens` tokens over `sequences` sequences. Windows keep overwritten positions, and
    /// recurrent layers a copy. The positions selected by sparse attention, and per-layer inputs,
    /// count too.
    pub fn journal_bytes(
        spec: &ModelSpec,
        (sequences, tokens): (usize, usize),
        precision: KvPrecision,
    ) -> u64 {
        let most = spec.layers.iter().filter_map(|layer| match &layer.mixer {
            Mixer::Latent(latent) => Some(latent.sparse?.most),
            _ => None,
        });
        let selected = most.max().unwrap_or(0).min(spec.context) * tokens * size_of::<u32>();
        let inputs = spec.inputs_width() * tokens * size_of::<f32>();
        let journal = SequenceState::journal_bytes_for(spec, (sequences, tokens), precision);
        journal + (selected + inputs) as u64
    }

    /// Empties a sequence, so that another can reuse its place and its memory.
    ///
    /// # Panics
    ///
    /// If there is no such sequence.
    pub fn clear(&mut self, sequence: usize) {
        self.existing(sequence).clear();
    }

    /// Adds a sequence with the same positions as another. The two share pages until one of them
    /// writes: then that page is copied, which is the layer's whole cache without
    /// [`with_pages`](Self::with_pages). Returns None if a pass over the other sequence failed in
    /// the middle.
    pub fn fork(&mut self, sequence: usize) -> Option<usize> {
        let fork = self.existing(sequence).fork()?;
        Some(self.insert(fork))
    }

    /// A prefix with all positions of a sequence, sharing its memory until one of the two is
    /// written. `None` if a pass over the sequence failed in the middle.
    pub fn prefix(&self, sequence: usize) -> Option<Prefix> {
        Prefix::of(&self.sequences[sequence])
    }

    /// An empty prefix, to be filled from bytes.
    pub fn empty_prefix(&self, spec: &ModelSpec) -> Prefix {
        Prefix::empty(SequenceState::new(spec, self.limit, self.precision, self.page))
    }

    /// Replaces a sequence by the first `len` positions of a prefix. Returns false, and replaces
    /// nothing, if the prefix cannot be [cut](Self::truncate) there.
    ///
    /// # Panics
    ///
    /// If there is no such sequence.
    pub fn begin_with(&mut self, sequence: usize, prefix: &Prefix, len: usize) -> bool {
        let Some(begun) = prefix.begin(len) else { return false };
        *self.existing(sequence) = begun;
        self.changes += 1;
        true
    }

    /// Empties a sequence and frees its memory; it grows again in the present pages.
    ///
    /// # Panics
    ///
    /// If there is no such sequence.
    pub fn release(&mut self, spec: &ModelSpec, sequence: usize) {
        *self.existing(sequence) = SequenceState::new(spec, self.limit, self.precision, self.page);
        self.changes += 1;
    }

    /// True if sequences can be cut at any length. With recurrent layers or windows they can only
    /// be continued at their end.
    pub fn goes_back(&self, spec: &ModelSpec) -> bool {
        SequenceState::new(spec, self.limit, self.precision, self.page).goes_back()
    }

    /// Bytes that all sequences take at their limit.
    pub fn room(&self, spec: &ModelSpec) -> u64 {
        let each = ForwardState::paged_bytes(spec, self.limit, self.precision, self.page);
        each * self.sequences() as u64
    }

    /// Bytes that this many more tokens of sequences take, including copies of shared memory.
    pub fn growth(&self, parts: &[(usize, usize)]) -> u64 {
        parts.iter().map(|&(sequence, tokens)| self.sequences[sequence].growth(tokens)).sum()
    }

    /// Bytes held by all sequences and these prefixes. Pages that several share count once.
    pub fn held(&self, prefixes: &mut dyn Iterator<Item = &Prefix>) -> u64 {
        let mut pages = Vec::new();
        let mut each = |page: SharedPage| pages.push(page);
        self.sequences.iter().for_each(|sequence| sequence.each_page(&mut each));
        prefixes.for_each(|prefix| prefix.each_page(&mut each));
        pages.sort_unstable();
        pages.dedup();
        pages.iter().map(|page| page.bytes).sum()
    }

    /// Drops the positions of a sequence from `len` on. Returns false, and drops nothing, if a
    /// layer cannot: a window has overwritten positions that it would see again, or a recurrent layer
    /// has taken in the positions and `len` is not 0.
    pub fn truncate(&mut self, sequence: usize, len: usize) -> bool {
        self.existing(sequence).truncate(len)
    }

    /// Bytes held for a sequence in all layers; pages shared with forks count for each.
    pub fn held_bytes(&self, sequence: usize) -> u64 {
        self.sequences[sequence].bytes()
    }

    /// Number of positions of a sequence that all layers have processed.
    pub fn len(&self, sequence: usize) -> usize {
        self.sequences[sequence].len
    }

    /// Number of sequences.
    pub fn sequences(&self) -> usize {
        self.sequences.len() - self.vacant.len()
    }

    /// The numbers of the sequences.
    pub fn numbers(&self) -> impl Iterator<Item = usize> {
        (0..self.sequences.len()).filter(|&sequence| self.has(sequence))
    }

    /// True if there is no sequence.
    pub fn is_empty(&self) -> bool {
        self.sequences() == 0
    }

    /// The maximum number of positions in a sequence.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// The precision of the KV cache.
    pub fn precision(&self) -> KvPrecision {
        self.precision
    }

    /// The hidden state of the batch: [tokens, hidden].
    pub fn hidden(&self) -> &[f32] {
        &self.hidden
    }

    /// The layer that comes next; None within a layer, or after a failure.
    pub fn layer(&self) -> Option<usize> {
        match self.progress {
            BatchProgress::Before(layer) => Some(layer),
            _ => None,
        }
    }

    /// The current batch, or the last one.
    pub fn pass(&self) -> &Pass {
        &self.pass
    }

    /// The choice of the last router that ran. A dense layer leaves that of an earlier layer in
    /// place.
    pub fn routed(&self) -> &Routed {
        &self.work.routed
    }

    /// The positions that a row of the batch sees in the last layer that selected some, ascending.
    /// None if it sees all, as in models without sparse attention.
    ///
    /// # Panics
    ///
    /// If the batch has no such row.
    pub fn selected(&self, row: usize) -> Option<&[u32]> {
        let own = |span: &&Span| (span.first_row..span.first_row + span.tokens).contains(&row);
        let span = self.pass.spans.iter().find(own).expect("a row of the batch");
        Some(self.work.selection()?.of(span)?.of(row - span.first_row, 0))
    }

    /// Starts copying the selections of layers with blocks or pooled entries, until
    /// [`release_work`](Self::release_work). No budget includes the memory of the copies.
    pub fn note_selections(&mut self) {
        *self.work.noted() = Some(Vec::new());
    }

    /// Returns the selections copied since the last call. They contain the positions in selected
    /// blocks, or the selected entries, for each list of each token that does not see everything.
    /// The lists of a layer have one length; shorter ones are padded with `u32::MAX`.
    pub fn take_selections(&mut self) -> Vec<u32> {
        self.work.noted().as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Bytes of working memory that passes have allocated, caches not included.
    pub fn work_bytes(&self) -> u64 {
        self.work.bytes() + (self.hidden.capacity() * size_of::<f32>()) as u64
    }

    /// Number of times that products were divided among threads: the places of all passes where
    /// threads begin together and wait for one another.
    pub fn divisions(&self) -> u64 {
        self.work.divisions()
    }

    /// Frees the working memory that passes have allocated; the next pass allocates what it needs.
    /// Must not be called during a pass.
    pub fn release_work(&mut self) {
        (self.work, self.hidden) = (Workspace::default(), Vec::new());
    }

    /// Saves the position of the pass.
    pub fn save(&mut self) -> SavedState {
        SavedState {
            hidden: self.hidden.clone(),
            pass: self.pass.clone(),
            progress: self.progress,
            middle: match self.progress {
                BatchProgress::Interrupted | BatchProgress::Before(_) => None,
                BatchProgress::Attended(_) | BatchProgress::Shared(_) => {
                    Some(self.work.middle(self.hidden.len()))
                }
            },
            later: self.work.later(self.hidden.len()),
            inputs: self.work.layer_inputs(),
            selection: match self.hidden.is_empty() {
                true => None,
                false => self.work.selected(self.pass.len()),
            },
            sequences: self.sequences.iter_mut().map(SequenceState::snapshot).collect(),
            changes: self.changes,
        }
    }

    /// Makes passes over a sequence fail until it is cleared.
    pub(crate) fn interrupt(&mut self, sequence: usize) {
        self.sequences[sequence].partial = true;
    }

    /// Saves the state between two passes, without the activations of the last.
    pub(crate) fn save_between(&mut self) -> SavedState {
        self.hidden.clear();
        self.save()
    }

    /// Returns to the point where `saved` was made, whatever has been computed since. States saved
    /// after it become invalid.
    ///
    /// # Panics
    ///
    /// If sequences have been added or removed since.
    pub fn rewind(&mut self, saved: SavedState) {
        let SavedState {
            hidden,
            pass,
            progress,
            middle,
            later,
            inputs,
            selection,
            sequences,
            changes,
        } = saved;
        assert_eq!(changes, self.changes, "sequences were added or removed since the save");
        for (sequence, snapshot) in self.sequences.iter_mut().zip(sequences) {
            sequence.restore(snapshot);
        }
        // The existing buffer is reused, because the budget relies on its length.
        self.hidden.clone_from(&hidden);
        self.pass = pass;
        self.progress = progress;
        if let Some(middle) = middle {
            self.work.resume(middle);
        }
        self.work.restore_later(&later);
        self.work.restore_layer_inputs(&inputs);
        self.work.reselect(selection);
    }

    /// Discards `saved`; returning to it is no longer possible.
    pub fn keep(&mut self, saved: SavedState) {
        for (sequence, snapshot) in self.sequences.iter_mut().zip(saved.sequences) {
            sequence.keep(snapshot);
        }
    }
}
