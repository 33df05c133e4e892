//! Uploads.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use sws_far::{Far, FarError, FarOrigin, Push, PushStep, Pushed, push};
use sws_format::{Clock, LEARNED_FILE, Manifest};
use sws_testing::bucket::{Bucket, Fault};
use sws_testing::tales;

use crate::helpers::{EXPERT, all, assert_same, options, origin, store, variables, with_keys};

/// Pushes the shards of the tales.
fn put(to: &FarOrigin, again: bool) -> Result<Pushed, FarError> {
    push(&Push { dir: &tales(), copies: &[], learned: None, to, again }, &|_| ())
}

#[test]
fn damaged_shards_are_not_pushed() {
    let storage = Bucket::start(BTreeMap::from([("/models/x".to_owned(), Vec::new())])).unwrap();
    with_keys(&storage);
    let to = origin("s3://models/new", &variables(&storage, &[]), Clock::real()).unwrap();
    let copy = tempfile::tempdir().unwrap();
    let dir = copy.path().join("tales");
    copied(&dir);
    let path = dir.join(EXPERT);
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let none = copy.path().join("none");
    let put = |copies: &[PathBuf]| {
        push(&Push { dir: &dir, copies, learned: None, to: &to, again: false }, &|_| ())
    };
    for copies in [&[][..], &[none.clone(), dir.clone()]] {
        let error = put(copies).unwrap_err().to_string();
        assert!(error.contains(EXPERT) && error.contains("has damaged padding"), "{error}");
    }
    std::fs::remove_file(dir.join("config.json")).unwrap();
    let error = put(&[]).unwrap_err().to_string();
    assert!(error.contains("config.json` is missing; copy it again"), "{error}");
    assert!(storage.state().requests.iter().all(|request| request.method != "PUT"));
    // Sound files of a copy are pushed in their place.
    let pushed = put(&[none, tales()]).unwrap();
    let mut from_copies = pushed.from_copies;
    from_copies.sort();
    assert_eq!(from_copies, ["config.json", EXPERT].map(|name| tales().join(name)));
    let state = storage.state();
    for name in ["config.json", EXPERT] {
        let there = &state.files[&format!("/models/new/{name}")];
        assert!(*there == std::fs::read(tales().join(name)).unwrap(), "{name}");
    }
}

/// A copy of the tales.
fn copied(to: &Path) {
    let manifest = Manifest::load(tales()).unwrap();
    let files = manifest.files.iter().map(|file| &file.path);
    let copies = manifest.copies.iter().map(|copy| &copy.path);
    for name in files.chain(copies).map(String::as_str).chain(["manifest.json"]) {
        std::fs::create_dir_all(to.join(name).parent().unwrap()).unwrap();
        std::fs::copy(tales().join(name), to.join(name)).unwrap();
    }
}

/// Makes a folder one that the system refuses to enter, also for root.
fn make_unreadable(folder: &Path) {
    std::fs::remove_dir_all(folder).unwrap();
    std::os::unix::fs::symlink(folder, folder).unwrap();
}

#[test]
fn files_that_cannot_be_opened_are_served_from_copies() {
    let own = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    copied(own.path());
    copied(other.path());
    let embed = "embed.safetensors";
    std::fs::remove_file(own.path().join(embed)).unwrap();
    let folder = Path::new(EXPERT).parent().unwrap();
    make_unreadable(&own.path().join(folder));
    make_unreadable(&other.path().join(folder));
    let storage = Bucket::start(BTreeMap::new()).unwrap();
    let address = format!("{}/tales", storage.endpoint());
    let to = origin(&address, &BTreeMap::new(), Clock::simulated()).unwrap();
    let told = Mutex::new(Vec::new());
    let put = |copies: &[PathBuf]| {
        let what = Push { dir: own.path(), copies, learned: None, to: &to, again: false };
        push(&what, &|step| {
            if let PushStep::Unserved { path, what, more } = step {
                told.lock().unwrap().push((path.to_owned(), what.to_owned(), more));
            }
        })
    };
    let copy = other.path().to_owned();
    let error = put(std::slice::from_ref(&copy)).unwrap_err().to_string();
    assert!(error.contains(own.path().join(folder).to_str().unwrap()), "{error}");
    assert!(error.contains("cannot be read (") && error.contains("--also"), "{error}");
    assert!(storage.state().requests.iter().all(|request| request.method != "PUT"));
    let pushed = put(&[copy.clone(), tales()]).unwrap();
    let (of_tales, of_copy): (Vec<PathBuf>, Vec<PathBuf>) =
        pushed.from_copies.into_iter().partition(|path| path.starts_with(tales()));
    assert_eq!(of_copy, [copy.join(embed)]);
    let told = told.into_inner().unwrap();
    assert_eq!(told.len(), 2, "by each command");
    for (path, what, more) in told {
        assert!(path.starts_with(copy.join(folder)) && what.contains("cannot be read ("), "{what}");
        assert_eq!(more, of_tales.len() - 1);
    }
    for (path, bytes) in &storage.state().files {
        let name = path.strip_prefix("/tales/").unwrap();
        assert!(*bytes == std::fs::read(tales().join(name)).unwrap(), "{name}");
    }
}

