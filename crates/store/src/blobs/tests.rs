//! Private files on devices that work, and on devices that do not.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::{Arc, Mutex};

use sws_os::open::symlink;

use super::*;

/// Kinds of faults of a device, and the number of operations of that kind before the next one.
#[derive(Debug, Default)]
struct Faults {
    create: Option<u32>,
    /// After so many bytes the disk is full.
    full: Option<usize>,
    finish: Option<u32>,
    rename: Option<u32>,
    remove: Option<u32>,
    open: Option<u32>,
    /// After so many bytes of a file a read fails.
    read: Option<usize>,
    /// The bit of a file that is read wrong.
    flip: Option<usize>,
    /// A file ends before its length.
    ends: Option<usize>,
    /// Reads return one byte.
    short: bool,
}

/// The files of the system, with faults.
#[derive(Debug)]
struct Faulty {
    system: SystemFiles,
    faults: Arc<Mutex<Faults>>,
}

struct FaultyWriter {
    inner: Box<dyn BlobWriter>,
    faults: Arc<Mutex<Faults>>,
}

struct FaultyReader {
    inner: Box<dyn Read>,
    at: usize,
    faults: Arc<Mutex<Faults>>,
}

/// Fails if the count has come to its end.
fn due(count: &mut Option<u32>) -> io::Result<()> {
    match count {
        Some(0) => {
            *count = None;
            Err(io::Error::from_raw_os_error(5))
        }
        Some(left) => {
            *left -= 1;
            Ok(())
        }
        None => Ok(()),
    }
}

impl BlobDevice for Faulty {
    fn create(&self, path: &Path) -> io::Result<Box<dyn BlobWriter>> {
        due(&mut self.faults.lock().unwrap().create)?;
        let inner = self.system.create(path)?;
        Ok(Box::new(FaultyWriter { inner, faults: Arc::clone(&self.faults) }))
    }

    fn open(&self, path: &Path) -> io::Result<(Box<dyn Read>, u64)> {
        due(&mut self.faults.lock().unwrap().open)?;
        let (inner, len) = self.system.open(path)?;
        Ok((Box::new(FaultyReader { inner, at: 0, faults: Arc::clone(&self.faults) }), len))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        due(&mut self.faults.lock().unwrap().rename)?;
        self.system.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        due(&mut self.faults.lock().unwrap().remove)?;
        self.system.remove(path)
    }

    fn used(&self, paths: &[PathBuf]) -> io::Result<()> {
        self.system.used(paths)
    }
}

impl Write for FaultyWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut faults = self.faults.lock().unwrap();
        let Some(room) = &mut faults.full else { return self.inner.write(bytes) };
        let len = bytes.len().min(*room);
        *room -= len;
        match len {
            0 => Err(io::Error::from_raw_os_error(28)),
            len => self.inner.write(&bytes[..len]),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl BlobWriter for FaultyWriter {
    fn finish(&mut self) -> io::Result<()> {
        // Without a wait for the disk.
        due(&mut self.faults.lock().unwrap().finish)
    }
}

impl Read for FaultyReader {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let faults = self.faults.lock().unwrap();
        let mut most = if faults.short { bytes.len().min(1) } else { bytes.len() };
        if let Some(fails) = faults.read {
            if self.at >= fails {
                return Err(io::Error::from_raw_os_error(5));
            }
            most = most.min(fails - self.at);
        }
        if let Some(ends) = faults.ends {
            most = most.min(ends.saturating_sub(self.at));
        }
        let read = self.inner.read(&mut bytes[..most])?;
        if let Some(bit) = faults.flip
            && let Some(byte) = bytes[..read].get_mut((bit / 8).wrapping_sub(self.at))
        {
            *byte ^= 1 << (bit % 8);
        }
        self.at += read;
        Ok(read)
    }
}

fn faulty(dir: &Path, limit: u64) -> (Blobs, Arc<Mutex<Faults>>) {
    let faults = Arc::new(Mutex::new(Faults::default()));
    let system = SystemFiles::beside(&dir.join(LOCK));
    let device = Faulty { system, faults: Arc::clone(&faults) };
    (Blobs::open_on(dir, limit, Box::new(device)).unwrap(), faults)
}

fn name(word: &str) -> BlobName {
    BlobName::of(&[word.as_bytes()])
}

