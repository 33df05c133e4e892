//! The cache: what is fetched, shared and dropped, and in which order.

use std::collections::BTreeMap;
use std::sync::Arc;

use sws_far::Far;
use sws_format::{Clock, PieceId, PieceKind};
use sws_store::Supply;
use sws_testing::bucket::Bucket;

use crate::helpers::{all, assert_same, bucket, expert, on_disk, options, origin, public, store};

#[test]
fn pieces_come_once_and_have_the_bytes_of_local_shards() {
    let (bucket, cache) = (bucket(), tempfile::tempdir().unwrap());
    let far = public(&bucket, cache.path(), None).unwrap();
    assert!(bucket.requests(".safetensors").is_empty(), "nothing is fetched before it is read");
    bucket.state().rate = Some(32 << 20);
    assert_same(&store(&far), all());
    let counts = far.counts();
    assert_eq!(counts.here, counts.whole);
    let most = counts.whole + counts.whole / 50 + (1 << 20);
    assert!(counts.received <= most, "{counts:?}");
    assert!(bucket.state().most_at_once > 1, "several at a time");
    drop(far);

    let before = bucket.requests(".safetensors").len();
    let again = public(&bucket, cache.path(), None).unwrap();
    assert_same(&store(&again), all());
    assert_eq!(bucket.requests(".safetensors").len(), before, "all of it was here");
    assert_eq!(again.counts().received, 0, "not even the manifest came again");
    // The same model at another address.
    let files = bucket.state().files.clone();
    let moved = files.into_iter().map(|(path, bytes)| (path.replace("tales", "other"), bytes));
    let other = Bucket::start(moved.collect()).unwrap();
    let address = format!("{}/models/other", other.endpoint());
    let origin = origin(&address, &BTreeMap::new(), Clock::simulated()).unwrap();
    let other_far = Arc::new(Far::open(origin, &options(cache.path(), None)).unwrap());
    assert_same(&store(&other_far), all());
    assert!(other.requests(".safetensors").is_empty());
}

#[test]
fn a_full_cache_drops_what_was_used_longest_ago() {
    const LIMIT: u64 = 3 << 20;
    let (bucket, cache) = (bucket(), tempfile::tempdir().unwrap());
    let far = public(&bucket, cache.path(), Some(LIMIT)).unwrap();
    let store = store(&far);
    let manifest = Arc::clone(far.manifest());
    let experts = manifest.pieces.iter().map(|piece| piece.id);
    let experts: Vec<PieceId> =
        experts.filter(|id| matches!(id.kind(), PieceKind::Expert(_))).collect();
    let name = |id: &PieceId| format!("{id}.safetensors");
    for expert in &experts {
        assert_same(&store, [*expert, experts[0]]);
        assert!(far.counts().here <= LIMIT);
    }
    assert!(on_disk(cache.path()) <= LIMIT + (3 << 20), "{}", on_disk(cache.path()));
    assert_eq!(bucket.requests(&name(&experts[0])).len(), 1, "it was used all the time");
    assert_same(&store, [experts[1]]);
    assert_eq!(bucket.requests(&name(&experts[1])).len(), 2, "it was used long ago");
    // The largest pieces do not fit beside much else.
    assert_same(&store, all());
    drop((store, far));
    // Without room for anything they pass through.
    let none = tempfile::tempdir().unwrap();
    let far = public(&bucket, none.path(), Some(1)).unwrap();
    assert_same(&crate::helpers::store(&far), all());
    assert_eq!(far.counts().here, 0);
}

#[test]
fn models_that_nobody_uses_make_room_for_others() {
    let (bucket, cache) = (bucket(), tempfile::tempdir().unwrap());
    let far = public(&bucket, cache.path(), None).unwrap();
    let dir = far.dir().to_owned();
    assert_same(&store(&far), all());
    let mut files = bucket.state().files.clone();
    // Another manifest of the same model.
    let manifest = files.get_mut("/models/tales/manifest.json").unwrap();
    manifest.push(b'\n');
    let other = Bucket::start(files).unwrap();
    let second = public(&other, cache.path(), Some(1 << 20)).unwrap();
    assert_same(&store(&second), [expert()]);
    assert!(dir.exists(), "it is in use");
    drop(second);
    drop(far);
    // Threads that fetch hold on to it until they have ended.
    for _ in 0..100 {
        let second = public(&other, cache.path(), Some(1 << 20)).unwrap();
        assert_same(&store(&second), [expert()]);
        if !dir.exists() {
            return;
        }
        Clock::real().sleep(std::time::Duration::from_millis(50));
    }
    panic!("`{}` is still there", dir.display());
}

