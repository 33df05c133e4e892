//! The reads of attention with grouped heads, and of latent attention.

use super::TensorSpec;
use crate::role::Role;
use crate::spec::{AttentionSpec, DistanceSpec, IndexerSpec, LatentSpec, QkNorm};

pub(super) fn attention(spec: &AttentionSpec, hidden: usize) -> Vec<TensorSpec> {
    let q = spec.q_width();
    let keys = spec.key_width();
    let values = spec.value_width();
    let matrix = |role, rows| TensorSpec::matrix(role, rows, hidden);
    let mut tensors = match spec.extras.fused {
        true => vec![matrix(Role::Mixed, spec.fused_rows())],
        false => vec![matrix(Role::Query, spec.query_rows())],
    };
    if let Some(it) = spec.extras.distances {
        tensors.push(matrix(Role::Distance, spec.heads * it.rank));
    }
    if let Some(blocks) = spec.extras.blocks {
        match blocks.mixed {
            true => tensors.push(matrix(Role::IndexMixed, blocks.width() + blocks.dim)),
            false => {
                tensors.push(matrix(Role::IndexKey, blocks.dim));
                tensors.push(matrix(Role::IndexQuery, blocks.width()));
            }
        }
    }
    if !spec.extras.fused && spec.has_keys() {
        tensors.push(matrix(Role::Key, keys));
        tensors.extend((!spec.extras.values_are_keys).then(|| matrix(Role::Value, values)));
    }
    tensors.extend(spec.gate_rows().map(|rows| TensorSpec::matrix(Role::OutputGate, rows, hidden)));
    if spec.extras.token_sinks {
        tensors.push(matrix(Role::TokenSinks, spec.heads));
    }
    if spec.token_taps() > 0 {
        let roles = [Role::KeyTaps, Role::ValueTaps];
        tensors.extend(roles.map(|role| matrix(role, spec.token_taps())));
    }
    if spec.qkv_bias && spec.extras.fused {
        tensors.push(TensorSpec::vector(Role::MixedBias, spec.fused_rows()));
    } else if spec.qkv_bias {
        let biases = [
            (Role::QueryBias, spec.query_rows()),
            (Role::KeyBias, keys),
            (Role::ValueBias, values),
        ];
        let own = match (spec.has_keys(), spec.extras.values_are_keys) {
            (false, _) => &biases[..1],
            (true, true) => &biases[..2],
            (true, false) => &biases,
        };
        tensors.extend(own.iter().map(|&(role, len)| TensorSpec::vector(role, len)));
    }
    if let Some(conv) = spec.extras.conv {
        for (role, width) in [(Role::KeyConv, keys), (Role::ValueConv, values)] {
            let (rows, cols) = (width, conv.taps);
            tensors.push(match conv.of_tokens {
                true => TensorSpec { role, rows: cols, cols: rows },
                false => TensorSpec { role, rows, cols },
            });
        }
    }
    let norms = match spec.qk_norm {
        QkNorm::None | QkNorm::Unweighted | QkNorm::Limited { .. } => None,
        QkNorm::PerHead | QkNorm::PerRotatedHead => Some((spec.head_dim, spec.head_dim)),
        QkNorm::FullWidth => Some((q, keys)),
    };
    if let Some((q, k)) = norms {
        tensors.push(TensorSpec::vector(Role::QueryNorm, q));
        tensors.extend(spec.has_keys().then(|| TensorSpec::vector(Role::KeyNorm, k)));
    }
    if let QkNorm::Limited { .. } = spec.qk_norm {
        tensors.push(TensorSpec { role: Role::QueryNorm, rows: spec.heads, cols: spec.head_dim });
        let of_distances = |it: DistanceSpec| TensorSpec {
            role: Role::DistanceNorm,
            rows: spec.heads,
            cols: it.rank,
        };
        tensors.extend(spec.extras.distances.map(of_distances));
    }
    if let Some(blocks) = spec.extras.blocks {
        tensors.push(TensorSpec::vector(Role::BlockQueryNorm, blocks.dim));
        tensors.push(TensorSpec::vector(Role::BlockKeyNorm, blocks.dim));
    }
    if let Some(it) = spec.extras.distances {
        tensors.push(TensorSpec { role: Role::DistanceRows, rows: it.rank, cols: it.extent });
    }
    if spec.sinks {
        tensors.push(TensorSpec::vector(Role::Sinks, spec.heads));
    }
    tensors.push(TensorSpec::matrix(Role::Output, hidden, spec.output_width()));
    if spec.output_bias {
        tensors.push(TensorSpec::vector(Role::OutputBias, hidden));
    }
    tensors
}

