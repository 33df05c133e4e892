//! Texts that come, begin as others did, fail and go, and what became of each.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use sws::{
    Activations, Batch, BatchRequest, Cancel, Event, GenerationOptions, LoadedModel, Model, Needs,
    Options, Streaming,
};
use sws_engine::{Certificate, Metrics, Witness, peak_memory};
use sws_format::ShardReader;
use sws_model::KvPrecision;
use sws_store::{ReaderKind, StoreOptions};
use sws_testing::readers::Flaky;
use sws_text::Position;

use crate::task::{Crowd, Done, Task};

/// Texts at a time.
const AT_A_TIME: usize = 8;
/// Bytes for what the child keeps of its texts.
pub(crate) const KEPT: u64 = 16 << 20;
/// Of the reads that fail.
const SEED: u64 = 16;

/// A text, as it is asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Text {
    pub(crate) number: usize,
    pub(crate) prompt: Vec<u32>,
    pub(crate) new: usize,
    pub(crate) certified: bool,
    pub(crate) ranked: bool,
    /// True if it begins as an earlier one of the same owner, with a part of its answer.
    pub(crate) forked: bool,
    /// Tokens after which its client leaves.
    pub(crate) leaves_after: Option<usize>,
}

/// What became of a text.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Told {
    pub(crate) text: Text,
    /// Tokens of its prompt that were not computed again.
    pub(crate) known: usize,
    pub(crate) tokens: Vec<u32>,
    /// Bits of the logarithms of their probabilities.
    pub(crate) logprobs: Vec<u32>,
    pub(crate) certificate: Option<serde_json::Value>,
    pub(crate) failed: Option<String>,
}

impl Told {
    /// True if it has the bits of the same text without others.
    pub(crate) fn is_as(&self, alone: &Told) -> bool {
        let Told { text, tokens, logprobs, certificate, .. } = self;
        let wanted = text.leaves_after.map_or(usize::MAX, |most| most.max(1));
        let has_logprobs = text.ranked || text.certified;
        alone.tokens.starts_with(tokens)
            && tokens.len() >= wanted.min(alone.tokens.len())
            && alone.logprobs.starts_with(logprobs)
            && logprobs.len() == if has_logprobs { tokens.len() } else { 0 }
            && certificate.is_some() == text.certified
            && (certificate.is_none() || *certificate == alone.certificate)
    }

    /// The text with one bit of another value, and cut short, in each part that is compared.
    pub(crate) fn altered(&self) -> Vec<Told> {
        let mut all = Vec::new();
        let mut alter = |change: &dyn Fn(&mut Told) -> bool| {
            let mut told = self.clone();
            all.extend(change(&mut told).then_some(told));
        };
        alter(&|told| told.tokens.last_mut().map(|token| *token ^= 1).is_some());
        alter(&|told| told.logprobs.last_mut().map(|bits| *bits ^= 1).is_some());
        alter(&|told| {
            let steps = told.certificate.as_mut().and_then(|all| all["steps"].as_array_mut());
            let Some(step) = steps.and_then(|steps| steps.last_mut()) else { return false };
            let hash = step["chain"].as_str().unwrap_or_default();
            let other = if hash.starts_with('0') { "1" } else { "0" };
            step["chain"] = format!("{other}{}", hash.get(1..).unwrap_or_default()).into();
            true
        });
        alter(&|told| {
            let most = told.text.leaves_after.unwrap_or(usize::MAX);
            told.tokens.truncate(most.min(told.tokens.len()).saturating_sub(1));
            true
        });
        alter(&|told| told.logprobs.pop().is_some());
        alter(&|told| told.certificate.take().is_some());
        all
    }
}

impl Text {
    /// A text of its own.
    pub(crate) fn new(number: usize, new: usize) -> Text {
        let prompt = (0..5 + number % 23).map(|n| ((number * 7 + n) * 131 % 4096) as u32).collect();
        Text { number, prompt, new, ..Text::default() }
    }

    pub(crate) fn continuation(&self, model: &Model) -> Result<BatchRequest> {
        let options = GenerationOptions {
            temperature: Some(0.9),
            seed: Some(self.number as u64),
            max_new_tokens: Some(self.new),
            ignore_eos: true,
            ..GenerationOptions::default()
        };
        Ok(BatchRequest {
            tokens: self.prompt.clone(),
            generation: model.generation(&options)?,
            position: Position::Middle,
            bias: Vec::new(),
            constraint: None,
            ranks: (self.ranked || self.certified).then_some(0),
            prompt_ranks: false,
            pooling: None,
            witness: self
                .certified
                .then(|| Arc::new(Mutex::new(Witness::new(model.spec(), &self.prompt)))),
            short_lived: false,
            owner: 1,
            cancel: Cancel::new(),
        })
    }
}

/// A text that runs.
pub(crate) struct Running {
    told: Told,
    asked: BatchRequest,
}

impl Running {
    pub(crate) fn begin(batch: &mut Batch<'_>, model: &Model, text: Text) -> Result<Running> {
        let asked = text.continuation(model)?;
        let known = batch.add(text.number, asked.clone())?.unwrap_or(0);
        Ok(Running { told: Told { text, known, ..Told::default() }, asked })
    }

    /// What became of it so far.
    pub(crate) fn told(&self) -> &Told {
        &self.told
    }

    /// What became of it, once it is over.
    pub(crate) fn into_told(self) -> Told {
        self.told
    }