#[test]
fn bytes_that_change_after_they_were_verified_are_not_pushed() {
    for name in [EXPERT, "config.json"] {
        for len in [None, Some(5)] {
            let own = tempfile::tempdir().unwrap();
            copied(own.path());
            let path = own.path().join(name);
            let storage = Bucket::start(BTreeMap::new()).unwrap();
            let address = format!("{}/tales", storage.endpoint());
            let to = origin(&address, &BTreeMap::new(), Clock::simulated()).unwrap();
            let change = |step: PushStep<'_>| {
                let PushStep::Verified(progress) = step else { return };
                if progress.done == progress.total {
                    let mut bytes = std::fs::read(&path).unwrap();
                    *bytes.first_mut().unwrap() ^= 1;
                    bytes.truncate(len.unwrap_or(bytes.len()));
                    std::fs::write(&path, bytes).unwrap();
                }
            };
            let what = Push { dir: own.path(), copies: &[], learned: None, to: &to, again: false };
            let error = push(&what, &change).unwrap_err();
            assert!(matches!(error, FarError::Changed { .. }), "{name}, {len:?}: {error}");
            assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
            assert!(!storage.state().files.contains_key("/tales/manifest.json"));
        }
    }
}

#[test]
fn pushed_shards_are_whole_or_not_seen() {
    // A bucket that is there.
    let other = BTreeMap::from([("/models/other".to_owned(), Vec::new())]);
    let storage = Bucket::start(other).unwrap();
    with_keys(&storage);
    let to = || {
        let variables = variables(&storage, &[]);
        origin("s3://models/new/tales", &variables, Clock::real()).unwrap()
    };
    // One that stops in the middle leaves no model.
    storage.fault(EXPERT, Fault::Status(403, "AccessDenied", ""), 1);
    let error = put(&to(), false).unwrap_err().to_string();
    assert!(error.contains(EXPERT) && error.contains("403"), "{error}");
    assert!(!storage.state().files.contains_key("/models/new/tales/manifest.json"));
    let cache = tempfile::tempdir().unwrap();
    let error = Far::open(to(), &options(cache.path(), None)).unwrap_err().to_string();
    assert!(error.contains("no manifest.json"), "{error}");

    storage.fault(EXPERT, Fault::Status(503, "SlowDown", ""), 1);
    let moved = AtomicU64::new(0);
    let count = |step: PushStep<'_>| {
        if let PushStep::Moved(bytes) = step {
            moved.fetch_add(bytes, Ordering::Relaxed);
        }
    };
    let pushed =
        push(&Push { dir: &tales(), copies: &[], learned: None, to: &to(), again: false }, &count)
            .unwrap();
    assert!(!pushed.there && pushed.bytes == moved.into_inner());
    let requests = storage.state().requests.clone();
    let last = requests.iter().rfind(|request| request.method == "PUT").unwrap();
    assert!(last.path.ends_with("manifest.json"));
    storage.state().files.remove("/models/other");
    for (path, bytes) in &storage.state().files {
        let name = path.strip_prefix("/models/new/tales/").unwrap();
        assert!(*bytes == std::fs::read(tales().join(name)).unwrap(), "{name}");
    }
    assert_eq!(storage.state().files.len(), pushed.files);
    let far = Arc::new(Far::open(to(), &options(cache.path(), None)).unwrap());
    assert_same(&store(&far), all());

    let before = storage.state().requests.len();
    assert!(put(&to(), false).unwrap().there);
    assert_eq!(storage.state().requests.len(), before + 1);
    // Files that something has happened to come again.
    let (lost, cut) = (format!("/models/new/tales/{EXPERT}"), "/models/new/tales/config.json");
    storage.state().files.remove(&lost);
    storage.state().files.get_mut(cut).unwrap().clear();
    assert!(!put(&to(), true).unwrap().there);
    for name in [lost.as_str(), cut] {
        let bytes = std::fs::read(tales().join(&name["/models/new/tales/".len()..])).unwrap();
        assert!(storage.state().files[name] == bytes, "{name}");
    }
    storage.state().files.get_mut("/models/new/tales/manifest.json").unwrap().push(b' ');
    let error = put(&to(), false).unwrap_err().to_string();
    assert!(error.contains("other shards already"), "{error}");
}

