//! Selection of a token from logits.

use std::cmp::Ordering;

use sws_kernels::functional::{argmax, elementary::exp};

use super::dry::DryState;
use super::noise::GumbelNoise;
use super::{Sampling, Tokenizer};

/// Selects tokens, and records them for the penalties.
///
/// Order and meaning follow transformers: repetition penalty, then presence and frequency
/// penalties, DRY as in llama.cpp, temperature, top-k (values equal to the k-th are kept), top-p, min-p, one draw. Every
/// step is a fixed sequence of operations whose results are the same bit for bit on every platform
/// ([`exp`] included), and sums are taken in a fixed order in f64. A seed therefore gives the same
/// text on every machine.
///
/// The draw takes the token with the largest sum of logit and Gumbel noise, which is a function of
/// seed, position and token alone. Since there is no random state, a text is the same however often
/// it is rewound. Two models that nearly agree, each with a sampler of the same seed, make nearly
/// the same choices.
#[derive(Debug)]
pub struct Sampler {
    sampling: Sampling,
    /// For each token of the vocabulary: its count in the generated text, and `PROMPT` if it was in
    /// the prompt.
    marks: Vec<u32>,
    /// The tokens with a non-zero mark.
    marked: Vec<u32>,
    /// The tokens in order, if repetitions are penalised.
    dry: Option<DryState>,
    /// Scratch: kept tokens.
    kept: Vec<Candidate>,
}

/// A token that may be selected.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    id: u32,
    logit: f32,
}

const PROMPT: u32 = 1 << 31;

/// Reasons why no token can be selected.
#[derive(Debug, thiserror::Error, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum SampleError {
    /// A logit that is NaN or +inf.
    #[error(
        "the logit of token {id} is {value}, so the weights or the configuration are damaged; check shards with `sws verify`, or download the model again"
    )]
    NotFinite {
        /// The first token with such a logit.
        id: u32,
        value: f32,
    },
    /// All tokens are ruled out.
    #[error(
        "no token is possible: every logit is -inf; check shards with `sws verify`, or download the model again"
    )]
    Nothing,
    /// A token that is not in the model's vocabulary.
    #[error("token {id} is outside the vocabulary of {vocab_size} tokens")]
    Outside {
        id: u32,
        /// Size of the vocabulary.
        vocab_size: usize,
    },
}

impl SampleError {
    /// The error for logits that contain NaN or +inf; `None` if all are valid.
    pub fn of(logits: &[f32]) -> Option<SampleError> {
        let id = logits.iter().position(|x| x.is_nan() || *x == f32::INFINITY)?;
        Some(SampleError::NotFinite { id: id as u32, value: logits[id] })
    }
}

impl Sampler {
    /// Creates a sampler without any recorded tokens.
    pub fn new(sampling: Sampling, vocab_size: usize) -> Sampler {
        let marks = vec![0; vocab_size];
        let marked = Vec::new();
        let kept = Vec::new();
        let dry = sampling.dry.clone().map(DryState::new);
        Sampler { sampling, marks, marked, dry, kept }
    }

    /// Lets sequence breakers of DRY be found by their text. Without this call there are none.
    pub fn break_at(&mut self, tokenizer: &Tokenizer) {
        if let Some(dry) = &mut self.dry {
            dry.break_at(tokenizer);
        }
    }

    /// Records the prompt, for the repetition penalty.
    pub fn prompt(&mut self, ids: &[u32]) -> Result<(), SampleError> {
        for &id in ids {
            self.record(id, |mark| mark | PROMPT)?;
        }
        Ok(())
    }

    /// Records tokens that were not selected here but count as generated.
    pub fn generated(&mut self, ids: &[u32]) -> Result<(), SampleError> {
        for &id in ids {
            self.record(id, |mark| mark + 1)?;
        }
        Ok(())
    }

    /// Selects and records the token at a position, counted from the beginning of the sequence.
    /// `logits` holds those of all tokens, and is overwritten with the penalties and the
    /// temperature applied.
    pub fn sample(&mut self, logits: &mut [f32], position: usize) -> Result<u32, SampleError> {
        let id = self.guess(logits, position)?;
        self.record(id, |mark| mark + 1)?;
        Ok(id)
    }

