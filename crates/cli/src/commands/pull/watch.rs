//! Progress of downloads.

use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};

use sws::Progress;
use sws_hub::Watch;

use crate::progress::Meter;
use crate::terminal::note;

/// Bytes of a file that an earlier download left.
pub(super) fn present(path: &Path, len: u64) -> u64 {
    let of = |path: &Path| path.metadata().map_or(0, |about| about.len());
    of(path).max(of(&path.with_added_extension("incomplete"))).min(len)
}

/// Shows the progress of downloads.
pub(super) struct Downloaded {
    pub(super) meter: Meter,
    done: AtomicI64,
    total: u64,
}

impl Downloaded {
    pub(super) fn new(what: &'static str, total: u64) -> Downloaded {
        Downloaded { meter: Meter::new(what), done: AtomicI64::new(0), total }
    }
}

impl Watch for Downloaded {
    fn moved(&self, bytes: i64) {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.meter.show(Progress { done: done.max(0) as u64, total: self.total });
    }

    fn waiting(&self, file: &str) {
        note!("sws: another process downloads `{file}`; waiting for it");
    }
}