#[test]
fn a_server_that_keeps_other_bytes_is_not_believed() {
    let names = [EXPERT, "/config.json", "embed.safetensors", "manifest.json"];
    for (fault, name) in
        names.iter().flat_map(|name| [(Fault::KeepsOther, name), (Fault::KeepsLess, name)])
    {
        for (times, expected) in [(1, true), (2, false)] {
            let storage = Bucket::start(BTreeMap::new()).unwrap();
            let address = format!("{}/tales", storage.endpoint());
            let to = origin(&address, &BTreeMap::new(), Clock::simulated()).unwrap();
            storage.fault(name, fault.clone(), times);
            match put(&to, false) {
                Ok(_) => assert!(expected, "{fault:?} of {name}"),
                Err(error) => {
                    let text = error.to_string();
                    assert!(
                        !expected && text.contains(name) && text.contains("other bytes"),
                        "{text}"
                    );
                }
            }
            let is_whole = storage.state().files.contains_key("/tales/manifest.json");
            assert_eq!(is_whole, expected || *name == "manifest.json");
        }
    }
    // A server without ranges tells its length alone.
    let storage = Bucket::start(BTreeMap::new()).unwrap();
    let address = format!("{}/tales", storage.endpoint());
    let to = origin(&address, &BTreeMap::new(), Clock::simulated()).unwrap();
    storage.fault(EXPERT, Fault::IgnoreRanges, 1);
    put(&to, false).unwrap();
}

#[test]
fn servers_that_take_no_files_are_named() {
    let storage = Bucket::start(BTreeMap::new()).unwrap();
    let address = format!("{}/tales", storage.endpoint());
    let to = || origin(&address, &BTreeMap::new(), Clock::simulated()).unwrap();
    storage.fault("config.json", Fault::Status(405, "", ""), 1);
    let error = put(&to(), false).unwrap_err().to_string();
    assert!(error.contains("config.json") && error.contains("PUT"), "{error}");
    put(&to(), false).unwrap();
    let nowhere = Path::new("/nowhere");
    let what = Push { dir: nowhere, copies: &[], learned: None, to: &to(), again: false };
    let error = push(&what, &|_| ()).unwrap_err().to_string();
    assert!(error.contains("/nowhere"), "{error}");
}

#[test]
fn learned_state_comes_with_the_model() {
    let (storage, dir) = (Bucket::start(BTreeMap::new()).unwrap(), tempfile::tempdir().unwrap());
    let address = format!("{}/tales", storage.endpoint());
    let to = || origin(&address, &BTreeMap::new(), Clock::simulated()).unwrap();
    let learned = dir.path().join("learned");
    let put = |learned: &Path| {
        let dir = &tales();
        let what = Push { dir, copies: &[], learned: Some(learned), to: &to(), again: false };
        push(&what, &|_| ())
    };
    let error = put(&learned).unwrap_err().to_string();
    assert!(error.contains("learned"), "{error}");
    std::fs::write(&learned, b"one").unwrap();
    assert!(!put(&learned).unwrap().there);
    std::fs::write(&learned, b"two").unwrap();
    assert!(put(&learned).unwrap().there, "only what was learned is put there again");
    let cache = tempfile::tempdir().unwrap();
    let far = Far::open(to(), &options(cache.path(), None)).unwrap();
    assert_eq!(std::fs::read(far.dir().join(LEARNED_FILE)).unwrap(), b"two");
}
