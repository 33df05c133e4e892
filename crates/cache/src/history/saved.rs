//! Saving a history and restoring it at the next start.

use sws_format::Dtype;

use super::corrector::Corrector;
use super::{HALF_LIVES, History};
use crate::saved::{SavedError, SavedTensors};

/// Maximum number of steps that a saved history counts for, so that it soon adapts to another text.
const MOST: f32 = 4096.0;
/// The longest accepted time since the last use, in steps.
const LONGEST: f32 = 1e9;

impl History {
    /// Adds the history to `to`, except for the experts used last. The recent use is saved of one
    /// sequence only, the one that stepped last.
    pub fn save(&self, to: &mut SavedTensors) {
        let layers = self.shape.layers;
        let experts = self.shape.experts;
        let mut steps = Vec::with_capacity(layers);
        let mut count = Vec::with_capacity(layers * experts);
        for layer in &self.layers {
            let scale = (MOST / layer.steps.max(1.0)).min(1.0);
            steps.push(layer.steps * scale);
            count.extend(layer.count.iter().map(|n| n * scale));
        }
        let each = [layers, experts];
        to.push("history.steps", Dtype::F32, &[layers], in_bytes(&steps));
        to.push("history.count", Dtype::F32, &each, in_bytes(&count));
        let mut age = Vec::with_capacity(layers * experts);
        let mut averages = Vec::with_capacity(layers * HALF_LIVES.len() * experts);
        for recent in &self.cursors[self.latest].layers {
            age.extend_from_slice(&recent.age);
            averages.extend_from_slice(&recent.averages);
        }
        to.push("history.age", Dtype::F32, &each, in_bytes(&age));
        let shape = [layers, HALF_LIVES.len(), experts];
        to.push("history.averages", Dtype::F32, &shape, in_bytes(&averages));
        let mut has_pairs = false;
        let mut seen: Vec<u8> = Vec::new();
        let mut followed = Vec::new();
        for layer in &self.layers {
            for pairs in layer.pairs.iter().flatten() {
                has_pairs = true;
                seen.extend(pairs.seen.iter().copied().flat_map(u16::to_le_bytes));
                followed.extend_from_slice(&pairs.followed);
            }
        }
        if has_pairs {
            to.push("history.seen", Dtype::U16, &[layers, 2, experts], seen);
            to.push("history.followed", Dtype::U8, &[layers, 2, experts, experts], followed);
        }
        let known = self.followers.known();
        let mut tokens = Vec::new();
        let mut seen = Vec::new();
        let mut counts = Vec::new();
        for (token, steps, followed) in &known {
            tokens.extend(token.to_le_bytes());
            seen.push(*steps);
            counts.extend_from_slice(followed);
        }
        to.push("history.tokens", Dtype::U32, &[known.len()], tokens);
        to.push("history.tokens.seen", Dtype::U8, &[known.len()], seen);
        to.push("history.tokens.followed", Dtype::U8, &[known.len(), layers, experts], counts);
        if let Some(learner) = self.corrector.as_ref().and_then(Corrector::learner) {
            learner.save(to);
        }
    }

    /// Restores what [`save`](Self::save) added. Returns true if that includes a learned
    /// correction. On error the history is unchanged.
    pub fn recall(&mut self, saved: &SavedTensors) -> Result<bool, SavedError> {
        let layers = self.shape.layers;
        let experts = self.shape.experts;
        let each = [layers, experts];
        let steps = saved.floats("history.steps", &[layers], 0.0..=MOST)?;
        let count = saved.floats("history.count", &each, 0.0..=MOST)?;
        let age = saved.floats("history.age", &each, 0.0..=LONGEST)?;
        let shape = [layers, HALF_LIVES.len(), experts];
        let averages = saved.floats("history.averages", &shape, 0.0..=1.0)?;
        let saved_pairs = match self.shape.pairs() {
            false => None,
            true => {
                let shape = [layers, 2, experts];
                let seen = saved.of_shape("history.seen", Dtype::U16, &shape)?;
                let shape = [layers, 2, experts, experts];
                let followed = saved.of_shape("history.followed", Dtype::U8, &shape)?;
                Some((seen.as_chunks::<2>().0, followed))
            }
        };
        let rows = self.followers.rows();
        let tokens = saved.get("history.tokens", Dtype::U32, |n| n.len() == 1 && n[0] <= rows)?;
        let tokens = tokens.as_chunks::<4>().0;
        let seen = saved.of_shape("history.tokens.seen", Dtype::U8, &[tokens.len()])?;
        let shape = [tokens.len(), layers, experts];
        let counts = saved.of_shape("history.tokens.followed", Dtype::U8, &shape)?;
        let learner = self.corrector.as_mut().and_then(Corrector::learner_mut);
        let known = match &learner {
            Some(learner) => learner.known(saved)?,
            None => None,
        };
        let goes_on = known.is_some();
        if let Some(learner) = learner
            && let Some(known) = known
        {
            learner.resume(known);
        }

        for (l, layer) in self.layers.iter_mut().enumerate() {
            let own = l * experts..(l + 1) * experts;
            layer.steps = steps[l];
            layer.count.copy_from_slice(&count[own.clone()]);
            for cursor in &mut self.cursors {
                let recent = &mut cursor.layers[l];
                recent.age.copy_from_slice(&age[own.clone()]);
                let len = recent.averages.len();
                recent.averages.copy_from_slice(&averages[l * len..][..len]);
            }
            if let Some(pairs) = &mut layer.pairs
                && let Some((seen, followed)) = saved_pairs
            {
                for (at, pairs) in (2 * l..).zip(pairs) {
                    let seen = seen[at * experts..][..experts].iter();
                    pairs.seen = seen.copied().map(u16::from_le_bytes).collect();
                    let len = pairs.followed.len();
                    pairs.followed.copy_from_slice(&followed[at * len..][..len]);
                }
            }
            layer.stale = true;
        }
        let width = layers * experts;
        for (at, (token, &seen)) in tokens.iter().zip(seen).enumerate() {
            let counts = &counts[at * width..][..width];
            self.followers.put(u32::from_le_bytes(*token), seen, counts);
        }
        Ok(goes_on)
    }
}

