//! Speed of the sharder, compared with a plain copy that moves the same number of bytes.
//!
//! The copy knows nothing of tensors: as many threads as the sharder has workers read blocks past
//! the page cache and write three quarters of each (or the share that the encoding leaves) into one
//! file. The sharder's additional work (counting, encoding, hashing, many files, each synced and
//! renamed) has to hide behind the device.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::fs::{FallocateFlags, OFlags};
use serde::Serialize;
use sws_format::{Checkpoint, Clock, Naming, open_checkpoint};
use sws_kernels::Encoding;
use sws_shard::{ShardOptions, shard};
use sws_store::{SLOT_ALIGN, Slot};

use crate::paired::median;

/// Settings of a measurement.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Checkpoint to shard.
    pub checkpoint: PathBuf,
    /// New directory for the outputs, deleted afterwards.
    pub scratch: PathBuf,
    /// Encoding of the shards.
    pub encoding: Encoding,
    /// Number of copies and shardings, which alternate.
    pub pairs: usize,
    /// True if the copy uses huge pages, as the sharder does.
    pub huge_pages: bool,
}

/// Results of a measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Encoding of the shards.
    pub encoding: &'static str,
    /// Bytes of weights read by each contender.
    pub bytes_read: u64,
    /// Bytes written by each contender.
    pub bytes_written: u64,
    /// Number of shards.
    pub shards: usize,
    /// Pairs in the order of measurement.
    pub pairs: Vec<Pair>,
    /// Median over the pairs of the sharder's speed relative to the copy's.
    pub ratio: f64,
}

/// One copy and one sharding.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Pair {
    /// Seconds of the copy.
    pub copy: f64,
    /// Seconds of the sharding.
    pub shard: f64,
    /// The sharding's speed relative to the copy's.
    pub ratio: f64,
}

/// Measures, and deletes the outputs.
pub fn measure(settings: &Settings) -> Result<Report> {
    ensure!(settings.pairs > 0, "--pairs must be at least 1");
    std::fs::create_dir(&settings.scratch).with_context(|| {
        format!("`{}` cannot be made; choose a new directory", settings.scratch.display())
    })?;
    let report = measure_in(settings);
    std::fs::remove_dir_all(&settings.scratch)?;
    report
}

fn measure_in(settings: &Settings) -> Result<Report> {
    let checkpoint = open_checkpoint(&settings.checkpoint, None)?;
    let naming = sws_model::naming(checkpoint.config())?;
    let out = settings.scratch.join("shards");
    let sharding = || timed_sharding(&*checkpoint, &*naming, &out, settings.encoding);
    // The first run warms up, and gives the number of bytes to write.
    let (_, done) = sharding()?;
    let files: Vec<PathBuf> =
        checkpoint.files().iter().map(|file| settings.checkpoint.join(&file.name)).collect();
    let read = done.source_bytes;
    let written = done.stored_bytes;
    let to = settings.scratch.join("copy");
    let copying = || timed_copy(&files, read, &to, written, settings.huge_pages);
    let mut pairs = Vec::new();
    for number in 0..settings.pairs {
        // Alternate, so that side effects of the first run do not always favour the same contender.
        let (copy, shard) = if number % 2 == 0 {
            let copy = copying()?;
            (copy, sharding()?.0)
        } else {
            let shard = sharding()?.0;
            (copying()?, shard)
        };
        let [copy, shard] = [copy, shard].map(|time| time.as_secs_f64());
        pairs.push(Pair { copy, shard, ratio: copy / shard });
    }
    let ratio = median(pairs.iter().map(|pair| pair.ratio));
    Ok(Report {
        encoding: settings.encoding.name(),
        bytes_read: read,
        bytes_written: written,
        shards: done.shards,
        pairs,
        ratio,
    })
}

fn timed_sharding(
    checkpoint: &dyn Checkpoint,
    naming: &dyn Naming,
    out: &Path,
    encoding: Encoding,
) -> Result<(Duration, sws_shard::Sharded)> {
    settle();
    let clock = Clock::real();
    let options = ShardOptions { encoding, ..ShardOptions::default() };
    let done = shard(checkpoint, naming, out, &options, &|_| ())?;
    let time = clock.now();
    std::fs::remove_dir_all(out)?;
    Ok((time, done))
}

