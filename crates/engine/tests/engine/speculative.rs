//! Passes over draft tokens: the logits behind each are those of tokens one by one, and nothing is
//! learned from those that are wrong.

use std::sync::Arc;

use sws_engine::{
    MAX_VERIFY_LEN, Options, Plan, PlanOptions, Planner, ProcessMemory, SpeculativeWeightStreamer,
};
use sws_format::Manifest;
use sws_model::{CausalLm, ForwardPass, Inventory, KvPrecision};
use sws_store::{NVMeWeightStore, ReaderKind, StoreOptions};
use sws_testing::goldens::runnable;
use sws_testing::{open, resident, spec, tales};

const PROMPT: [u32; 5] = [5, 300, 17, 99, 1000];
const WRONG: [u32; 4] = [4000, 4001, 4002, 4003];
const TEXT: [u32; 12] = [7, 512, 30, 30, 9, 2000, 41, 7, 512, 30, 888, 3];

fn streamer(options: Options) -> SpeculativeWeightStreamer {
    let dir = tales();
    let manifest = Arc::new(Manifest::load(&dir).unwrap());
    let reader = Some(ReaderKind::Mmap.open(&manifest, &dir, 2).unwrap());
    let store_options = StoreOptions { reader, cache: None, ..StoreOptions::default() };
    let store = NVMeWeightStore::open(manifest, &dir, store_options).unwrap();
    let (store, spec) = (Arc::new(store), spec(&dir));
    let plan = PlanOptions { context: Some(64), ..PlanOptions::default() };
    let inventory = Inventory::new(&spec, store.manifest()).unwrap();
    let process = ProcessMemory::default();
    let planner = Planner::new(&spec, &inventory, store.manifest(), process, plan).unwrap();
    // So small a model would not spare the memory by itself.
    let plan = planner.plan(24 << 20).unwrap();
    let plan = Plan { lent: Vec::new(), verify_len: MAX_VERIFY_LEN, ..plan };
    SpeculativeWeightStreamer::with_plan(ForwardPass::new(spec), store, plan, options).unwrap()
}

/// The logits behind each token of the text, in passes of `right` right tokens and `wrong` others.
fn logits(lm: &mut SpeculativeWeightStreamer, right: usize, wrong: usize) -> Vec<Vec<f32>> {
    lm.prefill(&PROMPT).unwrap();
    let mut found = Vec::new();
    for kept in TEXT.chunks(right) {
        if right == 1 && wrong == 0 {
            found.push(lm.decode(kept[0]).unwrap().to_vec());
            continue;
        }
        let before = lm.len();
        let tokens = [kept, &WRONG[..wrong]].concat();
        lm.verify(&tokens, &mut ()).unwrap();
        found.extend((0..kept.len()).map(|token| lm.verified_logits(token).to_vec()));
        lm.accept(before + kept.len());
        assert_eq!(lm.len(), before + kept.len());
    }
    found
}

#[test]
fn logits_of_a_pass_are_those_of_its_tokens() {
    let plain = logits(&mut streamer(Options::default()), 1, 0);
    assert_eq!(plain.len(), TEXT.len());
    for (right, wrong) in [(1, 1), (1, 4), (2, 0), (3, 2), (5, 1), (6, 4), (12, 0)] {
        let mut streamer = streamer(Options::default());
        assert!(streamer.verify_len() >= 12);
        assert!(logits(&mut streamer, right, wrong) == plain, "{right} right, {wrong} wrong");
        let counts = streamer.counters().proposals;
        let passes = TEXT.len().div_ceil(right);
        assert_eq!(counts.passes, passes as u64);
        assert_eq!(counts.proposed, (TEXT.len() + passes * wrong - passes) as u64);
        assert_eq!(counts.accepted, (TEXT.len() - passes) as u64);
        assert_eq!(streamer.counters().tokens, (PROMPT.len() + TEXT.len()) as u64);
    }
}

#[test]
fn policy_learns_from_tokens_that_are_right() {
    let dir = tempfile::tempdir().unwrap();
    let learned = |right: usize, wrong: usize| {
        let path = dir.path().join(format!("{right}-{wrong}"));
        let warm_start = Some(path.clone());
        let mut streamer = streamer(Options { warm_start, ..Options::default() });
        logits(&mut streamer, right, wrong);
        drop(streamer);
        std::fs::read(path).unwrap()
    };
    let plain = learned(1, 0);
    for (right, wrong) in [(1, 3), (4, 0), (4, 4), (6, 1)] {
        assert!(learned(right, wrong) == plain, "{right} right, {wrong} wrong");
    }
}

#[test]
fn errors_leave_no_pass_to_be_settled() {
    let mut lm = streamer(Options::default());
    lm.prefill(&PROMPT).unwrap();
    for refused in [&[][..], &[1, 5000], &[1; 60]] as [&[u32]; 3] {
        assert!(lm.verify(refused, &mut ()).is_err());
        assert_eq!(lm.len(), PROMPT.len());
    }
    lm.accept(PROMPT.len());
    let after = lm.decode(TEXT[0]).unwrap().to_vec();
    let expected = logits(&mut streamer(Options::default()), 1, 0);
    assert!(expected[0] == after);
}

/// Models with windows or recurrent layers would have to compute again to go back.
#[test]
fn models_that_cannot_go_back_verify_nothing() {
    let cases = [
        ("mixtral", true),
        ("qwen3_moe", true),
        ("deepseek_v2", true),
        ("gpt_oss", false),
        ("qwen3_next", false),
    ];
    for (name, goes_back) in cases {
        let golden = runnable(name);
        let (manifest, spec) = open(&golden.dir).unwrap();
        let source = resident(&golden.dir, &manifest, &spec).unwrap();
        let model = ForwardPass::new(spec);
        let lm = SpeculativeWeightStreamer::resident(model, source, usize::MAX, KvPrecision::F32);
        assert_eq!(lm.verify_len() > 1, goes_back, "{name}");
    }
}
