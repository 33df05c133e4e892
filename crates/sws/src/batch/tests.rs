//! The memory of sequences and of what is kept.

use std::sync::Arc;

use sws_engine::RamBudget;
use sws_testing::goldens;
use sws_text::{Constraint, ConstraintError, Generation, Position, Sampling, TokenMask};

use super::*;
use crate::{Cancel, Model, Needs, Options, Streaming};

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

fn text(draw: &mut Draw) -> BatchRequest {
    let story = draw.below(4) as u32;
    let len = 1 + draw.below(150);
    let mut tokens: Vec<u32> = (0..len as u32).map(|n| (story * 31 + n * 7) % 90).collect();
    tokens.extend((0..draw.below(20)).map(|_| draw.below(90) as u32));
    let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
    let max_new_tokens = Some(1 + draw.below(30));
    BatchRequest {
        tokens,
        generation: Generation { sampling, max_new_tokens, ..Generation::default() },
        position: Position::Middle,
        bias: Vec::new(),
        constraint: None,
        ranks: None,
        prompt_ranks: false,
        pooling: None,
        witness: None,
        short_lived: false,
        owner: draw.below(2) as u64,
        cancel: Cancel::new(),
    }
}

/// A structure that every text has, which counts its texts.
#[derive(Debug)]
struct Any(Arc<()>);

impl TokenMask for Any {
    fn begin(&self) -> Box<dyn Constraint> {
        Box::new(Any(Arc::clone(&self.0)))
    }
}

impl Constraint for Any {
    fn mask(&mut self, _: &mut [f32]) -> Result<(), ConstraintError> {
        Ok(())
    }

    fn take(&mut self, _: u32) -> Result<(), ConstraintError> {
        Ok(())
    }

    fn forced(&mut self) -> Result<Vec<u32>, ConstraintError> {
        Ok(Vec::new())
    }

    fn is_complete(&self) -> bool {
        false
    }
}

#[test]
fn structure_of_a_text_is_gone_when_its_end_is_told() {
    let runnable = goldens::runnable("qwen3_moe");
    let options = Options { resident: true, context: Some(240), ..Options::default() };
    let model = Model::open(&runnable.dir).unwrap();
    let mut model = model.with(options).load().unwrap();
    let mut batch = model.batch().unwrap();
    let texts = Arc::new(());
    let constraint: Arc<dyn TokenMask> = Arc::new(Any(Arc::clone(&texts)));
    let cancel = Cancel::new();
    for cancelled in [false, true] {
        let constraint = Some(Arc::clone(&constraint));
        batch
            .add(0, BatchRequest { constraint, cancel: cancel.clone(), ..text(&mut Draw(7)) })
            .unwrap();
        assert_eq!(Arc::strong_count(&texts), 3);
        if cancelled {
            cancel.cancel();
        }
        let mut ended = 0;
        while !batch.is_empty() {
            batch.step(&mut |_, event| {
                if let Event::Ended(_) = event {
                    assert_eq!(Arc::strong_count(&texts), 2);
                    ended += 1;
                }
            });
        }
        assert_eq!(ended, 1);
    }
}

#[test]
fn sequences_and_what_is_kept_never_take_more_than_their_room() {
    let kinds = ["qwen3_moe", "qwen3_next", "gpt_oss", "deepseek_v3", "deepseek_v4", "lfm2_moe"];
    for (name, seed) in kinds.into_iter().zip(1..) {
        let runnable = goldens::runnable(name);
        let options = Options { resident: true, context: Some(240), ..Options::default() };
        let needs = Needs { texts: 3, ..Needs::default() };
        let model = Model::open(&runnable.dir).unwrap();
        let mut model = model.with(options).needs(needs).load().unwrap();
        let mut batch = model.batch().unwrap();
        let mut draw = Draw(7919 * seed);
        let (mut ended, mut most, mut fullest) = (0, 0, 0.0_f64);
        for number in 0..400 {
            if batch.has_room(false) && draw.below(3) > 0 {
                let text = text(&mut draw);
                if draw.below(8) == 0 {
                    text.cancel.cancel();
                }
                batch.add(number, text).unwrap();
            }
            let mut each = |_, event| ended += usize::from(matches!(event, Event::Ended(_)));
            batch.step(&mut each);
            let counted = batch.count();
            assert!(counted <= batch.room, "{name}: {counted} of {}", batch.room);
            let at_most = batch.held.unwrap_or(counted);
            assert!(counted <= at_most, "{name}: {counted}, foreseen {at_most}");
            most = most.max(batch.kept_prefixes());
            fullest = fullest.max(counted as f64 / batch.room as f64);
        }
        // The room is used, and was too small for all.
        assert!(
            ended > 2 * most && most > 1 && fullest > 0.8,
            "{name}: {ended}, {most}, {fullest}"
        );
    }
}

/// Experts never hold what texts, what is kept and prompts that are ranked need of the contexts.
#[test]
fn experts_hold_no_more_of_the_contexts_than_is_idle() {
    let model = Model::open(sws_testing::tales()).unwrap();
    let needs = Needs { texts: 3, all_logits: true, ..Needs::default() };
    let options = |ram| {
        let streaming = Streaming { warm_start: false, ..Streaming::default() };
        Options { ram, context: Some(2048), streaming, ..Options::default() }
    };
    let planning = model.with(options(RamBudget::Auto)).needs(needs).planning().unwrap();
    let ram = RamBudget::Bytes(planning.planner.smallest() + (6 << 20));
    let mut model = model.with(options(ram)).needs(needs).load().unwrap();
    let gauge = model.gauge().unwrap();
    let mut batch = model.batch().unwrap();
    let mut draw = Draw(7919);
    let (mut ended, mut ranked, mut most, mut kept) = (0, 0, 0, 0);
    for number in 0..200 {
        let ranks = draw.below(3) == 0;
        // One sequence is for prompts that are ranked.
        let has_room = if ranks { batch.has_room(true) } else { batch.len() < 2 };
        if has_room && draw.below(3) > 0 {
            let len = 1 + draw.below(1400);
            let mut text = text(&mut draw);
            text.tokens = (0..len).map(|n| ((number * 31 + n * 7) % 4000) as u32).collect();
            (text.prompt_ranks, text.ranks) = (ranks, ranks.then_some(1));
            ranked += usize::from(ranks);
            batch.add(number, text).unwrap();
        }
        batch.step(&mut |_, event| ended += usize::from(matches!(event, Event::Ended(_))));
        let (counted, lent) = (batch.count(), gauge.read().context_lent);
        assert!(counted + lent <= batch.room, "{counted} and {lent} of {} bytes", batch.room);
        (most, kept) = (most.max(lent), kept.max(batch.kept_prefixes()));
    }
    assert!(ended > 10 && ranked > 5 && kept > 1, "{ended}, {ranked}, {kept}");
    assert!(most * 3 > batch.room, "{most} of {} bytes", batch.room);
    // Whatever is kept costs more in the end than computing it again.
    let left = batch.kept_prefixes();
    batch.pay_rent(Duration::ZERO);
    assert!(left > 0 && batch.kept_prefixes() == left, "{left}");
    batch.pay_rent(Duration::from_secs(1 << 30));
    assert_eq!(batch.kept_prefixes(), 0);
}
