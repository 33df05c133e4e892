//! Texts that begin like others have the tokens and probabilities that they have alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use sws::{
    Batch, Cancel, Continuation, End, Event, GenerationOptions, KvDisk, LoadedModel, Model, Needs,
    Options, Rank,
};
use sws_model::text::Position;
use sws_testing::{goldens, tales};

/// Numbers that look random, the same in every run.
struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

/// The tokens of a text, their ranks, and its end.
#[derive(Clone, Debug, Default, PartialEq)]
struct Made {
    tokens: Vec<u32>,
    ranks: Vec<Rank>,
    end: Option<End>,
}

fn load(dir: &Path, ram: Option<&str>, texts: usize) -> LoadedModel {
    let mut options = Options { resident: ram.is_none(), ..Options::default() };
    options.streaming.warm_start = false;
    options.context = Some(240);
    if let Some(ram) = ram {
        options.ram = ram.parse().unwrap();
    }
    let needs = Needs { texts, ..Needs::default() };
    Model::open(dir).unwrap().with(options).needs(needs).load().unwrap()
}

fn text(model: &LoadedModel, tokens: Vec<u32>, seed: u64, new: usize) -> Continuation {
    let options = GenerationOptions {
        temperature: Some(0.9),
        seed: Some(seed),
        max_new_tokens: Some(new),
        ignore_eos: true,
        ..GenerationOptions::default()
    };
    Continuation {
        tokens,
        generation: model.model().generation(&options).unwrap(),
        position: Position::Middle,
        bias: Vec::new(),
        constraint: None,
        ranks: None,
        prompt_ranks: false,
        witness: None,
        owner: 0,
        cancel: Cancel::new(),
    }
}

