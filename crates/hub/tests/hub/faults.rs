//! Downloads from a hub on loopback that misbehaves.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use sws_format::{Checkpoint, Clock};
use sws_hub::{
    ArrivalParts, Arriving, Client, DownloadJob, DownloadWatch, Environment, HubCache, HubError,
    ModelId, Staging, keep,
};
use sws_testing::hub::{Fault, Hub, sha256};

const ID: &str = "own/model";
const TOKEN: &str = "hf_secret";
const LARGE: &str = "model.safetensors";
const SMALL: &str = "config.json";
const OTHER: &str = "abcdef0123456789abcdef0123456789abcdef01";

#[derive(Default)]
struct Count(AtomicI64);

impl DownloadWatch for Count {
    fn moved(&self, bytes: i64) {
        self.0.fetch_add(bytes, Ordering::SeqCst);
    }
}

fn noise(len: usize, seed: u32) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..len).map(|_| next()).collect()
}

fn files() -> BTreeMap<String, Vec<u8>> {
    [(LARGE, noise(300_000, 1)), (SMALL, b"{}".to_vec()), ("a b/\u{fc}.txt", b"x".to_vec())]
        .map(|(name, bytes)| (name.to_owned(), bytes))
        .into()
}

fn id() -> ModelId {
    ID.parse().unwrap()
}

fn client(hub: &Hub, clock: &Clock, token: bool) -> Client {
    let environment = Environment::from(|name| match name {
        "HF_ENDPOINT" => Some(OsString::from(hub.endpoint())),
        "HF_TOKEN" if token => Some(TOKEN.into()),
        _ => None,
    });
    Client::with_clock(&environment.unwrap(), clock.clone()).unwrap()
}

/// Downloads a file of `main` to `path`. Returns the bytes counted.
fn download(client: &Client, name: &str, path: &Path) -> Result<i64, HubError> {
    let listing = client.list(&id(), "main")?;
    let count = Count::default();
    client.download(&listing, listing.file(name).unwrap(), path, &count)?;
    Ok(count.0.into_inner())
}

