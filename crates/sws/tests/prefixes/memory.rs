//! Beginnings in memory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use sws::{Cancel, Continuation};
use sws_testing::{goldens, tales};

use crate::support::{Draw, Made, assert_as_alone, load, run, step, text, texts};

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
        let what = format!("{name}: the text {number}");
        assert_as_alone(&made[&number], alone, texts[number].ranks.is_some(), &what);
    }
}

#[test]
fn texts_that_begin_like_others_are_as_alone() {
    // Layers that can be cut anywhere, recurrent layers, windows, latents, pooled entries.
    let layers = ["qwen3_moe", "qwen3_next", "gpt_oss", "deepseek_v3", "deepseek_v4"];
    for (name, seed) in layers.into_iter().zip(1..) {
        texts_are_as_alone(&goldens::runnable(name).dir, None, 7919 * seed, 40);
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
