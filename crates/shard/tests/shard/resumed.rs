//! Shards that an earlier call left are verified, and made anew where they are damaged.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, AtomicU64, Ordering};

use sws_format::{
    Checkpoint, CheckpointError, Configuration, JOURNAL, LEARNED_FILE, MANIFEST_FILE, ShardReader,
    WeightFile, open_checkpoint,
};
use sws_shard::{ShardError, ShardOptions, Sharded, resume, shard, verify};
use sws_store::DirectReader;
use sws_testing::toy::{Spec, Toy, checkpoint};
use xxhash_rust::xxh3::xxh3_64;

const EXPERTS: usize = 10;
/// Those of the experts, and that of the embedding.
const SHARDS: usize = EXPERTS + 1;

/// A checkpoint whose reads fail after some.
#[derive(Debug)]
struct Failing {
    inner: Box<dyn Checkpoint>,
    left: Arc<AtomicIsize>,
}

struct FailingReader {
    inner: DirectReader,
    left: Arc<AtomicIsize>,
}

impl Checkpoint for Failing {
    fn dir(&self) -> &Path {
        self.inner.dir()
    }

    fn files(&self) -> &[WeightFile] {
        self.inner.files()
    }

    fn config(&self) -> &Configuration {
        self.inner.config()
    }

    fn fingerprint(&self) -> &str {
        self.inner.fingerprint()
    }

    fn reader(&self) -> Option<Arc<dyn ShardReader>> {
        let paths = self.inner.files().iter().map(|file| self.inner.dir().join(&file.name));
        let inner = DirectReader::of(paths.collect());
        Some(Arc::new(FailingReader { inner, left: Arc::clone(&self.left) }))
    }

    fn small_files(&self) -> Result<Vec<String>, CheckpointError> {
        self.inner.small_files()
    }

    fn read_small(&self, name: &str) -> Result<Vec<u8>, CheckpointError> {
        self.inner.read_small(name)
    }
}

impl ShardReader for FailingReader {
    fn name(&self) -> &'static str {
        "failing"
    }

    fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        if self.left.fetch_sub(1, Ordering::Relaxed) <= 0 {
            return Err(io::Error::from_raw_os_error(5));
        }
        self.inner.read_at(file, offset, into)
    }
}

/// A checkpoint, its shards, and what an interrupted call left of them.
struct Dirs {
    temp: tempfile::TempDir,
    whole: Tree,
    begun: Tree,
}

type Tree = BTreeMap<PathBuf, Vec<u8>>;

impl Dirs {
    fn new() -> Dirs {
        let temp = tempfile::tempdir().unwrap();
        let source = temp.path().join("in");
        fs::create_dir(&source).unwrap();
        let expert = |e: usize| [format!("0.{e}.up.weight"), format!("0.{e}.down.weight")];
        let names: Vec<String> = (0..EXPERTS).flat_map(expert).collect();
        let mut tensors: Vec<Spec> = vec![("embed.weight", "BF16", &[16, 64], 2048)];
        tensors.extend(names.iter().map(|name| -> Spec { (name, "BF16", &[32, 64], 4096) }));
        checkpoint(&source, &tensors);
        fs::write(source.join("README.md"), "A toy.\n").unwrap();
        let mut dirs = Dirs { temp, whole: Tree::new(), begun: Tree::new() };
        let left = Arc::new(AtomicIsize::new(isize::MAX));
        let shard_failing = |out: &Path| {
            let (inner, left) = (open_checkpoint(&source, None).unwrap(), Arc::clone(&left));
            shard(&Failing { inner, left }, &Toy, out, &ShardOptions::default(), &|_| ())
        };
        shard_failing(&dirs.out()).unwrap();
        dirs.whole = tree(&dirs.out());
        assert_eq!(dirs.whole.len(), SHARDS + 3, "config, README and manifest");
        fs::remove_dir_all(dirs.out()).unwrap();

        let reads = isize::MAX - left.load(Ordering::Relaxed);
        left.store(reads * 4 / 5, Ordering::Relaxed);
        let failed = shard_failing(&dirs.out());
        assert!(matches!(failed, Err(ShardError::Read { .. })), "{failed:?}");
        dirs.begun = tree(&dirs.out());
        let made = dirs.begun.len() - 1;
        assert!(made > 2 && made < SHARDS, "{made} shards in the middle");
        assert!(dirs.begun.contains_key(Path::new(JOURNAL)));
        dirs
    }

    fn out(&self) -> PathBuf {
        self.temp.path().join("out")
    }