#[test]
fn faults_end_in_the_right_bytes_or_in_a_sentence() {
    let status = |status, code, wait| Fault::Status(status, code, wait);
    /// A file, its fault and how often, and the words of a refusal.
    type Case<'a> = (&'a str, Fault, u32, Result<(), &'a [&'a str]>);
    #[rustfmt::skip]
    let cases: [Case; 31] = [
        // file, fault, times, outcome
        (LARGE, Fault::Cut(100_000), 1, Ok(())),
        (LARGE, Fault::Cut(1), 20, Ok(())),
        (LARGE, Fault::Cut(0), 4, Ok(())),
        (LARGE, Fault::Cut(0), 9, Err(&["cannot be reached", "goes on"])),
        (LARGE, Fault::IgnoreRanges, 1, Ok(())),
        (LARGE, Fault::WrongBytes, 1, Ok(())),
        (LARGE, Fault::WrongBytes, 2, Err(&[LARGE, ID, "SHA-256", "twice"])),
        (LARGE, Fault::Longer, 1, Err(&["300001 bytes", "300000"])),
        (LARGE, Fault::LongerWithoutLength, 1, Err(&["more than the 300000 bytes"])),
        (LARGE, Fault::Shorter, 1, Err(&["299999 bytes", "300000"])),
        (LARGE, Fault::SentBack, 1, Ok(())),
        (LARGE, Fault::Circle, 99, Err(&["circle"])),
        (LARGE, status(500, "", ""), 1, Ok(())),
        (LARGE, status(503, "", ""), 4, Ok(())),
        (LARGE, status(502, "", ""), 5, Err(&["502", "goes on"])),
        (LARGE, status(429, "", "7"), 1, Ok(())),
        (LARGE, status(429, "", "100000"), 1, Err(&["429", "100000 s"])),
        (LARGE, status(429, "", ""), 5, Err(&["429", "try again later"])),
        (LARGE, status(404, "EntryNotFound", ""), 1, Err(&[LARGE, ID, "does not have"])),
        (LARGE, status(403, "", ""), 1, Err(&[ID, "403", "token is valid"])),
        (LARGE, status(403, "GatedRepo", ""), 1, Err(&[ID, "gated", "/own/model"])),
        (LARGE, status(418, "", ""), 1, Err(&["418"])),
        ("", status(500, "", ""), 2, Ok(())),
        ("", status(401, "RepoNotFound", ""), 1, Err(&[ID, "no model", "/own/model"])),
        ("", status(401, "GatedRepo", ""), 1, Err(&["gated", "account of your token"])),
        ("", status(404, "", ""), 1, Err(&[ID, "no model"])),
        ("", status(401, "", ""), 1, Err(&["401", "token is valid"])),
        (SMALL, Fault::Cut(1), 1, Ok(())),
        (SMALL, Fault::Circle, 1, Ok(())),
        (SMALL, Fault::WrongBytes, 1, Ok(())),
        (SMALL, Fault::WrongBytes, 2, Err(&[SMALL, ID, "hash of git", "twice"])),
    ];
    for (file, fault, times, expected) in cases {
        let hub = Hub::start(ID, files()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        hub.fault(file, fault.clone(), times);
        let name = if file.is_empty() { LARGE } else { file };
        let path = dir.path().join("file");
        let done = download(&client(&hub, &Clock::simulated(), true), name, &path);
        match expected {
            Ok(()) => {
                let counted = done.unwrap_or_else(|e| panic!("{file:?} {fault:?}: {e}"));
                assert_eq!(counted, files()[name].len() as i64, "{file:?} {fault:?}");
                assert!(std::fs::read(&path).unwrap() == files()[name], "{file:?} {fault:?}");
            }
            Err(words) => {
                let error = done.expect_err(&format!("{file:?} {fault:?}")).to_string();
                for word in words {
                    assert!(error.contains(word), "no {word:?} in {error:?} after {fault:?}");
                }
                assert!(!error.contains(TOKEN) && !error.contains('\n'), "{error}");
            }
        }
        for request in &hub.state().requests {
            let ours = !request.storage && !request.sent_back;
            let expected = ours.then(|| format!("Bearer {TOKEN}"));
            assert_eq!(request.authorization, expected, "{request:?} after {fault:?}");
        }
    }
}

