//! The reads of attention to the last positions and to pooled entries.

use super::TensorSpec;
use crate::role::Role;
use crate::spec::{CompressedSpec, PoolSpec};

/// The roles for entries: the rows that are pooled, the logits of their weights, the bias of these
/// logits, and the norm of entries.
pub(crate) const POOL_ROLES: [Role; 4] =
    [Role::Pool, Role::PoolGate, Role::PoolBias, Role::PoolNorm];
/// The same roles for an indexer's entries.
pub(crate) const INDEX_POOL_ROLES: [Role; 4] =
    [Role::IndexPool, Role::IndexPoolGate, Role::IndexPoolBias, Role::IndexPoolNorm];

pub(super) fn compressed(spec: &CompressedSpec, hidden: usize) -> Vec<TensorSpec> {
    let &CompressedSpec { heads, head_dim, query_rank, groups, .. } = spec;
    let indexer = spec.indexer();
    let mut entries = Vec::new();
    if let Some(pools) = spec.pools {
        entries.extend(entry_tensors(pools, (head_dim, POOL_ROLES), hidden));
        if let Some(it) = indexer {
            entries.extend(entry_tensors(pools, (it.dim, INDEX_POOL_ROLES), hidden));
        }
    }
    let (matrices, vectors): (Vec<_>, Vec<_>) =
        entries.into_iter().partition(|tensor| tensor.role.is_matrix());
    let mut tensors = vec![
        TensorSpec::matrix(Role::QueryDown, query_rank, hidden),
        TensorSpec::matrix(Role::KvDown, head_dim, hidden),
    ];
    tensors.extend(matrices);
    if let Some(it) = indexer {
        tensors.push(TensorSpec::matrix(Role::IndexWeights, it.heads, hidden));
    }
    tensors.push(TensorSpec::vector(Role::QueryDownNorm, query_rank));
    tensors.push(TensorSpec::matrix(Role::QueryUp, spec.query_width(), query_rank));
    if let Some(it) = indexer {
        tensors.push(TensorSpec::matrix(Role::IndexQuery, it.width(), query_rank));
    }
    tensors.push(TensorSpec::vector(Role::KvDownNorm, head_dim));
    tensors.extend(vectors);
    tensors.extend([
        TensorSpec::vector(Role::Sinks, heads),
        TensorSpec::matrix(Role::OutputDown, spec.group_width(), heads * head_dim / groups),
        TensorSpec::matrix(Role::Output, hidden, spec.group_width()),
    ]);
    tensors
}

/// The tensors of entries of `dim` elements.
fn entry_tensors(
    pools: PoolSpec,
    (dim, [rows, gate, bias, norm]): (usize, [Role; 4]),
    hidden: usize,
) -> [TensorSpec; 4] {
    let width = pools.series() * dim;
    [
        TensorSpec::matrix(rows, width, hidden),
        TensorSpec::matrix(gate, width, hidden),
        TensorSpec { role: bias, rows: pools.ratio, cols: width },
        TensorSpec::vector(norm, dim),
    ]
}
