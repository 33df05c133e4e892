//! Choice of the reader for this machine by a short measurement at start-up.

use std::path::Path;
use std::time::Duration;

use sws_format::{Clock, Manifest, ReadOp, ShardReader};

use crate::reader::ReaderKind;
use crate::{Arena, SLOT_ALIGN, Slot};

/// Bytes per probing read: the store's default.
const CHUNK: usize = 1 << 20;
const HUGE_PAGE: usize = 2 << 20;
/// Bytes read per candidate, and maximum number of reads.
const SHARE: usize = 12 << 20;
const MOST_READS: usize = 256;
/// Time after which no further candidate is tried.
const PATIENCE: Duration = Duration::from_millis(250);
/// Speed-up that makes a deeper queue or a less common reader worthwhile; less is noise.
const WORTHWHILE: f64 = 1.05;

/// Candidates, most preferred first: `direct` before `uring`, and a depth of 4 before others.
/// `mmap` is not among them: its reads go through the page cache, which counts against the budget,
/// and `direct` already falls back to that where it must.
const CANDIDATES: [(ReaderKind, usize); 5] = [
    (ReaderKind::Direct, 4),
    (ReaderKind::Direct, 2),
    (ReaderKind::Direct, 8),
    (ReaderKind::Uring, 4),
    (ReaderKind::Uring, 8),
];

/// Measured speeds and the resulting choice.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbeReport {
    /// Speeds of the candidates that could be measured.
    pub figures: Vec<Figure>,
    /// The reader to use.
    pub reader: ReaderKind,
    /// Reads to keep in flight.
    pub depth: usize,
}

/// Speed of one candidate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// The reader.
    pub reader: ReaderKind,
    /// Reads in flight.
    pub depth: usize,
    /// Bytes read per second.
    pub bytes_per_second: f64,
}

/// A kind of read whose speed is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reads {
    /// The reader.
    pub reader: ReaderKind,
    /// Reads in flight.
    pub depth: usize,
    /// True for memory in huge pages, as the store reads into. Memory for 2 MiB and more per thread
    /// is always in huge pages where the system grants them.
    pub huge_pages: bool,
}

/// Measures the speed of each kind of reads of `bytes` each, in bytes per second; `None` if one
/// fails. It takes at most about 60 ms for each kind.
pub fn speeds(
    manifest: &Manifest,
    dir: &Path,
    clock: &Clock,
    bytes: usize,
    kinds: &[Reads],
) -> Vec<Option<f64>> {
    let mut places = ProbePlaces::new(manifest, bytes.max(1).next_multiple_of(SLOT_ALIGN));
    let mut speeds = Vec::with_capacity(kinds.len());
    for reads in kinds {
        speeds.push(match reads.reader.open(manifest, dir, reads.depth) {
            Ok(reader) => measure(&*reader, *reads, &mut places, clock, PATIENCE / 4),
            Err(_) => None,
        });
    }
    speeds
}

/// Reads a sample of the files of `manifest`, which lie below `dir`, with each candidate, or with
/// the candidates of one reader. It reads at most 60 MiB and takes at most about 0.3 s.
///
/// Never fails: a candidate that cannot read is skipped, and without any figure the default that
/// suits most devices is returned.
pub fn probe(
    manifest: &Manifest,
    dir: &Path,
    clock: &Clock,
    only: Option<ReaderKind>,
) -> ProbeReport {
    let mut places = ProbePlaces::new(manifest, CHUNK);
    let started = clock.now();
    let mut figures = Vec::new();
    for (kind, depth) in CANDIDATES {
        if only.is_some_and(|only| only != kind) {
            continue;
        }
        if clock.now().saturating_sub(started) > PATIENCE {
            break;
        }
        let Ok(reader) = kind.open(manifest, dir, depth) else { continue };
        let reads = Reads { reader: kind, depth, huge_pages: true };
        let speed = measure(&*reader, reads, &mut places, clock, PATIENCE / 4);
        if let Some(bytes_per_second) = speed {
            figures.push(Figure { reader: kind, depth, bytes_per_second });
        }
    }
    let (reader, depth) = choose(&figures).unwrap_or((only.unwrap_or(CANDIDATES[0].0), 4));
    ProbeReport { figures, reader, depth }
}

/// Returns the most preferred candidate that no other beats by a worthwhile margin.
fn choose(figures: &[Figure]) -> Option<(ReaderKind, usize)> {
    let best = figures.iter().map(|figure| figure.bytes_per_second).fold(0.0, f64::max);
    let good = figures.iter().filter(|figure| figure.bytes_per_second * WORTHWHILE >= best);
    Some(good.min_by_key(|figure| figure.preference())?.candidate())
}

impl Figure {
    fn candidate(&self) -> (ReaderKind, usize) {
        (self.reader, self.depth)
    }

    /// Place among the candidates, of which the first is the most preferred.
    fn preference(&self) -> Option<usize> {
        CANDIDATES.iter().position(|&candidate| candidate == self.candidate())
    }
}

