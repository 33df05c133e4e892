//! Saving a correction among the tensors of a saved state, and reading it.

use sws_format::Dtype;

use super::{Correction, MAX_RANK, UpperHalf};
use crate::saved::{SavedError, SavedTensors};
use crate::shape::{HORIZONS, HistoryShape, STATISTICS};

const STATES: &str = "correction.states";
const USE: &str = "correction.statistics";
const UP: &str = "correction.up";

/// The largest accepted number. Fitted numbers are below ten.
const LARGEST: f32 = 1e4;

/// Room for the header of a file.
const HEADER: usize = 4096;

impl Correction {
    /// Upper bound on the length of a file with a correction for a model of this shape, whose
    /// hidden states have `hidden` elements.
    pub fn most_bytes(shape: HistoryShape, hidden: usize) -> usize {
        let HistoryShape { layers, experts, .. } = shape;
        let row = hidden + (STATISTICS + HORIZONS) * experts;
        let floats = layers.saturating_mul((MAX_RANK + 1).saturating_mul(row));
        floats.saturating_mul(size_of::<f32>()).saturating_add(HEADER)
    }

    /// Adds the correction to `to`.
    pub fn save(&self, to: &mut SavedTensors) {
        let HistoryShape { layers, experts, .. } = self.shape;
        let shape = [layers, self.rank, self.hidden];
        to.push(STATES, Dtype::BF16, &shape, in_bytes(&self.states));
        let shape = [layers, self.rank, STATISTICS, experts];
        to.push(USE, Dtype::BF16, &shape, in_bytes(&self.statistics));
        let up = self.up.iter().copied().flat_map(f32::to_le_bytes).collect();
        to.push(UP, Dtype::F32, &[layers, self.rank + 1, HORIZONS, experts], up);
    }

    /// Returns the correction that [`save`](Self::save) added for a model of this shape, if there is
    /// one.
    pub fn recall(
        saved: &SavedTensors,
        shape: HistoryShape,
    ) -> Result<Option<Correction>, SavedError> {
        let Some(found) = saved.shape(STATES) else { return Ok(None) };
        let HistoryShape { layers, experts, .. } = shape;
        let &[_, rank, hidden] = found else { return Err(SavedError::Tensor(STATES.to_owned())) };
        if rank > MAX_RANK {
            return Err(SavedError::Tensor(STATES.to_owned()));
        }
        Ok(Some(Correction {
            shape,
            hidden,
            rank,
            states: halves(saved, STATES, &[layers, rank, hidden])?,
            statistics: halves(saved, USE, &[layers, rank, STATISTICS, experts])?,
            up: saved.floats(UP, &[layers, rank + 1, HORIZONS, experts], -LARGEST..=LARGEST)?,
        }))
    }
}

fn in_bytes(halves: &[UpperHalf]) -> Vec<u8> {
    halves.iter().flat_map(|half| half.0.to_le_bytes()).collect()
}

/// Returns the numbers of a tensor of that shape, if all have an acceptable size.
fn halves(saved: &SavedTensors, name: &str, shape: &[usize]) -> Result<Vec<UpperHalf>, SavedError> {
    let data = saved.of_shape(name, Dtype::BF16, shape)?.as_chunks().0;
    let mut halves = Vec::with_capacity(data.len());
    for &half in data {
        let half = UpperHalf(u16::from_le_bytes(half));
        // NaN is in no range.
        if !(-LARGEST..=LARGEST).contains(&half.get()) {
            return Err(SavedError::Tensor(name.to_owned()));
        }
        halves.push(half);
    }
    Ok(halves)
}