    /// Makes the output directory what it was.
    fn restore(&self, files: &Tree) {
        let _ = fs::remove_dir_all(self.out());
        for (name, bytes) in files {
            let path = self.out().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
    }

    fn shard(&self) -> Result<Sharded, ShardError> {
        let source = open_checkpoint(self.temp.path().join("in"), None).unwrap();
        shard(&*source, &Toy, &self.out(), &ShardOptions::default(), &|_| ())
    }

    /// Shards again, and asserts that the output is that of one call.
    #[track_caller]
    fn heals(&self, case: &str) -> Sharded {
        let done = self.shard().unwrap_or_else(|error| panic!("{case}: {error}"));
        let out = tree(&self.out());
        assert!(out.keys().eq(self.whole.keys()), "{case}: {:?}", out.keys());
        for (name, bytes) in &self.whole {
            assert!(out[name] == *bytes, "{case}: {} differs", name.display());
        }
        assert_eq!(verify(&self.out(), &|_| ()).unwrap().damage, [], "{case}");
        done
    }
}

/// All files below a directory with their bytes.
fn tree(dir: &Path) -> Tree {
    let mut files = Tree::new();
    let mut ahead = vec![dir.to_owned()];
    while let Some(at) = ahead.pop() {
        for entry in at.read_dir().unwrap() {
            let path = entry.unwrap().path();
            match path.symlink_metadata().unwrap().is_dir() {
                true => ahead.push(path),
                false => {
                    let name = path.strip_prefix(dir).unwrap().to_owned();
                    files.insert(name, fs::read(&path).unwrap());
                }
            }
        }
    }
    files
}

/// Bytes to damage: of the length and the names of a header, its blanks, weights, and the last.
fn places(len: usize) -> Vec<usize> {
    let mut places = vec![0, 60, 200, 4090, 4100, len / 2, len - 1];
    places.retain(|&at| at < len);
    places.sort_unstable();
    places.dedup();
    places
}

#[test]
fn shards_of_an_interrupted_call_are_verified_and_healed() {
    let dirs = Dirs::new();
    let kept = dirs.begun.len() - 1;
    dirs.restore(&dirs.begun);
    let done = dirs.heals("intact");
    assert_eq!((done.found, done.damaged), (kept, 0));
    for (name, bytes) in &dirs.begun {
        for at in places(bytes.len()) {
            let case = format!("byte {at} of {}", name.display());
            dirs.restore(&dirs.begun);
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            fs::write(dirs.out().join(name), damaged).unwrap();
            let done = dirs.heals(&case);
            match name == Path::new(JOURNAL) {
                true => assert!(done.found < kept, "{case}: {done:?}"),
                false => assert_eq!((done.found, done.damaged), (kept - 1, 1), "{case}"),
            }
        }
    }
}

#[test]
fn finished_shards_are_verified_and_healed() {
    let dirs = Dirs::new();
    dirs.restore(&dirs.whole);
    let done = dirs.heals("intact");
    assert_eq!((done.found, done.damaged), (SHARDS, 0));
    for (name, bytes) in &dirs.whole {
        for at in places(bytes.len()) {
            let case = format!("byte {at} of {}", name.display());
            dirs.restore(&dirs.whole);
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            fs::write(dirs.out().join(name), damaged).unwrap();
            let done = dirs.heals(&case);
            let found = match name.to_str().unwrap() {
                // It has all checksums.
                MANIFEST_FILE => 0,
                "config.json" | "README.md" => SHARDS,
                _ => SHARDS - 1,
            };
            assert_eq!((done.found, done.damaged), (found, 1), "{case}");
        }
    }
    // The journal of a call that was killed after its last step goes.
    dirs.restore(&dirs.whole);
    fs::write(dirs.out().join(JOURNAL), &dirs.begun[Path::new(JOURNAL)]).unwrap();
    assert_eq!(dirs.heals("with a journal").found, SHARDS);
}

#[test]
fn what_is_no_file_in_the_place_of_a_shard_is_replaced() {
    let dirs = Dirs::new();
    let secret = dirs.temp.path().join("secret");
    fs::write(&secret, "of another").unwrap();
    type Replace = fn(&Path, &Path);
    let cases: [(&str, Replace); 5] = [
        ("nothing", |_, _| ()),
        ("an empty file", |path, _| fs::write(path, "").unwrap()),
        ("a link", |path, secret| std::os::unix::fs::symlink(secret, path).unwrap()),
        ("a directory", |path, _| fs::create_dir(path).unwrap()),
        ("a pipe", |path, _| {
            let mode = rustix::fs::Mode::from_raw_mode(0o600);
            let kind = rustix::fs::FileType::Fifo;
            rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, 0).unwrap();
        }),
    ];
    for before in [&dirs.begun, &dirs.whole] {
        for name in
            before.keys().filter(|name| name.extension().is_some_and(|e| e == "safetensors"))
        {
            for (what, replace) in cases {
                dirs.restore(before);
                let path = dirs.out().join(name);
                fs::remove_file(&path).unwrap();
                replace(&path, &secret);
                let done = dirs.heals(&format!("{what} as {}", name.display()));
                assert_eq!(done.damaged, 1, "{what}");
            }
        }
    }
    assert_eq!(fs::read(&secret).unwrap(), b"of another");
    // What others put there stays.
    dirs.restore(&dirs.whole);
    let path = dirs.out().join("embed.safetensors");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    fs::write(path.join("notes.txt"), "mine").unwrap();
    let refused = dirs.shard().unwrap_err().to_string();
    assert!(refused.contains("embed.safetensors/notes.txt"), "{refused}");
    assert_eq!(fs::read(path.join("notes.txt")).unwrap(), b"mine");
}

