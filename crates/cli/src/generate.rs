//! The loop of generation: a prompt goes in, tokens and text come out as they are made.

use std::time::Duration;

use serde::Serialize;
use sws_engine::Gauge;
use sws_model::text::{Finish, Generation, SampleError, Sampler, TextStream};
use sws_model::{CausalLm, ForwardError, Observer};
use sws_store::Clock;
use sws_store::shard::Progress;

use crate::interrupt::Interrupt;
use crate::live::Live;
use crate::metrics::{Cost, Pace};
use crate::progress::{Meter, Unit};

/// Tokens of a prompt between two looks at Ctrl-C: as many as go through the layers together where
/// there is room. Not a bit depends on it.
const CHUNK: usize = 512;

/// What was generated.
#[derive(Debug)]
pub(crate) struct Generated {
    /// The new tokens; one that ended the text is the last of them.
    pub(crate) tokens: Vec<u32>,
    /// What was shown.
    pub(crate) text: String,
    pub(crate) end: End,
    /// From the prompt to the first of them.
    pub(crate) first_token: Option<Duration>,
    pub(crate) prompt: Pace,
    pub(crate) generation: Pace,
    /// What it took, if that is measured.
    pub(crate) cost: Option<Cost>,
}

/// Who is there while text is generated.
pub(crate) struct Aside<'a> {
    pub(crate) interrupt: &'a Interrupt,
    /// Sees routes, and of logits those from which a token is chosen.
    pub(crate) observer: &'a mut (dyn Observer + Send),
    pub(crate) gauge: Option<Gauge>,
    pub(crate) live: Live,
}

/// Why there is no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum End {
    /// The model said so.
    StopToken,
    /// A stop string came up.
    StopString,
    /// As many tokens as were asked for.
    Length,
    /// The context is full.
    Context,
    /// Ctrl-C.
    Interrupted,
}

/// Continues the sequence of `lm` by `prompt` and what the model makes of it. `seen` is the text
/// so far, for the penalties; `text` turns tokens into what `show` is given.
pub(crate) fn generate(
    lm: &mut dyn CausalLm,
    (seen, prompt): (&[u32], &[u32]),
    generation: &Generation,
    max_new_tokens: usize,
    mut text: Option<TextStream<'_>>,
    aside: Aside<'_>,
    show: &mut dyn FnMut(&str) -> anyhow::Result<()>,
) -> anyhow::Result<Generated> {
    let Aside { interrupt, observer, gauge, mut live } = aside;
    let read = || gauge.as_ref().map(Gauge::read);
    let before = read();
    let (limit, used, asked) = (lm.limit(), lm.len(), prompt.len());
    if asked > limit - used {
        return Err(ForwardError::ContextFull { used, asked, limit }.into());
    }
    let clock = Clock::real();
    let mut sampler = Sampler::new(generation.sampling.clone(), lm.vocab());
    let unknown = |error| match error {
        SampleError::Outside { id, vocab_size } => {
            ForwardError::UnknownToken { token: id, last: vocab_size - 1 }.into()
        }
        error => anyhow::Error::from(error),
    };
    sampler.prompt(seen).and_then(|()| sampler.prompt(prompt)).map_err(unknown)?;

    let started = clock.now();
    let mut made = Generated {
        tokens: Vec::new(),
        text: String::new(),
        end: End::Length,
        first_token: None,
        prompt: Pace::default(),
        generation: Pace::default(),
        cost: None,
    };
    let Some(mut logits) = process(lm, prompt, interrupt, observer)? else {
        made.end = End::Interrupted;
        made.prompt = Pace::of(lm.len() - used, clock.now() - started);
        return Ok(made);
    };
    let prompted = started;
    made.prompt = Pace::of(prompt.len(), clock.now() - started);
    let between = read();

    let started = clock.now();
    let mut computed = 0;
    while made.tokens.len() < max_new_tokens {
        if interrupt.asked() {
            made.end = End::Interrupted;
            break;
        }
        observer.logits(lm.len() - 1, &logits);
        let token = sampler.sample(&mut logits, lm.len())?;
        made.first_token.get_or_insert_with(|| clock.now() - prompted);
        made.tokens.push(token);
        let before = made.text.len();
        let finish = match &mut text {
            Some(text) => text.push(token, &mut made.text),
            None if generation.stop_tokens.contains(&token) => Some(Finish::Token(token)),
            None => None,
        };
        if made.text.len() > before {
            live.clear();
            show(&made.text[before..])?;
        }
        live.tick();
        if let Some(finish) = finish {
            made.end = match finish {
                Finish::Token(_) => End::StopToken,
                Finish::String => End::StopString,
            };
            text = None;
            break;
        }
        if made.tokens.len() == max_new_tokens {
            break;
        }
        if lm.len() == limit {
            made.end = End::Context;
            break;
        }
        logits.copy_from_slice(on_a_worker(|| lm.observed(&[token], observer))?);
        computed += 1;
    }
    made.generation = Pace::of(computed, clock.now() - started);
    live.clear();
    if let (Some(before), Some(between), Some(after)) = (before, between, read()) {
        let prompt = sws_engine::Metrics::between(&before, &between);
        let generation = sws_engine::Metrics::between(&between, &after);
        made.cost = Some(Cost { prompt, generation });
    }
    if let Some(mut text) = text {
        let before = made.text.len();
        if text.finish(&mut made.text) == Some(Finish::String) {
            made.end = End::StopString;
        }
        show(&made.text[before..])?;
    }
    Ok(made)
}

/// The logits of what follows a prompt; none if somebody pressed Ctrl-C.
fn process(
    lm: &mut dyn CausalLm,
    prompt: &[u32],
    interrupt: &Interrupt,
    observer: &mut (dyn Observer + Send),
) -> anyhow::Result<Option<Vec<f32>>> {
    let meter = Meter::quiet("processing the prompt", Unit::Tokens);
    let total = prompt.len() as u64;
    let first = &prompt[..prompt.len().min(CHUNK)];
    let mut logits = on_a_worker(|| lm.observed(first, observer))?.to_vec();
    let mut done = prompt.len().min(CHUNK);
    while done < prompt.len() && !interrupt.asked() {
        meter.show(Progress { done: done as u64, total });
        let next = prompt.len().min(done + CHUNK);
        let next_chunk = &prompt[done..next];
        logits.copy_from_slice(on_a_worker(|| lm.observed(next_chunk, observer))?);
        done = next;
    }
    meter.finish();
    Ok((done == prompt.len()).then_some(logits))
}

/// Runs a pass on a thread of the pool: from any other, each of its products would be handed over by
/// itself, with a wake-up there and one back.
fn on_a_worker<R: Send>(pass: impl FnOnce() -> R + Send) -> R {
    rayon::scope(|_| pass())
}
