//! Table rows that tokens select: one row per token, or several for n-grams.
//!
//! Row numbers depend only on tokens. Before a pass begins, the source gets the row numbers of all
//! layers, so that it can read the rows early. It supplies them when their layer requests them.

use sws_format::Pass;

use super::ngrams;
use super::{ForwardError, ForwardPass};
use crate::layer_state::SequenceState;
use crate::source::{SourceError, TakeRow, WeightSource, Weights};
use crate::spec::{ModelSpec, NgramSpec};
use crate::state::ForwardState;
use crate::workspace::{Workspace, grown};

impl ForwardPass {
    /// Announces the rows that the tokens of a pass select to the source.
    pub(super) fn expect_rows(
        &self,
        state: &mut ForwardState,
        source: &mut dyn WeightSource,
    ) -> Result<(), ForwardError> {
        let ForwardState { sequences, pass, .. } = state;
        for l in (0..self.spec.layers.len()).filter(|l| self.spec.rows_of_token(*l) > 0) {
            source.expect_rows(l, &mut |weights, numbers| {
                find((&self.spec, l), (pass, sequences), weights, numbers)
            })?;
        }
        Ok(())
    }

    /// Looks up the rows that n-grams select in a layer, if the layer has such a table.
    pub(super) fn look_up_ngrams(
        &self,
        l: usize,
        state: &mut ForwardState,
        source: &mut dyn WeightSource,
    ) -> Result<(), ForwardError> {
        let Some(spec) = &self.spec.layers[l].ngrams else { return Ok(()) };
        let ForwardState { work: Workspace { rows, .. }, sequences, pass, .. } = state;
        let rows = grown(rows, pass.len() * spec.width());
        let mut take = |place: usize, row: &[f32]| {
            rows[place * spec.dim..][..spec.dim].copy_from_slice(row);
        };
        Ok(look_up((&self.spec, l), (pass, sequences), source, &mut take)?)
    }
}

/// Calls `take` with each row that the tokens of a pass select in a layer's table. Places count
/// tokens, and within a token its rows.
pub(super) fn look_up(
    of: (&ModelSpec, usize),
    (pass, sequences): (&Pass, &[SequenceState]),
    source: &mut dyn WeightSource,
    take: TakeRow<'_>,
) -> Result<(), SourceError> {
    let mut find = |weights: &dyn Weights, numbers: &mut Vec<u64>| {
        find(of, (pass, sequences), weights, numbers)
    };
    source.look_up(of.1, &mut find, take)
}

/// Writes the numbers of the rows that the tokens of a pass select in a layer's table.
fn find(
    (model, l): (&ModelSpec, usize),
    (pass, sequences): (&Pass, &[SequenceState]),
    weights: &dyn Weights,
    numbers: &mut Vec<u64>,
) -> Result<(), SourceError> {
    // The capacity is exact, because the budget relies on it.
    numbers.reserve_exact(pass.len() * model.rows_of_token(l));
    match &model.layers[l].ngrams {
        Some(_) => ngrams::find((model, l), (pass, sequences), weights, numbers),
        None => {
            numbers.extend(pass.tokens.iter().copied().map(u64::from));
            Ok(())
        }
    }
}

/// Bytes for the rows of a pass of up to this many tokens, with their numbers, and the order in which
/// a source reads them.
pub(super) fn bytes_for(spec: &ModelSpec, tokens: usize) -> usize {
    let ngrams = spec.layers.iter().filter_map(|layer| layer.ngrams.as_ref());
    let kept = ngrams.map(NgramSpec::width).max().unwrap_or(0);
    let mut all = 0;
    let mut most = 0;
    for layer in 0..spec.layers.len() {
        let rows = spec.rows_of_token(layer);
        all += rows;
        most = rows.max(most);
    }
    let ordered = all * (size_of::<u64>() + size_of::<usize>());
    let found = most * size_of::<u64>();
    tokens * (kept * size_of::<f32>() + ordered + found)
}
