//! Logits to a token.

use std::cmp::Ordering;

use sws_kernels::functional::{argmax, elementary::exp};

use super::Sampling;
use super::noise::Noise;

/// Chooses tokens, and remembers them for the penalties.
///
/// Order and meaning are those of transformers: repetition penalty, then presence and frequency
/// penalties, temperature, top-k (what equals the k-th is kept), top-p, min-p, one draw. Every step
/// is a fixed sequence of operations whose bits no platform changes ([`exp`] included), and sums are
/// taken in a fixed order in f64: a seed gives the same text on every machine.
///
/// The draw takes the token with the largest sum of logit and Gumbel noise, which is a function of seed,
/// position and token alone. There is no state of random numbers, so a text is the same however often it
/// is rewound; and of two models that nearly agree, each with a sampler of the same seed, nearly all
/// choices agree.
#[derive(Debug)]
pub struct Sampler {
    sampling: Sampling,
    /// Per token of the vocabulary: how often it was generated, and `PROMPT` if it was in the prompt.
    marks: Vec<u32>,
    /// The tokens that have a mark.
    marked: Vec<u32>,
    /// Scratch: kept tokens.
    kept: Vec<Candidate>,
}

/// A token that may be chosen.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    id: u32,
    logit: f32,
}

const PROMPT: u32 = 1 << 31;

/// Why no token can be chosen.
#[derive(Debug, thiserror::Error, PartialEq)]
#[non_exhaustive]
pub enum SampleError {
    /// Not a number, or infinitely likely.
    #[error(
        "the logit of token {id} is {value}, so the weights or the arithmetic are damaged; check the weights with `sws verify`"
    )]
    NotFinite {
        /// The first such token.
        id: u32,
        /// NaN or inf.
        value: f32,
    },
    /// Every token is ruled out.
    #[error("no token is possible: every logit is -inf; check the weights with `sws verify`")]
    Nothing,
    /// A token that the model does not know.
    #[error("token {id} is outside the vocabulary of {vocab_size} tokens")]
    Outside {
        /// Which.
        id: u32,
        /// How many there are.
        vocab_size: usize,
    },
}

impl Sampler {
    /// One that has seen nothing.
    pub fn new(sampling: Sampling, vocab_size: usize) -> Sampler {
        let (marks, marked, kept) = (vec![0; vocab_size], Vec::new(), Vec::new());
        Sampler { sampling, marks, marked, kept }
    }

    /// The prompt, for the repetition penalty.
    pub fn prompt(&mut self, ids: &[u32]) -> Result<(), SampleError> {
        ids.iter().try_for_each(|&id| self.mark(id, |mark| mark | PROMPT))
    }

    /// Text that was not chosen here, but counts as generated.
    pub fn generated(&mut self, ids: &[u32]) -> Result<(), SampleError> {
        ids.iter().try_for_each(|&id| self.mark(id, |mark| mark + 1))
    }

    /// Chooses the token at a position, counted from the beginning of the sequence, and remembers it. The
    /// logits of all tokens are given, and are overwritten by what the penalties and the temperature make
    /// of them.
    pub fn sample(&mut self, logits: &mut [f32], position: usize) -> Result<u32, SampleError> {
        let best = self.shape(logits)?;
        let id = if self.sampling.temperature == 0.0 {
            best
        } else {
            let largest = self.filter(logits, best);
            let below = self.kept.iter().map(|c| (c.id, largest - c.logit));
            Noise::new(self.sampling.seed, position).first(below, best)
        };
        self.mark(id, |mark| mark + 1)?;
        Ok(id)
    }

    /// The probabilities from which [`Sampler::sample`] would draw, by ascending id, without drawing.
    pub fn distribution(&mut self, logits: &mut [f32]) -> Result<Vec<(u32, f64)>, SampleError> {
        let best = self.shape(logits)?;
        if self.sampling.temperature == 0.0 {
            return Ok(vec![(best, 1.0)]);
        }
        let largest = self.filter(logits, best);
        let total = total(&self.kept, largest);
        Ok(self.kept.iter().map(|c| (c.id, f64::from(c.weight(largest)) / total)).collect())
    }

    fn mark(&mut self, id: u32, change: impl Fn(u32) -> u32) -> Result<(), SampleError> {
        let vocab_size = self.marks.len();
        let mark =
            self.marks.get_mut(id as usize).ok_or(SampleError::Outside { id, vocab_size })?;
        if *mark == 0 {
            self.marked.push(id);
        }
        *mark = change(*mark);
        Ok(())
    }

