//! Shapes and rules of attention, and its queries.

/// Shapes and rules of attention in one layer.
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a> {
    /// Query heads. Head h uses the key-value head h / (heads / kv_heads).
    pub heads: usize,
    /// Key-value heads; `heads` must be a multiple of this.
    pub kv_heads: usize,
    /// Elements of a query and of a key.
    pub key_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// Factor of the products of query and key.
    pub scale: f32,
    /// Number of most recent keys that a query sees, its own included; `None` for all.
    pub window: Option<usize>,
    /// True if windows begin at multiples of their size, so that a query sees the part of its own
    /// up to itself.
    pub aligned: bool,
    /// Cap of the scores, which become cap · tanh(score / cap).
    pub soft_cap: Option<f32>,
    /// One extra logit for each of the `heads`, whose probability is dropped.
    pub sinks: Option<&'a [f32]>,
}

impl Attention<'_> {
    /// The first position that the query at `position` sees.
    pub(super) fn first_visible(&self, position: usize) -> usize {
        match self.window {
            None => 0,
            Some(0) => position + 1,
            Some(window) if self.aligned => position - position % window,
            Some(window) => (position + 1).saturating_sub(window),
        }
    }
}

/// Queries at consecutive absolute positions.
#[derive(Clone, Copy, Debug)]
pub struct Queries<'a> {
    /// Position of the first.
    pub first: usize,
    /// [tokens, heads, key_dim]
    pub q: &'a [f32],
    /// The positions that each of them sees; `None` for all before it, and its own.
    pub selected: Option<Selected<'a>>,
    /// Numbers added to their scores, unless positions are selected.
    pub distances: Option<Distances<'a>>,
}

/// Numbers added to the scores of keys by their distance from a query.
#[derive(Clone, Copy, Debug)]
pub struct Distances<'a> {
    /// [tokens, heads, extent]: for the key at the position of the query, that before it, and so on.
    pub bias: &'a [f32],
    /// Keys further away get none.
    pub extent: usize,
}

/// Positions selected for queries, in lists. Query heads in a row share a list, as many for each.
#[derive(Clone, Copy, Debug)]
pub struct Selected<'a> {
    /// [tokens, lists, most], ascending in each list. One that is shorter goes on with
    /// [`Selected::END`].
    pub positions: &'a [u32],
    /// Lists for a token; the number of query heads is a multiple of it.
    pub lists: usize,
    /// Room for the positions of a list.
    pub most: usize,
}

impl<'a> Selected<'a> {
    /// No position.
    pub const END: u32 = u32::MAX;

    /// The positions of a list of a token.
    #[inline(always)]
    pub fn of(&self, token: usize, list: usize) -> &'a [u32] {
        let &Selected { positions, lists, most } = self;
        let list = &positions[(token * lists + list) * most..][..most];
        &list[..list.partition_point(|&position| position != Selected::END)]
    }
}

/// The query of an indexer at one position.
#[derive(Clone, Copy, Debug)]
pub struct IndexQuery<'a> {
    /// [heads, dim]
    pub q: &'a [f32],
    /// The weight of each head.
    pub weights: &'a [f32],
}
