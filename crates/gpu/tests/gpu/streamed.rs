//! A model within a memory budget, with a tier of experts on a device: the bits of the whole model in memory.

use std::sync::Arc;

use sws_engine::{
    Ablations, Options, ProcessMemory, RamBudget, ResidentLoad, SpeculativeWeightStreamer,
};
use sws_format::Manifest;
use sws_gpu::{VramExperts, VramShape};
use sws_kernels::Activations;
use sws_model::{CausalLm, ForwardPass, Inventory, KvPrecision};
use sws_store::{NVMeWeightStore, StoreOptions};
use sws_testing::tales;

use crate::support::{Plan, Trouble, Troubled, device, turn};

const PROMPT: [u32; 12] = [5, 300, 17, 99, 1000, 41, 7, 2048, 311, 12, 801, 77];

fn bits(lm: &mut dyn CausalLm) -> Vec<u32> {
    let mut all: Vec<u32> = lm.prefill(&PROMPT).unwrap().iter().map(|x| x.to_bits()).collect();
    for token in 20..60 {
        all.extend(lm.decode(token).unwrap().iter().map(|x| x.to_bits()));
    }
    all
}

#[test]
fn a_streamed_model_with_a_tier_has_the_bits_of_the_whole() {
    let _turn = turn();
    let manifest = Arc::new(Manifest::load(tales()).unwrap());
    let spec = sws_testing::spec(&tales());
    let store = || {
        let options = StoreOptions { cache: None, ..StoreOptions::default() };
        Arc::new(NVMeWeightStore::open(Arc::clone(&manifest), &tales(), options).unwrap())
    };
    let source = ResidentLoad::new(&spec, &store()).unwrap().load(|_| true).unwrap().unwrap();
    let model = ForwardPass::new(spec.clone());
    let expected =
        bits(&mut SpeculativeWeightStreamer::resident(model, source, 256, KvPrecision::F32));

    let inventory = Inventory::new(&spec, &manifest).unwrap();
    let shape = VramShape::of(&inventory, &manifest, Activations::F32).unwrap();
    let run = |slots: u64, at: Option<(u64, Trouble)>| {
        let ram = RamBudget::Bytes(14 << 20);
        let process = Some(ProcessMemory::default());
        let ablations = Ablations { governed: false, ..Ablations::default() };
        let options = Options {
            ram_budget: ram,
            process,
            context: Some(256),
            ablations,
            ..Options::default()
        };
        let model = ForwardPass::new(spec.clone());
        let mut streamer = SpeculativeWeightStreamer::new(model, store(), options).unwrap();
        let (device, plan) = Troubled::new(device()?);
        if slots > 0 {
            let limit = (4 << 20) + slots * shape.slot_bytes;
            let vram = VramExperts::open(Box::new(device), limit, &shape).unwrap();
            *plan.lock().unwrap() = Plan { at, calls: 0 };
            assert!(streamer.set_tier(Box::new(vram)));
        }
        assert_eq!(bits(&mut streamer), expected, "{slots} slots, {at:?}");
        let layers = streamer.aggregate_metrics().experts.layers;
        let read: u64 = layers.iter().map(|layer| layer.misses + layer.late).sum();
        let calls = plan.lock().unwrap().calls;
        Some((read, calls, streamer.tier().is_some_and(|tier| tier.has_room())))
    };
    let Some((alone, ..)) = run(0, None) else { return };
    let (with, calls, _) = run(64, None).unwrap();
    assert!(with < alone && calls > 0, "{with} misses with a tier, {alone} without");
    for (tenth, trouble) in
        (1..10).zip([Trouble::Lost, Trouble::Hung, Trouble::Full].iter().cycle())
    {
        run(64, Some((calls * tenth / 10, *trouble))).unwrap();
    }
    eprintln!(
        "{} logits of a streamed model: 0 differ; {with} misses with a tier, {alone} without; 9 failures",
        expected.len()
    );
}