/// Measures a reader, in bytes per second; `None` if a read fails.
fn measure(
    reader: &dyn ShardReader,
    Reads { depth, huge_pages, .. }: Reads,
    places: &mut ProbePlaces<'_>,
    clock: &Clock,
    patience: Duration,
) -> Option<f64> {
    let batch = reader.batch().clamp(1, depth);
    let lanes = depth.div_ceil(batch);
    let chunk = places.chunk;
    let arena = Arena::new((lanes * batch * chunk).max(HUGE_PAGE)).ok()?;
    let mut memory = Vec::with_capacity(lanes);
    for _ in 0..lanes {
        memory.push(match huge_pages {
            true => arena.take(batch * chunk)?,
            false => Slot::alone(batch * chunk).ok()?,
        });
    }
    // Opening the files and touching the memory for the first time must not count as reading.
    for slot in &mut memory {
        slot.fill(1);
    }
    let mut work: Vec<Vec<(u32, u64)>> = vec![Vec::new(); lanes];
    for n in 0..(SHARE / chunk).min(MOST_READS).max(lanes * batch) {
        work[n / batch % lanes].push(places.next()?);
    }
    for &(file, _) in work.iter().flatten() {
        let mut page = Slot::alone(1).ok()?;
        reader.read_at(file, 0, &mut page).ok()?;
    }
    let started = clock.now();
    let total: Option<usize> = std::thread::scope(|scope| {
        let threads: Vec<_> = memory
            .iter_mut()
            .zip(&work)
            .map(|(memory, work)| {
                std::thread::Builder::new().spawn_scoped(scope, move || {
                    let mut total = 0;
                    for group in work.chunks(batch) {
                        if clock.now().saturating_sub(started) > patience {
                            break;
                        }
                        let mut reads: Vec<ReadOp<'_>> = group
                            .iter()
                            .zip(memory.chunks_mut(chunk))
                            .map(|(&(file, offset), into)| ReadOp {
                                file,
                                offset,
                                into,
                                result: Ok(0),
                            })
                            .collect();
                        reader.read_batch(&mut reads);
                        for read in reads {
                            total += read.result.ok()?;
                        }
                    }
                    Some(total)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.ok()?.join().ok().flatten()).sum()
    });
    let elapsed = clock.now().saturating_sub(started).as_secs_f64();
    let total = total?;
    if total > 0 && elapsed > 0.0 { Some(total as f64 / elapsed) } else { None }
}

/// Places to read, spread over all files. Places repeat only when all were used, as bytes read
/// before may be in a cache of the device.
struct ProbePlaces<'m> {
    manifest: &'m Manifest,
    /// Bytes of each read.
    chunk: usize,
    total: u64,
    count: u64,
}

impl<'m> ProbePlaces<'m> {
    fn new(manifest: &'m Manifest, chunk: usize) -> ProbePlaces<'m> {
        let total = manifest.files.iter().map(|file| file.len.div_ceil(chunk as u64)).sum();
        ProbePlaces { manifest, chunk, total, count: 0 }
    }

    fn next(&mut self) -> Option<(u32, u64)> {
        // A stride near the golden ratio of the total keeps each place far from the earlier ones.
        let stride = (self.total as f64 * 0.618) as u64 | 1;
        let mut at = self.count.wrapping_mul(stride).checked_rem(self.total)?;
        self.count += 1;
        for (index, file) in self.manifest.files.iter().enumerate() {
            let chunks = file.len.div_ceil(self.chunk as u64);
            if at < chunks {
                return Some((u32::try_from(index).ok()?, at * self.chunk as u64));
            }
            at -= chunks;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ReaderKind::{Direct, Uring};

    #[test]
    fn the_simplest_of_the_fastest_is_chosen() {
        type Figures = &'static [(ReaderKind, usize, f64)];
        let cases: [(Figures, Option<(ReaderKind, usize)>); 9] = [
            (&[], None),
            (&[(Direct, 4, 1.0)], Some((Direct, 4))),
            (&[(Direct, 4, 1.0), (Direct, 2, 1.0), (Direct, 8, 1.0)], Some((Direct, 4))),
            (&[(Direct, 8, 1.0), (Direct, 2, 1.0), (Direct, 4, 1.0)], Some((Direct, 4))),
            (&[(Direct, 4, 1.00), (Direct, 8, 1.04)], Some((Direct, 4))),
            (&[(Direct, 4, 1.00), (Direct, 8, 1.06)], Some((Direct, 8))),
            (&[(Direct, 2, 1.30), (Direct, 4, 1.00)], Some((Direct, 2))),
            (&[(Direct, 8, 2.00), (Uring, 8, 2.09), (Uring, 4, 2.08)], Some((Direct, 8))),
            (&[(Direct, 8, 2.00), (Uring, 8, 3.00), (Uring, 4, 2.90)], Some((Uring, 4))),
        ];
        for (figures, expected) in cases {
            let figures: Vec<Figure> = figures
                .iter()
                .map(|&(reader, depth, bytes_per_second)| Figure {
                    reader,
                    depth,
                    bytes_per_second,
                })
                .collect();
            assert_eq!(choose(&figures), expected, "{figures:?}");
        }
    }
}
