//! A reader that downloads missing cells, and then reads from the local files.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use sws_format::{ReadOp, ShardReader};

use crate::downloads::Downloads;
use crate::fetch::FetchShared;
use crate::queue::Failed;

/// Number of attempts in which cells are dropped again, before a range is read without the cache.
const TURNS: usize = 3;

pub(crate) struct FarReader {
    pub(crate) shared: Arc<FetchShared>,
    pub(crate) local: Arc<dyn ShardReader>,
    /// Downloads end with the model and its last reader.
    pub(crate) _downloads: Arc<Downloads>,
}

impl FarReader {
    /// The cells of a read.
    fn cells(&self, file: u32, offset: u64, len: usize) -> Range<u32> {
        let place = &self.shared.place;
        place.cells.within(&place.manifest, file, offset, len as u64)
    }

    /// The cells that are missing. The others are marked as used.
    fn missing(&self, cells: Range<u32>) -> io::Result<Vec<u32>> {
        let record = &self.shared.place.record;
        let uses = record.uses(cells.clone())?;
        let now = record.time();
        let mut missing = Vec::new();
        for (cell, used) in cells.zip(uses) {
            match used {
                0 => missing.push(cell),
                used if used != now => record.set(cell, now)?,
                _ => {}
            }
        }
        Ok(missing)
    }

    /// True if no cell is missing.
    fn is_here(&self, cells: &Range<u32>) -> bool {
        self.missing(cells.clone()).is_ok_and(|missing| missing.is_empty())
    }

    /// Demands missing cells, and the rest of the file if it is downloaded as a whole.
    fn demand(&self, file: u32, missing: &[u32]) -> io::Result<()> {
        let place = &self.shared.place;
        self.shared.queue.demand(missing.iter().copied());
        if place.cells.is_whole(file) {
            let others = self.missing(place.cells.of_file(file))?;
            self.shared.queue.demand(others);
        }
        Ok(())
    }

    /// Downloads the missing cells of a read. False if they are dropped again.
    fn obtain(&self, file: u32, cells: &Range<u32>) -> io::Result<bool> {
        for turn in 0..TURNS {
            let missing = self.missing(cells.clone())?;
            if missing.is_empty() {
                return Ok(true);
            }
            self.demand(file, &missing)?;
            match self.shared.queue.wait(&missing) {
                // Only demanded cells can displace others, so the cell is demanded once more.
                Ok(()) => {}
                Err(Failed::NoRoom) if turn == 0 => {}
                Err(Failed::NoRoom) => return Ok(false),
                Err(Failed::Error(error)) => return Err(error.of_reader()),
            }
        }
        Ok(false)
    }

    /// Reads from the local file, if all cells are still cached.
    fn local(
        &self,
        cells: &Range<u32>,
        read: impl FnOnce() -> io::Result<usize>,
    ) -> io::Result<Option<usize>> {
        self.shared.place.reading(|| match self.missing(cells.clone())?.is_empty() {
            true => read().map(Some),
            false => Ok(None),
        })
    }

    /// Number of bytes that the file has within a read.
    fn present(&self, file: u32, offset: u64, len: usize) -> usize {
        let left = self.shared.entry(file).len.saturating_sub(offset);
        usize::try_from(left).unwrap_or(usize::MAX).min(len)
    }

    fn past_the_cache(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.shared.read(file, offset, into).map_err(|error| error.of_reader())
    }
}

impl ShardReader for FarReader {
    fn name(&self) -> &'static str {
        self.local.name()
    }

    fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let cells = self.cells(file, offset, into.len());
        if self.obtain(file, &cells)? {
            let present = self.present(file, offset, into.len());
            match self.local(&cells, || self.local.read_at(file, offset, into)) {
                Ok(Some(got)) if got >= present => return Ok(got),
                Ok(None) => {}
                // The file was removed or truncated, or the drive fails.
                Ok(Some(_)) | Err(_) => drop(self.shared.place.forget(cells)),
            }
        }
        self.past_the_cache(file, offset, into)
    }

    /// Drops the cached cells, as they do not match their checksums.
    fn reread_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.shared.place.forget(self.cells(file, offset, into.len()))?;
        self.past_the_cache(file, offset, into)
    }

    fn batch(&self) -> usize {
        self.local.batch()
    }

    fn read_batch(&self, reads: &mut [ReadOp<'_>]) {
        let cells: Vec<Range<u32>> =
            reads.iter().map(|read| self.cells(read.file, read.offset, read.into.len())).collect();
        // All cells are demanded before the first one is waited for.
        for (read, cells) in reads.iter().zip(&cells) {
            if let Ok(missing) = self.missing(cells.clone())
                && !missing.is_empty()
            {
                let _ = self.demand(read.file, &missing);
            }
        }
        let mut obtained: Vec<io::Result<bool>> = Vec::with_capacity(reads.len());
        for (read, cells) in reads.iter().zip(&cells) {
            obtained.push(self.obtain(read.file, cells));
        }
        let all_here = obtained.iter().all(|here| matches!(here, Ok(true)));
        let read = all_here
            && self.shared.place.reading(|| {
                let all_here = cells.iter().all(|cells| self.is_here(cells));
                if all_here {
                    self.local.read_batch(reads);
                }
                all_here
            });
        for (op, obtained) in reads.iter_mut().zip(&mut obtained) {
            let present = self.present(op.file, op.offset, op.into.len());
            let is_done = read && op.result.as_ref().is_ok_and(|&got| got >= present);
            op.result = match std::mem::replace(obtained, Ok(true)) {
                Err(error) => Err(error),
                Ok(_) if is_done => continue,
                Ok(_) => self.read_at(op.file, op.offset, op.into),
            };
        }
    }
}