/// Two models that nothing has fetched yet fill one cache in turns. None is left without room.
#[test]
fn models_in_use_share_the_limit() {
    const LIMIT: u64 = 3 << 20;
    let (bucket, cache) = (bucket(), tempfile::tempdir().unwrap());
    let mut files = bucket.state().files.clone();
    files.get_mut("/models/tales/manifest.json").unwrap().push(b'\n');
    let other = Bucket::start(files).unwrap();
    let both = [&bucket, &other].map(|it| public(it, cache.path(), Some(LIMIT)).unwrap());
    let stores = both.each_ref().map(store);
    for id in all() {
        for (store, other) in [(0, 1), (1, 0)] {
            assert_same(&stores[store], [id]);
            let here = both[store].counts().here + both[other].counts().here;
            assert!(here <= LIMIT * 3 / 2, "{here}");
        }
    }
    let experts = all().into_iter().filter(|id| matches!(id.kind(), PieceKind::Expert(_)));
    for id in experts {
        stores.iter().for_each(|store| assert_same(store, [id]));
    }
    let here = both.each_ref().map(|far| far.counts().here);
    assert!(here.iter().all(|&bytes| bytes > LIMIT / 4), "{here:?}");
    assert!(here.iter().sum::<u64>() <= LIMIT, "{here:?}");
}

#[test]
fn several_share_a_cache_and_fetch_nothing_twice() {
    let (bucket, cache) = (bucket(), tempfile::tempdir().unwrap());
    // The manifest and the small files are here.
    let first = public(&bucket, cache.path(), None).unwrap();
    let before = bucket.state().sent;
    std::thread::scope(|scope| {
        for turn in 0..3 {
            let (bucket, cache) = (&bucket, cache.path());
            scope.spawn(move || {
                let far = public(bucket, cache, None).unwrap();
                let mut pieces = all();
                pieces.rotate_left(turn * 50);
                assert_same(&store(&far), pieces);
            });
        }
    });
    let (sent, whole) = (bucket.state().sent - before, first.counts().whole);
    assert!(sent <= whole + whole / 50, "{sent} of {whole}");
    assert_eq!(first.counts().here, whole);
}

#[test]
fn what_every_answer_needs_comes_first_then_what_was_wished() {
    let (bucket, cache) = (bucket(), tempfile::tempdir().unwrap());
    let address = format!("{}/models/tales", bucket.endpoint());
    let clock = Clock::simulated();
    let origin = origin(&address, &BTreeMap::new(), clock.clone()).unwrap();
    let far = Arc::new(Far::open(origin, &options(cache.path(), None)).unwrap());
    let wished = [PieceId::expert(7, 5), PieceId::expert(2, 1)];
    far.wish(&wished);
    let _reads = store(&far);
    // Virtual time passes with each look, so that the network is idle whenever nothing is fetched.
    for _ in 0..1200 {
        let requests = bucket.requests(".safetensors");
        let paths: std::collections::BTreeSet<_> = requests.iter().map(|it| &it.path).collect();
        if paths.len() == all().len() {
            break;
        }
        clock.sleep(std::time::Duration::from_millis(200));
        Clock::real().sleep(std::time::Duration::from_millis(20));
    }
    let requests = bucket.requests(".safetensors");
    let mut order: Vec<&str> = Vec::new();
    for request in &requests {
        let name = request.path.strip_prefix("/models/tales/").unwrap();
        let name = name.strip_suffix(".safetensors").unwrap();
        if !order.contains(&name) {
            order.push(name);
        }
    }
    assert_eq!(order.len(), all().len(), "everything came");
    let is_later = |name: &&str| name.contains("expert") || *name == "embed";
    let first = order.iter().position(is_later).unwrap();
    assert!(order[first..].iter().all(is_later), "{order:?}");
    let names = wished.map(|id| id.to_string());
    assert_eq!(order[first..first + 2], [names[0].as_str(), names[1].as_str()]);
}