#[test]
fn a_download_resumes_where_it_stopped() {
    let hub = Hub::start(ID, files()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let client = client(&hub, &Clock::simulated(), false);
    let bytes = &files()[LARGE];
    // What is there: nothing, a beginning, all, too much, something else.
    let mut long = bytes.clone();
    long.push(0);
    #[rustfmt::skip]
    let cases: [(&[u8], Option<&str>); 5] = [
        (b"", Some("bytes=0-")),
        (&bytes[..100_000], Some("bytes=100000-")),
        (bytes, None),
        (&long, Some("bytes=0-")),
        (&[7; 1000], Some("bytes=0-")),
    ];
    for (there, expected) in cases {
        std::fs::write(&path, there).unwrap();
        hub.state().requests.clear();
        let counted = download(&client, LARGE, &path).unwrap();
        assert_eq!(counted, bytes.len() as i64);
        assert!(std::fs::read(&path).unwrap() == *bytes);
        let requests = hub.requests(LARGE);
        let last = requests.last().and_then(|request| request.range.as_deref());
        assert_eq!(last, expected, "{} bytes there", there.len());
    }
}

#[test]
fn a_server_without_ranges_begins_again_but_not_forever() {
    let hub = Hub::start(ID, files()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let client = client(&hub, &Clock::simulated(), false);
    std::fs::write(&path, &files()[LARGE][..100_000]).unwrap();
    hub.fault(LARGE, Fault::IgnoreRanges, 1);
    assert_eq!(download(&client, LARGE, &path).unwrap(), 300_000);
    assert!(std::fs::read(&path).unwrap() == files()[LARGE]);
    assert_eq!(hub.requests(LARGE)[0].range.as_deref(), Some("bytes=100000-"));
    // Cut at the same byte each time, it never gets further.
    std::fs::remove_file(&path).unwrap();
    hub.fault(LARGE, Fault::IgnoreRanges, 99);
    hub.fault(LARGE, Fault::Cut(50_000), 99);
    let error = download(&client, LARGE, &path).unwrap_err();
    assert!(matches!(error, HubError::Connection { .. }), "{error}");
}

#[test]
fn a_silent_connection_is_cut() {
    let hub = Hub::start(ID, files()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let environment = Environment::from(|name| match name {
        "HF_ENDPOINT" => Some(OsString::from(hub.endpoint())),
        "HF_HUB_DOWNLOAD_TIMEOUT" => Some("1".into()),
        _ => None,
    });
    let client = Client::with_clock(&environment.unwrap(), Clock::simulated()).unwrap();
    hub.fault(LARGE, Fault::Silent(50_000), 1);
    assert_eq!(download(&client, LARGE, &path).unwrap(), 300_000);
    assert!(std::fs::read(&path).unwrap() == files()[LARGE]);
    let last = hub.requests(LARGE).pop().and_then(|request| request.range);
    assert_eq!(last.as_deref(), Some("bytes=50000-"));
}

#[test]
fn pauses_grow_unless_the_hub_names_them() {
    for (wait, seconds) in [("", 0.5 + 1.0), ("7", 14.0)] {
        let hub = Hub::start(ID, files()).unwrap();
        hub.fault("", Fault::Status(429, "", wait), 2);
        let clock = Clock::simulated();
        client(&hub, &clock, false).list(&id(), "main").unwrap();
        assert!((clock.now().as_secs_f64() - seconds).abs() < 0.01, "{:?}", clock.now());
    }
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    for name in ["../x", "/etc/x", "a/../../x", "a\\b", "x\0y", "a//b", ""] {
        let hub = Hub::start(ID, [(name.to_owned(), vec![1])].into()).unwrap();
        let error = client(&hub, &Clock::simulated(), false).list(&id(), "main").unwrap_err();
        assert!(matches!(error, HubError::FileName { .. }), "{name:?}: {error}");
    }
}

#[test]
fn revisions_are_branches_and_commits() {
    let hub = Hub::start(ID, files()).unwrap();
    let client = client(&hub, &Clock::simulated(), false);
    let commit = client.list(&id(), "main").unwrap().commit;
    hub.commit(OTHER, [(SMALL.to_owned(), b"[]".to_vec())].into());
    assert_eq!(client.list(&id(), "main").unwrap().commit, OTHER);
    assert_eq!(client.list(&id(), &commit).unwrap().files.len(), 3);
    let error = client.list(&id(), "v9").unwrap_err();
    assert!(matches!(error, HubError::NoRevision { .. }), "{error}");
    let error = client.list(&"own/other".parse().unwrap(), "main").unwrap_err();
    assert!(matches!(error, HubError::NoModel { .. }), "{error}");
}

#[test]
fn an_answer_that_is_no_listing() {
    for listing in ["", "[]", "{}", r#"{"sha":"main"}"#, r#"{"sha":1}"#] {
        let hub = Hub::start(ID, files()).unwrap();
        hub.state().listing = Some(listing.to_owned());
        let error = client(&hub, &Clock::simulated(), false).list(&id(), "main").unwrap_err();
        assert!(matches!(error, HubError::Answer { .. }), "{listing}: {error}");
        assert!(error.to_string().contains("HF_ENDPOINT"), "{error}");
    }
}

#[test]
fn no_hub_at_all() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let environment =
        Environment::from(|name| (name == "HF_ENDPOINT").then(|| format!("http://{port}").into()));
    let client = Client::with_clock(&environment.unwrap(), Clock::simulated()).unwrap();
    let error = client.list(&id(), "main").unwrap_err();
    assert!(matches!(error, HubError::Connection { .. }), "{error}");
}

#[test]
fn the_cache_is_laid_out_as_python_does_it() {
    let hub = Hub::start(ID, files()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let cached = HubCache::new(dir.path()).model(&id());
    let client = client(&hub, &Clock::simulated(), false);
    let listing = client.list(&id(), "main").unwrap();
    // The beginning that another program left, which has the same name there.
    let etag = sha256(&files()[LARGE]);
    std::fs::create_dir_all(dir.path().join("models--own--model/blobs")).unwrap();
    let partial = dir.path().join(format!("models--own--model/blobs/{etag}.incomplete"));
    std::fs::write(&partial, &files()[LARGE][..1000]).unwrap();
    for time in 0..2 {
        hub.state().requests.clear();
        let count = Count::default();
        let job = DownloadJob {
            client: &client,
            listing: &listing,
            files: &listing.files,
            parallel: 3,
            watch: &count,
        };
        keep(&job, &cached, "main").unwrap();
        assert_eq!(count.0.into_inner(), 300_003);
        let ranges: Vec<_> = hub.requests(LARGE).into_iter().filter_map(|r| r.range).collect();
        match time {
            // The hub's own address, then the storage's.
            0 => assert_eq!(ranges, ["bytes=1000-", "bytes=1000-"]),
            _ => assert!(hub.state().requests.is_empty(), "everything is there"),
        }
    }
    let snapshot = cached.snapshot(Some("main")).unwrap();
    for (name, bytes) in files() {
        assert!(std::fs::read(snapshot.join(&name)).unwrap() == bytes, "{name}");
    }
    assert!(!partial.exists());
    let blob = std::fs::read_link(snapshot.join(LARGE)).unwrap();
    assert_eq!(blob, Path::new("../../blobs").join(&etag));
    let reference = std::fs::read_to_string(cached.dir().join("refs/main")).unwrap();
    assert_eq!(reference, listing.commit);

    hub.commit(OTHER, [(SMALL.to_owned(), b"[]".to_vec())].into());
    let moved = client.list(&id(), "main").unwrap();
    let count = Count::default();
    let job = DownloadJob {
        client: &client,
        listing: &moved,
        files: &moved.files,
        parallel: 1,
        watch: &count,
    };
    keep(&job, &cached, "main").unwrap();
    let new = cached.snapshot(Some("main")).unwrap();
    assert_eq!(std::fs::read(new.join(SMALL)).unwrap(), b"[]");
    assert_eq!(std::fs::read(snapshot.join(SMALL)).unwrap(), b"{}", "the earlier one stays");
}

/// The cache is other programs' too, and disks lose bits.
#[test]
fn a_damaged_blob_of_the_right_length_comes_again() {
    let hub = Hub::start(ID, files()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let cached = HubCache::new(dir.path()).model(&id());
    let client = client(&hub, &Clock::simulated(), false);
    let listing = client.list(&id(), "main").unwrap();
    let blob = cached.blob(&sha256(&files()[LARGE]));
    std::fs::create_dir_all(blob.parent().unwrap()).unwrap();
    let mut damaged = files()[LARGE].clone();
    damaged[250_000] ^= 1;
    std::fs::write(&blob, &damaged).unwrap();
    for asked in [2, 0] {
        hub.state().requests.clear();
        let (files, watch) = (&listing.files, &Count::default());
        let job = DownloadJob { client: &client, listing: &listing, files, parallel: 2, watch };
        keep(&job, &cached, "main").unwrap();
        assert_eq!(watch.0.load(Ordering::SeqCst), 300_003);
        assert!(std::fs::read(&blob).unwrap() == self::files()[LARGE]);
        assert_eq!(hub.requests(LARGE).len(), asked, "the hub's address and the storage's");
    }
}

#[test]
fn two_downloads_at_once_share_the_work() {
    let hub = Hub::start(ID, files()).unwrap();
    hub.fault(LARGE, Fault::Slow(20), 1);
    let dir = tempfile::tempdir().unwrap();
    let cached = HubCache::new(dir.path()).model(&id());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let client = client(&hub, &Clock::simulated(), false);
                let listing = client.list(&id(), "main").unwrap();
                let (files, watch) = (&listing.files, &Count::default());
                let job =
                    DownloadJob { client: &client, listing: &listing, files, parallel: 2, watch };
                keep(&job, &cached, "main").unwrap();
            });
        }
    });
    let asked = hub.requests(LARGE).into_iter().filter(|request| request.storage).count();
    assert_eq!(asked, 1, "one waited for the other");
}