    /// Puts penalties and temperature on the logits. Returns the likeliest token, of equals the first.
    fn shape(&self, logits: &mut [f32]) -> Result<u32, SampleError> {
        assert_eq!(logits.len(), self.marks.len(), "one logit per token of the vocabulary");
        let Sampling { repetition_penalty, presence_penalty, frequency_penalty, .. } =
            self.sampling;
        for &id in &self.marked {
            let logit = &mut logits[id as usize];
            *logit = if *logit < 0.0 {
                *logit * repetition_penalty
            } else {
                *logit / repetition_penalty
            };
            let count = self.marks[id as usize] & !PROMPT;
            if count > 0 {
                *logit -= frequency_penalty * count as f32;
                *logit -= presence_penalty;
            }
        }
        let temperature = self.sampling.temperature;
        if temperature != 0.0 && temperature != 1.0 {
            logits.iter_mut().for_each(|logit| *logit /= temperature);
        }
        likeliest(logits)
    }

    /// Fills `kept` with what top-k, top-p and min-p leave, by ascending id; `best` is always among them.
    /// Returns the largest logit.
    fn filter(&mut self, logits: &[f32], best: u32) -> f32 {
        let Sampling { top_k, top_p, min_p, .. } = self.sampling;
        let largest = logits[best as usize];
        let kept = &mut self.kept;
        kept.clear();
        let least = if top_k == 0 || top_k >= logits.len() {
            f32::NEG_INFINITY
        } else {
            kth_largest(logits, top_k, kept)
        };
        kept.clear();
        for (id, &logit) in (0..).zip(logits) {
            if logit >= least && logit > f32::NEG_INFINITY {
                kept.push(Candidate { id, logit });
            }
        }
        if top_p < 1.0 {
            keep_top_p(kept, largest, top_p);
        }
        if min_p > 0.0 {
            kept.retain(|c| c.weight(largest) >= min_p);
        }
        largest
    }
}

/// The largest logit's token, the first of equals. NaN and +inf are no probability; a logit of -inf
/// is a token ruled out.
fn likeliest(logits: &[f32]) -> Result<u32, SampleError> {
    let bad = |x: &f32| x.is_nan() || *x == f32::INFINITY;
    if let Some(id) = logits.iter().position(bad) {
        return Err(SampleError::NotFinite { id: id as u32, value: logits[id] });
    }
    match argmax(logits) {
        Some(id) if logits[id] > f32::NEG_INFINITY => Ok(id as u32),
        _ => Err(SampleError::Nothing),
    }
}

impl Candidate {
    /// e^(logit - largest logit). Not kept: it takes more time than all else, and few are asked for.
    fn weight(self, largest: f32) -> f32 {
        exp(self.logit - largest)
    }
}

/// Σ of the weights in the order in which they stand, which is that of the ids.
fn total(kept: &[Candidate], largest: f32) -> f64 {
    kept.iter().map(|c| f64::from(c.weight(largest))).sum()
}

/// The k-th largest logit. One pass; `scratch` never holds more than 2k, so that a vocabulary is
/// neither copied nor sorted for a k of 50.
fn kth_largest(logits: &[f32], k: usize, scratch: &mut Vec<Candidate>) -> f32 {
    let mut least = f32::NEG_INFINITY;
    for (id, &logit) in (0..).zip(logits) {
        if logit > least || scratch.len() < k {
            scratch.push(Candidate { id, logit });
            if scratch.len() == 2 * k {
                scratch.select_nth_unstable_by(k - 1, likelier);
                scratch.truncate(k);
                least = scratch[k - 1].logit;
            }
        }
    }
    scratch.select_nth_unstable_by(k - 1, likelier).1.logit
}

/// The likelier first, of equals the lower id.
fn likelier(a: &Candidate, b: &Candidate) -> Ordering {
    // Never NaN here, and unlike total_cmp this finds -0 and 0 equal.
    b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.id.cmp(&b.id))
}

/// Keeps the likeliest whose probabilities reach `top_p`: each for which those before it do not.
fn keep_top_p(kept: &mut Vec<Candidate>, largest: f32, top_p: f32) {
    let enough = f64::from(top_p) * total(kept, largest);
    // Few tokens usually hold nearly all: sort only as many as it takes.
    let mut sorted = 0;
    let mut sum = 0.0;
    let mut wanted = 256;
    let mut keep = 0;
    'reached: while sorted < kept.len() {
        let rest = &mut kept[sorted..];
        let now = wanted.min(rest.len());
        if now < rest.len() {
            rest.select_nth_unstable_by(now - 1, likelier);
        }
        rest[..now].sort_unstable_by(likelier);
        for candidate in &rest[..now] {
            if keep > 0 && sum >= enough {
                break 'reached;
            }
            sum += f64::from(candidate.weight(largest));
            keep += 1;
        }
        sorted += now;
        wanted *= 4;
    }
    kept.truncate(keep);
    kept.sort_unstable_by_key(|c| c.id);
}
