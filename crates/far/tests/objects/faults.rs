//! Failures of the storage, of the network and of the drive.

use std::collections::BTreeMap;
use std::sync::Arc;

use sws_far::{Far, FarOptions};
use sws_format::{Clock, PieceId};
use sws_testing::bucket::{Bucket, Fault};

use crate::helpers::{
    EXPERT, assert_same, bucket, bytes, expert, local, options, origin, public, store,
};

#[test]
fn faults_end_in_the_right_bytes_or_in_a_sentence() {
    let status = |status, code| Fault::Status(status, code, "");
    /// A fault and how often it acts, and the words of a refusal.
    type Case<'a> = (Fault, u32, Result<(), &'a [&'a str]>);
    #[rustfmt::skip]
    let cases: [Case; 17] = [
        (Fault::Cut(1000), 1, Ok(())),
        (Fault::Cut(80_000), 4, Ok(())),
        (Fault::Cut(0), 99, Err(&["cannot be reached", "check the network"])),
        (Fault::WrongBytes, 1, Ok(())),
        (Fault::WrongBytes, 2, Err(&["checksum", "twice", "push"])),
        (Fault::IgnoreRanges, 1, Ok(())),
        (Fault::OtherRange, 1, Err(&["another range"])),
        (Fault::Truncated, 1, Err(&["90111 bytes instead of 90112"])),
        (status(500, "InternalError"), 1, Ok(())),
        (status(503, "SlowDown"), 4, Ok(())),
        (status(503, "SlowDown"), 5, Err(&["503", "SlowDown", "try again later"])),
        (status(502, ""), 2, Ok(())),
        (status(404, "NoSuchKey"), 1, Err(&["is not there", "push"])),
        (status(403, "AccessDenied"), 1, Err(&["refused", "403", "AccessDenied", "public"])),
        (Fault::Status(403, "AccessDenied", "Request has expired"), 1, Err(&["expired", "fresh"])),
        (status(418, ""), 1, Err(&["418"])),
        (status(416, ""), 1, Err(&["0 bytes instead of 90112"])),
    ];
    let original = bytes(&local(), expert()).unwrap();
    for (fault, times, expected) in cases {
        let (bucket, cache) = (bucket(), tempfile::tempdir().unwrap());
        bucket.fault(EXPERT, fault.clone(), times);
        let store = store(&public(&bucket, cache.path(), None).unwrap());
        match (bytes(&store, expert()), expected) {
            (Ok(found), Ok(())) => assert!(found == original, "{fault:?}"),
            (Err(error), Err(words)) => {
                let text = error.to_string();
                for word in words.iter().chain(&[EXPERT]) {
                    assert!(text.contains(word), "no {word:?} in {text:?} after {fault:?}");
                }
                assert!(!text.contains('\n'), "{text}");
                // The network's remedy, and not the disk's as well.
                for other in ["check the disk", "sws verify", "then run"] {
                    assert!(!text.contains(other), "{text}");
                }
                // The store goes on, and what was lost can come later.
                assert_same(&store, [PieceId::expert(0, 4)]);
                bucket.state().faults.clear();
                assert_same(&store, [expert()]);
            }
            (found, _) => panic!("{:?} after {fault:?} {times} times", found.map(|it| it.len())),
        }
    }
}

#[test]
fn silent_connections_are_cut() {
    let (bucket, cache) = (bucket(), tempfile::tempdir().unwrap());
    let address = format!("{}/models/tales", bucket.endpoint());
    let opened = |seconds: &str| {
        let variables = BTreeMap::from([("SWS_NETWORK_TIMEOUT".to_owned(), seconds.into())]);
        let origin = origin(&address, &variables, Clock::simulated())?;
        Far::open(origin, &options(cache.path(), None))
    };
    bucket.fault(EXPERT, Fault::Silent(30_000), 1);
    assert_same(&store(&Arc::new(opened("1").unwrap())), [expert()]);
    assert_eq!(bucket.requests(EXPERT).len(), 2);
    for wrong in ["-1", "soon", "100000"] {
        let error = opened(wrong).unwrap_err().to_string();
        assert!(error.contains("SWS_NETWORK_TIMEOUT") && !error.contains(wrong), "{error}");
    }
}

#[test]
fn storage_that_drips_is_cut() {
    let (bucket, cache) = (bucket(), tempfile::tempdir().unwrap());
    let address = format!("{}/models/tales", bucket.endpoint());
    let variables = BTreeMap::from([("SWS_NETWORK_TIMEOUT".to_owned(), "1".into())]);
    let origin = origin(&address, &variables, Clock::real()).unwrap();
    for file in ["manifest.json", "/config.json", EXPERT] {
        bucket.fault(file, Fault::Drip(100), 1);
    }
    let far = Far::open(origin, &options(cache.path(), None)).unwrap();
    assert_same(&store(&Arc::new(far)), [expert()]);
    // 787 bytes would take more than a minute.
    for file in ["manifest.json", "/config.json", EXPERT] {
        assert_eq!(bucket.requests(file).len(), 2, "{file}");
    }
}

/// The cache is the user's own, and others may write to it by mistake.
#[test]
fn other_things_in_the_place_of_a_cached_shard_go() {
    let (bucket, cache) = (bucket(), tempfile::tempdir().unwrap());
    let foreign = cache.path().join("foreign");
    std::fs::write(&foreign, [7; 100_000]).unwrap();
    let path = public(&bucket, cache.path(), None).unwrap().dir().join(EXPERT);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let pipe = || {
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o600));
        rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, 0).unwrap();
    };
    let link = || std::os::unix::fs::symlink(&foreign, &path).unwrap();
    let things: [(&str, &dyn Fn()); 4] = [
        ("a pipe", &pipe),
        ("a socket", &|| drop(std::os::unix::net::UnixListener::bind(&path).unwrap())),
        ("a link", &link),
        ("a directory", &|| std::fs::create_dir(&path).unwrap()),
    ];
    for (what, put) in things {
        // Where it was not here, and where it was.
        for turn in 0..2 {
            let _ = std::fs::remove_file(&path);
            put();
            let far = public(&bucket, cache.path(), None).unwrap();
            let before = bucket.requests(EXPERT).len();
            assert_same(&store(&far), [expert(), expert()]);
            assert!(bucket.requests(EXPERT).len() > before, "{what}");
            assert_same(&crate::helpers::store(&far), [expert()]);
            assert!(path.symlink_metadata().unwrap().is_file(), "{what}, {turn}");
        }
    }
    // What goes to make room is no foreign file.
    std::fs::remove_file(&path).unwrap();
    link();
    let far = public(&bucket, cache.path(), Some(1 << 20)).unwrap();
    assert_same(&store(&far), crate::helpers::all());
    assert_eq!(std::fs::read(&foreign).unwrap(), [7; 100_000]);
    drop(far);

    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    std::fs::write(path.join("mine"), "precious").unwrap();
    let far = public(&bucket, cache.path(), None).unwrap();
    let error = bytes(&store(&far), expert()).unwrap_err().to_string();
    assert!(error.contains(EXPERT) && error.contains("a directory"), "{error}");
    assert!(error.ends_with("remove it"), "{error}");
    std::fs::remove_dir_all(&path).unwrap();
    assert_same(&store(&far), [expert()]);
}