#[test]
fn finished_shards_that_are_being_healed_have_no_manifest() {
    let dirs = Dirs::new();
    dirs.restore(&dirs.whole);
    fs::write(dirs.out().join(LEARNED_FILE), "of runs").unwrap();
    let path = dirs.out().join("embed.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(path, bytes).unwrap();
    let inner = open_checkpoint(dirs.temp.path().join("in"), None).unwrap();
    let failing = Failing { inner, left: Arc::new(AtomicIsize::new(0)) };
    let failed = shard(&failing, &Toy, &dirs.out(), &ShardOptions::default(), &|_| ());
    assert!(matches!(failed, Err(ShardError::Read { .. })), "{failed:?}");
    assert!(!dirs.out().join(MANIFEST_FILE).exists());
    assert_eq!(fs::read(dirs.out().join(LEARNED_FILE)).unwrap(), b"of runs");
    fs::remove_file(dirs.out().join(LEARNED_FILE)).unwrap();
    assert_eq!(dirs.heals("the rest").found, SHARDS - 1);
}

/// Shards of every encoding begin with the same bytes.
#[test]
fn shards_of_another_encoding_are_never_replaced() {
    let dirs = Dirs::new();
    let source = open_checkpoint(dirs.temp.path().join("in"), None).unwrap();
    for damaged in [false, true] {
        dirs.restore(&dirs.whole);
        let manifest = dirs.out().join(MANIFEST_FILE);
        match damaged {
            true => fs::write(&manifest, "{}").unwrap(),
            false => fs::remove_file(&manifest).unwrap(),
        }
        let options = ShardOptions { encoding: "q4".parse().unwrap(), ..ShardOptions::default() };
        let refused = shard(&*source, &Toy, &dirs.out(), &options, &|_| ());
        assert!(refused.is_err(), "damaged: {damaged}");
        for (name, bytes) in &dirs.whole {
            let is_left = name.ends_with(MANIFEST_FILE);
            assert!(is_left || fs::read(dirs.out().join(name)).unwrap() == *bytes, "{name:?}");
        }
    }
}

/// A journal has no secret, so that its lines may say anything.
#[test]
fn forged_journals_lead_to_the_right_shards() {
    let dirs = Dirs::new();
    let text = String::from_utf8(dirs.begun[Path::new(JOURNAL)].clone()).unwrap();
    #[rustfmt::skip]
    let cases = [
        ("/tensors/0/parts/0/check_len", serde_json::json!(0)),
        ("/tensors/0/parts/0/check_len", serde_json::json!(1)),
        ("/tensors/0/parts/0/checks", serde_json::json!([])),
        ("/tensors/0/parts/0/offset", serde_json::json!(u64::MAX)),
        ("/tensors/0/parts/0/offset", serde_json::json!(0)),
        ("/tensors/0/parts/0/len", serde_json::json!(u64::MAX)),
        ("/tensors/0/parts/0/file", serde_json::json!(99)),
        ("/tensors/0/name", serde_json::json!("other")),
        ("/tensors", serde_json::json!([])),
        ("/index", serde_json::json!(1_000_000_000)),
        ("/len", serde_json::json!(u64::MAX)),
    ];
    for (field, value) in cases {
        dirs.restore(&dirs.begun);
        let forged = text.lines().enumerate().map(|(number, line)| {
            if number == 0 {
                return format!("{line}\n");
            }
            let mut json: serde_json::Value = serde_json::from_str(&line[17..]).unwrap();
            *json.pointer_mut(field).unwrap() = value.clone();
            let json = json.to_string();
            format!("{:016x} {json}\n", xxh3_64(json.as_bytes()))
        });
        fs::write(dirs.out().join(JOURNAL), forged.collect::<String>()).unwrap();
        assert_eq!(dirs.heals(&format!("{field} is {value}")).found, 0);
    }
}

#[test]
fn reading_what_is_kept_shows_its_progress() {
    let dirs = Dirs::new();
    for before in [&dirs.begun, &dirs.whole] {
        dirs.restore(before);
        let (most, total) = (AtomicU64::new(0), AtomicU64::new(0));
        let source = open_checkpoint(dirs.temp.path().join("in"), None).unwrap();
        let verifying = |progress: sws_format::Progress| {
            most.fetch_max(progress.done, Ordering::Relaxed);
            total.store(progress.total, Ordering::Relaxed);
        };
        let options = ShardOptions::default();
        resume(&*source, &Toy, &dirs.out(), &options, &verifying, &|_| ()).unwrap();
        let ours =
            |name: &&PathBuf| ![JOURNAL, MANIFEST_FILE].iter().any(|n| **name == Path::new(n));
        let bytes = before.keys().filter(ours).map(|name| before[name].len() as u64).sum::<u64>();
        assert_eq!((most.into_inner(), total.into_inner()), (bytes, bytes));
    }
}
