//! Attention to the last positions, and to entries that earlier ones were pooled into.

/// Attention with one key per position, which is its value, too. A query sees the last positions,
/// and entries into which earlier positions were pooled. Outputs are rotated back by the query's
/// angles, so that only distances matter. They are projected in two steps, the first by groups of
/// heads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CompressedSpec {
    /// Heads.
    pub heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Number of rotated elements at the end of a head.
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

/// Entries into which positions are pooled. Each position has a weight for every element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PoolSpec {
    /// Number of positions from one entry to the next. An entry is seen from its last position on,
    /// and rotated by the angles of its first.
    pub ratio: usize,
    /// The indexer that selects entries. Without an indexer, an entry pools its own positions, and
    /// all entries are seen. With an indexer, an entry also pools the positions of the previous
    /// entry, so each position has a row for each of the two.
    pub indexer: Option<PoolIndexer>,
}

/// An indexer of entries, with shorter entries of its own. It scores an entry by Σ w · relu(q · k)
/// over its heads. The largest scores are selected, the earlier entry first among equals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PoolIndexer {
    /// Heads.
    pub heads: usize,
    /// Elements of a query and an entry. The rotated elements at the end are as many as in a head
    /// of the layer.
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

    /// Maximum number of positions and entries that a query sees, out of `positions`.
    pub(crate) fn most_seen(&self, positions: usize) -> usize {
        let entries = self.pools.map_or(0, |pools| {
            let all = positions / pools.ratio;
            pools.indexer.map_or(all, |indexer| all.min(indexer.most))
        });
        self.window.min(positions) + entries
    }
}

impl PoolSpec {
    /// Number of rows per position: one for its own entry, and possibly one for the next.
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
