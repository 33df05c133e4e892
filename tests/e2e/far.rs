//! Models in object storage.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sws::{Model, Options, Streaming};
use sws_format::{Clock, Manifest, SMALL_FILES, ShardReader};
use sws_store::ReaderKind;
use sws_testing::bucket::{Bucket, Fault, Keys};
use sws_testing::tales;

use crate::sws::{Outcome, command, sws};

const RAM: &str = "64MiB";
const SECRET: &str = "wJalrXUtnFEMI";

type Args<'a> = Vec<&'a dyn AsRef<OsStr>>;

fn bucket() -> Bucket {
    Bucket::of_dir("/models/tales", &tales()).unwrap()
}

/// A command of a user with a home of their own, and the keys of a bucket.
fn at(home: &Path, bucket: &Bucket, args: &[&dyn AsRef<OsStr>]) -> Command {
    let mut command = command(args);
    command.env("XDG_CACHE_HOME", home.join("cache")).env("HOME", home);
    for name in ["AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION"] {
        command.env_remove(name);
    }
    for name in ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"] {
        command.env_remove(name);
    }
    command.env("AWS_ENDPOINT_URL", bucket.endpoint());
    command.env("AWS_ACCESS_KEY_ID", "AKID").env("AWS_SECRET_ACCESS_KEY", SECRET);
    command
}

fn text<'a>(model: &'a dyn AsRef<OsStr>, more: &[&'a dyn AsRef<OsStr>]) -> Args<'a> {
    let mut args: Args<'a> = vec![&"run", model, &"--prompt", &"The wolf", &"--seed", &"7"];
    args.extend([&"--ram" as &dyn AsRef<OsStr>, &RAM, &"--no-speculation"]);
    args.extend(more.iter().copied());
    args
}

fn run(home: &Path, bucket: &Bucket, args: &[&dyn AsRef<OsStr>]) -> Outcome {
    Outcome::of(at(home, bucket, args).output().unwrap())
}

fn web(bucket: &Bucket) -> String {
    format!("{}/models/tales", bucket.endpoint())
}

#[test]
fn a_text_is_that_of_local_shards_bit_for_bit() {
    let home = tempfile::tempdir().unwrap();
    let bucket = bucket();
    let local = run(home.path(), &bucket, &text(&tales(), &[&"-n", &"40"])).succeeded();
    for (address, reader) in
        [(web(&bucket), "direct"), (web(&bucket), "uring"), ("s3://models/tales".into(), "mmap")]
    {
        let certificate = home.path().join("certificate");
        let _ = std::fs::remove_file(&certificate);
        let more: Args = vec![&"-n", &"40", &"--reader", &reader, &"--certify", &certificate];
        let far = run(home.path(), &bucket, &text(&address, &more)).succeeded();
        assert_eq!(far.stdout, local.stdout, "{address} by {reader}");
        // Every logit, computed again from the shards on this machine.
        sws(&[&"certify", &certificate, &tales()]).succeeded();
    }
    // The least disk, where pieces come again and again.
    let disk: Args = vec![&"-n", &"40", &"--cache-disk", &"1MiB"];
    let small = run(&home.path().join("other"), &bucket, &text(&web(&bucket), &disk)).succeeded();
    assert_eq!(small.stdout, local.stdout);
}

/// Notes the ranges that are read.
struct Noting {
    inner: Arc<dyn ShardReader>,
    read: Arc<Mutex<Vec<(u32, u64, u64)>>>,
}

impl ShardReader for Noting {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let got = self.inner.read_at(file, offset, into)?;
        self.read.lock().unwrap().push((file, offset, offset + got as u64));
        Ok(got)
    }
}