/// Advances all texts by a step.
fn step(batch: &mut Batch<'_>, made: &mut BTreeMap<usize, Made>) {
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

fn run(batch: &mut Batch<'_>, number: usize, text: Continuation) -> Made {
    batch.add(number, text).unwrap();
    let mut made = BTreeMap::new();
    while !batch.is_empty() {
        step(batch, &mut made);
    }
    made.remove(&number).unwrap()
}

/// Texts of three stories: they begin with a part of one and go on alone, for one of two owners.
fn texts(model: &mut LoadedModel, draw: &mut Draw, count: usize) -> Vec<Continuation> {
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
    let mut texts: Vec<Continuation> = (0..count).map(|_| one(draw)).collect();
    // Some are asked for again.
    for at in 0..count / 4 {
        let again = Continuation { cancel: Cancel::new(), ..texts[at].clone() };
        texts.push(again);
    }
    texts
}

fn texts_are_as_alone(dir: &Path, ram: Option<&str>, seed: u64, count: usize) {
    let name = dir.display();
    let mut model = load(dir, ram, 3);
    let mut draw = Draw(seed);
    let texts = texts(&mut model, &mut draw, count);
    let alone: Vec<Made> = texts
        .iter()
        .map(|text| {
            let text = Continuation { cancel: Cancel::new(), ..text.clone() };
            run(&mut model.batch().unwrap(), 0, text)
        })
        .collect();
    let mut batch = model.batch().unwrap();
    let (mut made, mut next, mut known) = (BTreeMap::new(), 0, 0);
    while next < texts.len() || !batch.is_empty() {
        while next < texts.len() && batch.has_room(false) && draw.below(3) > 0 {
            known += batch.add(next, texts[next].clone()).unwrap();
            next += 1;
        }
        if draw.below(12) == 0 && next > 0 {
            texts[next - 1].cancel.cancel();
        }
        step(&mut batch, &mut made);
    }
    assert!(known > 0, "{name}: nothing was known");
    for (number, alone) in alone.iter().enumerate() {
        let made = &made[&number];
        let what = format!("{name}: the text {number}");
        match made.end {
            Some(End::Cancelled) => {
                assert!(alone.tokens.starts_with(&made.tokens), "{what}");
                assert!(alone.ranks.starts_with(&made.ranks), "{what}");
            }
            _ if texts[number].ranks.is_some() => assert_eq!(made, alone, "{what}"),
            _ => assert_eq!((&made.tokens, made.end), (&alone.tokens, alone.end), "{what}"),
        }
    }
}

#[test]
fn texts_that_begin_like_others_are_as_alone() {
    // Layers that can be cut anywhere, recurrent layers, windows, latents, pooled entries.
    let layers = ["qwen3_moe", "qwen3_next", "gpt_oss", "deepseek_v3", "deepseek_v4"];
    for (name, seed) in layers.into_iter().zip(1..) {
        texts_are_as_alone(&goldens::golden_dir(name), None, 7919 * seed, 40);
    }
}

#[test]
fn streamed_texts_that_begin_like_others_are_as_alone() {
    texts_are_as_alone(&tales(), Some("min"), 4711, 12);
}

#[test]
fn a_prompt_is_computed_once_for_texts_that_begin_together() {
    let dirs: [(PathBuf, Option<&str>); 3] = [
        (tales(), Some("min")),
        (goldens::golden_dir("qwen3_moe"), None),
        (goldens::golden_dir("qwen3_next"), None),
    ];
    for (dir, ram) in dirs {
        let mut model = load(&dir, ram, 4);
        let prompt: Vec<u32> = (1..=90).collect();
        let texts = [1, 2, 3, 4].map(|seed| text(&model, prompt.clone(), seed, 5));
        let gauge = model.gauge().unwrap();
        let before = gauge.read().tokens;
        let mut batch = model.batch().unwrap();
        let known = texts.into_iter().enumerate().map(|(at, text)| batch.add(at, text).unwrap());
        assert_eq!(known.collect::<Vec<_>>(), [0, 89, 89, 89]);
        let mut made = BTreeMap::new();
        while !batch.is_empty() {
            step(&mut batch, &mut made);
        }
        drop(batch);
        // The prompt, its last token for each of the others, and four tokens of each text.
        let computed = gauge.read().tokens - before;
        assert_eq!(computed, 90 + 3 + 4 * 4, "{}", dir.display());
        assert!(made.values().all(|made| made.tokens.len() == 5));
    }
}

#[test]
fn beginnings_on_disk_are_found_by_their_owner_and_model_alone() {
    let top = tempfile::tempdir().unwrap();
    let keys = ["secret".to_owned()];
    for name in ["qwen3_moe", "qwen3_next", "gpt_oss"] {
        let dir = top.path().join(name);
        let open = |identity: &str| KvDisk::open(&dir, 64 << 20, &[identity], &keys).unwrap();
        let mut model = load(&goldens::golden_dir(name), None, 2);
        let prompt: Vec<u32> = (0..90).collect();
        let mut first = text(&model, prompt.clone(), 5, 6);
        first.owner = 1;
        let mut batch = model.batch().unwrap().with_disk(open(name));
        let before = run(&mut batch, 0, first);
        while batch.store() {}
        assert!(batch.disk_counts().unwrap().written > 0, "{name}");
        drop(batch);

        let mut longer = prompt.clone();
        longer.extend(&before.tokens[..5]);
        longer.extend([7, 8, 9]);
        let mut next = text(&model, longer, 6, 6);
        next.owner = 1;
        let alone = run(&mut model.batch().unwrap(), 0, next.clone());
        let mut known = |identity, owner| {
            let text = Continuation { owner, ..next.clone() };
            let mut batch = model.batch().unwrap().with_disk(open(identity));
            let known = batch.add(0, text).unwrap();
            let mut made = BTreeMap::new();
            while !batch.is_empty() {
                step(&mut batch, &mut made);
            }
            assert_eq!(made[&0], alone, "{name}");
            (known, batch.disk_counts().unwrap().tokens)
        };
        assert_eq!(known(name, 1), (95, 95), "{name}");
        assert_eq!(known(name, 0), (0, 0), "{name}: without the key");
        assert_eq!(known("another", 1), (0, 0), "{name}: of another model");
        // A damaged file is computed again.
        for entry in dir.read_dir().unwrap().map(Result::unwrap) {
            let mut bytes = std::fs::read(entry.path()).unwrap();
            if let Some(last) = bytes.last_mut() {
                *last ^= 1;
                std::fs::write(entry.path(), bytes).unwrap();
            }
        }
        assert_eq!(known(name, 1), (0, 0), "{name}: damaged");
    }
}
