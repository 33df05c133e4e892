//! Drives: further copies of the files, and the choice of the one that serves a read.

mod pace;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use sws_format::{Clock, Manifest, ReadOp, ShardReader};

use crate::simulation::SimulatedDisk;
use crate::stats::DriveStats;
use crate::sync::{Mutex, MutexGuard};
use pace::Pace;

/// A further copy of the files of a manifest, whole or partial, on another drive.
#[derive(Clone)]
pub struct Mirror {
    /// Directory of the copy.
    pub dir: PathBuf,
    /// Reader of its files, which have the indices of the manifest.
    pub reader: Arc<dyn ShardReader>,
    /// For each file of the manifest, true if the copy has it.
    pub files: Vec<bool>,
    /// Its disk in virtual time; `None` for one like that of the store.
    pub simulated: Option<SimulatedDisk>,
}

/// The copies of a manifest's files, and the pace of each.
///
/// A read goes to the drive on which it would end first. A drive whose read fails, or whose bytes do
/// not agree with their checksum, is left out: it serves only what no other drive has.
pub(crate) struct Drives {
    /// The store's own directory, which has all files, and then the mirrors.
    drives: Vec<Drive>,
    /// Paths of the files below the directory of a drive.
    names: Vec<String>,
    states: Mutex<Vec<DriveState>>,
    /// Receiver of a sentence about each drive that is left out.
    notice: fn(&str),
    clock: Clock,
}

struct Drive {
    dir: PathBuf,
    reader: Arc<dyn ShardReader>,
    /// The files that it has; `None` for all.
    files: Option<Vec<bool>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct DriveState {
    pace: Pace,
    stats: DriveStats,
}

impl Drives {
    pub(crate) fn new(
        manifest: &Manifest,
        dir: &Path,
        reader: Arc<dyn ShardReader>,
        mirrors: Vec<Mirror>,
        notice: fn(&str),
        clock: Clock,
    ) -> Drives {
        let own = Drive { dir: dir.to_owned(), reader, files: None };
        let mirrors = mirrors.into_iter().map(|mirror| Drive {
            dir: mirror.dir,
            reader: mirror.reader,
            files: Some(mirror.files),
        });
        let drives: Vec<Drive> = [own].into_iter().chain(mirrors).collect();
        let states = Mutex::new(vec![DriveState::default(); drives.len()]);
        let names = manifest.files.iter().map(|file| file.path.clone()).collect();
        Drives { drives, names, states, notice, clock }
    }

    /// Name of the reader of the store's own directory.
    pub(crate) fn reader_name(&self) -> &'static str {
        self.drives[0].reader.name()
    }

    /// Path of a file on a drive, for messages.
    pub(crate) fn path(&self, drive: usize, file: u32) -> PathBuf {
        self.names
            .get(file as usize)
            .map_or(PathBuf::new(), |name| self.drives[drive].dir.join(name))
    }

    /// True if there are mirrors.
    pub(crate) fn are_several(&self) -> bool {
        self.drives.len() > 1
    }

    /// Counters of each drive; empty without mirrors.
    pub(crate) fn stats(&self) -> Vec<DriveStats> {
        match self.are_several() {
            true => self.lock().iter().map(|state| state.stats).collect(),
            false => Vec::new(),
        }
    }

    /// True if a drive has a file.
    pub(crate) fn has(&self, drive: usize, file: u32) -> bool {
        let files = self.drives[drive].files.as_ref();
        files.is_none_or(|files| files.get(file as usize).is_some_and(|has| *has))
    }

    /// Chooses the drive on which a read of `len` bytes would end first, and begins it there.
    pub(crate) fn place(&self, file: u32, len: usize) -> usize {
        if !self.are_several() {
            return 0;
        }
        let now = self.clock.now();
        let mut states = self.lock();
        let chosen = self.choose(&states, file, len as u64, now, &[]).unwrap_or(0);
        states[chosen].pace.begin(len as u64, now);
        chosen
    }

    /// Begins another read on a drive.
    pub(crate) fn begin(&self, drive: usize, len: usize) {
        let now = self.clock.now();
        self.lock()[drive].pace.begin(len as u64, now);
    }