#[test]
fn a_manifest_is_read_up_to_a_limit() {
    let (bucket, cache) = (bucket(), tempfile::tempdir().unwrap());
    let open = |longest| {
        let address = format!("{}/models/tales", bucket.endpoint());
        let origin = origin(&address, &BTreeMap::new(), Clock::simulated()).unwrap();
        let options = FarOptions { manifest: Some(longest), ..options(cache.path(), None) };
        Far::open(origin, &options).map(drop).map_err(|error| error.to_string())
    };
    let len = bucket.state().files["/models/tales/manifest.json"].len() as u64;
    for _ in 0..2 {
        let error = open(len - 1).unwrap_err();
        assert!(error.contains("/tales/manifest.json") && error.contains("--ram"), "{error}");
        // Also where it is here.
        open(len).unwrap();
    }
    let longer = vec![b' '; 64 << 20];
    bucket.state().files.insert("/models/tales/manifest.json".to_owned(), longer);
    let before = bucket.state().sent;
    open(1 << 20).unwrap_err();
    let sent = bucket.state().sent - before;
    assert!(sent < 32 << 20, "{sent} bytes of a longer one");
}

#[test]
fn bytes_that_rot_in_the_cache_are_fetched_again() {
    use std::os::unix::fs::FileExt;
    let (bucket, cache) = (bucket(), tempfile::tempdir().unwrap());
    let far = public(&bucket, cache.path(), None).unwrap();
    let store = store(&far);
    assert_same(&store, [expert()]);
    let path = far.dir().join(EXPERT);
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[1; 100], 30_000).unwrap();
    file.sync_all().unwrap();
    let before = bucket.requests(EXPERT).len();
    assert_same(&store, [expert(), expert()]);
    assert!(bucket.requests(EXPERT).len() > before);
    let (after, stats) = (bucket.requests(EXPERT).len(), store.stats());
    assert_eq!((stats.mismatches, stats.corrected), (1, 1));
    assert_same(&store, [expert()]);
    assert_eq!(bucket.requests(EXPERT).len(), after, "it is here again");
    // A file that somebody removes.
    std::fs::remove_file(&path).unwrap();
    let again = public(&bucket, cache.path(), None).unwrap();
    let store = crate::helpers::store(&again);
    assert_same(&store, [expert(), expert()]);
    let fetched = bucket.requests(EXPERT).len();
    assert!(fetched > after);
    assert_same(&store, [expert()]);
    assert_eq!(bucket.requests(EXPERT).len(), fetched);
}

