//! Recorded routes: which experts the routers of a model chose, token by token.

mod csv;
mod file;
#[cfg(test)]
mod tests;

use std::ops::Range;

use crate::history::Shape;

/// The most layers with experts, and experts in all of them, that a trace may have: many times those of
/// any model, and few enough that what is kept of each is no danger.
const MAX_LAYERS: usize = 1 << 12;
const MAX_EXPERTS: usize = 1 << 20;

/// The experts that each token of some sequences used in each layer that has experts.
///
/// ```
/// use crate::Trace;
/// use crate::history::Shape;
///
/// let mut trace = Trace::new(Shape { layers: 2, experts: 4, top_k: 2 })?;
/// // A prompt of two tokens goes through the layers together, then comes one token more.
/// trace.push(&[11, 12], &[[0, 1, 1, 3], [2, 3, 0, 3]])?;
/// trace.push(&[13], &[[0, 1], [0, 3]])?;
/// trace.end_sequence();
/// let same = Trace::read(&trace.write())?;
/// assert_eq!(same, trace);
/// assert_eq!(same.experts(1, 1), [0, 3]);
/// assert_eq!(same.passes(0..3).collect::<Vec<_>>(), [0..2, 2..3]);
/// # Ok::<(), sws_cache::TraceError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    shape: Shape,
    /// [tokens, layers, top_k].
    ids: Vec<u16>,
    /// An id for each token, or nothing.
    tokens: Vec<u32>,
    /// Where sequences end, ascending.
    sequences: Vec<usize>,
    /// Where passes end: runs of tokens that went through the layers together.
    passes: Vec<usize>,
}

/// Why something is no trace. The words follow the name of a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// It is of none of the kinds that are known.
    #[error(
        "is not a trace: a trace is a safetensors file with `ids` [tokens, layers, k], one with the \
         `routes` that `sws forward --routes` writes, or a CSV file with the columns turn, phase, \
         step, layer, slot, expert"
    )]
    Unknown,
    /// The header of the safetensors file is wrong.
    #[error("is not a safetensors file: {0}; record the trace again")]
    Header(#[from] sws_store::HeaderError),
    /// A tensor is not of the type or shape that it must have.
    #[error("has `{name}` that is not {expected}; record the trace again")]
    Tensor {
        /// The tensor.
        name: &'static str,
        /// What it must be.
        expected: &'static str,
    },
    /// The metadata say something that can not be.
    #[error(
        "says in its metadata that `{name}` is `{value}`, which does not fit its routes; record the trace again"
    )]
    Metadata {
        /// The entry.
        name: &'static str,
        /// What it says.
        value: String,
    },
    /// There are no routes.
    #[error("has no routes; record at least one token")]
    Empty,
    /// There are more layers or experts than any model has.
    #[error(
        "has {layers} layers of {experts} experts, more than any model; is it a trace of routes?"
    )]
    TooLarge {
        /// Layers.
        layers: usize,
        /// Experts of each.
        experts: usize,
    },
    /// An expert that the model has not.
    #[error("names expert {expert} of a model that has {experts} in each layer")]
    Expert {
        /// The expert.
        expert: u32,
        /// How many there are.
        experts: usize,
    },
    /// The lengths of sequences or passes do not fit the tokens.
    #[error("has {what} that do not add up to its {tokens} tokens")]
    Lengths {
        /// What.
        what: &'static str,
        /// How many tokens there are.
        tokens: usize,
    },
    /// A line of a CSV file makes no sense.
    #[error("has a line {line} that is not understood: {what}")]
    Line {
        /// Its number, from 1.
        line: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// A token of a CSV file has not as many experts as others.
    #[error(
        "has {found} experts for step {step} of turn {turn} where other steps have {expected}; the \
         recording is not complete"
    )]
    Incomplete {
        /// The turn.
        turn: u32,
        /// The step.
        step: u32,
        /// Experts it has.
        found: usize,
        /// Experts it should have.
        expected: usize,
    },
}

impl Trace {
    /// One without tokens.
    pub fn new(shape: Shape) -> Result<Trace, TraceError> {
        let Shape { layers, experts, top_k } = shape;
        let all = layers.checked_mul(experts).filter(|&all| all <= MAX_EXPERTS);
        if all.is_none() || layers > MAX_LAYERS || experts > 1 << 16 {
            return Err(TraceError::TooLarge { layers, experts });
        }
        if layers == 0 || experts == 0 || top_k == 0 {
            return Err(TraceError::Empty);
        }
        let (ids, tokens, sequences, passes) = Default::default();
        Ok(Trace { shape, ids, tokens, sequences, passes })
    }