fn in_bytes(floats: &[f32]) -> Vec<u8> {
    floats.iter().copied().flat_map(f32::to_le_bytes).collect()
}

#[cfg(test)]
mod tests {
    use sws_format::Pass;

    use super::*;
    use crate::history::HistoryShape;

    const SHAPE: HistoryShape = HistoryShape { layers: 3, experts: 8, top_k: 2 };

    fn history() -> History {
        let mut history = History::with_tokens(SHAPE, 1);
        for step in 0u32..300 {
            let token = step % 7;
            history.begin(&Pass::single(step as usize, &[token]));
            for layer in 0..3 {
                history.step(layer, 0, &[step % 3, step % 5 + layer as u32], Some(token));
            }
        }
        history
    }

    #[test]
    fn restored_history_forecasts_the_same() {
        let mut saved = SavedTensors::default();
        let mut before = history();
        before.save(&mut saved);
        let bytes = saved.write("a model");
        let saved = SavedTensors::read(&bytes, "a model").unwrap();
        let mut after = History::with_tokens(SHAPE, 1);
        after.recall(&saved).unwrap();
        // The experts used last are not saved: the same two steps give both histories the same.
        for history in [&mut before, &mut after] {
            for layer in 0..3 {
                history.step(layer, 0, &[1, 2], None);
                history.step(layer, 0, &[3, 4], Some(5));
            }
        }
        for layer in 0..3 {
            let of = |history: &mut History| history.absence(layer).within_4.to_vec();
            let before = of(&mut before);
            let after = of(&mut after);
            for (before, after) in before.iter().zip(&after) {
                // The step in between was noted as a successor of the last.
                assert!((before - after).abs() < 0.02, "{before} and {after}");
            }
            let fresh = of(&mut History::with_tokens(SHAPE, 1));
            assert!(fresh.iter().zip(&after).any(|(fresh, after)| (fresh - after).abs() > 0.2));
        }
    }

    #[test]
    fn mismatched_file_is_refused_and_changes_nothing() {
        let mut good = SavedTensors::default();
        history().save(&mut good);
        let bytes = good.write("a model");
        let other = SavedTensors::read(&bytes, "another").unwrap_err();
        assert_eq!(other.to_string(), "was saved for another model");
        for cut in [0, 7, 8, 100, bytes.len() - 1] {
            assert!(SavedTensors::read(&bytes[..cut], "a model").is_err(), "{cut} bytes");
        }
        let shapes = [(2, 8), (4, 8), (3, 7), (3, 9), (0, 8), (3, 0)];
        for (layers, experts) in shapes {
            let mut history = History::with_tokens(HistoryShape { layers, experts, top_k: 2 }, 1);
            assert!(history.recall(&good).is_err(), "{layers} × {experts}");
        }
        // One impossible value in each tensor of numbers.
        for (name, value) in [
            ("history.steps", -1.0),
            ("history.count", f32::NAN),
            ("history.age", f32::INFINITY),
            ("history.averages", 1.5),
        ] {
            let mut bad = good.clone();
            let tensor = bad.tensors_mut().iter_mut().find(|tensor| tensor.0 == name).unwrap();
            tensor.3[4..8].copy_from_slice(&f32::to_le_bytes(value));
            let mut history = History::with_tokens(SHAPE, 1);
            let error = history.recall(&bad).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
            assert_eq!(history.steps(0), 0);
        }
    }
}