    /// Takes an event. Returns true if the text is over.
    pub(crate) fn happened(&mut self, model: &Model, event: Event) -> bool {
        match event {
            Event::Begun(known) => self.told.known = known,
            Event::Piece(piece, rank) => {
                let Running { told, asked } = self;
                told.tokens.extend(piece.token);
                told.logprobs.extend(rank.map(|rank| rank.logprob.to_bits()));
                if told.text.leaves_after.is_some_and(|most| told.tokens.len() >= most) {
                    asked.cancel.cancel();
                }
            }
            Event::Ended(made) => {
                match *made {
                    Err(error) => self.told.failed = Some(error.to_string()),
                    Ok(_) => self.told.certificate = self.certificate(model),
                }
                return true;
            }
            _ => {}
        }
        false
    }

    /// The certificate of the text, if one was asked for.
    fn certificate(&self, model: &Model) -> Option<serde_json::Value> {
        let Running { told, asked } = self;
        let witness = asked.witness.as_ref().filter(|_| !told.tokens.is_empty())?;
        let witness = witness.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let activations = Activations::F32;
        let kv = KvPrecision::F32;
        let manifest = model.manifest();
        let sampling = asked.generation.sampling.clone();
        let prompt = &told.text.prompt;
        let tokens = &told.tokens;
        let certificate =
            Certificate::new(manifest, activations, kv, sampling, prompt, tokens, witness);
        serde_json::to_value(&certificate).ok()
    }
}

/// A text without others.
pub(crate) fn alone(loaded: &mut LoadedModel, text: &Text) -> Result<Told> {
    let model = loaded.model().clone();
    let mut batch = loaded.batch()?;
    let mut running = Running::begin(&mut batch, &model, text.clone())?;
    while !batch.is_empty() {
        batch.step(&mut |_, event| {
            running.happened(&model, event);
        });
    }
    Ok(running.told)
}

/// Texts that begin and run together.
pub(crate) fn together(loaded: &mut LoadedModel, texts: Vec<Text>) -> Result<Vec<Told>> {
    let model = loaded.model().clone();
    let mut batch = loaded.batch()?;
    let begun = texts.into_iter().map(|text| Running::begin(&mut batch, &model, text));
    let mut running: Vec<Running> = begun.collect::<Result<_>>()?;
    while !batch.is_empty() {
        batch.step(&mut |number, event| {
            let found = running.iter_mut().find(|running| running.told.text.number == number);
            if let Some(running) = found {
                running.happened(&model, event);
            }
        });
    }
    Ok(running.into_iter().map(|running| running.told).collect())
}

impl Crowd {
    /// Continues all texts in this process, within its budget.
    pub(crate) fn run(self, task: &Task) -> Result<Done> {
        let model = Model::open(&task.model)?;
        let streaming = Streaming { warm_start: false, ..Streaming::default() };
        let context = Some(task.context);
        let options =
            Options { ram: Crowd::budget(task.ram), context, streaming, ..Options::default() };
        let needs = Needs { texts: AT_A_TIME, heap: KEPT, ..Needs::default() };
        let loader = model.with(options).needs(needs);
        if task.only_plan {
            let planner = loader.planning()?.planner;
            return Ok(Done { budget: planner.smallest(), ..Done::default() });
        }
        let kind: ReaderKind = task.reader.parse()?;
        let inner = kind.open(model.manifest(), model.dir(), StoreOptions::default().depth)?;
        let flaky = Arc::new(Flaky::new(inner, SEED));
        let mut loaded = loader.reader(Arc::clone(&flaky) as Arc<dyn ShardReader>).load()?;
        let budget = loaded.plan().context("a run without a plan")?.ledger.budget();
        let gauge = loaded.gauge().context("nothing is measured")?;
        let before = gauge.read();
        flaky.fail(self.per_mille);
        let told = self.continued(&model, &mut loaded)?;
        let metrics = Metrics::between(&before, &gauge.read());
        let told = told.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
        Ok(Done {
            budget,
            peak_rss: peak_memory().unwrap_or(0),
            metrics: serde_json::to_value(metrics)?,
            certificates: told,
            faults: flaky.failed(),
            ..Done::default()
        })
    }

    fn continued(self, model: &Model, loaded: &mut LoadedModel) -> Result<Vec<Told>> {
        let mut batch = loaded.batch()?.with_turns(Duration::from_millis(200));
        let mut running: Vec<Running> = Vec::new();
        let mut over: Vec<Told> = Vec::new();
        let mut next = 0;
        while next < self.texts || !batch.is_empty() {
            // Now and then all leave, and sometimes there is room for many at once.
            while next < self.texts
                && running.len() < 1 + next * 5 % AT_A_TIME
                && batch.has_room(false)
            {
                let text = text(next, &over);
                running.push(Running::begin(&mut batch, model, text)?);
                next += 1;
            }
            batch.step(&mut |number, event| {
                let at = running.iter().position(|running| running.told.text.number == number);
                let Some(at) = at else { return };
                if running[at].happened(model, event) {
                    over.push(running.remove(at).told);
                }
            });
        }
        Ok(over)
    }
}

/// The text with this number; some begin as one that is over.
fn text(number: usize, over: &[Told]) -> Text {
    let text = Text::new(number, 10 + number * 7 % 30);
    match number % 4 {
        0 => Text { certified: true, ..text },
        1 => {
            // The latest, whose tokens are still there.
            let begun =
                over.iter().rev().find(|told| told.failed.is_none() && told.tokens.len() > 8);
            let Some(begun) = begun else { return text };
            let prompt =
                [&begun.text.prompt[..], &begun.tokens[..begun.tokens.len() / 2 + 2]].concat();
            match prompt.len() < 150 {
                true => Text { prompt, forked: true, ..text },
                false => text,
            }
        }
        2 => Text { leaves_after: Some(1 + number % 9), ..text },
        _ => Text { ranked: true, ..text },
    }
}