/// Waits until deletions and other pending writes are complete.
pub(crate) fn settle() {
    rustix::fs::sync();
    Clock::real().sleep(Duration::from_millis(500));
}

/// Bytes that one thread reads at a time.
const BLOCK: u64 = 4 << 20;
/// Number of the sharder's workers.
const THREADS: usize = 3;

fn timed_copy(
    files: &[PathBuf],
    read: u64,
    to: &Path,
    written: u64,
    huge_pages: bool,
) -> Result<Duration> {
    settle();
    let clock = Clock::real();
    let direct = OFlags::DIRECT.bits() as i32;
    let mut blocks = Vec::new();
    let mut left = read;
    for path in files {
        let file = OpenOptions::new().read(true).custom_flags(direct).open(path)?;
        let len = file.metadata()?.len().min(left);
        left -= len;
        let file = std::sync::Arc::new(file);
        blocks.extend((0..len).step_by(BLOCK as usize).map(|at| (file.clone(), at)));
    }
    let written = written.next_multiple_of(4096);
    let share = (written / blocks.len() as u64).next_multiple_of(4096);
    let out = OpenOptions::new().write(true).create_new(true).custom_flags(direct).open(to)?;
    rustix::fs::fallocate(&out, FallocateFlags::empty(), 0, written)?;
    let next = AtomicU64::new(0);
    let failure = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let copied = copy_blocks(&blocks, &next, &out, share, written, huge_pages);
                if let Err(error) = copied {
                    failure.lock().expect("no holder panics").get_or_insert(error);
                }
            });
        }
    });
    if let Some(error) = failure.into_inner().expect("no holder panics") {
        return Err(error.into());
    }
    out.sync_data()?;
    let time = clock.now();
    std::fs::remove_file(to)?;
    Ok(time)
}

fn copy_blocks(
    blocks: &[(std::sync::Arc<File>, u64)],
    next: &AtomicU64,
    out: &File,
    share: u64,
    written: u64,
    huge_pages: bool,
) -> std::io::Result<()> {
    let (mut huge, mut ordinary);
    let buffer: &mut [u8] = if huge_pages {
        huge = Slot::alone(BLOCK as usize)?;
        &mut huge
    } else {
        ordinary = vec![0; BLOCK as usize + SLOT_ALIGN];
        let aligned = ordinary.as_ptr().align_offset(SLOT_ALIGN);
        &mut ordinary[aligned..aligned + BLOCK as usize]
    };
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let Some((file, at)) = blocks.get(number as usize) else { return Ok(()) };
        let mut filled = 0;
        while filled < buffer.len() {
            match file.read_at(&mut buffer[filled..], at + filled as u64)? {
                0 => break,
                n => filled += n,
            }
        }
        let start = number * share;
        let len = share.min(written.saturating_sub(start));
        out.write_all_at(&buffer[..len as usize], start)?;
    }
}

impl Report {
    /// The results as a table.
    pub fn table(&self) -> String {
        let gb = |bytes: u64, seconds: f64| bytes as f64 / 1e9 / seconds;
        let both = self.bytes_read + self.bytes_written;
        let mut text = format!(
            "{}: {:.2} GB read, {:.2} GB written, {} shards\n\n| pair | copy s | copy GB/s | sharding s | sharding GB/s | ratio |\n|---|---|---|---|---|---|\n",
            self.encoding,
            self.bytes_read as f64 / 1e9,
            self.bytes_written as f64 / 1e9,
            self.shards,
        );
        for (number, pair) in (1..).zip(&self.pairs) {
            text.push_str(&format!(
                "| {number} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} |\n",
                pair.copy,
                gb(both, pair.copy),
                pair.shard,
                gb(both, pair.shard),
                pair.ratio,
            ));
        }
        text + &format!("\nmedian ratio {:.2} (GB/s: read and written together)\n", self.ratio)
    }
}
