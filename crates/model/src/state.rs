//! What a forward pass carries: the hidden state of a batch, and what layers remember of its sequences.

use sws_store::Pass;

use crate::forward::{Middle, Workspace};
use crate::layer_state::{KvPrecision, Sequence, Snapshot};
use crate::source::Routed;
use crate::spec::ModelSpec;

/// The hidden state of the batch that is under way, and the keys and values of every sequence.
#[derive(Debug)]
pub struct State {
    limit: usize,
    precision: KvPrecision,
    page: usize,
    pub(crate) sequences: Vec<Sequence>,
    pub(crate) pass: Pass,
    /// [tokens, hidden]
    pub(crate) hidden: Vec<f32>,
    pub(crate) progress: Progress,
    pub(crate) work: Workspace,
}

/// How far the batch has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// A step failed, or is under way.
    Interrupted,
    /// This layer comes next.
    Before(usize),
    /// The shared expert of this layer comes next, if it has one, or else its feed-forward block.
    Attended(usize),
    /// The feed-forward block of this layer comes next.
    Shared(usize),
}

/// A state to go back to. While one exists, sequences keep what they overwrite: hand it to
/// [`State::rewind`] or [`State::keep`].
#[derive(Debug)]
#[must_use]
pub struct Saved {
    hidden: Vec<f32>,
    pass: Pass,
    progress: Progress,
    /// In the middle of a layer, what its experts need.
    middle: Option<Middle>,
    sequences: Vec<Snapshot>,
}

impl State {
    /// A state for sequences of up to `limit` positions, or as many as the model was made for.
    pub fn new(spec: &ModelSpec, limit: usize, precision: KvPrecision) -> State {
        State {
            limit: limit.min(spec.context),
            precision,
            page: usize::MAX,
            sequences: Vec::new(),
            pass: Pass::default(),
            hidden: Vec::new(),
            progress: Progress::Before(0),
            work: Workspace::default(),
        }
    }

    /// Lets sequences that are added from now on keep keys and values in pages of so many positions, rounded
    /// up to a power of two from 64 on, instead of one: they take memory as they grow and share what forks
    /// have in common. Short pages make attention to thousands of positions slower; pages of 512 hardly do.
    pub fn with_pages(mut self, positions: usize) -> State {
        self.page = positions;
        self
    }

    /// Adds an empty sequence and returns its number.
    pub fn add_sequence(&mut self, spec: &ModelSpec) -> usize {
        self.sequences.push(Sequence::new(spec, self.limit, self.precision, self.page));
        self.sequences.len() - 1
    }

    /// The most bytes that the layers' memory of one sequence of `limit` positions takes.
    pub fn cache_bytes(spec: &ModelSpec, limit: usize, precision: KvPrecision) -> u64 {
        Sequence::bytes_for(spec, limit.min(spec.context), precision)
    }

    /// Forgets what a sequence holds, so that another can begin in its place and its memory.
    pub fn clear(&mut self, sequence: usize) {
        self.sequences[sequence].clear();
    }

    /// Adds a sequence with the same positions as another, whose pages it shares until one of the two writes
    /// to them: then that page is copied, which is all of a layer's without [`with_pages`](Self::with_pages).
    /// None where a pass over the other one failed in the middle.
    pub fn fork(&mut self, sequence: usize) -> Option<usize> {
        let fork = self.sequences[sequence].fork()?;
        self.sequences.push(fork);
        Some(self.sequences.len() - 1)
    }

    /// Forgets the positions of a sequence from `len` on. Returns false, and forgets nothing, where a layer
    /// cannot: a window has overwritten what it would see again.
    pub fn truncate(&mut self, sequence: usize, len: usize) -> bool {
        self.sequences[sequence].truncate(len)
    }

    /// Bytes that layers hold of a sequence; those shared with forks count for each.
    pub fn held_bytes(&self, sequence: usize) -> u64 {
        self.sequences[sequence].bytes()
    }

    /// The positions of a sequence that all layers have seen.
    pub fn len(&self, sequence: usize) -> usize {
        self.sequences[sequence].len
    }

    /// Whether there is no sequence.
    pub fn is_empty(&self) -> bool {
        self.sequences.is_empty()
    }

    /// The most positions of a sequence.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// The precision of keys and values.
    pub fn precision(&self) -> KvPrecision {
        self.precision
    }

    /// The hidden state of the batch: [tokens, hidden].
    pub fn hidden(&self) -> &[f32] {
        &self.hidden
    }

    /// The layer that comes next; none within a layer, or if one failed.
    pub fn layer(&self) -> Option<usize> {
        match self.progress {
            Progress::Before(layer) => Some(layer),
            _ => None,
        }
    }

    /// The batch that is under way, or was last.
    pub fn pass(&self) -> &Pass {
        &self.pass
    }

    /// What the router of the layer last run chose. After a dense layer: of the last with experts.
    pub fn routed(&self) -> &Routed {
        &self.work.routed
    }

    /// Bytes of working memory that passes have grown, caches not counted.
    pub fn work_bytes(&self) -> u64 {
        self.work.bytes() + (self.hidden.capacity() * size_of::<f32>()) as u64
    }

    /// Gives up the working memory that passes have grown; the next one grows what it needs. Nothing may be
    /// under way.
    pub fn release_work(&mut self) {
        (self.work, self.hidden) = (Workspace::default(), Vec::new());
    }

    /// Remembers where the pass is.
    pub fn save(&mut self) -> Saved {
        Saved {
            hidden: self.hidden.clone(),
            pass: self.pass.clone(),
            progress: self.progress,
            middle: match self.progress {
                Progress::Interrupted | Progress::Before(_) => None,
                Progress::Attended(_) | Progress::Shared(_) => {
                    Some(self.work.middle(self.hidden.len()))
                }
            },
            sequences: self.sequences.iter_mut().map(Sequence::snapshot).collect(),
        }
    }

    /// Goes back to where `saved` was made, whatever has been computed since. States saved later
    /// than that one are void.
    ///
    /// # Panics
    ///
    /// If sequences have been added since.
    pub fn rewind(&mut self, saved: Saved) {
        let Saved { hidden, pass, progress, middle, sequences } = saved;
        let count = self.sequences.len();
        assert_eq!(sequences.len(), count, "sequences were added since the save");
        for (sequence, snapshot) in self.sequences.iter_mut().zip(sequences) {
            sequence.restore(snapshot);
        }
        // Into the memory that is there, whose length a budget counts on.
        self.hidden.clone_from(&hidden);
        self.pass = pass;
        self.progress = progress;
        if let Some(middle) = middle {
            self.work.resume(middle);
        }
    }

    /// Gives up the possibility to go back to `saved`.
    pub fn keep(&mut self, saved: Saved) {
        for (sequence, snapshot) in self.sequences.iter_mut().zip(saved.sequences) {
            sequence.keep(snapshot);
        }
    }
}
