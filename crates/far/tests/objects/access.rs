//! Signatures, keys and queries.

use std::collections::BTreeMap;
use std::sync::Arc;

use sws_far::Far;
use sws_format::{Clock, PieceId};
use sws_testing::bucket::{Fault, Request};

use crate::helpers::{
    SECRET, assert_same, bucket, bytes, expert, options, origin, store, variables, with_keys,
};

#[test]
fn signed_requests_are_those_that_storage_accepts() {
    let bucket = bucket();
    with_keys(&bucket);
    /// A difference, and the words of a refusal.
    type Case<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], i64, Result<(), &'a [&'a str]>);
    let ours = "s3://models/tales";
    #[rustfmt::skip]
    let cases: [Case; 13] = [
        ("as it should be", ours, &[], 0, Ok(())),
        ("clock ahead", ours, &[], 7200, Ok(())),
        ("clock behind", ours, &[], -86_400, Ok(())),
        ("a session", ours, &[("AWS_SESSION_TOKEN", "token")], 0, Err(&["InvalidToken"])),
        ("another region", ours, &[("AWS_REGION", "eu-west-1")], 0, Ok(())),
        ("another secret", ours, &[("AWS_SECRET_ACCESS_KEY", "other")], 0, Err(&["SignatureDoesNotMatch", "AWS_SECRET_ACCESS_KEY"])),
        ("another key", ours, &[("AWS_ACCESS_KEY_ID", "other")], 0, Err(&["InvalidAccessKeyId", "check AWS_ACCESS_KEY_ID"])),
        ("no key", ours, &[("AWS_ACCESS_KEY_ID", ""), ("AWS_SECRET_ACCESS_KEY", "")], 0, Err(&["set AWS_ACCESS_KEY_ID"])),
        ("another bucket", "s3://nobody/tales", &[], 0, Err(&["no bucket `nobody`"])),
        ("another path", "s3://models/nobody", &[], 0, Err(&["s3://models/nobody", "no manifest.json"])),
        ("the bucket alone", "s3://models", &[], 0, Err(&["no manifest.json"])),
        ("half a key", ours, &[("AWS_SECRET_ACCESS_KEY", "")], 0, Err(&["without AWS_SECRET_ACCESS_KEY"])),
        ("an open network", ours, &[("AWS_ENDPOINT_URL", "http://8.8.8.8")], 0, Err(&["not encrypted"])),
    ];
    for (what, address, more, ahead, expected) in cases {
        let cache = tempfile::tempdir().unwrap();
        bucket.state().ahead = ahead;
        let opened = origin(address, &variables(&bucket, more), Clock::real())
            .and_then(|origin| Far::open(origin, &options(cache.path(), None)));
        match (opened, expected) {
            (Ok(far), Ok(())) => assert_same(&store(&Arc::new(far)), [expert()]),
            (Err(error), Err(words)) => {
                let text = error.to_string();
                for word in words {
                    assert!(text.contains(word), "{what}: no {word:?} in {text:?}");
                }
                assert!(!text.contains(SECRET) && !text.contains('\n'), "{text}");
            }
            (found, _) => panic!("{what}: {found:?}"),
        }
    }
    let unsigned = |request: &&Request| !request.headers.contains_key("authorization");
    assert_eq!(bucket.state().requests.iter().filter(unsigned).count(), 1, "the one without a key");
}

#[test]
fn a_bucket_that_is_elsewhere_is_named_with_the_remedy() {
    let (bucket, cache) = (bucket(), tempfile::tempdir().unwrap());
    let open = |region: &str| {
        let variables = variables(&bucket, &[("AWS_REGION", region)]);
        let origin = origin("s3://models/tales", &variables, Clock::real()).unwrap();
        Far::open(origin, &options(cache.path(), None)).map(drop).map_err(|e| e.to_string())
    };
    for status in [301, 307] {
        bucket.fault("manifest.json", Fault::Status(status, "TemporaryRedirect", ""), 1);
        let error = open("us-east-1").unwrap_err();
        for words in [&status.to_string(), "s3://models/tales/manifest.json", "set AWS_REGION"] {
            assert!(error.contains(words), "no {words:?} in {error:?}");
        }
        assert!(!error.contains("later"), "{error}");
    }
    assert_eq!(open("us-east-1"), Ok(()));
}

/// A server in a private network leads nobody out of it without encryption.
#[test]
fn redirects_are_followed_within_the_network() {
    let (bucket, other) = (bucket(), crate::helpers::bucket());
    let elsewhere = |place: String| {
        let cache = tempfile::tempdir().unwrap();
        bucket.fault("manifest.json", Fault::Elsewhere(place), 1);
        let address = format!("{}/models/tales", bucket.endpoint());
        let origin = origin(&address, &BTreeMap::new(), Clock::simulated()).unwrap();
        Far::open(origin, &options(cache.path(), None)).map(drop).map_err(|e| e.to_string())
    };
    assert_eq!(elsewhere(format!("{}/models/tales/manifest.json", other.endpoint())), Ok(()));
    assert_eq!(other.state().requests.len(), 1);
    let circle = |n| {
        let here = format!("{}/models/tales/manifest.json", bucket.endpoint());
        bucket.fault("manifest.json", Fault::Elsewhere(here.clone()), n);
        elsewhere(here)
    };
    for (found, word) in [
        (
            elsewhere("http://8.8.8.8/manifest.json".to_owned()),
            "not encrypted, and not in a private",
        ),
        (elsewhere("ftp://host/manifest.json".to_owned()), "redirects"),
        (circle(99), "redirects in a circle"),
    ] {
        let error = found.unwrap_err();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn temporary_keys_are_signed_and_expire() {
    let (bucket, cache) = (bucket(), tempfile::tempdir().unwrap());
    with_keys(&bucket);
    bucket.state().keys.as_mut().unwrap().token = Some("token/+=".to_owned());
    let more = [("AWS_SESSION_TOKEN", "token/+=")];
    let origin = origin("s3://models/tales", &variables(&bucket, &more), Clock::real()).unwrap();
    let store = store(&Arc::new(Far::open(origin, &options(cache.path(), None)).unwrap()));
    assert_same(&store, [expert()]);
    bucket.fault(".safetensors", Fault::Status(400, "ExpiredToken", "it has expired"), 99);
    let error = bytes(&store, PieceId::expert(0, 9)).unwrap_err().to_string();
    assert!(error.contains("ExpiredToken") && error.contains("get fresh ones"), "{error}");
}

#[test]
fn a_query_goes_with_every_request_and_is_not_shown() {
    let (bucket, cache) = (bucket(), tempfile::tempdir().unwrap());
    bucket.state().query = Some("sig=secret&x=1".to_owned());
    let open = |query: &str| {
        let address = format!("{}/models/tales{query}", bucket.endpoint());
        let origin = origin(&address, &BTreeMap::new(), Clock::simulated())?;
        Far::open(origin, &options(cache.path(), None)).map(Arc::new)
    };
    let store = store(&open("?sig=secret&x=1").unwrap());
    assert_same(&store, [expert()]);
    bucket.state().query = Some("sig=another".to_owned());
    for error in [
        bytes(&store, PieceId::expert(0, 9)).unwrap_err().to_string(),
        open("?sig=secret").unwrap_err().to_string(),
    ] {
        assert!(error.contains("expired") && error.contains("a fresh one"), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }
}