fn put(blobs: &mut Blobs, word: &str, bytes: &[u8]) -> Result<bool, BlobsError> {
    blobs.put(&name(word), |to| to.write_all(bytes))
}

/// Reads a file of unknown length.
fn get(blobs: &mut Blobs, word: &str) -> Result<Option<Vec<u8>>, BlobsError> {
    let mut bytes = Vec::new();
    let found = blobs.get(&name(word), |from| {
        bytes.clear();
        from.read_to_end(&mut bytes).map(|_| ())
    })?;
    Ok(found.then_some(bytes))
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o777
}

/// Bytes of all files, as the system counts them.
fn bytes_in(dir: &Path) -> u64 {
    dir.read_dir().unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
}

#[test]
fn files_are_private_and_found_again() {
    let top = tempfile::tempdir().unwrap();
    let dir = top.path().join("private");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, Permissions::from_mode(0o755)).unwrap();
    let mut blobs = Blobs::open(&dir, 1 << 20).unwrap();
    assert!(put(&mut blobs, "a", b"bytes").unwrap());
    assert!(!put(&mut blobs, "a", b"bytes").unwrap(), "it is there");
    assert_eq!(mode(&dir), 0o700);
    for entry in dir.read_dir().unwrap() {
        assert_eq!(mode(&entry.unwrap().path()), 0o600);
    }
    assert!(matches!(Blobs::open(&dir, 1 << 20), Err(BlobsError::Busy(_))));
    drop(blobs);
    fs::write(dir.join(format!("{}{PART}", name("b"))), b"half").unwrap();
    let mut blobs = Blobs::open(&dir, 1 << 20).unwrap();
    assert_eq!(get(&mut blobs, "a").unwrap().unwrap(), b"bytes");
    assert_eq!(get(&mut blobs, "b").unwrap(), None);
    assert_eq!((blobs.len(), blobs.bytes()), (1, FRAME + 5));
    assert_eq!(bytes_in(&dir), blobs.bytes());
    drop(blobs);
    assert_eq!(Blobs::remove(&dir).unwrap(), FRAME + 5);
    assert!(!dir.exists());
}

#[test]
fn what_was_used_longest_ago_goes_first_after_a_restart_too() {
    let dir = tempfile::tempdir().unwrap();
    let size = FRAME + 100;
    let words = ["a", "b", "c", "d"];
    let has = |blobs: &Blobs| words.map(|word| blobs.has(&name(word)));
    let mut blobs = Blobs::open(dir.path(), 3 * size).unwrap();
    for word in ["a", "b", "c"] {
        assert!(put(&mut blobs, word, &[7; 100]).unwrap());
    }
    blobs.used(&[name("a")]);
    assert!(put(&mut blobs, "d", &[7; 100]).unwrap());
    assert!(!put(&mut blobs, "e", &[7; 400]).unwrap(), "larger than the limit");
    assert_eq!(has(&blobs), [true, false, true, true]);
    // Of files used together the first stays longest.
    blobs.used(&words.map(name));
    blobs.note_uses(&words.map(name));
    drop(blobs);
    for (limit, expected) in [(2, [true, false, true, false]), (1, [true, false, false, false])] {
        let blobs = Blobs::open(dir.path(), limit * size).unwrap();
        assert_eq!(has(&blobs), expected);
        assert_eq!((blobs.bytes(), bytes_in(dir.path())), (limit * size, limit * size));
    }
}

#[test]
fn files_just_used_do_not_go_for_others() {
    let dir = tempfile::tempdir().unwrap();
    let mut blobs = Blobs::open(dir.path(), 3 * (FRAME + 100)).unwrap();
    for word in ["a", "b", "c"] {
        assert!(put(&mut blobs, word, &[7; 100]).unwrap());
    }
    blobs.used(&[name("a"), name("c")]);
    assert!(put(&mut blobs, "d", &[7; 100]).unwrap(), "for the one that was not used");
    assert!(!put(&mut blobs, "e", &[7; 100]).unwrap());
    let has = ["a", "b", "c", "d", "e"].map(|word| blobs.has(&name(word)));
    assert_eq!(has, [true, false, true, true, false]);
    blobs.used(&[]);
    assert!(put(&mut blobs, "e", &[7; 100]).unwrap());
}

