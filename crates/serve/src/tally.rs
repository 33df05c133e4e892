//! Parts that the answers of several interfaces share.

use serde_json::{Value, json};
use sws::{End, Rank};

use crate::app::App;
use crate::certified::Certified;
use crate::failure::Failure;
use crate::queue::{Made, TextTimes};
use crate::served::Served;

/// The identity of an answer.
#[derive(Clone, Debug)]
pub(crate) struct AnswerHead {
    pub(crate) id: String,
    pub(crate) created: i64,
    pub(crate) model: String,
    fingerprint: String,
}

impl AnswerHead {
    pub(crate) fn new(app: &App, served: &Served, prefix: &str) -> AnswerHead {
        AnswerHead {
            id: app.id(prefix),
            created: app.clock.unix_seconds(),
            model: served.id().to_owned(),
            fingerprint: served.identity.fingerprint.clone(),
        }
    }

    /// An object of this kind with these choices.
    pub(crate) fn object(&self, kind: &str, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        })
    }
}

/// Counts of a request's texts that have ended.
#[derive(Debug)]
pub(crate) struct TextTally {
    /// Number of tokens of all prompts.
    prompt: usize,
    /// Prompt tokens that were not computed again.
    known: usize,
    /// Number of reasoning tokens.
    pub(crate) reasoning: usize,
    /// Number of texts per prompt.
    n: usize,
    made: Vec<Option<Made>>,
    certified: Option<Certified>,
}

impl TextTally {
    /// A tally of `n` texts for each of `prompts` prompts, which have `prompt` tokens together.
    pub(crate) fn new(prompt: usize, prompts: usize, n: usize) -> TextTally {
        TextTally {
            prompt,
            known: 0,
            reasoning: 0,
            n,
            made: vec![None; prompts * n],
            certified: None,
        }
    }

    /// Adds the certificate of the text.
    pub(crate) fn with(self, certified: Option<Certified>) -> TextTally {
        TextTally { certified, ..self }
    }

    /// True if there is a certificate.
    pub(crate) fn is_certified(&self) -> bool {
        self.certified.is_some()
    }

    /// Records the number of prompt tokens of a text that are not computed again.
    pub(crate) fn know(&mut self, number: usize, known: usize) {
        // Several texts share a prompt, whose tokens are counted once.
        self.known += if number.is_multiple_of(self.n) { known } else { 0 };
    }

    /// Tokens of prompts that were not computed again.
    pub(crate) fn known(&self) -> usize {
        self.known
    }

    /// Records the end of a text. Returns the reason, unless it is a failure.
    pub(crate) fn end(
        &mut self,
        number: usize,
        made: Result<Made, Failure>,
    ) -> Result<End, Failure> {
        let made = made?;
        let end = made.made.end;
        if end == End::Cancelled {
            return Err(Failure::unavailable("the text was cut off; send the request again"));
        }
        self.made[number] = Some(made);
        Ok(end)
    }

    /// True once all texts have ended.
    pub(crate) fn is_complete(&self) -> bool {
        self.made.iter().all(Option::is_some)
    }

    /// The texts that have ended.
    pub(crate) fn made(&self) -> impl Iterator<Item = &Made> {
        self.made.iter().flatten()
    }

    /// Number of tokens of the prompts, and of all texts.
    pub(crate) fn tokens(&self) -> [usize; 2] {
        [self.prompt, self.made().map(|made| made.made.tokens.len()).sum()]
    }

    /// Work of the engine until the last text of the request ended, and the certificate.
    pub(crate) fn spent(&self) -> Value {
        let longest = self.made().max_by_key(|made| {
            let TextTimes { queue, prompt, generation } = made.times;
            queue + prompt + generation
        });
        let mut spent = longest.map_or(Value::Null, |made| made.spent.json());
        if let Some(certified) = &self.certified
            && let Some(made) = self.made().next()
            && !made.made.tokens.is_empty()
        {
            spent["certificate"] = certified.json(&made.made.tokens);
        }
        spent
    }

    pub(crate) fn usage(&self) -> Value {
        let [prompt, new] = self.tokens();
        json!({
            "prompt_tokens": prompt,
            "completion_tokens": new,
            "total_tokens": prompt + new,
            "prompt_tokens_details": {"cached_tokens": self.known},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning},
        })
    }

    /// Adds the times of the first text and the engine's work to an answer in OpenAI's form.
    pub(crate) fn add_costs(&self, answer: &mut Value) {
        if let Some(timings) = self.timings() {
            answer["timings"] = timings;
        }
        answer["x_sws"] = self.spent();
    }

    /// Times of the first text, in the format of llama.cpp's server; `None` for a resumed text,
    /// which took no time.
    fn timings(&self) -> Option<Value> {
        let Made { made, times, .. } = self.made().next()?;
        if times.generation.is_zero() && made.tokens.len() > 1 {
            return None;
        }
        let computed = self.prompt.saturating_sub(self.known);
        let [prompt, new] = [computed, made.tokens.len()].map(|tokens| tokens as f64);
        let [queue, read, written] =
            [times.queue, times.prompt, times.generation].map(|time| 1e3 * time.as_secs_f64());
        // The prompt yields the first token.
        let after = (new - 1.0).max(0.0);
        Some(json!({
            "queue_ms": queue,
            "cache_n": self.known,
            "prompt_n": computed,
            "prompt_ms": read,
            "prompt_per_token_ms": ratio(read, prompt),
            "prompt_per_second": ratio(1e3 * prompt, read),
            "predicted_n": made.tokens.len(),
            "predicted_ms": written,
            "predicted_per_token_ms": ratio(written, after),
            "predicted_per_second": ratio(1e3 * after, written),
        }))
    }
}

/// The reason why a text ended, in OpenAI's terms.
pub(crate) fn finish_reason(end: End) -> &'static str {
    match end {
        End::Length | End::Context => "length",
        _ => "stop",
    }
}

fn ratio(over: f64, under: f64) -> f64 {
    if under > 0.0 { over / under } else { 0.0 }
}

/// The probability of a token in the format of chats.
pub(crate) fn chat_logprob(served: &Served, rank: &Rank) -> Value {
    let mut value = logprob_of(served, rank.token, rank.logprob);
    let top = rank.top.iter().map(|&(token, logprob)| logprob_of(served, token, logprob));
    value["top_logprobs"] = top.collect();
    value
}

fn logprob_of(served: &Served, token: u32, logprob: f32) -> Value {
    let name = served.name(token);
    json!({"bytes": name.as_bytes(), "token": name, "logprob": finite(logprob)})
}

/// A log probability that JSON can represent.
pub(crate) fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { -9999.0 }
}
