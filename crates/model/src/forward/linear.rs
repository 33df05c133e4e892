//! Products of weights and activations, several at once.
//!
//! With one token a product takes some ten microseconds, and waking a thread is a good part of
//! that. Products that do not depend on each other are therefore divided among threads together.

use sws_format::PieceId;
use sws_kernels::{
    MatmulJob, OutputColumns, PackedInput, ScratchPool, Tier, matmul_jobs, threads_for,
};

use crate::role::Role;
use crate::source::{SourceError, Weights};

/// `y` [tokens, rows] = the matrix in `piece` · `x`.
pub(super) struct Product<'a> {
    piece: PieceId,
    role: Role,
    x: &'a PackedInput,
    y: &'a mut [f32],
    rows: usize,
}

impl<'a> Product<'a> {
    pub(super) fn new(
        piece: PieceId,
        role: Role,
        x: &'a PackedInput,
        y: &'a mut [f32],
        rows: usize,
    ) -> Self {
        Product { piece, role, x, y, rows }
    }
}

/// Maximum number of products that are divided together.
pub(super) const MAX: usize = 32;

/// Computes up to [`MAX`] products. Those of matrices in memory run together, the others as their
/// blocks of rows arrive.
pub(super) fn multiply(
    tier: Tier,
    weights: &mut dyn Weights,
    products: &mut [Option<Product<'_>>],
    scratch: &mut ScratchPool,
) -> Result<(), SourceError> {
    let mut jobs = [const { None }; MAX];
    for (product, job) in products.iter_mut().zip(&mut jobs) {
        if let Some(Product { piece, role, .. }) = product
            && let Some(matrix) = weights.matrix(*piece, *role)
            && let Some(Product { x, y, rows, .. }) = product.take()
        {
            *job = Some(MatmulJob { matrix, x, y: OutputColumns::new(y, x.tokens(), rows) });
        }
    }
    run(tier, &jobs, scratch);
    for Product { piece, role, x, y, rows } in products.iter_mut().filter_map(Option::take) {
        weights.blocks(piece, role, &mut |first, block| {
            let (_, y) = OutputColumns::new(y, x.tokens(), rows).split_at(first);
            let (y, _) = y.split_at(block.row_count());
            run(tier, &[Some(MatmulJob { matrix: *block, x, y })], scratch);
        })?;
    }
    Ok(())
}

/// Computes products, on as many threads as their size justifies.
pub(super) fn run(tier: Tier, jobs: &[Option<MatmulJob<'_>>], scratch: &mut ScratchPool) {
    let work = |job: &MatmulJob<'_>| job.matrix.row_count() * job.matrix.cols() * job.x.tokens();
    let threads = threads_for(jobs.iter().flatten().map(work).sum());
    matmul_jobs(tier, threads, jobs, scratch);
}