    fn choose(
        &self,
        states: &[DriveState],
        file: u32,
        len: u64,
        now: Duration,
        tried: &[usize],
    ) -> Option<usize> {
        let rates = states.iter().filter_map(|state| state.pace.rate());
        let best = rates.reduce(f64::max).unwrap_or(1.0);
        let mut chosen: Option<(usize, bool, f64)> = None;
        for (at, DriveState { pace, stats }) in states.iter().enumerate() {
            if tried.contains(&at) || !self.has(at, file) {
                continue;
            }
            // A copy begins with one read: it may be far slower.
            let is_last = stats.is_left_out || at > 0 && pace.is_first();
            let ends = pace.seconds(len, best, now);
            let is_better = match chosen {
                Some((_, last, earliest)) => {
                    is_last.cmp(&last).then(ends.total_cmp(&earliest)).is_lt()
                }
                None => true,
            };
            if is_better {
                chosen = Some((at, is_last, ends));
            }
        }
        Some(chosen?.0)
    }

    /// Performs reads that were placed on a drive, and those that fail there on another one. `needed`
    /// returns the bytes that a read must yield.
    pub(crate) fn read(
        &self,
        drive: usize,
        reads: &mut [ReadOp<'_>],
        needed: impl Fn(usize) -> usize,
    ) {
        self.drives[drive].reader.read_batch(reads);
        if !self.are_several() {
            return;
        }
        let now = self.clock.now();
        {
            let state = &mut self.lock()[drive];
            for read in reads.iter() {
                state.end(read, now);
            }
        }
        for (number, read) in reads.iter_mut().enumerate() {
            let needed = needed(number);
            if let Some(why) = failure(&read.result, needed) {
                self.read_elsewhere(read, needed, (drive, why));
            }
        }
    }

    /// Reads from the drives that remain. If all fail, the result is that of the store's own.
    fn read_elsewhere(&self, read: &mut ReadOp<'_>, needed: usize, first: (usize, String)) {
        let mut failed = vec![first];
        while let Some(next) = self.another(read, &failed) {
            let before = std::mem::replace(&mut read.result, Ok(0));
            read.result = self.drives[next].reader.read_at(read.file, read.offset, read.into);
            self.lock()[next].end(read, self.clock.now());
            let Some(why) = failure(&read.result, needed) else {
                for (drive, why) in &failed {
                    self.leave_out(*drive, read.file, why);
                }
                return;
            };
            if next != 0 {
                read.result = before;
            }
            failed.push((next, why));
        }
    }

    /// Begins a read on a drive where it has not failed.
    fn another(&self, read: &ReadOp<'_>, failed: &[(usize, String)]) -> Option<usize> {
        let tried: Vec<usize> = failed.iter().map(|(drive, _)| *drive).collect();
        let len = read.into.len() as u64;
        let now = self.clock.now();
        let mut states = self.lock();
        let next = self.choose(&states, read.file, len, now, &tried)?;
        states[next].pace.begin(len, now);
        Some(next)
    }

    /// The drives that have a file, those that are left out last.
    pub(crate) fn having(&self, file: u32) -> Vec<usize> {
        let mut having: Vec<usize> =
            (0..self.drives.len()).filter(|at| self.has(*at, file)).collect();
        if having.len() > 1 {
            let states = self.lock();
            having.sort_by_key(|&at| states[at].stats.is_left_out);
        }
        having
    }

    /// Reads a range again from a drive, bypassing all caches.
    pub(crate) fn reread(
        &self,
        drive: usize,
        file: u32,
        offset: u64,
        into: &mut [u8],
    ) -> io::Result<usize> {
        self.drives[drive].reader.reread_at(file, offset, into)
    }

    /// Leaves out a drive, unless it is the last, and says so. `why` goes on after the name of a file.
    pub(crate) fn leave_out(&self, drive: usize, file: u32, why: &str) {
        {
            let mut states = self.lock();
            let left = states.iter().filter(|state| !state.stats.is_left_out).count();
            if states[drive].stats.is_left_out || left < 2 {
                return;
            }
            states[drive].stats.is_left_out = true;
        }
        let path = self.path(drive, file);
        (self.notice)(&format!(
            "`{}` {why}, so that copy of the model is left out; check the drive, then mend the copy with `sws mirror`",
            path.display()
        ));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<DriveState>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DriveState {
    fn end(&mut self, read: &ReadOp<'_>, now: Duration) {
        let got = *read.result.as_ref().unwrap_or(&0) as u64;
        self.pace.end(read.into.len() as u64, got, now);
        self.stats.bytes += got;
    }
}

/// Reason why a read failed, as the end of a sentence. `None` if it did not, or was interrupted.
fn failure(result: &io::Result<usize>, needed: usize) -> Option<String> {
    match result {
        Ok(got) if *got >= needed => None,
        Ok(_) => Some("is cut short".to_owned()),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => None,
        Err(error) => Some(format!("cannot be read ({error})")),
    }
}
