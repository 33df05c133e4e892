//! Progress of downloads.

use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, OnceLock};

use sws::Progress;
use sws_hub::DownloadWatch;

use crate::here::file_len;
use crate::progress::{ProgressMeter, ProgressUnit};
use crate::terminal::note;

/// Bytes of a file that an earlier download left.
pub(super) fn present(path: &Path, len: u64) -> u64 {
    file_len(path).max(file_len(&path.with_added_extension("incomplete"))).min(len)
}

/// Shows the progress of downloads.
pub(super) struct Downloaded {
    what: &'static str,
    total: u64,
    done: AtomicI64,
    /// Made with the first byte, so that its rate is that of the bytes.
    meter: OnceLock<ProgressMeter>,
    /// Steps of the headers that are done, and a meter of them while some are missing.
    headers: Mutex<(usize, Option<ProgressMeter>)>,
}

impl Downloaded {
    pub(super) fn new(what: &'static str, total: u64) -> Downloaded {
        let meter = OnceLock::new();
        let headers = Mutex::default();
        Downloaded { what, total, done: AtomicI64::new(0), meter, headers }
    }

    pub(super) fn finish(&self) {
        if let Some(meter) = self.meter.get() {
            meter.finish();
        }
    }
}

impl DownloadWatch for Downloaded {
    fn moved(&self, bytes: i64) {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let meter = self.meter.get_or_init(|| ProgressMeter::new(self.what));
        meter.show(Progress { done: done.max(0) as u64, total: self.total });
    }

    fn prepared(&self, done: usize, steps: usize) {
        let Ok(mut headers) = self.headers.lock() else { return };
        let (most, meter) = &mut *headers;
        // Threads may report in another order than they count in.
        if done < *most && done > 0 {
            return;
        }
        *most = done;
        let shown =
            meter.get_or_insert_with(|| ProgressMeter::quiet("headers", ProgressUnit::Work));
        shown.show(Progress { done: done as u64, total: steps as u64 });
        if done == steps {
            shown.finish();
            *meter = None;
        }
    }

    fn waiting(&self, file: &str) {
        note!("sws: another process downloads `{file}`; waiting for it");
    }
}