#[test]
fn damaged_files_are_removed_and_reported() {
    let dir = tempfile::tempdir().unwrap();
    let mut blobs = Blobs::open(dir.path(), 1 << 20).unwrap();
    let bytes: Vec<u8> = (0..200).collect();
    let path = dir.path().join(name("a").to_string());
    let damages: [fn(&mut Vec<u8>); 7] = [
        |file| file[3] ^= 1,
        |file| file[20] ^= 1,
        |file| *file.last_mut().unwrap() ^= 1,
        |file| file.truncate(100),
        |file| file.truncate(10),
        |file| file.push(0),
        |file| file.clear(),
    ];
    for (number, damage) in damages.iter().enumerate() {
        put(&mut blobs, "a", &bytes).unwrap();
        let mut file = fs::read(&path).unwrap();
        damage(&mut file);
        fs::write(&path, file).unwrap();
        let error = get(&mut blobs, "a").unwrap_err();
        assert!(matches!(error, BlobsError::Damaged(_)), "{number}: {error}");
        assert!(!path.exists() && !blobs.has(&name("a")) && blobs.bytes() == 0, "{number}");
    }
    // A whole file under the name of another.
    put(&mut blobs, "a", &bytes).unwrap();
    put(&mut blobs, "b", &bytes).unwrap();
    fs::copy(&path, dir.path().join(name("b").to_string())).unwrap();
    assert!(matches!(get(&mut blobs, "b"), Err(BlobsError::Damaged(_))));
    // Contents that are not read to their end, or that are too short for what reads them.
    for (first, more) in [(100, 0), (200, 1)] {
        put(&mut blobs, "c", &bytes).unwrap();
        let read = blobs.get(&name("c"), |from| {
            from.read_exact(&mut vec![0; first])?;
            from.read_exact(&mut vec![0; more])
        });
        assert!(matches!(read, Err(BlobsError::Damaged(_))), "{first}, {more}: {read:?}");
        assert!(!blobs.has(&name("c")));
    }
}

#[test]
fn links_and_files_are_no_directories() {
    let top = tempfile::tempdir().unwrap();
    let (real, link, file) = ("real", "link", "file");
    fs::create_dir(top.path().join(real)).unwrap();
    symlink(real, top.path().join(link)).unwrap();
    fs::write(top.path().join(file), b"").unwrap();
    for (name, opens) in [(real, true), (link, false), (file, false), ("new/one", true)] {
        let opened = Blobs::open(&top.path().join(name), 1 << 20);
        assert_eq!(opened.is_ok(), opens, "{name}: {opened:?}");
    }
}

fn make_pipe(path: &Path) {
    sws_os::open::make_pipe(path).unwrap();
}

/// Puts something into a place, with a file and a directory elsewhere that it may link to.
type Put = fn(&Path, &Path);

const FOREIGN: [(&str, Put); 5] = [
    ("a pipe", |path, _| make_pipe(path)),
    ("a link to a file", |path, other| symlink(other.join("secret"), path).unwrap()),
    ("a link to a directory", |path, other| symlink(other, path).unwrap()),
    ("a link to nothing", |path, _| symlink("nothing", path).unwrap()),
    ("a directory", |path, _| fs::create_dir(path).unwrap()),
];

/// A directory for blobs, and another one with a file.
fn two_dirs() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let top = tempfile::tempdir().unwrap();
    let [dir, other] = ["dir", "other"].map(|name| top.path().join(name));
    fs::create_dir(&dir).unwrap();
    fs::create_dir(&other).unwrap();
    fs::write(other.join("secret"), "of another").unwrap();
    (top, dir, other)
}

#[test]
fn a_lock_that_is_no_file_is_refused_at_once() {
    let (_top, dir, other) = two_dirs();
    let lock = dir.join(LOCK);
    for (what, put) in FOREIGN {
        put(&lock, &other);
        let refused = Blobs::open(&dir, 1 << 20).expect_err(what);
        assert!(matches!(refused, BlobsError::Lock(_)), "{what}: {refused}");
        let expected = format!("`{}` is not a regular file; remove it", lock.display());
        assert_eq!(refused.to_string(), expected, "{what}");
        assert!(lock.symlink_metadata().is_ok(), "{what} stays");
        fs::remove_file(&lock).or_else(|_| fs::remove_dir(&lock)).unwrap();
    }
    assert_eq!(fs::read(other.join("secret")).unwrap(), b"of another");
    Blobs::open(&dir, 1 << 20).unwrap();
}