#[test]
fn manifests_and_small_files_are_checked() {
    let far = |change: &dyn Fn(&Bucket)| {
        let (bucket, cache) = (bucket(), tempfile::tempdir().unwrap());
        change(&bucket);
        public(&bucket, cache.path(), None).map(drop)
    };
    let replace = |name: &'static str, with: &'static [u8]| {
        move |bucket: &Bucket| {
            bucket.state().files.insert(format!("/models/tales/{name}"), with.to_vec());
        }
    };
    let refused = |change: &dyn Fn(&Bucket), words: &[&str]| {
        let error = far(change).unwrap_err().to_string();
        for word in words {
            assert!(error.contains(word), "no {word:?} in {error:?}");
        }
        assert!(!error.contains('\n'), "{error}");
    };
    let damaged =
        |times| move |bucket: &Bucket| bucket.fault("manifest.json", Fault::WrongBytes, times);
    far(&damaged(1)).unwrap();
    refused(&damaged(2), &["manifest.json", "cannot be used"]);
    refused(&replace("manifest.json", b"{"), &["manifest.json", "cannot be used", "push"]);
    refused(
        &replace("manifest.json", b"{\"blake3\":\"00\",\"body\":{}}"),
        &["manifest.json", "checksum"],
    );
    refused(&replace("config.json", b"{}"), &["config.json", "2 bytes instead of 787"]);
    refused(&replace("config.json", &[b' '; 787]), &["config.json", "checksum"]);
    refused(&replace("config.json", &[b' '; 788]), &["config.json", "more than 787 bytes"]);
    let drop_one = |bucket: &Bucket| {
        bucket.state().files.remove("/models/tales/tokenizer.json");
    };
    refused(&drop_one, &["tokenizer.json", "is not there"]);
    refused(&|bucket| bucket.state().files.clear(), &["no manifest.json"]);
    far(&|bucket| bucket.fault("config.json", Fault::WrongBytes, 1)).unwrap();
    far(&|bucket| bucket.fault("manifest.json", Fault::Cut(1000), 2)).unwrap();
}

#[test]
fn a_model_that_was_here_opens_while_its_storage_is_down() {
    let (bucket, cache) = (bucket(), tempfile::tempdir().unwrap());
    let far = public(&bucket, cache.path(), None).unwrap();
    assert_same(&store(&far), [expert()]);
    bucket.fault("", Fault::Status(503, "SlowDown", ""), u32::MAX);
    let again = public(&bucket, cache.path(), None).unwrap();
    let store = store(&again);
    assert_same(&store, [expert()]);
    let error = bytes(&store, PieceId::expert(0, 9)).unwrap_err().to_string();
    assert!(error.contains("503") && error.contains("expert_9"), "{error}");
}
