//! The prefix cache in memory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sws::{BatchRequest, Cancel, Event, Options};
use sws_format::Clock;
use sws_testing::{goldens, tales};

use super::support::{Draw, Made, assert_as_alone, load, load_with, run, step, text, texts};

fn texts_are_as_alone(dir: &Path, ram: Option<&str>, seed: u64, count: usize) {
    let name = dir.display();
    // Room for more than run at a time.
    let mut model = load(dir, ram, 5);
    let mut draw = Draw(seed);
    let texts = texts(&mut model, &mut draw, count);
    let alone: Vec<Made> = texts
        .iter()
        .map(|text| {
            let text = BatchRequest { cancel: Cancel::new(), ..text.clone() };
            run(&mut model.batch().unwrap(), 0, text)
        })
        .collect();
    let mut batch = model.batch().unwrap();
    let (mut made, mut next, mut known) = (BTreeMap::new(), 0, 0);
    while next < texts.len() || !batch.is_empty() {
        while next < texts.len() && batch.len() < 3 && draw.below(3) > 0 {
            known += batch.add(next, texts[next].clone()).unwrap().unwrap_or(0);
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
fn a_prompt_that_is_cut_off_goes_on_where_its_last_part_began() {
    for name in ["qwen3_next", "gpt_oss", "deepseek_v4", "qwen3_moe"] {
        let runnable = goldens::with_context(name, 1100);
        let options = Options { resident: true, context: Some(1100), ..Options::default() };
        let mut model = load_with(&runnable.dir, 2, options);
        let prompt: Vec<u32> = (0..1000).map(|n| n * 7 % 90).collect();
        let whole = text(&model, prompt, 3, 4);
        let alone = run(&mut model.batch().unwrap(), 0, whole.clone());
        let mut found = 0;
        for round in 0..20 {
            let mut batch = model.batch().unwrap();
            let text = BatchRequest { cancel: Cancel::new(), ..whole.clone() };
            let cancel = text.cancel.clone();
            batch.add(1, text).unwrap();
            let mut done = 0;
            std::thread::scope(|scope| {
                let (send, begun) = std::sync::mpsc::channel();
                scope.spawn(move || {
                    // In the middle of a pass, as nearly all time is.
                    begun.recv().unwrap();
                    Clock::real().sleep(Duration::from_micros(300 * round));
                    cancel.cancel();
                });
                while !batch.is_empty() {
                    batch.step(&mut |_, event| {
                        if let Event::Prompt(progress) = event {
                            done = progress.done;
                        }
                    });
                    if done >= 512 {
                        let _ = send.send(());
                    }
                }
                let _ = send.send(());
            });
            let again = BatchRequest { cancel: Cancel::new(), ..whole.clone() };
            let known = batch.add(2, again).unwrap().unwrap() as u64;
            assert!(known + 1 >= done.min(512), "{name}: {known} of {done}");
            found += u64::from(known < 999);
            let mut made = BTreeMap::new();
            while !batch.is_empty() {
                step(&mut batch, &mut made);
            }
            assert_eq!(made[&2].tokens, alone.tokens, "{name}");
        }
        assert!(found > 0, "{name}: never cut off");
    }
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
        assert_eq!(known.collect::<Vec<_>>(), [Some(0), None, None, None]);
        let (mut begun, mut made) = (Vec::new(), Vec::new());
        while !batch.is_empty() {
            batch.step(&mut |number, event| match event {
                Event::Begun(known) => begun.push((number, known)),
                Event::Ended(text) => made.push(text.unwrap().tokens.len()),
                _ => {}
            });
        }
        drop(batch);
        assert_eq!((begun, made), (vec![(1, 89), (2, 89), (3, 89)], vec![5; 4]));
        // The prompt, its last token for each of the others, and four tokens of each text.
        let computed = gauge.read().tokens - before;
        assert_eq!(computed, 90 + 3 + 4 * 4, "{}", dir.display());
    }
}

/// A text that waits for another one knows what that one computed before it was cut off.
#[test]
fn what_a_text_knows_of_another_is_told_once_it_begins() {
    let runnable = goldens::with_context("qwen3_moe", 1100);
    let options = Options { resident: true, context: Some(1100), ..Options::default() };
    let mut model = load_with(&runnable.dir, 2, options);
    let prompt: Vec<u32> = (0..1000).map(|n| n * 7 % 90).collect();
    for steps in 0..2 {
        let [first, second] = [3, 4].map(|seed| text(&model, prompt.clone(), seed, 4));
        let mut batch = model.batch().unwrap();
        let cancel = first.cancel.clone();
        assert_eq!(batch.add(0, first).unwrap(), Some(0));
        assert_eq!(batch.add(1, second).unwrap(), None);
        (0..steps).for_each(|_| batch.step(&mut |_, _| {}));
        let done = batch.positions();
        assert!((done > 0) == (steps > 0) && done < 999, "{done}");
        cancel.cancel();
        let mut begun = Vec::new();
        while !batch.is_empty() {
            batch.step(&mut |number, event| {
                if let Event::Begun(known) = event {
                    begun.push((number, known));
                }
            });
        }
        assert_eq!(begun, [(1, done)]);
    }
}
