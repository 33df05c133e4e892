//! Recorded texts: the requests of clients, with the experts that their tokens choose.

use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use sws::{Model, Options, Request, Streaming};
use sws_cache::Trace;
use sws_cache::history::HistoryShape;
use sws_format::{Pass, open_regular};
use sws_model::{Observer, Routed, SourceError};
use sws_text::GenerationOptions;

/// Beginnings of tales, each of which is a topic.
const BEGINNINGS: &str = include_str!("../../../shards/tales-moe-training/beginnings.txt");
/// Most bytes of a file with routes, and most texts that are made of one.
const MAX_BYTES: u64 = 1 << 30;
const MAX_TEXTS: usize = 1 << 14;

/// Texts by topic, with their routes.
#[derive(Debug)]
pub struct Texts {
    trace: Trace,
    all: Vec<Text>,
    /// Numbers of the texts of each topic.
    topics: Vec<Vec<usize>>,
}

/// A text: a prompt, and new tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Text {
    /// Its topic.
    pub topic: usize,
    /// Number of tokens of its prompt.
    pub prompt: usize,
    /// Number of its new tokens, the last of which goes through no pass.
    pub new: usize,
    /// Seed of the new tokens, where they were made here.
    pub seed: u64,
    /// The tokens that go through passes.
    #[serde(skip)]
    pub tokens: Range<usize>,
}

impl Texts {
    /// Texts of the sequences of a trace. Of each, `prompt` tokens and `new - 1` more make a text, the
    /// next ones another; a rest that is shorter makes none. Each `per_topic` sequences are a topic.
    pub fn of(trace: Trace, prompt: usize, new: usize, per_topic: usize) -> Result<Texts> {
        let mut all = Vec::new();
        let len = prompt + new - 1;
        for (number, sequence) in trace.sequences().enumerate() {
            let topic = number / per_topic;
            let starts =
                sequence.clone().step_by(len).take_while(|start| start + len <= sequence.end);
            all.extend(starts.map(|start| Text {
                topic,
                prompt,
                new,
                seed: 0,
                tokens: start..start + len,
            }));
        }
        Texts::new(trace, all)
    }

    /// Texts with these parts of a trace.
    pub fn new(trace: Trace, all: Vec<Text>) -> Result<Texts> {
        ensure!(
            !all.is_empty(),
            "no sequence of the trace is as long as --prompt and --new; ask for fewer"
        );
        ensure!(
            all.len() <= MAX_TEXTS,
            "{} texts are too many; ask for longer ones with --new",
            all.len()
        );
        let mut topics: Vec<Vec<usize>> = Vec::new();
        for (number, text) in all.iter().enumerate() {
            if topics.len() <= text.topic {
                topics.resize(text.topic + 1, Vec::new());
            }
            topics[text.topic].push(number);
        }
        topics.retain(|texts| !texts.is_empty());
        Ok(Texts { trace, all, topics })
    }

    /// Reads a trace.
    pub fn read(path: &Path, prompt: usize, new: usize, per_topic: usize) -> Result<Texts> {
        let name = path.display();
        let file = open_regular(path)
            .with_context(|| format!("`{name}` cannot be read; name a file with routes"))?;
        ensure!(
            file.metadata()?.len() <= MAX_BYTES,
            "`{name}` has more than 1 GiB; record fewer tokens"
        );
        let bytes = std::fs::read(path).with_context(|| format!("`{name}` cannot be read"))?;
        let trace = Trace::read(&bytes).map_err(|error| anyhow::anyhow!("`{name}` {error}"))?;
        Texts::of(trace, prompt, new, per_topic)
    }

