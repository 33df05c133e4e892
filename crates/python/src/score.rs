//! Probabilities of the tokens of a text.

use pyo3::prelude::*;
use sws::{LoadedModel, Rank};

use crate::recorder::Recorder;

/// Tokens whose logits are in memory at a time. The output does not depend on it.
const CHUNK: usize = 64;

/// A token with its probability.
#[pyclass(frozen, get_all, name = "Rank", module = "sws")]
pub(crate) struct PyRank {
    token: u32,
    logprob: f32,
    top: Vec<(u32, f32)>,
}

#[pymethods]
impl PyRank {
    fn __repr__(&self) -> String {
        format!("Rank(token={}, logprob={})", self.token, self.logprob)
    }
}

impl From<Rank> for PyRank {
    fn from(rank: Rank) -> PyRank {
        let Rank { token, logprob, top } = rank;
        PyRank { token, logprob, top }
    }
}

/// Ranks of the tokens of a text, from the second on.
pub(crate) struct Ranks {
    tokens: Vec<u32>,
    vocab: usize,
    top: usize,
    pub(crate) ranks: Vec<Rank>,
}

impl Ranks {
    pub(crate) fn new(tokens: Vec<u32>, vocab: usize, top: usize) -> Ranks {
        Ranks { tokens, vocab, top, ranks: Vec::new() }
    }

    /// Takes the logits [rows, vocab] of the positions from `first` on.
    pub(crate) fn take(&mut self, first: usize, logits: &[f32]) {
        let Ranks { tokens, vocab, top, ranks } = self;
        for (position, row) in (first..).zip(logits.chunks_exact(*vocab)) {
            if let Some(&token) = tokens.get(position + 1) {
                ranks.push(Rank::of(row, token, *top));
            }
        }
    }
}

/// Computes tokens in a new sequence, and reports the logits of each to `recorder`.
pub(crate) fn score(
    model: &mut LoadedModel,
    tokens: &[u32],
    recorder: &mut Recorder,
) -> sws::Result<()> {
    let lm = model.causal_lm();
    lm.clear();
    for chunk in tokens.chunks(CHUNK) {
        lm.score(chunk, recorder)?;
    }
    Ok(())
}
