//! Small files next to the weights. Listed files must match their copies, others their first
//! reading.

use std::fs::{self, OpenOptions};
use std::path::Path;

use sws_format::{CopiedFile, Manifest, ModelIdentity, SmallFileError};

const NAME: &str = "tokenizer.json";
const BYTES: &[u8] = b"{\"a\": 1}";

fn manifest(copies: Vec<CopiedFile>) -> Manifest {
    let model = ModelIdentity { model_type: "toy".into(), fingerprint: "0".repeat(64) };
    Manifest { model, encoding: None, files: Vec::new(), pieces: Vec::new(), copies }
}

fn listed() -> Manifest {
    let blake3 = blake3::hash(BYTES).to_hex().to_string();
    manifest(vec![CopiedFile { path: NAME.into(), len: BYTES.len() as u64, blake3 }])
}

/// Writes other bytes, and keeps the time of modification.
fn rot(path: &Path, bytes: &[u8]) {
    let modified = fs::metadata(path).unwrap().modified().unwrap();
    fs::write(path, bytes).unwrap();
    OpenOptions::new().write(true).open(path).unwrap().set_modified(modified).unwrap();
}

#[test]
fn listed_file_must_match_the_copy() {
    type Spoil = fn(&Path);
    let cases: [(Spoil, &str); 7] = [
        (|_| (), ""),
        (|path| fs::write(path, b"{\"a\": 2}").unwrap(), "is damaged"),
        (|path| fs::write(path, b"{\"a\": 1} ").unwrap(), "has 9 bytes instead of 8"),
        (|path| fs::write(path, b"").unwrap(), "has 0 bytes instead of 8"),
        (|path| fs::remove_file(path).unwrap(), "is missing, though the manifest lists it"),
        (
            |path| {
                fs::rename(path, path.with_file_name("elsewhere")).unwrap();
                std::os::unix::fs::symlink("elsewhere", path).unwrap();
            },
            "is not a regular file",
        ),
        (
            |path| {
                fs::remove_file(path).unwrap();
                fs::create_dir(path).unwrap();
            },
            "is not a regular file",
        ),
    ];
    for (spoil, words) in cases {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(NAME), BYTES).unwrap();
        spoil(&dir.path().join(NAME));
        match listed().read_small(dir.path(), NAME, None) {
            Ok(bytes) => assert_eq!((bytes.as_deref(), words), (Some(BYTES), "")),
            Err(error) => {
                let text = error.to_string();
                assert!(!words.is_empty() && text.contains(words), "{text}");
                assert!(text.contains(NAME) && text.contains("; "), "{text}");
            }
        }
    }
}

#[test]
fn unlisted_file_must_match_its_first_reading() {
    let (dir, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = dir.path().join(NAME);
    let cache = cache.path().join("below");
    // To the record, each call looks like another process.
    let read = || manifest(Vec::new()).read_small(dir.path(), NAME, Some(&cache));
    assert_eq!(read().unwrap(), None);
    fs::write(&path, BYTES).unwrap();
    assert_eq!(read().unwrap().as_deref(), Some(BYTES));
    assert_eq!(read().unwrap().as_deref(), Some(BYTES));
    let record: Vec<_> = fs::read_dir(&cache).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(record.len(), 1);

    rot(&path, b"{\"a\": 2}");
    let error = read().unwrap_err();
    assert!(matches!(error, SmallFileError::Changed { .. }), "{error}");
    assert!(error.to_string().contains("touch"), "{error}");
    rot(&path, BYTES);
    assert_eq!(read().unwrap().as_deref(), Some(BYTES));

    // Without a cache folder, or with a damaged record, nothing is known of the file. An edited
    // file counts as another file.
    rot(&path, b"{\"a\": 2}");
    assert!(manifest(Vec::new()).read_small(dir.path(), NAME, None).is_ok());
    fs::write(&record[0], b"swssums1 of old").unwrap();
    assert!(read().is_ok());
    rot(&path, BYTES);
    assert!(matches!(read(), Err(SmallFileError::Changed { .. })));
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    let later = file.metadata().unwrap().modified().unwrap() + std::time::Duration::from_secs(5);
    file.set_modified(later).unwrap();
    assert_eq!(read().unwrap().as_deref(), Some(BYTES));
}
