//! Recorded routes: the experts that the routers of a model chose, token by token.

mod csv;
mod file;
mod states;
#[cfg(test)]
mod tests;

use std::ops::Range;

use crate::shape::HistoryShape;
pub use states::RouterStates;

/// Maximum number of layers with experts, and of experts in all layers, of a trace. Both are many
/// times those of any model, and small enough to bound the memory kept for each.
const MAX_LAYERS: usize = 1 << 12;
const MAX_EXPERTS: usize = 1 << 20;

/// The experts that each token of some sequences used in each layer with experts.
///
/// ```
/// use sws_cache::Trace;
/// use sws_cache::history::HistoryShape;
///
/// let mut trace = Trace::new(HistoryShape { layers: 2, experts: 4, top_k: 2 })?;
/// // A prompt of two tokens goes through the layers together, followed by one more token.
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
    shape: HistoryShape,
    /// [tokens, layers, top_k]
    ids: Vec<u16>,
    /// An id for each token, or empty.
    tokens: Vec<u32>,
    /// End of each sequence, ascending.
    sequences: Vec<usize>,
    /// End of each pass, ascending. A pass is a run of tokens that went through the layers
    /// together.
    passes: Vec<usize>,
}

/// Reasons to refuse a file as a trace. The messages follow the name of the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum TraceError {
    /// The file has none of the known formats.
    #[error(
        "is not a trace: a trace is a safetensors file with `ids` [tokens, layers, k], one with the \
         `routes` that `sws forward --routes` writes, or a CSV file with the columns turn, phase, \
         step, layer, slot, expert"
    )]
    Unknown,
    /// The header of the safetensors file is invalid.
    #[error("is not a safetensors file: {0}; record the trace again")]
    Header(#[from] sws_format::HeaderError),
    /// A tensor has the wrong type or shape.
    #[error("has `{name}` that is not {expected}; record the trace again")]
    Tensor {
        /// Name of the tensor.
        name: &'static str,
        /// Expected type and shape.
        expected: &'static str,
    },
    /// The metadata contain an impossible value.
    #[error(
        "says in its metadata that `{name}` is `{value}`, which does not fit its routes; record the trace again"
    )]
    Metadata {
        /// Name of the entry.
        name: &'static str,
        /// Value of the entry.
        value: String,
    },
    /// The trace has no routes.
    #[error("has no routes; record at least one token")]
    Empty,
    /// The trace has more layers or experts than any model.
    #[error(
        "has {layers} layers of {experts} experts, more than any model; is it a trace of routes?"
    )]
    TooLarge { layers: usize, experts: usize },
    /// A route names an expert that the model does not have.
    #[error("names expert {expert} of a model that has {experts} in each layer")]
    Expert {
        /// Number of the expert.
        expert: u32,
        experts: usize,
    },
    /// The lengths of routes, tokens, sequences or passes do not match the number of tokens.
    #[error("has {what} that do not add up to its {tokens} tokens")]
    Lengths {
        /// The items with the wrong lengths.
        what: &'static str,
        tokens: usize,
    },
    /// A line of a CSV file is invalid.
    #[error("has a line {line} that is not understood: {what}")]
    Line {
        /// Number of the line, from 1.
        line: usize,
        what: &'static str,
    },
    /// A token of a CSV file has fewer experts than others.
    #[error(
        "has {found} experts for step {step} of turn {turn} where other steps have {expected}; the \
         recording is not complete"
    )]
    Incomplete {
        /// Turn of the token.
        turn: u32,
        /// Step of the token.
        step: u32,
        /// Number of experts found.
        found: usize,
        /// Number of experts expected.
        expected: usize,
    },
}

impl Trace {
    /// A trace without tokens.
    pub fn new(shape: HistoryShape) -> Result<Trace, TraceError> {
        let HistoryShape { layers, experts, top_k } = shape;
        let all = layers.checked_mul(experts).filter(|&all| all <= MAX_EXPERTS);
        if all.is_none() || layers > MAX_LAYERS || experts > 1 << 16 {
            return Err(TraceError::TooLarge { layers, experts });
        }
        if layers == 0 || experts == 0 || top_k == 0 {
            return Err(TraceError::Empty);
        }
        Ok(Trace {
            shape,
            ids: Vec::new(),
            tokens: Vec::new(),
            sequences: Vec::new(),
            passes: Vec::new(),
        })
    }

    /// Appends tokens that went through the layers together. Each layer lists the experts of each
    /// token in turn, the most probable first. A layer may use fewer than `top_k` experts per
    /// token, if it does so for every token.
    pub fn push(&mut self, tokens: &[u32], layers: &[impl AsRef<[u32]>]) -> Result<(), TraceError> {
        let HistoryShape { layers: expected, experts, top_k } = self.shape;
        let count = tokens.len();
        let wrong = TraceError::Lengths { what: "routes", tokens: count };
        if layers.len() != expected {
            return Err(wrong);
        }
        for layer in layers {
            let len = layer.as_ref().len();
            let per_token = len / count.max(1);
            if !(1..=top_k).contains(&per_token) || per_token * count != len {
                return Err(wrong);
            }
        }
        let all = layers.iter().flat_map(|layer| layer.as_ref());
        if let Some(&expert) = all.into_iter().find(|&&expert| expert as usize >= experts) {
            return Err(TraceError::Expert { expert, experts });
        }
        for token in 0..count {
            for layer in layers {
                let layer = layer.as_ref();
                let per_token = layer.len() / count;
                let chosen = &layer[token * per_token..][..per_token];
                let padding = std::iter::repeat(&chosen[0]);
                let row = chosen.iter().chain(padding).take(top_k);
                self.ids.extend(row.map(|&expert| expert as u16));
            }
        }
        self.tokens.extend(tokens);
        self.passes.push(self.token_count());
        Ok(())
    }