/// Bytes of shards that the first token needs, each counted once.
fn needed() -> u64 {
    let read = Arc::<Mutex<Vec<_>>>::default();
    let model = Model::open(tales()).unwrap();
    let inner = ReaderKind::Direct.open(model.manifest(), model.dir(), 4).unwrap();
    let reader = Arc::new(Noting { inner, read: Arc::clone(&read) });
    let streaming = Streaming { speculation: false, warm_start: false, ..Streaming::default() };
    let options = Options { streaming, ..Options::default() };
    let mut running = model.with(options).ram("min").reader(reader).load().unwrap();
    running.generate("The wolf").unwrap().next().unwrap().unwrap();
    let mut read = std::mem::take(&mut *read.lock().unwrap());
    read.sort_unstable();
    let mut sum = 0;
    let mut end = (0, 0);
    for (file, start, stop) in read {
        let from = if end.0 == file { start.max(end.1) } else { start };
        sum += stop.saturating_sub(from);
        end = if end.0 == file { (file, stop.max(end.1)) } else { (file, stop) };
    }
    sum
}

#[test]
fn a_cold_start_fetches_what_the_first_token_needs() {
    let home = tempfile::tempdir().unwrap();
    let bucket = bucket();
    let rate = 2 << 20;
    bucket.state().rate = Some(rate);
    let clock = Clock::real();
    let begun = clock.now();
    run(home.path(), &bucket, &text(&web(&bucket), &[&"-n", &"1", &"--no-warm-start"])).succeeded();
    let took = clock.now() - begun;
    let small = Manifest::load(tales()).unwrap().copies;
    let small = small.iter().filter(|copy| SMALL_FILES.contains(&copy.path.as_str()));
    let small: u64 = small.map(|copy| copy.len).sum();
    let manifest = std::fs::metadata(tales().join("manifest.json")).unwrap().len();
    let needed = needed() + small + manifest;
    let sent = bucket.state().sent;
    let all: u64 = bucket.state().files.values().map(|bytes| bytes.len() as u64).sum();
    let least = Duration::from_secs_f64(needed as f64 / rate as f64);
    println!(
        "{sent} bytes came and {needed} were needed of {all}: {took:?}, of {least:?} at least"
    );
    assert!(sent * 10 <= needed * 12, "{sent} bytes for {needed}");
    assert!(needed * 2 < all, "the first token needs {needed} of {all}");
}

#[test]
fn two_processes_share_what_they_fetch() {
    let alone = tempfile::tempdir().unwrap();
    let home = tempfile::tempdir().unwrap();
    let bucket = bucket();
    let address = web(&bucket);
    let args = text(&address, &[&"-n", &"20", &"--no-warm-start"]);
    let expected = run(alone.path(), &bucket, &args).succeeded().stdout;
    let of_one = std::mem::take(&mut bucket.state().sent);
    bucket.state().rate = Some(16 << 20);
    let both: Vec<_> = (0..2).map(|_| at(home.path(), &bucket, &args).spawn().unwrap()).collect();
    for child in both {
        let outcome = Outcome::of(child.wait_with_output().unwrap()).succeeded();
        assert_eq!(outcome.stdout, expected);
    }
    let of_both = bucket.state().sent;
    // Each reads the manifest and the small files.
    let beside = 700 << 10;
    assert!(of_both <= of_one + of_one / 10 + beside, "{of_both} of two, {of_one} of one");
}

