//! How the states of a text become one vector, for models that were made for that.

use serde::Deserialize;

use crate::{Model, Result};

/// How the final states of a text's tokens become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatePooling {
    /// Their mean.
    Mean,
    /// The state of the last token.
    Last,
}

/// The file of sentence-transformers.
const FILE: &str = "1_Pooling/config.json";

/// The part of it that is used.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PoolingFile {
    pooling_mode_mean_tokens: bool,
    pooling_mode_lasttoken: bool,
}

impl Model {
    /// How texts become vectors, if the model was made for that: by `ARCHITECTURE.pooling_type` in
    /// a GGUF file, or by the file `1_Pooling/config.json` of a checkpoint.
    pub fn pooling(&self) -> Result<Option<StatePooling>> {
        // The states of gated streams are several.
        if self.spec().stream_gates().is_some() {
            return Ok(None);
        }
        if let Some(kind) = self.key_of_architecture("pooling_type") {
            return Ok(match kind {
                1 => Some(StatePooling::Mean),
                3 => Some(StatePooling::Last),
                _ => None,
            });
        }
        let Some(json) = self.beside(FILE)? else { return Ok(None) };
        let file: PoolingFile = serde_json::from_slice(&json)
            .map_err(|e| self.error(format!("{FILE} is damaged ({e}); download it again")))?;
        Ok(match (file.pooling_mode_mean_tokens, file.pooling_mode_lasttoken) {
            (true, false) => Some(StatePooling::Mean),
            (false, true) => Some(StatePooling::Last),
            _ => None,
        })
    }
}

/// The vector of a text, of which the states come one after another.
#[derive(Debug)]
pub(crate) struct PooledStates {
    pooling: StatePooling,
    /// The sum of the states, or the last one.
    sum: Vec<f64>,
}

impl PooledStates {
    pub(crate) fn new(pooling: StatePooling) -> PooledStates {
        PooledStates { pooling, sum: Vec::new() }
    }

    /// Takes states [tokens, width].
    pub(crate) fn take(&mut self, width: usize, states: &[f32]) {
        self.sum.resize(width, 0.0);
        for state in states.chunks_exact(width) {
            for (sum, &x) in self.sum.iter_mut().zip(state) {
                *sum = match self.pooling {
                    StatePooling::Mean => *sum + f64::from(x),
                    StatePooling::Last => f64::from(x),
                };
            }
        }
    }

    /// The vector, of length 1.
    pub(crate) fn normed(&self) -> Vec<f32> {
        let square: f64 = self.sum.iter().map(|x| x * x).sum();
        let length = if square > 0.0 { square.sqrt() } else { 1.0 };
        self.sum.iter().map(|x| (x / length) as f32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_the_mean_or_the_last_state_with_length_one() {
        for (pooling, expected) in
            [(StatePooling::Mean, [0.6, 0.8]), (StatePooling::Last, [1.0, 0.0])]
        {
            // However the states arrive.
            for parts in [&[&[1.0, 8.0, 5.0, 0.0][..]][..], &[&[1.0, 8.0], &[5.0, 0.0]]] {
                let mut pooled = PooledStates::new(pooling);
                parts.iter().for_each(|part| pooled.take(2, part));
                assert_eq!(pooled.normed(), expected, "{pooling:?}");
            }
        }
        let mut zero = PooledStates::new(StatePooling::Mean);
        zero.take(2, &[0.0, 0.0]);
        assert_eq!(zero.normed(), [0.0, 0.0]);
    }
}