pub(super) fn latent(spec: &LatentSpec, hidden: usize) -> Vec<TensorSpec> {
    let queries = spec.query_width();
    let rank = spec.rank;
    let query = match spec.query_rank {
        None => TensorSpec::matrix(Role::Query, queries, hidden),
        Some(query_rank) => TensorSpec::matrix(Role::QueryDown, query_rank, hidden),
    };
    let mut tensors = vec![query];
    if spec.has_latents() {
        tensors.push(TensorSpec::matrix(Role::KvDown, spec.width(), hidden));
    }
    tensors.extend(spec.indexer().into_iter().flat_map(|indexer| {
        let gate = indexer.is_pooled().then_some((Role::IndexPoolGate, indexer.dim));
        let own = [(Role::IndexKey, indexer.dim), (Role::IndexWeights, indexer.heads)];
        let all = gate.into_iter().chain(own);
        all.map(|(role, rows)| TensorSpec::matrix(role, rows, hidden))
    }));
    if let Some(query_rank) = spec.query_rank {
        tensors.push(TensorSpec::vector(Role::QueryDownNorm, query_rank));
    }
    let of_hidden = spec.indexer().filter(|indexer| indexer.of_hidden);
    tensors.extend(of_hidden.into_iter().flat_map(|_| {
        let roles = [Role::IndexQueryNorm, Role::IndexQueryNormBias];
        roles.map(|role| TensorSpec::vector(role, hidden))
    }));
    if let Some(query_rank) = spec.query_rank {
        let (rows, cols) = spec.query_up(query_rank);
        tensors.push(TensorSpec::matrix(Role::QueryUp, rows, cols));
    }
    tensors.extend(spec.indexer().map(|indexer| {
        let from = if indexer.of_hidden { hidden } else { spec.query_rank.unwrap_or(hidden) };
        TensorSpec::matrix(Role::IndexQuery, indexer.width(), from)
    }));
    tensors.extend(spec.has_latents().then(|| TensorSpec::vector(Role::KvDownNorm, rank)));
    tensors.extend(spec.key_norm.then(|| TensorSpec::vector(Role::LatentKeyNorm, spec.rotated)));
    if spec.head_growth {
        let roles = [Role::QueryGrowth, Role::QueryGrowthBias];
        tensors.extend(roles.map(|role| TensorSpec::vector(role, spec.heads)));
    }
    tensors.extend(spec.indexer().into_iter().flat_map(|indexer| {
        let role = Role::IndexPoolBias;
        let rows = indexer.group;
        let bias = indexer.is_pooled().then_some(TensorSpec { role, rows, cols: indexer.dim });
        let norm = [Role::IndexKeyNorm, Role::IndexKeyNormBias];
        bias.into_iter().chain(norm.map(|role| TensorSpec::vector(role, indexer.dim)))
    }));
    if spec.head_growth {
        let roles = [Role::IndexGrowth, Role::IndexGrowthBias];
        let of_indexer =
            |indexer: &IndexerSpec| roles.map(|role| TensorSpec::vector(role, indexer.heads));
        tensors.extend(spec.indexer().into_iter().flat_map(of_indexer));
    }
    if spec.sinks {
        tensors.push(TensorSpec::vector(Role::LatentSinks, spec.heads));
    }
    if spec.split {
        tensors.push(TensorSpec::matrix(Role::KeyUp, spec.heads * rank, spec.plain));
        tensors.push(TensorSpec::matrix(Role::ValueUp, spec.value_width(), rank));
    } else {
        tensors.push(TensorSpec::matrix(Role::KvUp, spec.heads * spec.head_rows(), rank));
    }
    if spec.has_gate_matrix() {
        tensors.push(TensorSpec::matrix(Role::OutputGate, spec.gate_rows(), hidden));
    }
    tensors.push(TensorSpec::matrix(Role::Output, hidden, spec.value_width()));
    tensors
}
