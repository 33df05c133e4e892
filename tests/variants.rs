//! Location of the goldens in `tests/goldens`, for the tests of several crates.

use std::path::{Path, PathBuf};

/// The directory of the goldens.
pub(crate) fn goldens() -> PathBuf {
    // Each crate that includes this file lies two directories below the root.
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens")
}

/// Names of all checkpoints among the goldens.
pub(crate) fn variants() -> Vec<String> {
    let entries = goldens().read_dir().unwrap().map(|entry| entry.unwrap());
    let mut names: Vec<String> = entries
        .filter(|entry| entry.path().join("golden.safetensors").exists())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert!(names.len() >= 18, "{names:?}");
    names
}
