//! Attention to the last positions, and to entries that earlier ones were pooled into.

/// Attention with one key per position, which is its value too. A query sees the last positions, and
/// entries that earlier positions were pooled into. Outputs are rotated back by the query's angles,
/// so that only distances count, and projected in two steps, the first by groups of heads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CompressedSpec {
    /// Heads.
    pub heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// The last elements of a head, which are rotated.
    pub rotated: usize,
    /// Elements of the latent query.
    pub query_rank: usize,
    /// Number of most recent positions that a query sees, its own included.
    pub window: usize,
    /// Groups of heads.
    pub groups: usize,
    /// Elements of the output of a group.
    pub group_rank: usize,
    /// Eps of all norms.
    pub eps: f32,
    /// The factor applied to products of queries and keys.
    pub scale: f32,
    /// Index into [`ModelSpec::ropes`](crate::ModelSpec::ropes).
    pub rope: usize,
    /// The entries; None if a query sees the last positions only.
    pub pools: Option<PoolSpec>,
}

/// Entries that positions are pooled into, by weights that each position has for every element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PoolSpec {
    /// Number of positions from one entry to the next. An entry is seen from its last position on,
    /// and rotated by the angles of its first.
    pub ratio: usize,
    /// None: an entry pools its own positions, and all are seen. Otherwise it pools those of the
    /// entry before it, too, each of which has a row for either, and an indexer selects entries.
    pub indexer: Option<PoolIndexer>,
}

/// An indexer of entries, which has short entries of its own. It scores one by Σ w · relu(q · k)
/// over its heads. The largest scores are selected, the earlier entry first among equals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PoolIndexer {
    /// Heads.
    pub heads: usize,
    /// Elements of a query and an entry. As many of the last are rotated as in a head of the layer.
    pub dim: usize,
    /// The largest number of entries that a query sees.
    pub most: usize,
}

impl CompressedSpec {
    /// Elements of all queries of a position.
    pub fn query_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Elements of the outputs of all groups.
    pub fn group_width(&self) -> usize {
        self.groups * self.group_rank
    }

    /// The layer's indexer.
    pub fn indexer(&self) -> Option<&PoolIndexer> {
        self.pools.as_ref()?.indexer.as_ref()
    }

    /// The largest number of positions and entries that a query sees, of `positions`.
    pub(crate) fn most_seen(&self, positions: usize) -> usize {
        let entries = self.pools.map_or(0, |pools| {
            let all = positions / pools.ratio;
            pools.indexer.map_or(all, |indexer| all.min(indexer.most))
        });
        self.window.min(positions) + entries
    }
}

impl PoolSpec {
    /// Rows that a position has for entries, its own and the next one's.
    pub(crate) const fn series(&self) -> usize {
        if self.indexer.is_some() { 2 } else { 1 }
    }
}

impl PoolIndexer {
    /// Elements of all queries of a position.
    pub fn width(&self) -> usize {
        self.heads * self.dim
    }
}