#[test]
fn a_killed_process_leaves_whole_pieces() {
    let home = tempfile::tempdir().unwrap();
    let bucket = bucket();
    let address = web(&bucket);
    let args = text(&address, &[&"-n", &"20", &"--no-warm-start"]);
    let expected = run(&home.path().join("whole"), &bucket, &args).succeeded().stdout;
    let whole = std::mem::take(&mut bucket.state().sent);
    bucket.state().rate = Some(2 << 20);
    for more in [1 << 20, 3 << 20] {
        let mut child = at(home.path(), &bucket, &args).spawn().unwrap();
        for _ in 0..2000 {
            if bucket.state().sent > more {
                break;
            }
            Clock::real().sleep(Duration::from_millis(5));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let before = std::mem::take(&mut bucket.state().sent);
    assert!(before < whole, "it was killed in the middle");
    bucket.state().rate = None;
    let after = run(home.path(), &bucket, &args).succeeded();
    assert_eq!(after.stdout, expected);
    assert!(bucket.state().sent < whole, "what was here did not come again");
}

#[test]
fn addresses_that_cannot_be_used_are_one_sentence() {
    let home = tempfile::tempdir().unwrap();
    let bucket = bucket();
    let nowhere = "http://127.0.0.1:9/tales";
    let nothing = format!("{}/models/nothing?sig=hidden", bucket.endpoint());
    bucket.state().files.insert("/models/damaged/manifest.json".into(), b"{}".to_vec());
    for (address, words) in [
        (nothing.as_str(), &["/models/nothing", "no manifest.json"][..]),
        ("s3://models/nothing", &["s3://models/nothing", "no manifest.json"]),
        ("s3://models/damaged", &["s3://models/damaged/manifest.json", "cannot be used"]),
        ("s3://nobody/tales", &["no bucket `nobody`"]),
        ("s3://A/b", &["s3://A/b", "no name of a bucket"]),
        ("https://", &["no host"]),
        ("https://me:hidden@host/a", &["host/a", "password"]),
        ("http://8.8.8.8/a?sig=hidden", &["8.8.8.8", "not encrypted"]),
    ] {
        for command in ["run", "plan"] {
            let refused = run(home.path(), &bucket, &[&command, &address]).refused(2, words);
            assert!(!refused.stderr.contains("hidden") && !refused.stderr.contains(SECRET));
        }
    }
    let closed = run(home.path(), &bucket, &[&"run", &nowhere]);
    closed.refused(2, &[nowhere, "cannot be reached", "check the network"]);
    for command in ["verify", "inspect", "shard"] {
        let refused = run(home.path(), &bucket, &[&command, &nothing]);
        let refused = refused.refused(2, &["/models/nothing", "is an address"]);
        assert!(!refused.stderr.contains("hidden"));
        let named = run(home.path(), &bucket, &[&command, &"https://me:hidden@host/a"]);
        let named = named.refused(2, &["https://host/a", "is an address"]);
        assert!(!named.stderr.contains("hidden"));
    }
    for command in ["rm", "pull", "top", "replay", "certify"] {
        let secret = "https://me:hidden@host/a?sig=hidden";
        let refused =
            run(home.path(), &bucket, &[&command, &secret]).refused(2, &["https://host/a"]);
        assert!(!refused.stderr.contains("hidden"), "{command}");
    }
    run(home.path(), &bucket, &[&"run", &web(&bucket), &"--cache-disk", &"1KiB"])
        .refused(2, &["--cache-disk", "1MiB"]);
    bucket.fault("expert_0.safetensors", Fault::WrongBytes, u32::MAX);
    bucket.fault("attention.safetensors", Fault::WrongBytes, u32::MAX);
    run(home.path(), &bucket, &text(&web(&bucket), &[]))
        .refused(2, &["attention.safetensors", "checksum", "push the shards once more"]);
}

#[test]
fn pushed_shards_run_and_secrets_are_not_logged() {
    let home = tempfile::tempdir().unwrap();
    let other = BTreeMap::from([("/models/other".to_owned(), Vec::new())]);
    let bucket = Bucket::start(other).unwrap();
    bucket.state().keys = Some(Keys {
        id: "AKID".to_owned(),
        secret: SECRET.to_owned(),
        token: None,
        region: "eu-west-1".to_owned(),
    });
    let address = "s3://models/a/tales";
    let pushed = run(home.path(), &bucket, &[&"push", &tales(), &address, &"-vv"]).succeeded();
    assert!(pushed.stdout.contains("288 files") && pushed.stdout.contains(address), "{pushed:?}");
    let again = run(home.path(), &bucket, &[&"push", &tales(), &address, &"--json"]).succeeded();
    let again: serde_json::Value = serde_json::from_str(&again.stdout).unwrap();
    assert_eq!(again["there"], true);
    let local = run(home.path(), &bucket, &text(&tales(), &[&"-n", &"20"])).succeeded();
    let far = run(home.path(), &bucket, &text(&address, &[&"-n", &"20", &"-vv"])).succeeded();
    assert_eq!(far.stdout, local.stdout);
    for log in [&pushed.stderr, &far.stderr] {
        assert!(log.contains("eu-west-1") && log.contains("models/a/tales"), "{log}");
        assert!(!log.contains(SECRET) && !log.contains("Signature"), "{log}");
    }
    let json = run(home.path(), &bucket, &text(&address, &[&"-n", &"1", &"--json"])).succeeded();
    let json: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(json["metrics"]["model"], "tales");
    // A machine without runs of its own.
    let other = home.path().join("other");
    let log = |home: &Path| {
        let args = text(&address, &[&"-n", &"2", &"-v"]);
        run(home, &bucket, &args).succeeded().stderr
    };
    let hot = "experts of earlier runs come before the others";
    assert!(!log(&other.join("before")).contains(hot));
    run(&other, &bucket, &[&"push", &tales(), &address, &"--learned"]).refused(2, &["--learned"]);
    run(home.path(), &bucket, &text(&tales(), &[&"-n", &"100"])).succeeded();
    run(home.path(), &bucket, &[&"push", &tales(), &address, &"--learned"]).succeeded();
    assert!(log(&other).contains(hot));
    run(home.path(), &bucket, &[&"push", &"/nowhere", &address]).refused(2, &["/nowhere"]);
    for wrong in [
        "https://me:HIDDEN@h/a",
        "s3://bucket/a?s=HIDDEN",
        "HTTP://h/a?s=HIDDEN",
        "http://h:x/?HIDDEN",
    ] {
        let pushed = run(home.path(), &bucket, &[&"push", &tales(), &wrong]).refused(2, &[]);
        let opened = run(home.path(), &bucket, &[&"run", &wrong]).refused(2, &[]);
        for said in [pushed.stderr, opened.stderr] {
            assert!(!said.contains("HIDDEN"), "{said}");
        }
    }
    run(home.path(), &bucket, &[&"push", &tales(), &"ftp://a"]).refused(2, &["ftp://a"]);
}

#[test]
fn copies_serve_what_is_damaged_here() {
    let home = tempfile::tempdir().unwrap();
    let bucket = Bucket::start(BTreeMap::new()).unwrap();
    let address = web(&bucket);
    let dir = home.path().join("own");
    sws(&[&"mirror", &tales(), &dir]).succeeded();
    let manifest = Manifest::load(&dir).unwrap();
    let damaged = dir.join(&manifest.files.last().unwrap().path);
    let mut bytes = std::fs::read(&damaged).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&damaged, bytes).unwrap();
    let push = |also: &[&dyn AsRef<OsStr>]| {
        let args = [&[&"push" as &dyn AsRef<OsStr>, &dir, &address, &"--json"], also].concat();
        run(home.path(), &bucket, &args)
    };
    push(&[]).refused(2, &[damaged.to_str().unwrap(), "has a damaged ", "--also"]);
    push(&[&"--also", &dir]).refused(2, &["own", "read already"]);
    // A copy with the same damage is told of, and left out.
    let same = home.path().join("same");
    sws(&[&"mirror", &tales(), &same]).succeeded();
    let name = &manifest.files.last().unwrap().path;
    std::fs::copy(&damaged, same.join(name)).unwrap();
    let left_out = format!("sws: `{}` has a damaged ", same.join(name).display());
    let refused = push(&[&"--also", &same]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    for words in [&*left_out, damaged.to_str().unwrap(), "name a sound copy of them with --also"] {
        assert!(refused.stderr.contains(words), "no {words:?} in {refused:?}");
    }
    let pushed = push(&[&"--also", &same, &"--also", &tales()]).succeeded();
    assert!(pushed.stderr.contains(&left_out), "{pushed:?}");
    let told: serde_json::Value = serde_json::from_str(&pushed.stdout).unwrap();
    assert_eq!((&told["there"], &told["from_copies"]), (&false.into(), &1.into()), "{told}");
    assert!(pushed.stderr.contains("sws: 1 file of "), "{pushed:?}");
    let absent = push(&[&"--also", &"/nonesuch"]).succeeded();
    assert!(absent.stderr.contains("`/nonesuch` does not exist"), "{absent:?}");
    let local = run(home.path(), &bucket, &text(&tales(), &[&"-n", &"9"])).succeeded();
    let far = run(home.path(), &bucket, &text(&address, &[&"-n", &"9"])).succeeded();
    assert_eq!(far.stdout, local.stdout);
}
