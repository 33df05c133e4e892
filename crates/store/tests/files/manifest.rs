//! A manifest is written, read back, and believed only if it holds together.

use std::fs;

use sws_store::{Checkpoint, Manifest};

use crate::common::{Toy, checkpoint};

/// A manifest with checksums over a directory that has its file.
fn sample(dir: &std::path::Path) -> Manifest {
    checkpoint(
        dir,
        &[
            ("0.norm", "F32", &[4], 16),
            ("embed", "BF16", &[5, 4], 40),
            ("1.stack", "BF16", &[2, 3, 4], 48),
            ("empty", "F32", &[0, 4], 0),
        ],
    );
    let mut manifest = Manifest::in_place(&Checkpoint::open(dir).unwrap(), &Toy).unwrap();
    for part in manifest.pieces.iter_mut().flat_map(|p| &mut p.tensors).flat_map(|t| &mut t.parts) {
        part.checks = (0..part.len.div_ceil(part.check_len)).map(|i| i.wrapping_sub(1)).collect();
    }
    manifest
}

#[test]
fn what_is_written_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let manifest = sample(dir.path());
    manifest.write(dir.path()).unwrap();
    assert_eq!(Manifest::load(dir.path()).unwrap(), manifest);
    let bytes = fs::read(dir.path().join("manifest.json")).unwrap();
    assert_eq!(manifest.to_json().unwrap(), bytes);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3, "no temporary file is left");
}
