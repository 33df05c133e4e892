//! Products of weights and activations, several at once.
//!
//! With one token a product takes some ten microseconds, and waking a thread is a good part of
//! that. Products that do not depend on each other are therefore divided among threads together.

use sws_kernels::{Input, Matrix, Output, ThreadScratch, Tier, matmul_rows};
use sws_store::PieceId;

use crate::role::Role;
use crate::source::{SourceError, Weights};

/// `y` [tokens, rows] = the matrix in `piece` · `x`.
pub(super) struct Product<'a> {
    piece: PieceId,
    role: Role,
    x: &'a Input,
    y: &'a mut [f32],
    rows: usize,
}

impl<'a> Product<'a> {
    pub(super) fn new(
        piece: PieceId,
        role: Role,
        x: &'a Input,
        y: &'a mut [f32],
        rows: usize,
    ) -> Self {
        Product { piece, role, x, y, rows }
    }
}

/// The threads of the pool that compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Threads {
    /// The calling thread.
    One,
    /// All of them, if there is enough work.
    All,
}

/// Maximum number of products that are divided together.
pub(super) const MAX: usize = 32;

/// Computes up to [`MAX`] products. Those of matrices in memory run together, the others as their
/// blocks of rows arrive.
pub(super) fn multiply(
    tier: Tier,
    threads: Threads,
    weights: &mut dyn Weights,
    products: &mut [Option<Product<'_>>],
    scratch: &mut Vec<ThreadScratch>,
) -> Result<(), SourceError> {
    let mut jobs = [const { None }; MAX];
    for (product, job) in products.iter_mut().zip(&mut jobs) {
        if let Some(Product { piece, role, .. }) = product
            && let Some(matrix) = weights.matrix(*piece, *role)
            && let Some(Product { x, y, rows, .. }) = product.take()
        {
            *job = Some(Job { matrix, x, y: Output::new(y, x.tokens(), rows) });
        }
    }
    run(tier, threads, jobs, scratch);
    for Product { piece, role, x, y, rows } in products.iter_mut().filter_map(Option::take) {
        weights.blocks(piece, role, &mut |first, block| {
            let (_, y) = Output::new(y, x.tokens(), rows).split_at(first);
            let (y, _) = y.split_at(block.row_count());
            let mut jobs = [const { None }; MAX];
            jobs[0] = Some(Job { matrix: *block, x, y });
            run(tier, threads, jobs, scratch);
        })?;
    }
    Ok(())
}

struct Job<'a> {
    matrix: Matrix<'a>,
    x: &'a Input,
    y: Output<'a>,
}

type Jobs<'a> = [Option<Job<'a>>; MAX];

/// Below this many multiplications, waking a second thread costs more than it saves.
const WORTH_SPLITTING: usize = 1 << 18;

fn run(tier: Tier, threads: Threads, jobs: Jobs<'_>, scratch: &mut Vec<ThreadScratch>) {
    let work = |job: &Job<'_>| job.matrix.row_count() * job.matrix.cols() * job.x.tokens();
    let work: usize = jobs.iter().flatten().map(work).sum();
    let threads = match threads {
        Threads::All if work >= WORTH_SPLITTING => rayon::current_num_threads(),
        Threads::All | Threads::One => 1,
    };
    if scratch.len() < threads {
        scratch.resize_with(threads, ThreadScratch::default);
    }
    split(tier, jobs, &mut scratch[..threads]);
}

/// Each thread computes its share of the rows of every matrix.
fn split(tier: Tier, jobs: Jobs<'_>, scratch: &mut [ThreadScratch]) {
    if let [scratch] = scratch {
        for Job { matrix, x, y } in jobs.into_iter().flatten() {
            matmul_rows(tier, &matrix, x, y, scratch);
        }
        return;
    }
    let (mut left, mut right) = ([const { None }; MAX], [const { None }; MAX]);
    let share = scratch.len() / 2;
    for ((job, left), right) in jobs.into_iter().zip(&mut left).zip(&mut right) {
        let Some(Job { matrix, x, y }) = job else { continue };
        let all = matrix.row_count();
        let rows = all * share / scratch.len();
        let (y_left, y_right) = y.split_at(rows);
        *left = Some(Job { matrix: matrix.rows(0..rows), x, y: y_left });
        *right = Some(Job { matrix: matrix.rows(rows..all), x, y: y_right });
    }
    let (scratch_left, scratch_right) = scratch.split_at_mut(share);
    rayon::join(|| split(tier, left, scratch_left), || split(tier, right, scratch_right));
}