    /// Tales of a model, `per_topic` of each of `topics` beginnings, with their routes and their prompts.
    /// The same on every machine.
    pub fn record(
        model: &Path,
        topics: usize,
        per_topic: usize,
        new: usize,
    ) -> Result<(Texts, Vec<Vec<u32>>)> {
        let model = Model::open(model)?;
        let streaming = Streaming { warm_start: false, ..Streaming::default() };
        let options =
            Options { resident: true, context: Some(1024), streaming, ..Options::default() };
        let mut loaded = model.with(options).load()?;
        let spec = loaded.model().spec();
        let experts = loaded.model().spec().moes().map(|moe| moe.experts);
        let shape = HistoryShape {
            layers: spec.moes().count(),
            experts: experts.max().unwrap_or(0),
            top_k: spec.max_top_k(),
        };
        ensure!(spec.looped.is_none(), "a trace cannot tell visits of one layer apart");
        let layers = spec.layers.len();
        let mut trace = Trace::new(shape)?;
        let mut all = Vec::new();
        let mut prompts = Vec::new();
        for (topic, beginning) in BEGINNINGS.lines().take(topics).enumerate() {
            let tokenizer = loaded.text().tokenizer().context("the model has no tokenizer")?;
            let prompt = tokenizer.encode(beginning, true)?;
            for text in 0..per_topic {
                let seed = (topic * per_topic + text) as u64;
                let mut tokens = prompt.clone();
                let request = Request::from(prompt.clone());
                for piece in loaded.generate(Request { options: asked(seed, new), ..request })? {
                    tokens.extend(piece?.token);
                }
                ensure!(
                    tokens.len() == prompt.len() + new,
                    "a tale of the seed {seed} is too short"
                );
                tokens.pop();
                let mut routes = Routes { all: vec![Vec::new(); layers] };
                let lm = loaded.causal_lm();
                lm.clear();
                lm.observed(&tokens, &mut routes)?;
                let start = trace.token_count();
                routes.write(&tokens, prompt.len(), &mut trace)?;
                let tokens = start..trace.token_count();
                all.push(Text { topic, prompt: prompt.len(), new, seed, tokens });
                prompts.push(prompt.clone());
            }
        }
        Ok((Texts::new(trace, all)?, prompts))
    }

    /// The routes.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// All texts, by number.
    pub fn all(&self) -> &[Text] {
        &self.all
    }

    /// Number of topics.
    pub fn topics(&self) -> usize {
        self.topics.len()
    }

    /// Topic of a client.
    pub fn topic(&self, client: usize) -> usize {
        client % self.topics.len()
    }

    /// Number of the text that a client asks for, after so many others: it goes through those of its
    /// topic in turn, and clients of the same topic begin with different ones.
    pub fn asked(&self, client: usize, before: usize) -> usize {
        let texts = &self.topics[self.topic(client)];
        texts[(client / self.topics.len() + before) % texts.len()]
    }
}

/// Options of a tale.
pub fn asked(seed: u64, new: usize) -> GenerationOptions {
    GenerationOptions {
        temperature: Some(1.0),
        top_k: Some(40),
        top_p: Some(0.95),
        seed: Some(seed),
        max_new_tokens: Some(new),
        ignore_eos: true,
        ..GenerationOptions::default()
    }
}

/// The experts of a text, by layer.
struct Routes {
    all: Vec<Vec<u32>>,
}

impl Observer for Routes {
    fn routed(&mut self, _: &Pass, layer: usize, routed: &Routed) -> Result<(), SourceError> {
        self.all[layer].extend(&routed.choices);
        Ok(())
    }
}

impl Routes {
    /// Adds a sequence to a trace: the prompt in one pass, then each token.
    fn write(self, tokens: &[u32], prompt: usize, trace: &mut Trace) -> Result<()> {
        let layers: Vec<Vec<u32>> =
            self.all.into_iter().filter(|layer| !layer.is_empty()).collect();
        let mut push = |range: Range<usize>| {
            let of = |layer: &Vec<u32>| {
                let each = layer.len() / tokens.len();
                layer[range.start * each..range.end * each].to_vec()
            };
            trace.push(&tokens[range.clone()], &layers.iter().map(of).collect::<Vec<_>>())
        };
        push(0..prompt)?;
        (prompt..tokens.len()).try_for_each(|at| push(at..at + 1))?;
        trace.end_sequence();
        Ok(())
    }
}
