//! Texts of random tokens, and what becomes of them.

use std::collections::BTreeMap;
use std::path::Path;

use sws::{
    Batch, BatchRequest, Cancel, End, Event, GenerationOptions, LoadedModel, Model, Needs, Options,
    Rank,
};
use sws_text::Position;

/// Numbers that look random, the same in every run.
#[derive(Debug)]
pub(crate) struct Draw(pub(crate) u64);

impl Draw {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

/// The tokens of a text, their ranks, and its end.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Made {
    pub(crate) tokens: Vec<u32>,
    pub(crate) ranks: Vec<Rank>,
    pub(crate) end: Option<End>,
}

/// Loads a model whole, or within a budget.
pub(crate) fn load(dir: &Path, ram: Option<&str>, texts: usize) -> LoadedModel {
    let mut options = Options { resident: ram.is_none(), ..Options::default() };
    if let Some(ram) = ram {
        options.ram = ram.parse().unwrap();
    }
    load_with(dir, texts, Options { context: Some(240), ..options })
}

pub(crate) fn load_with(dir: &Path, texts: usize, mut options: Options) -> LoadedModel {
    options.streaming.warm_start = false;
    let needs = Needs { texts, ..Needs::default() };
    Model::open(dir).unwrap().with(options).needs(needs).load().unwrap()
}

/// A text whose tokens are drawn.
pub(crate) fn text(model: &LoadedModel, tokens: Vec<u32>, seed: u64, new: usize) -> BatchRequest {
    let options = GenerationOptions {
        temperature: Some(0.9),
        seed: Some(seed),
        max_new_tokens: Some(new),
        ignore_eos: true,
        ..GenerationOptions::default()
    };
    BatchRequest {
        tokens,
        generation: model.model().generation(&options).unwrap(),
        position: Position::Middle,
        bias: Vec::new(),
        constraint: None,
        ranks: None,
        prompt_ranks: false,
        pooling: None,
        witness: None,
        short_lived: false,
        owner: 0,
        cancel: Cancel::new(),
    }
}

/// Advances all texts by a step.
pub(crate) fn step(batch: &mut Batch<'_>, made: &mut BTreeMap<usize, Made>) {
    batch.step(&mut |number, event| {
        let made = made.entry(number).or_default();
        match event {
            Event::Piece(_, rank) => made.ranks.extend(rank),
            Event::Ended(text) => {
                let text = text.unwrap();
                (made.tokens, made.end) = (text.tokens, Some(text.end));
            }
            _ => {}
        }
    });
}

/// Runs a text to its end.
pub(crate) fn run(batch: &mut Batch<'_>, number: usize, text: BatchRequest) -> Made {
    batch.add(number, text).unwrap();
    let mut made = BTreeMap::new();
    while !batch.is_empty() {
        step(batch, &mut made);
    }
    made.remove(&number).unwrap()
}

/// Texts of three stories: they begin with a part of one and go on alone, for one of two owners.
pub(crate) fn texts(model: &mut LoadedModel, draw: &mut Draw, count: usize) -> Vec<BatchRequest> {
    let vocab = model.causal_lm().vocab();
    let room = model.limit() - 60;
    let stories: Vec<Vec<u32>> =
        (0..3).map(|_| (0..room).map(|_| draw.below(vocab) as u32).collect()).collect();
    let one = |draw: &mut Draw| {
        let story = &stories[draw.below(3)];
        let mut tokens = story[..1 + draw.below(room)].to_vec();
        tokens.extend((0..draw.below(20)).map(|_| draw.below(vocab) as u32));
        let (seed, new) = (draw.below(3) as u64, 1 + draw.below(8));
        let mut text = text(model, tokens, seed, new);
        text.ranks = (draw.below(2) == 0).then_some(2);
        text.owner = draw.below(2) as u64;
        text
    };
    let mut texts: Vec<BatchRequest> = (0..count).map(|_| one(draw)).collect();
    // Some are asked for again.
    for at in 0..count / 4 {
        let again = BatchRequest { cancel: Cancel::new(), ..texts[at].clone() };
        texts.push(again);
    }
    texts
}

/// Fails if a text differs from the same one alone. Cancelled ones are its beginning.
pub(crate) fn assert_as_alone(made: &Made, alone: &Made, has_ranks: bool, what: &str) {
    match made.end {
        Some(End::Cancelled) => {
            assert!(alone.tokens.starts_with(&made.tokens), "{what}");
            assert!(alone.ranks.starts_with(&made.ranks), "{what}");
        }
        _ if has_ranks => assert_eq!(made, alone, "{what}"),
        _ => assert_eq!((&made.tokens, made.end), (&alone.tokens, alone.end), "{what}"),
    }
}
