//! What a forward pass carries: the hidden state of a batch, and the caches of its sequences.

use sws_store::Pass;

use crate::forward::{Middle, Workspace};
use crate::kv::{Copies, KvPrecision, LayerCache};
use crate::source::Routed;
use crate::spec::{Mixer, ModelSpec};

/// The hidden state of the batch that is under way, and the keys and values of every sequence.
#[derive(Debug)]
pub struct State {
    limit: usize,
    precision: KvPrecision,
    pub(crate) caches: Caches,
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

/// The keys and values of all sequences.
#[derive(Debug, Default)]
pub(crate) struct Caches {
    pub(crate) sequences: Vec<Sequence>,
    journal: Journal,
}

#[derive(Debug)]
pub(crate) struct Sequence {
    /// Positions whose keys and values are in every layer.
    pub(crate) len: usize,
    /// Whether some layers have more: a ring may then have dropped what a new pass would see.
    pub(crate) partial: bool,
    pub(crate) layers: Vec<LayerCache>,
}

/// A state to go back to. While one exists, window rings keep what they overwrite: hand it to
/// [`State::rewind`] or [`State::keep`].
#[derive(Debug)]
#[must_use]
pub struct Saved {
    hidden: Vec<f32>,
    pass: Pass,
    progress: Progress,
    /// In the middle of a layer, what its experts need.
    middle: Option<Middle>,
    /// The length of each sequence, and whether it is in a pass.
    sequences: Vec<(usize, bool)>,
    mark: usize,
}

/// What rings have overwritten since the first save.
#[derive(Debug, Default)]
struct Journal {
    saves: usize,
    slots: Vec<Slot>,
    copies: Copies,
}

#[derive(Debug)]
struct Slot {
    sequence: usize,
    layer: usize,
    position: usize,
}

impl State {
    /// A state for sequences of up to `limit` positions, or as many as the model was made for.
    pub fn new(spec: &ModelSpec, limit: usize, precision: KvPrecision) -> State {
        State {
            limit: limit.min(spec.context),
            precision,
            caches: Caches::default(),
            pass: Pass::default(),
            hidden: Vec::new(),
            progress: Progress::Before(0),
            work: Workspace::default(),
        }
    }

    /// Adds an empty sequence and returns its number.
    pub fn add_sequence(&mut self, spec: &ModelSpec) -> usize {
        let cache = |layer: &crate::LayerSpec| match &layer.mixer {
            Mixer::Attention(attention) => LayerCache::new(attention, self.limit, self.precision),
        };
        let layers = spec.layers.iter().map(cache).collect();
        self.caches.sequences.push(Sequence { len: 0, partial: false, layers });
        self.caches.sequences.len() - 1
    }

    /// The bytes that the caches of one sequence of `limit` positions take.
    pub fn cache_bytes(spec: &ModelSpec, limit: usize, precision: KvPrecision) -> u64 {
        let limit = limit.min(spec.context);
        let bytes = |layer: &crate::LayerSpec| match &layer.mixer {
            Mixer::Attention(attention) => LayerCache::bytes(attention, limit, precision),
        };
        spec.layers.iter().map(bytes).sum()
    }

    /// Forgets what a sequence holds, so that another can begin in its place.
    pub fn clear(&mut self, sequence: usize) {
        let sequence = &mut self.caches.sequences[sequence];
        (sequence.len, sequence.partial) = (0, false);
    }

    /// The positions of a sequence that all layers have seen.
    pub fn len(&self, sequence: usize) -> usize {
        self.caches.sequences[sequence].len
    }

    /// Whether there is no sequence.
    pub fn is_empty(&self) -> bool {
        self.caches.sequences.is_empty()
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
        self.caches.journal.saves += 1;
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
            sequences: self.caches.sequences.iter().map(|s| (s.len, s.partial)).collect(),
            mark: self.caches.journal.slots.len(),
        }
    }

    /// Goes back to where `saved` was made, whatever has been computed since. States saved later
    /// than that one are void.
    ///
    /// # Panics
    ///
    /// If sequences have been added since.
    pub fn rewind(&mut self, mut saved: Saved) {
        let sequences = self.caches.sequences.len();
        assert_eq!(saved.sequences.len(), sequences, "sequences were added since the save");
        for Slot { sequence, layer, position } in
            self.caches.journal.slots.drain(saved.mark..).rev()
        {
            let cache = &mut self.caches.sequences[sequence].layers[layer];
            cache.copy_back(position, &mut self.caches.journal.copies);
        }
        for (sequence, before) in self.caches.sequences.iter_mut().zip(&saved.sequences) {
            (sequence.len, sequence.partial) = *before;
        }
        self.hidden.clone_from(&saved.hidden);
        self.pass.clone_from(&saved.pass);
        self.progress = saved.progress;
        if let Some(middle) = saved.middle.take() {
            self.work.resume(middle);
        }
        self.keep(saved);
    }

    /// Gives up the possibility to go back to `saved`.
    pub fn keep(&mut self, saved: Saved) {
        drop(saved);
        self.caches.journal.saves -= 1;
        if self.caches.journal.saves == 0 {
            self.caches.journal.slots.clear();
            self.caches.journal.copies.clear();
        }
    }
}

impl Caches {
    /// Stores keys and values of consecutive positions of a sequence.
    pub(crate) fn store(
        &mut self,
        sequence: usize,
        layer: usize,
        first: usize,
        tokens: usize,
        rows: [&[f32]; 2],
    ) -> &LayerCache {
        let cache = &mut self.sequences[sequence].layers[layer];
        if self.journal.saves > 0 {
            // Below the capacity a slot holds nothing that anybody could want back.
            for position in first.max(cache.capacity())..first + tokens {
                cache.copy_out(position, &mut self.journal.copies);
                self.journal.slots.push(Slot { sequence, layer, position });
            }
        }
        cache.store(first, rows[0], rows[1]);
        cache
    }
}
