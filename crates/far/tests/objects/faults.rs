//! Failures of the storage, of the network and of the drive.

use std::collections::BTreeMap;
use std::sync::Arc;

use sws_far::Far;
use sws_store::{Clock, PieceId};
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