    /// Appends tokens that went through the layers together: for each layer the experts of each token
    /// in turn, the most probable first. A layer in which a token uses fewer than `top_k` may have
    /// that many fewer.
    pub fn push(&mut self, tokens: &[u32], layers: &[impl AsRef<[u32]>]) -> Result<(), TraceError> {
        let Shape { layers: expected, experts, top_k } = self.shape;
        let count = tokens.len();
        let wrong = TraceError::Lengths { what: "routes", tokens: count };
        let per_token = |layer: &[u32]| layer.len() / count.max(1);
        let fits = |layer: &[u32]| {
            (1..=top_k).contains(&per_token(layer)) && per_token(layer) * count == layer.len()
        };
        if layers.len() != expected || !layers.iter().all(|layer| fits(layer.as_ref())) {
            return Err(wrong);
        }
        let all = layers.iter().flat_map(|layer| layer.as_ref());
        if let Some(&expert) = all.into_iter().find(|&&expert| expert as usize >= experts) {
            return Err(TraceError::Expert { expert, experts });
        }
        for token in 0..count {
            for layer in layers {
                let per_token = per_token(layer.as_ref());
                let chosen = &layer.as_ref()[token * per_token..][..per_token];
                let padding = std::iter::repeat(&chosen[0]);
                let row = chosen.iter().chain(padding).take(top_k);
                self.ids.extend(row.map(|&expert| expert as u16));
            }
        }
        self.tokens.extend(tokens);
        self.passes.push(self.token_count());
        Ok(())
    }

    /// What comes next belongs to another sequence.
    pub fn end_sequence(&mut self) {
        if self.sequences.last() != Some(&self.token_count()) && self.token_count() > 0 {
            self.sequences.push(self.token_count());
        }
    }

    /// The layers that have experts, and how many.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// How many tokens there are.
    pub fn token_count(&self) -> usize {
        self.ids.len() / (self.shape.layers * self.shape.top_k)
    }

    /// An id for each token; empty if nobody knows.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The tokens of each sequence. The last may not have ended.
    pub fn sequences(&self) -> impl Iterator<Item = Range<usize>> {
        let open = Some(self.token_count()).filter(|end| self.sequences.last() != Some(end));
        ranges(self.sequences.iter().copied().chain(open))
    }

    /// The passes in some of the tokens, which are whole passes: runs of tokens that went through the
    /// layers together.
    pub fn passes(&self, tokens: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let first = self.passes.partition_point(|&end| end <= tokens.start);
        let ends = self.passes[first..].iter().copied().take_while(move |&end| end <= tokens.end);
        ends.scan(tokens.start, |start, end| Some(std::mem::replace(start, end)..end))
    }

    /// The experts that a token used in a layer, counted among those that have experts. If it used
    /// fewer than `top_k` the first stands here again.
    pub fn experts(&self, token: usize, layer: usize) -> &[u16] {
        let Shape { layers, top_k, .. } = self.shape;
        &self.ids[(token * layers + layer) * top_k..][..top_k]
    }

    /// Reads a trace that [`write`](Self::write) made, the output of `sws forward --routes`, or a CSV
    /// file with a line for each choice. What is allocated is a small multiple of the bytes.
    pub fn read(bytes: &[u8]) -> Result<Trace, TraceError> {
        match bytes.first() {
            Some(b'#' | b't') => csv::read(bytes),
            _ => file::read(bytes),
        }
    }

    /// A safetensors file: `ids` [tokens, layers, k] u8 or u16; `tokens` i32 if they are known; `lens`
    /// i32, the lengths of sequences; `passes` i32, those of passes, if any is longer than one.
    pub fn write(&self) -> Vec<u8> {
        file::write(self)
    }

    /// From what a file says.
    fn checked(
        shape: Shape,
        ids: Vec<u16>,
        tokens: Vec<u32>,
        lens: Option<Vec<u32>>,
        passes: Option<Vec<u32>>,
    ) -> Result<Trace, TraceError> {
        let mut trace = Trace::new(shape)?;
        trace.ids = ids;
        let count = trace.token_count();
        if count == 0 {
            return Err(TraceError::Empty);
        }
        let experts = shape.experts;
        if let Some(&expert) = trace.ids.iter().find(|&&expert| usize::from(expert) >= experts) {
            return Err(TraceError::Expert { expert: expert.into(), experts });
        }
        if !tokens.is_empty() && tokens.len() != count {
            return Err(TraceError::Lengths { what: "`tokens`", tokens: count });
        }
        trace.tokens = tokens;
        let ends = |lens: Vec<u32>, what| {
            let mut end = 0usize;
            let mut ends = Vec::with_capacity(lens.len());
            for len in lens {
                end = end.saturating_add(len as usize);
                if len > 0 {
                    ends.push(end);
                }
            }
            let fits = end == count;
            if fits { Ok(ends) } else { Err(TraceError::Lengths { what, tokens: count }) }
        };
        trace.sequences = match lens {
            Some(lens) => ends(lens, "sequences")?,
            None => vec![count],
        };
        trace.passes = match passes {
            Some(passes) => ends(passes, "passes")?,
            None => (1..=count).collect(),
        };
        // A pass belongs to one sequence.
        if !trace.sequences.iter().all(|end| trace.passes.binary_search(end).is_ok()) {
            return Err(TraceError::Lengths { what: "passes", tokens: count });
        }
        Ok(trace)
    }
}

fn ranges(ends: impl Iterator<Item = usize>) -> impl Iterator<Item = Range<usize>> {
    ends.scan(0, |start, end| Some(std::mem::replace(start, end)..end))
}
