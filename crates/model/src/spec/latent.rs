//! Latent attention, and the positions that it selects.

use sws_kernels::functional::RopePairs;

use super::{KeyValues, Temperature};

/// Multi-head latent attention. The cache contains, for each position, its latent and the rotated
/// part of its key, which all heads share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatentSpec {
    /// Heads.
    pub heads: usize,
    /// Elements of the latent query; `None` if one matrix computes queries from the hidden state.
    pub query_rank: Option<usize>,
    /// Elements of the latent of keys and values.
    pub rank: usize,
    /// Elements of a query and a key that are not rotated. They come first.
    pub plain: usize,
    /// Elements of a query and a key that are rotated.
    pub rotated: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// Eps of the norms of both latents.
    pub eps: f32,
    /// True if the rotated part of a key is normed before it is rotated.
    pub key_norm: bool,
    /// The factor applied to normed latents.
    pub latent_scale: f32,
    /// The factor applied to products of queries and keys.
    pub scale: f32,
    /// The gates by whose sigmoids outputs are multiplied.
    pub gates: LatentGates,
    /// True if each head has a sink: one more logit of the softmax, without a value.
    pub sinks: bool,
    /// The growth of queries.
    pub temperature: Option<Temperature>,
    /// True if the queries of each head, and those of an indexer, are multiplied by a · ln(1 +
    /// position) + b, with numbers a and b of the head.
    pub head_growth: bool,
    /// The latents that queries see.
    pub latents: KeyValues,
    /// Index into [`ModelSpec::ropes`](crate::ModelSpec::ropes); None if nothing is rotated.
    pub rope: Option<usize>,
    /// True if keys and values have a matrix each, and that of keys is stored with the rows and
    /// columns of each head exchanged.
    pub split: bool,
    /// Number of most recent positions that a query sees, itself included; None means all. The
    /// latents of all positions are kept.
    pub window: Option<usize>,
    /// The selection of positions that a query sees; None means all.
    pub sparse: Option<SparseSpec>,
}

/// The gates of the outputs of latent attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LatentGates {
    /// None.
    None,
    /// One for each head.
    PerHead,
    /// One for each element of a value.
    PerElement,
    /// One for each element of a value, computed by the matrix of queries. For each head it has the
    /// rows of the query, then those of the gates. Its columns multiply the normed latent query,
    /// then the latent query before the norm.
    WithQueries,
}

/// Positions that a query of latent attention sees: the best by the scores of an indexer, larger
/// scores first, then lower positions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SparseSpec {
    /// Maximum number of positions. A query that sees no more than these sees all of them,
    /// including its own. For an indexer of groups, the number is one less than a multiple of the
    /// group length.
    pub most: usize,
    /// The layer's own indexer; `None` to use the positions selected by the last earlier layer with
    /// an indexer.
    pub indexer: Option<IndexerSpec>,
}

/// An indexer. It scores a position by Σ w · relu(q · k) over its heads. Queries are computed from
/// the latent query, or from the hidden state; the weights, and the single key of a position, from the hidden state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IndexerSpec {
    /// Heads.
    pub heads: usize,
    /// Elements of a query and a key.
    pub dim: usize,
    /// True if the last elements are rotated, false if the first are. As many elements are rotated
    /// as in a key of the layer.
    pub turns_last: bool,
    /// Eps of the norm of keys.
    pub eps: f32,
    /// The pairing of rotated elements.
    pub pairs: RopePairs,
    /// Number of positions that share a pooled key and are scored together; 1 if each has its own
    /// key.
    pub group: usize,
    /// True if queries are computed from the hidden state, normed once more, and not from the latent
    /// query.
    pub of_hidden: bool,
}

impl LatentSpec {
    /// Elements of all queries of a position.
    pub fn query_width(&self) -> usize {
        self.heads * (self.plain + self.rotated)
    }

    /// Number of cached elements per position: its latent, then the rotated part of its key.
    pub fn width(&self) -> usize {
        self.rank + self.rotated
    }

    /// Number of gates per position.
    pub fn gate_rows(&self) -> usize {
        match self.gates {
            LatentGates::None => 0,
            LatentGates::PerHead => self.heads,
            LatentGates::PerElement | LatentGates::WithQueries => self.value_width(),
        }
    }

    /// True if gates have a matrix of their own.
    pub(crate) fn has_gate_matrix(&self) -> bool {
        matches!(self.gates, LatentGates::PerHead | LatentGates::PerElement)
    }

    /// Rows and columns of the matrix from a latent query of this many elements.
    pub(crate) fn query_up(&self, rank: usize) -> (usize, usize) {
        match self.gates {
            LatentGates::WithQueries => (self.query_width() + self.value_width(), 2 * rank),
            _ => (self.query_width(), rank),
        }
    }

    /// Elements per position in the buffer for gates: the gates, after the products of queries and
    /// gates if they share a matrix.
    pub(crate) fn gate_room(&self) -> usize {
        match (self.gates, self.query_rank) {
            (LatentGates::WithQueries, Some(rank)) => self.query_up(rank).0 + self.gate_rows(),
            _ => self.gate_rows(),
        }
    }

    /// Elements of the values of all heads.
    pub fn value_width(&self) -> usize {
        self.heads * self.value_dim
    }

    /// True if the layer computes latents.
    pub(crate) fn has_latents(&self) -> bool {
        !matches!(self.latents, KeyValues::Of(_))
    }

    /// The layer whose latents a layer sees.
    pub(crate) fn latents_of(&self, layer: usize) -> usize {
        match self.latents {
            KeyValues::Own | KeyValues::Lent => layer,
            KeyValues::Of(earlier) => earlier,
        }
    }

    /// The layer's own indexer.
    pub fn indexer(&self) -> Option<&IndexerSpec> {
        self.sparse.as_ref()?.indexer.as_ref()
    }

    /// Rows of the matrix from the latent to the keys and values of a head.
    pub(crate) fn head_rows(&self) -> usize {
        self.plain + self.value_dim
    }
}

impl IndexerSpec {
    /// True if keys are pooled.
    pub fn is_pooled(&self) -> bool {
        self.group > 1
    }

    /// Elements of all queries of a position.
    pub fn width(&self) -> usize {
        self.heads * self.dim
    }
}