#[test]
fn the_first_error_stops_the_other_downloads() {
    let hub = Hub::start(ID, files()).unwrap();
    hub.fault(SMALL, Fault::Status(404, "EntryNotFound", ""), 1);
    let dir = tempfile::tempdir().unwrap();
    let cached = HubCache::new(dir.path()).model(&id());
    let client = client(&hub, &Clock::simulated(), false);
    let listing = client.list(&id(), "main").unwrap();
    let (files, watch) = (&listing.files, &Count::default());
    let job = DownloadJob { client: &client, listing: &listing, files, parallel: 3, watch };
    let error = keep(&job, &cached, "main").unwrap_err();
    assert!(matches!(error, HubError::NoFile { .. }), "{error}");
    assert_eq!(cached.snapshot(Some("main")), None, "no branch points to half a model");
}

#[derive(Default)]
struct Steps(Mutex<Vec<(usize, usize)>>);

impl DownloadWatch for Steps {
    fn moved(&self, _: i64) {}

    fn prepared(&self, done: usize, steps: usize) {
        self.0.lock().unwrap().push((done, steps));
    }
}

/// A weight file of one tensor with so many bytes.
fn weights(bytes: usize) -> Vec<u8> {
    let header =
        format!(r#"{{"w":{{"dtype":"BF16","shape":[{}],"data_offsets":[0,{bytes}]}}}}"#, bytes / 2);
    let len = (header.len() as u64).to_le_bytes();
    [&len[..], header.as_bytes(), &noise(bytes, 2)].concat()
}

#[test]
fn the_progress_of_a_header_moves_with_each_request() {
    let hub = Hub::start(
        ID,
        [(LARGE.to_owned(), weights(4 << 20)), (SMALL.to_owned(), b"{}".to_vec())].into(),
    );
    let hub = hub.unwrap();
    let client = client(&hub, &Clock::simulated(), false);
    let listing = client.list(&id(), "main").unwrap();
    let [small, weights] = [SMALL, LARGE].map(|name| vec![listing.file(name).unwrap().clone()]);
    let temp = tempfile::tempdir().unwrap();
    let staging = Staging::open(&temp.path().join("x.pull")).unwrap();
    let arrival = ArrivalParts { client, listing, weights, small, cached: None };
    let watch = Arc::new(Steps::default());
    let told = Arc::clone(&watch) as Arc<dyn DownloadWatch + Send>;
    Arriving::open(arrival, &staging, told, &|_| Ok(())).unwrap();
    let told = watch.0.lock().unwrap();
    let asked = hub.requests(LARGE).iter().filter(|request| request.storage).count();
    let distinct: std::collections::BTreeSet<_> = told.iter().collect();
    assert!(asked > 30 && distinct.len() > 30, "{asked} requests, {told:?}");
    assert!(told.is_sorted() && told.last().is_some_and(|(done, steps)| done == steps), "{told:?}");
}

/// Small files of a checkpoint, its fingerprint and the bytes of its weights.
type Arrived = (BTreeMap<String, Vec<u8>>, String, Vec<u8>);

/// Opens the checkpoint of a hub that arrives in `dir`.
fn opened(hub: &Hub, dir: &Path) -> Result<Arriving, HubError> {
    let client = client(hub, &Clock::simulated(), false);
    let listing = client.list(&id(), "main")?;
    let (weights, small) = listing.files.iter().cloned().partition(|file| file.name == LARGE);
    let staging = Staging::open(dir)?;
    let arrival = ArrivalParts { client, listing, weights, small, cached: None };
    Arriving::open(arrival, &staging, Arc::<Count>::default(), &|_| Ok(()))
}

/// Reads the checkpoint of a hub that arrives in `dir`.
fn arrived(hub: &Hub, dir: &Path) -> Result<Arrived, HubError> {
    let checkpoint = opened(hub, dir)?;
    let names = checkpoint.small_files().unwrap();
    let read = |name: String| (name.clone(), checkpoint.read_small(&name).unwrap());
    let small = names.into_iter().map(read).collect();
    let mut bytes = vec![0; hub.state().files[LARGE].len()];
    let got = checkpoint.reader().unwrap().read_at(0, 0, &mut bytes);
    match (got, checkpoint.failure()) {
        (Err(_), Some(error)) => Err(error),
        (got, _) => {
            assert_eq!(got.unwrap(), bytes.len());
            Ok((small, checkpoint.fingerprint().to_owned(), bytes))
        }
    }
}

/// Disks lose bits, and others write to them, while a download is interrupted.
#[test]
fn resumed_pull_verifies_what_is_staged() {
    let names = [SMALL, "README.md", "tokenizer.json"];
    let config = br#"{"model_type": "x", "rope_theta": 1000000}"#;
    let mut files: BTreeMap<_, _> = names.map(|name| (name.to_owned(), config.to_vec())).into();
    files.insert(LARGE.to_owned(), weights(4 << 20));
    let hub = Hub::start(ID, files.clone()).unwrap();
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("x.pull");
    let expected = arrived(&hub, &dir).unwrap();
    files.remove(LARGE);
    assert_eq!(expected.0, files);

    let flip = |name: &str, at: usize| {
        let path = dir.join(name);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[at] ^= 1;
        std::fs::write(path, bytes).unwrap();
    };
    let clear = |name: &str| std::fs::remove_file(dir.join("sketch").join(name)).unwrap();
    let sketch = format!("sketch/{LARGE}");
    /// What happens meanwhile, to what, and the file that comes again.
    type Case<'a> = (&'a str, &'a dyn Fn(), &'a str);
    #[rustfmt::skip]
    let cases: [Case; 15] = [
        ("nothing", &|| (), ""),
        ("another number", &|| flip("sketch/config.json", 35), SMALL),
        ("other words", &|| flip("sketch/README.md", 0), "README.md"),
        ("another tokenizer", &|| flip("sketch/tokenizer.json", 9), "tokenizer.json"),
        ("zeros", &|| std::fs::write(dir.join("sketch/config.json"), [0; 42]).unwrap(), SMALL),
        ("an end", &|| std::fs::write(dir.join("sketch/README.md"), &config[..9]).unwrap(), "README.md"),
        ("the name of a tensor", &|| flip(&sketch, 11), LARGE),
        ("a sample of the weights", &|| flip(&sketch, (4 << 20) - 8), LARGE),
        ("the length of a header", &|| flip(&sketch, 5), LARGE),
        ("a weight", &|| flip(&format!("whole/{LARGE}"), 3_000_000), LARGE),
        ("a beginning", &|| { clear(SMALL); std::fs::write(dir.join("sketch/config.json.incomplete"), "[").unwrap() }, SMALL),
        ("a link to the same bytes", &|| { clear(SMALL); std::fs::write(temp.path().join("c"), config).unwrap();
            std::os::unix::fs::symlink(temp.path().join("c"), dir.join("sketch/config.json")).unwrap() }, SMALL),
        ("a directory", &|| { clear("README.md"); std::fs::create_dir_all(dir.join("sketch/README.md/x")).unwrap() }, "README.md"),
        ("a directory for a beginning", &|| { clear(SMALL); std::fs::create_dir(dir.join("sketch/config.json.incomplete")).unwrap() }, SMALL),
        ("a file of somebody else", &|| std::fs::write(dir.join("sketch/chat_template.jinja"), "{}").unwrap(), ""),
    ];
    for (what, happens, again) in cases {
        happens();
        hub.state().requests.clear();
        assert!(arrived(&hub, &dir).unwrap() == expected, "{what}");
        let asked = hub.state().requests.clone();
        let asked = asked.iter().map(|request| request.file.as_str());
        let asked: std::collections::BTreeSet<_> = asked.filter(|file| !file.is_empty()).collect();
        let expected: std::collections::BTreeSet<_> =
            Some(again).filter(|it| !it.is_empty()).into_iter().collect();
        assert_eq!(asked, expected, "{what}");
    }
    // A link to a directory elsewhere, whose files stay.
    let elsewhere = temp.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    std::fs::write(elsewhere.join("mine"), "precious").unwrap();
    std::fs::remove_dir_all(dir.join("sketch")).unwrap();
    std::os::unix::fs::symlink(&elsewhere, dir.join("sketch")).unwrap();
    assert!(arrived(&hub, &dir).unwrap() == expected);
    assert_eq!(std::fs::read(elsewhere.join("mine")).unwrap(), b"precious");
    // Nor does the release of a file that is not needed follow a link.
    let whole = dir.join("whole").join(LARGE);
    std::fs::remove_file(&whole).unwrap();
    std::os::unix::fs::symlink(elsewhere.join("mine"), &whole).unwrap();
    let checkpoint = opened(&hub, &dir).unwrap();
    checkpoint.release(0);
    assert!(whole.symlink_metadata().is_err());
    assert_eq!(std::fs::read(elsewhere.join("mine")).unwrap(), b"precious");
}

