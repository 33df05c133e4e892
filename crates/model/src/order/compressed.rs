//! The reads of attention to the last positions and to pooled entries.

use super::TensorSpec;
use crate::role::Role;
use crate::spec::CompressedSpec;

/// The roles for entries: the rows that are pooled, the logits of their weights, the bias of these
/// logits, and the norm of entries.
pub(crate) const POOL_ROLES: [Role; 4] =
    [Role::Pool, Role::PoolGate, Role::PoolBias, Role::PoolNorm];
/// The same roles for an indexer's entries.
pub(crate) const INDEX_POOL_ROLES: [Role; 4] =
    [Role::IndexPool, Role::IndexPoolGate, Role::IndexPoolBias, Role::IndexPoolNorm];

pub(super) fn compressed(spec: &CompressedSpec, hidden: usize) -> Vec<TensorSpec> {
    let &CompressedSpec { heads, head_dim, query_rank, groups, .. } = spec;
    let pools = |dim: usize, roles: [Role; 4]| {
        let [rows, gate, bias, norm] = roles;
        let tensors = spec.pools.map(|pools| {
            let width = pools.series() * dim;
            [
                TensorSpec::matrix(rows, width, hidden),
                TensorSpec::matrix(gate, width, hidden),
                TensorSpec { role: bias, rows: pools.ratio, cols: width },
                TensorSpec::vector(norm, dim),
            ]
        });
        tensors.into_iter().flatten().collect::<Vec<_>>()
    };
    let own = pools(head_dim, POOL_ROLES);
    let index = spec.indexer().map_or(Vec::new(), |indexer| pools(indexer.dim, INDEX_POOL_ROLES));
    let mut tensors = vec![
        TensorSpec::matrix(Role::QueryDown, query_rank, hidden),
        TensorSpec::matrix(Role::KvDown, head_dim, hidden),
    ];
    let matrices = |tensor: &&TensorSpec| tensor.role.is_matrix();
    let vectors = |tensor: &&TensorSpec| !tensor.role.is_matrix();
    tensors.extend(own.iter().chain(&index).filter(matrices));
    let indexer = spec.indexer();
    tensors.extend(indexer.map(|it| TensorSpec::matrix(Role::IndexWeights, it.heads, hidden)));
    tensors.push(TensorSpec::vector(Role::QueryDownNorm, query_rank));
    tensors.push(TensorSpec::matrix(Role::QueryUp, spec.query_width(), query_rank));
    tensors.extend(indexer.map(|it| TensorSpec::matrix(Role::IndexQuery, it.width(), query_rank)));
    tensors.push(TensorSpec::vector(Role::KvDownNorm, head_dim));
    tensors.extend(own.iter().chain(&index).filter(vectors));
    tensors.extend([
        TensorSpec::vector(Role::Sinks, heads),
        TensorSpec::matrix(Role::OutputDown, spec.group_width(), heads * head_dim / groups),
        TensorSpec::matrix(Role::Output, hidden, spec.group_width()),
    ]);
    tensors
}