#[test]
fn foreign_things_in_the_places_of_files_are_removed() {
    let (_top, dir, other) = two_dirs();
    let [path, part] = ["", PART].map(|end| dir.join(format!("{}{end}", name("a"))));
    for (what, put_there) in FOREIGN {
        for place in [&path, &part] {
            // Before the directory is opened.
            put_there(place, &other);
            let mut blobs = Blobs::open(&dir, 1 << 20).unwrap();
            assert!(place.symlink_metadata().is_err(), "{what}");
            let faults = blobs.faults();
            assert!(matches!(faults[..], [BlobsError::Damaged(_)]), "{what}: {faults:?}");
            assert_eq!((blobs.len(), blobs.bytes()), (0, 0));
            // And after that.
            put_there(place, &other);
            assert!(put(&mut blobs, "a", b"bytes").unwrap(), "{what}");
            assert_eq!(get(&mut blobs, "a").unwrap().unwrap(), b"bytes");
            // In the place of a file that is there.
            fs::remove_file(&path).unwrap();
            put_there(&path, &other);
            let error = get(&mut blobs, "a").expect_err(what);
            assert!(matches!(error, BlobsError::Read { .. } | BlobsError::Damaged(_)), "{what}");
            assert!(path.symlink_metadata().is_err(), "{what}");
        }
    }
    assert_eq!(fs::read(other.join("secret")).unwrap(), b"of another");
    assert_eq!(other.read_dir().unwrap().count(), 1);
}

#[test]
fn a_directory_with_files_stays_and_stops_no_other_file() {
    for early in [true, false] {
        let (_top, dir, _) = two_dirs();
        let path = dir.join(name("a").to_string());
        let occupy = || {
            fs::create_dir(&path).unwrap();
            fs::write(path.join("notes"), "mine").unwrap();
        };
        if early {
            occupy();
        }
        let mut blobs = Blobs::open(&dir, 1 << 20).unwrap();
        let fault = match early {
            true => blobs.faults().pop().unwrap(),
            false => {
                occupy();
                put(&mut blobs, "a", b"bytes").unwrap_err()
            }
        };
        assert!(matches!(fault, BlobsError::Occupied(_)), "{fault}");
        let words = fault.to_string();
        assert!(words.contains(path.to_str().unwrap()) && words.contains("move it"), "{words}");
        // It was said once.
        assert!(!put(&mut blobs, "a", b"bytes").unwrap());
        assert!(put(&mut blobs, "b", b"bytes").unwrap());
        assert_eq!(get(&mut blobs, "b").unwrap().unwrap(), b"bytes");
        assert_eq!(fs::read(path.join("notes")).unwrap(), b"mine");
    }
}

#[test]
fn only_a_full_disk_is_said_to_need_room() {
    for (number, makes_room) in [(28, true), (122, true), (5, false), (13, false), (21, false)] {
        let (path, cause) = (PathBuf::from("file"), io::Error::from_raw_os_error(number));
        let words = BlobsError::Write { path, cause }.to_string();
        assert_eq!(words.contains("make room"), makes_room, "{words}");
    }
}

#[test]
fn faults_of_writing_leave_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let (mut blobs, faults) = faulty(dir.path(), 1 << 20);
    let bytes = vec![7; 200_000];
    let cases: [fn(&mut Faults); 6] = [
        |faults| faults.create = Some(0),
        |faults| faults.full = Some(0),
        |faults| faults.full = Some(70_000),
        |faults| faults.full = Some(200_000),
        |faults| faults.finish = Some(0),
        |faults| faults.rename = Some(0),
    ];
    for (number, set) in cases.iter().enumerate() {
        set(&mut faults.lock().unwrap());
        let error = put(&mut blobs, "a", &bytes).unwrap_err();
        assert!(matches!(error, BlobsError::Write { .. }), "{number}: {error}");
        assert!(!blobs.has(&name("a")), "{number}");
        assert_eq!((blobs.bytes(), bytes_in(dir.path())), (0, 0), "{number}");
        *faults.lock().unwrap() = Faults::default();
    }
    assert!(put(&mut blobs, "a", &bytes).unwrap());
    assert_eq!(get(&mut blobs, "a").unwrap().unwrap(), bytes);
}