#[test]
fn messages_about_what_a_hub_lists_are_true() {
    let listing = |files: &str| format!(r#"{{"sha":"{OTHER}","siblings":[{files}]}}"#);
    let file = |name: &str, size: u64| {
        format!(r#"{{"rfilename":"{name}","size":{size},"blobId":"{OTHER}"}}"#)
    };
    let hub = Hub::start(ID, files()).unwrap();
    let client = client(&hub, &Clock::simulated(), false);
    hub.state().listing = Some(listing(&[file(LARGE, 1), file(LARGE, 1)].join(",")));
    let error = client.list(&id(), "main").unwrap_err().to_string();
    assert!(error.contains(LARGE) && error.contains("twice"), "{error}");

    hub.state().listing = Some(listing(&[file(LARGE, 1), file(SMALL, 1 << 40)].join(",")));
    let list = client.list(&id(), "main").unwrap();
    let error = sws_hub::select(&list, None, &mut |_| unreachable!()).unwrap_err().to_string();
    assert!(error.contains("config.json of 1099511627776 bytes"), "{error}");

    hub.state().listing = None;
    hub.fault(SMALL, Fault::LongerWithoutLength, 1);
    let list = client.list(&id(), "main").unwrap();
    let error = client.read(&list, list.file(SMALL).unwrap()).unwrap_err().to_string();
    assert!(error.contains("more than the 2 bytes") && !error.contains("reached"), "{error}");
    assert_eq!(hub.requests(SMALL).len(), 1, "a longer file is no cut");
}

#[test]
fn an_answer_that_is_no_http_is_named_and_may_pass() {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::new(AtomicI64::new(0));
    let count = Arc::clone(&asked);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            count.fetch_add(1, Ordering::SeqCst);
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nno header\r\n\r\n");
        }
    });
    let environment = Environment::from(|name| {
        (name == "HF_ENDPOINT").then(|| format!("http://{address}").into())
    });
    let client = Client::with_clock(&environment.unwrap(), Clock::simulated()).unwrap();
    let error = client.list(&id(), "main").unwrap_err();
    assert!(matches!(error, HubError::Answer { .. }), "{error}");
    assert!(error.to_string().contains("no HTTP"), "{error}");
    assert_eq!(asked.load(Ordering::SeqCst), 5);
}

/// A name that may be a path with an error in it is asked for once, unless the hub asks to wait.
#[test]
fn a_hub_that_asks_to_wait_is_waited_for() {
    for (status, wait, times, requests, seconds) in [
        (429, "3", 2, 3, Some(6.0)),
        (503, "4", 1, 2, Some(4.0)),
        (429, "", 1, 2, Some(0.5)),
        (503, "", 1, 1, None),
        (429, "3", 9, 5, None),
        (404, "3", 1, 1, None),
    ] {
        let hub = Hub::start(ID, files()).unwrap();
        hub.fault("", Fault::Status(status, "", wait), times);
        let clock = Clock::simulated();
        let listed = client(&hub, &clock, false).list_once(&id(), "main");
        assert_eq!(hub.requests("").len(), requests, "{status} {wait:?}");
        assert_eq!(listed.is_ok(), seconds.is_some(), "{status} {wait:?}");
        if let Some(seconds) = seconds {
            assert!((clock.now().as_secs_f64() - seconds).abs() < 0.01, "{:?}", clock.now());
        }
    }
}
