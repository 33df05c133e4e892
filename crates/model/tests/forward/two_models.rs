//! Two models in one process, with their pieces in one map under keys with a model number.

use std::collections::BTreeMap;
use std::sync::Arc;

use sws_model::{
    CausalLm, KvPrecision, Loader, Model, ModelHandle, ModelSpec, ResidentSource, Session,
};
use sws_store::{Arena, Completion, ModelNumber, NVMeWeightStore, PieceId, Read, StoreOptions};

use crate::support::Fixture;

type Cache = BTreeMap<(ModelNumber, PieceId), Completion>;

#[test]
fn interleaved_sessions_equal_separate_ones() {
    let fixtures = ["mixtral", "qwen3_moe"].map(Fixture::open);
    let arena = Arena::new(4 << 20).unwrap();
    let mut cache = Cache::new();
    let numbers = fixtures.each_ref().map(|fixture| fill(&mut cache, fixture, &arena));
    let pieces: usize = fixtures.iter().map(|fixture| fixture.manifest.pieces.len()).sum();
    assert_eq!(cache.len(), pieces, "no piece took the place of another");
    let expert = PieceId::expert(0, 0);
    let [a, b] = numbers.map(|number| &cache[&(number, expert)].slot[..]);
    assert_ne!(a, b, "both have {expert}");

    let mut together: Vec<Box<dyn ModelHandle>> = Vec::new();
    for (fixture, number) in fixtures.iter().zip(numbers) {
        together.push(Box::new(session(&fixture.spec, source(fixture, &cache, number))));
    }
    let mut alone = fixtures.each_ref().map(Fixture::session);
    for token in [3, 90, 41, 7, 3, 66, 12, 95, 5, 1, 80, 33] {
        for (model, alone) in together.iter_mut().zip(&mut alone) {
            let lm = model.as_causal_lm().unwrap();
            let bits = |logits: &[f32]| logits.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(lm.decode(token).unwrap()), bits(alone.decode(token).unwrap()));
        }
    }
}

/// Reads all pieces of a model into the map; returns their model number.
fn fill(cache: &mut Cache, fixture: &Fixture, arena: &Arena) -> ModelNumber {
    let manifest = Arc::new(fixture.manifest.clone());
    let options = StoreOptions { cache: None, ..StoreOptions::default() };
    let store = NVMeWeightStore::open(Arc::clone(&manifest), &fixture.dir, options).unwrap();
    for piece in &manifest.pieces {
        let read = store.read(Read::Piece(piece.id), arena).unwrap();
        cache.insert((store.number(), piece.id), read);
    }
    store.number()
}

fn source(fixture: &Fixture, cache: &Cache, number: ModelNumber) -> ResidentSource {
    let mut loader = Loader::new(&fixture.spec, &fixture.manifest).unwrap();
    for id in loader.wanted() {
        let Completion { layout, slot, .. } = &cache[&(number, id)];
        let add = loader.add(id, |_, (tensor, part), into| {
            let found = layout.tensors().iter().find(|t| t.index == tensor).unwrap();
            into.copy_from_slice(found.part(slot, part).unwrap());
            Ok(())
        });
        add.unwrap();
    }
    loader.finish()
}

fn session(spec: &ModelSpec, source: ResidentSource) -> Session<ResidentSource> {
    Session::new(Model::new(spec.clone()), source, usize::MAX, KvPrecision::F32)
}
