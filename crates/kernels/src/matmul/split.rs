//! Division of products among threads.
//!
//! A thread that a reader or another program interrupts would keep all others waiting if each had a fixed
//! share. So there are several parts for each thread, and a thread that has done its own takes one of
//! another.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use super::{MatmulJob, ThreadScratch, matmul_rows};
use crate::Tier;

/// Parts for each thread, as far as none is smaller than [`LEAST_WORK`].
const PARTS: usize = 4;
/// Fewest multiplications of a part: some ten microseconds.
const LEAST_WORK: usize = 1 << 18;
/// Parts of a matrix begin at a multiple of so many rows, which kernels compute together.
const ROWS: usize = 8;

/// Products that are divided, and the memory of the threads among which they are.
struct Shared<'s, 'a> {
    tier: Tier,
    jobs: &'s [Option<MatmulJob<'a>>],
    scratch: &'s [Mutex<ThreadScratch>],
}

// SAFETY: threads only read the matrices and activations, and write to parts of the results that do not
// overlap, as parts of the work do not.
unsafe impl Sync for Shared<'_, '_> {}

/// Multiplications of a job.
fn work(job: &MatmulJob<'_>) -> usize {
    job.matrix.row_count().saturating_mul(row_work(job))
}

/// Multiplications of a row of a job; 1 where there are none, so that each row belongs to a part.
fn row_work(job: &MatmulJob<'_>) -> usize {
    job.matrix.cols().saturating_mul(job.x.tokens()).max(1)
}

/// Computes all products on as many threads as there are scratches, with the same bits for any number.
pub(super) fn run(tier: Tier, jobs: &[Option<MatmulJob<'_>>], scratch: &[Mutex<ThreadScratch>]) {
    let all = jobs.iter().flatten().map(work).fold(0, usize::saturating_add);
    let parts = match scratch.len() {
        1 => 1,
        threads => (threads * PARTS).min(all / LEAST_WORK).max(threads),
    };
    divide(&Shared { tier, jobs, scratch }, 0..all, parts);
}

/// Divides a range of the work into so many parts. `join` allocates nothing, and idle threads take what is
/// left of others.
fn divide(shared: &Shared<'_, '_>, range: Range<usize>, parts: usize) {
    if parts == 1 {
        return compute(shared, range);
    }
    let left = parts / 2;
    let middle = range.start + range.len() / parts * left;
    rayon::join(
        || divide(shared, range.start..middle, left),
        || divide(shared, middle..range.end, parts - left),
    );
}

/// Computes the rows of a range of the work on the calling thread.
fn compute(shared: &Shared<'_, '_>, range: Range<usize>) {
    let mut scratch = None;
    let mut first = 0;
    for job in shared.jobs.iter().flatten() {
        let rows = [range.start, range.end].map(|place| row_at(job, place.saturating_sub(first)));
        first = first.saturating_add(work(job));
        if rows[0] == rows[1] {
            continue;
        }
        let scratch = scratch.get_or_insert_with(|| free(shared.scratch));
        // SAFETY: ranges of the work do not overlap, so neither do their rows, which ascend with the work.
        let y = unsafe { job.y.part(rows[0]..rows[1]) };
        matmul_rows(shared.tier, &job.matrix.rows(rows[0]..rows[1]), job.x, y, scratch);
    }
}

/// The row of a job at which a part begins or ends, by the work of the job before it.
fn row_at(job: &MatmulJob<'_>, work: usize) -> usize {
    let rows = job.matrix.row_count();
    let row = work / row_work(job);
    if row >= rows { rows } else { row / ROWS * ROWS }
}

/// A scratch that no thread uses: of each thread, if a thread computes one part at a time.
fn free(scratch: &[Mutex<ThreadScratch>]) -> MutexGuard<'_, ThreadScratch> {
    let own = rayon::current_thread_index().unwrap_or(0) % scratch.len();
    for scratch in scratch[own..].iter().chain(&scratch[..own]) {
        match scratch.try_lock() {
            Ok(scratch) => return scratch,
            Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {}
        }
    }
    scratch[own].lock().unwrap_or_else(PoisonError::into_inner)
}