    /// Ends the sequence: tokens pushed next belong to another one.
    pub fn end_sequence(&mut self) {
        if self.sequences.last() != Some(&self.token_count()) && self.token_count() > 0 {
            self.sequences.push(self.token_count());
        }
    }

    /// Appends all sequences of another trace of the same model. If the tokens of either trace are
    /// unknown, all tokens are unknown.
    pub fn append(&mut self, other: &Trace) -> Result<(), TraceError> {
        let HistoryShape { layers, experts, top_k } = self.shape;
        let found = other.shape;
        if (layers, top_k) != (found.layers, found.top_k) {
            return Err(TraceError::Lengths { what: "routes", tokens: other.token_count() });
        }
        self.end_sequence();
        let before = self.token_count();
        // Some formats imply the number of experts by the largest number alone.
        self.shape.experts = experts.max(found.experts);
        let known = self.tokens.len() == before && other.tokens.len() == other.token_count();
        match known {
            true => self.tokens.extend(&other.tokens),
            false => self.tokens.clear(),
        }
        self.ids.extend(&other.ids);
        self.passes.extend(other.passes.iter().map(|end| before + end));
        self.sequences.extend(other.sequences().map(|tokens| before + tokens.end));
        Ok(())
    }

    /// The numbers of layers and experts.
    pub fn shape(&self) -> HistoryShape {
        self.shape
    }

    /// Number of tokens.
    pub fn token_count(&self) -> usize {
        self.ids.len() / (self.shape.layers * self.shape.top_k)
    }

    /// An id for each token; empty if the ids are unknown.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The tokens of each sequence. The last may not have ended.
    pub fn sequences(&self) -> impl Iterator<Item = Range<usize>> {
        let open = Some(self.token_count()).filter(|end| self.sequences.last() != Some(end));
        ranges(self.sequences.iter().copied().chain(open))
    }

    /// The passes within a range of tokens, which must consist of whole passes. A pass is a run of
    /// tokens that went through the layers together.
    pub fn passes(&self, tokens: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let first = self.passes.partition_point(|&end| end <= tokens.start);
        let ends = self.passes[first..].iter().copied().take_while(move |&end| end <= tokens.end);
        ends.scan(tokens.start, |start, end| Some(std::mem::replace(start, end)..end))
    }

    /// The experts that a token used in a layer. `layer` is an index among those with experts. If
    /// the token used fewer than `top_k`, the first is repeated.
    pub fn experts(&self, token: usize, layer: usize) -> &[u16] {
        let HistoryShape { layers, top_k, .. } = self.shape;
        &self.ids[(token * layers + layer) * top_k..][..top_k]
    }

    /// Reads a trace that [`write`](Self::write) made, the output of `sws forward --routes`, or a
    /// CSV file with a line for each choice. Allocates a small multiple of the length of `bytes`.
    pub fn read(bytes: &[u8]) -> Result<Trace, TraceError> {
        match bytes.first() {
            Some(b'#' | b't') => csv::read(bytes),
            _ => file::read(bytes),
        }
    }

    /// Returns a safetensors file with these tensors:
    ///
    /// - `ids` [tokens, layers, k], u8 or u16,
    /// - `tokens`, i32, if they are known,
    /// - `lens`, i32, the lengths of sequences,
    /// - `passes`, i32, the lengths of passes, if any is longer than one token.
    pub fn write(&self) -> Vec<u8> {
        file::write(self)
    }

    /// One sequence of unknown tokens. Passes end where `passes` says, and the last one with the
    /// last token. `ids` are [tokens, layers, top_k].
    pub(crate) fn of_unknown(
        shape: HistoryShape,
        ids: Vec<u16>,
        passes: Vec<usize>,
    ) -> Result<Trace, TraceError> {
        let mut lens = passes;
        for at in (1..lens.len()).rev() {
            lens[at] -= lens[at - 1];
        }
        let lens = lens.into_iter().map(|len| len as u32).collect();
        Trace::checked(shape, ids, Vec::new(), None, Some(lens))
    }

    /// Builds a trace from the contents of a file, after checking them.
    fn checked(
        shape: HistoryShape,
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
        trace.sequences = match lens {
            Some(lens) => ends(lens, "sequences", count)?,
            None => vec![count],
        };
        trace.passes = match passes {
            Some(passes) => ends(passes, "passes", count)?,
            None => (1..=count).collect(),
        };
        // A pass belongs to one sequence.
        if !trace.sequences.iter().all(|end| trace.passes.binary_search(end).is_ok()) {
            return Err(TraceError::Lengths { what: "passes", tokens: count });
        }
        Ok(trace)
    }
}

/// The ends of sequences or passes of these lengths, which must have `tokens` tokens together.
fn ends(lens: Vec<u32>, what: &'static str, tokens: usize) -> Result<Vec<usize>, TraceError> {
    let mut end = 0usize;
    let mut ends = Vec::with_capacity(lens.len());
    for len in lens {
        end = end.saturating_add(len as usize);
        if len > 0 {
            ends.push(end);
        }
    }
    let fits = end == tokens;
    if fits { Ok(ends) } else { Err(TraceError::Lengths { what, tokens }) }
}

fn ranges(ends: impl Iterator<Item = usize>) -> impl Iterator<Item = Range<usize>> {
    ends.scan(0, |start, end| Some(std::mem::replace(start, end)..end))
}