    /// As [`sample`](Self::sample), without recording the token.
    pub fn guess(&mut self, logits: &mut [f32], position: usize) -> Result<u32, SampleError> {
        let best = self.shape(logits)?;
        let id = if self.sampling.temperature == 0.0 {
            best
        } else {
            let largest = self.filter(logits, best);
            let below = self.kept.iter().map(|c| (c.id, largest - c.logit));
            GumbelNoise::new(self.sampling.seed, position).first(below, best)
        };
        Ok(id)
    }

    /// The probabilities from which [`Sampler::sample`] would draw, by ascending id, without
    /// drawing.
    pub fn distribution(&mut self, logits: &mut [f32]) -> Result<Vec<(u32, f64)>, SampleError> {
        let best = self.shape(logits)?;
        if self.sampling.temperature == 0.0 {
            return Ok(vec![(best, 1.0)]);
        }
        let largest = self.filter(logits, best);
        let total = total(&self.kept, largest);
        Ok(self.kept.iter().map(|c| (c.id, f64::from(c.weight(largest)) / total)).collect())
    }

    fn record(&mut self, id: u32, change: impl Fn(u32) -> u32) -> Result<(), SampleError> {
        let vocab_size = self.marks.len();
        let mark =
            self.marks.get_mut(id as usize).ok_or(SampleError::Outside { id, vocab_size })?;
        if *mark == 0 {
            self.marked.push(id);
        }
        *mark = change(*mark);
        if let Some(dry) = &mut self.dry {
            dry.push(id);
        }
        Ok(())
    }

    /// Applies penalties and temperature to the logits. Returns the likeliest token, the first one
    /// on ties.
    fn shape(&mut self, logits: &mut [f32]) -> Result<u32, SampleError> {
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
        if let Some(dry) = &mut self.dry {
            dry.apply(logits);
        }
        let temperature = self.sampling.temperature;
        if temperature != 0.0 && temperature != 1.0 {
            for logit in logits.iter_mut() {
                *logit /= temperature;
            }
        }
        likeliest(logits)
    }

    /// Fills `kept` with the tokens that pass top-k, top-p and min-p, by ascending id; `best` is
    /// always among them. Returns the largest logit.
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

/// The token with the largest logit, the first one on ties. NaN and +inf are not valid; a logit of
/// -inf rules a token out.
fn likeliest(logits: &[f32]) -> Result<u32, SampleError> {
    if let Some(error) = SampleError::of(logits) {
        return Err(error);
    }
    match argmax(logits) {
        Some(id) if logits[id] > f32::NEG_INFINITY => Ok(id as u32),
        _ => Err(SampleError::Nothing),
    }
}

impl Candidate {
    /// e^(logit - largest logit). Not stored: it takes more time than all other steps, and only a
    /// few are needed.
    fn weight(self, largest: f32) -> f32 {
        exp(self.logit - largest)
    }
}

/// The sum of the weights in list order, which is by id.
fn total(kept: &[Candidate], largest: f32) -> f64 {
    kept.iter().map(|c| f64::from(c.weight(largest))).sum()
}

/// The k-th largest logit, in one pass. `scratch` never holds more than 2k entries, so a vocabulary
/// is neither copied nor sorted for a k of 50.
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

/// Orders by descending logit, then by ascending id.
fn likelier(a: &Candidate, b: &Candidate) -> Ordering {
    // Logits are never NaN here. Unlike total_cmp, this treats -0 and 0 as equal.
    b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.id.cmp(&b.id))
}

/// Keeps the likeliest tokens until their probabilities reach `top_p`. A token is kept if those
/// before it do not reach it.
fn keep_top_p(kept: &mut Vec<Candidate>, largest: f32, top_p: f32) {
    let enough = f64::from(top_p) * total(kept, largest);
    // A few tokens usually hold nearly all of the probability: sort only as many as needed.
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
