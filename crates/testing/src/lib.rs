//! Helpers of tests, gates and benchmarks. No crate that is published depends on this one, except
//! for its tests.

pub mod cgroup;
pub mod child;
pub mod goldens;
pub mod noisy;
pub mod virtual_time;

use std::path::{Path, PathBuf};

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The bundled model.
pub fn tales() -> PathBuf {
    root().join("shards/tales-moe")
}
