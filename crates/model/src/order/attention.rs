//! The reads of attention with grouped heads, and of latent attention.

use super::TensorSpec;
use crate::role::Role;
use crate::spec::{AttentionSpec, LatentSpec, QkNorm};

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
        if !spec.extras.values_are_keys {
            tensors.push(matrix(Role::Value, values));
        }
    }
    if let Some(rows) = spec.gate_rows() {
        tensors.push(matrix(Role::OutputGate, rows));
    }
    if spec.extras.token_sinks {
        tensors.push(matrix(Role::TokenSinks, spec.heads));
    }
    if spec.token_taps() > 0 {
        tensors.push(matrix(Role::KeyTaps, spec.token_taps()));
        tensors.push(matrix(Role::ValueTaps, spec.token_taps()));
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
        for &(role, len) in own {
            tensors.push(TensorSpec::vector(role, len));
        }
    }
    if let Some(conv) = spec.extras.conv {
        for (role, width) in [(Role::KeyConv, keys), (Role::ValueConv, values)] {
            tensors.push(match conv.of_tokens {
                true => TensorSpec { role, rows: conv.taps, cols: width },
                false => TensorSpec { role, rows: width, cols: conv.taps },
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
        if spec.has_keys() {
            tensors.push(TensorSpec::vector(Role::KeyNorm, k));
        }
    }
    if let QkNorm::Limited { .. } = spec.qk_norm {
        tensors.push(TensorSpec { role: Role::QueryNorm, rows: spec.heads, cols: spec.head_dim });
        if let Some(it) = spec.extras.distances {
            let role = Role::DistanceNorm;
            tensors.push(TensorSpec { role, rows: spec.heads, cols: it.rank });
        }
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
    let indexer = spec.indexer();
    let query = match spec.query_rank {
        None => TensorSpec::matrix(Role::Query, queries, hidden),
        Some(query_rank) => TensorSpec::matrix(Role::QueryDown, query_rank, hidden),
    };
    let mut tensors = vec![query];
    if spec.has_latents() {
        tensors.push(TensorSpec::matrix(Role::KvDown, spec.width(), hidden));
    }
    if let Some(indexer) = indexer {
        if indexer.is_pooled() {
            tensors.push(TensorSpec::matrix(Role::IndexPoolGate, indexer.dim, hidden));
        }
        tensors.push(TensorSpec::matrix(Role::IndexKey, indexer.dim, hidden));
        tensors.push(TensorSpec::matrix(Role::IndexWeights, indexer.heads, hidden));
    }
    if let Some(query_rank) = spec.query_rank {
        tensors.push(TensorSpec::vector(Role::QueryDownNorm, query_rank));
    }
    if indexer.is_some_and(|indexer| indexer.of_hidden) {
        tensors.push(TensorSpec::vector(Role::IndexQueryNorm, hidden));
        tensors.push(TensorSpec::vector(Role::IndexQueryNormBias, hidden));
    }
    if let Some(query_rank) = spec.query_rank {
        let (rows, cols) = spec.query_up(query_rank);
        tensors.push(TensorSpec::matrix(Role::QueryUp, rows, cols));
    }
    if let Some(indexer) = indexer {
        let from = if indexer.of_hidden { hidden } else { spec.query_rank.unwrap_or(hidden) };
        tensors.push(TensorSpec::matrix(Role::IndexQuery, indexer.width(), from));
    }
    if spec.has_latents() {
        tensors.push(TensorSpec::vector(Role::KvDownNorm, rank));
    }
    if spec.key_norm {
        tensors.push(TensorSpec::vector(Role::LatentKeyNorm, spec.rotated));
    }
    if spec.head_growth {
        tensors.push(TensorSpec::vector(Role::QueryGrowth, spec.heads));
        tensors.push(TensorSpec::vector(Role::QueryGrowthBias, spec.heads));
    }
    if let Some(indexer) = indexer {
        if indexer.is_pooled() {
            let role = Role::IndexPoolBias;
            tensors.push(TensorSpec { role, rows: indexer.group, cols: indexer.dim });
        }
        tensors.push(TensorSpec::vector(Role::IndexKeyNorm, indexer.dim));
        tensors.push(TensorSpec::vector(Role::IndexKeyNormBias, indexer.dim));
        if spec.head_growth {
            tensors.push(TensorSpec::vector(Role::IndexGrowth, indexer.heads));
            tensors.push(TensorSpec::vector(Role::IndexGrowthBias, indexer.heads));
        }
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