#[test]
fn faults_of_reading_are_errors_and_never_other_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let (mut blobs, faults) = faulty(dir.path(), 1 << 20);
    let bytes: Vec<u8> = (0..300).map(|n| n as u8).collect();
    let whole = FRAME as usize + bytes.len();
    put(&mut blobs, "a", &bytes).unwrap();
    faults.lock().unwrap().short = true;
    assert_eq!(get(&mut blobs, "a").unwrap().unwrap(), bytes, "short reads are no fault");
    let mut cases: Vec<Faults> = vec![Faults { open: Some(0), ..Faults::default() }];
    for at in [0, 4, 8, 100, whole - 33, whole - 1] {
        cases.push(Faults { read: Some(at), ..Faults::default() });
        cases.push(Faults { ends: Some(at), ..Faults::default() });
    }
    cases.extend((0..8 * whole).map(|bit| Faults { flip: Some(bit), ..Faults::default() }));
    for fault in cases {
        put(&mut blobs, "a", &bytes).unwrap();
        let what = format!("{fault:?}");
        *faults.lock().unwrap() = fault;
        let error = get(&mut blobs, "a").expect_err(&what);
        assert!(matches!(error, BlobsError::Read { .. } | BlobsError::Damaged(_)), "{what}");
        *faults.lock().unwrap() = Faults::default();
        assert_eq!(get(&mut blobs, "a").unwrap(), None, "{what}: it is removed");
        assert_eq!(bytes_in(dir.path()), 0, "{what}");
    }
}

#[test]
fn files_that_cannot_be_removed_count_on() {
    let dir = tempfile::tempdir().unwrap();
    let (mut blobs, faults) = faulty(dir.path(), 2 * (FRAME + 100));
    put(&mut blobs, "a", &[7; 100]).unwrap();
    put(&mut blobs, "b", &[7; 100]).unwrap();
    faults.lock().unwrap().remove = Some(0);
    assert!(!put(&mut blobs, "c", &[7; 100]).unwrap());
    assert_eq!(blobs.bytes(), bytes_in(dir.path()));
    assert!(put(&mut blobs, "c", &[7; 100]).unwrap(), "for the other one");
    assert_eq!(blobs.bytes(), bytes_in(dir.path()));
}

/// Numbers that look random, the same in every run.
struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

#[test]
fn the_limit_holds_and_no_bytes_are_others_under_random_faults() {
    const LIMIT: u64 = 5000;
    for seed in 1..40 {
        let dir = tempfile::tempdir().unwrap();
        let mut draw = Draw(seed * 7919);
        let contents: Vec<Vec<u8>> = (0..30)
            .map(|word| (0..draw.below(1200)).map(|n| (n as u8).wrapping_mul(word)).collect())
            .collect();
        let (mut blobs, mut faults) = faulty(dir.path(), LIMIT);
        let (mut read, mut failed) = (0, 0);
        for _ in 0..400 {
            let word = draw.below(30);
            let (key, bytes) = (word.to_string(), &contents[word as usize]);
            let fault = draw.below(30);
            let set = |set: fn(&mut Faults, u64), value| set(&mut faults.lock().unwrap(), value);
            match fault {
                0 => set(|faults, value| faults.full = Some(value as usize), draw.below(500)),
                1 => set(|faults, _| faults.finish = Some(0), 0),
                2 => set(|faults, _| faults.rename = Some(0), 0),
                3 => set(|faults, value| faults.flip = Some(value as usize), draw.below(9000)),
                4 => set(|faults, value| faults.read = Some(value as usize), draw.below(900)),
                5 => set(|faults, value| faults.ends = Some(value as usize), draw.below(900)),
                6 => set(|faults, _| faults.open = Some(0), 0),
                _ => *faults.lock().unwrap() = Faults::default(),
            }
            match draw.below(8) {
                0..=3 => failed += u32::from(put(&mut blobs, &key, bytes).is_err()),
                4..=5 => match get(&mut blobs, &key) {
                    Ok(Some(found)) => {
                        assert!(found == *bytes, "{seed}: {fault}");
                        read += 1;
                    }
                    Ok(None) => {}
                    Err(_) => failed += 1,
                },
                6 => blobs.used(&[name(&key), name("1")]),
                _ => {
                    drop(blobs);
                    (blobs, faults) = faulty(dir.path(), LIMIT);
                }
            }
            assert_eq!(bytes_in(dir.path()), blobs.bytes(), "{seed}: {fault}");
            assert!(blobs.bytes() <= LIMIT, "{seed}: {fault}");
        }
        assert!(read > 10 && failed > 3, "{seed}: {read} read, {failed} failed");
    }
}
