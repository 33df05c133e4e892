//! The cached rows that a query attends to, in ascending order of positions.

use super::cache::{CacheLayout, Element, Page};

/// Rows of one key-value head, numbered in the order in which they are attended.
pub(super) trait Tiles: Copy {
    type Element: Element;
    type Tile: Tile<Element = Self::Element>;

    /// A tile of up to `size` rows from number `start` on, cut at `end` and where memory ends.
    fn tile(&self, start: usize, end: usize, size: usize) -> Self::Tile;
}

/// Some of these rows.
pub(super) trait Tile: Copy {
    type Element: Element;

    /// The number of the first row.
    fn start(&self) -> usize;
    /// The number after that of the last row.
    fn end(&self) -> usize;
    /// Numbers of a row.
    fn dim(&self) -> usize;
    fn row(&self, number: usize) -> &[Self::Element];
}

/// All cached rows of a head, numbered by position.
#[derive(Clone, Copy)]
pub(super) struct CachedHead<'a, E> {
    pub(super) pages: &'a [Page<E>],
    pub(super) layout: CacheLayout,
    pub(super) head: usize,
    pub(super) dim: usize,
}

/// Positions start..end of a head, which lie in one page.
#[derive(Clone, Copy)]
pub(super) struct PageRun<'a, E> {
    start: usize,
    end: usize,
    /// Elements from the row of `start` on.
    rows: &'a [E],
    stride: usize,
    dim: usize,
}

impl<'a, E: Element> Tiles for CachedHead<'a, E> {
    type Element = E;
    type Tile = PageRun<'a, E>;

    #[inline(always)]
    fn tile(&self, start: usize, end: usize, size: usize) -> PageRun<'a, E> {
        let CachedHead { pages, layout, head, dim } = *self;
        let slot = start % layout.capacity;
        // The page length is a power of two, as `check` asserts.
        let first = slot & (layout.page - 1);
        let page = &pages[slot >> layout.page.trailing_zeros()];
        let size = size.min(layout.capacity - slot).min(layout.page - first);
        let rows = &page[layout.head(head) + first * layout.dim..];
        PageRun { start, end: end.min(start + size), rows, stride: layout.dim, dim }
    }
}

impl<E: Element> Tile for PageRun<'_, E> {
    type Element = E;

    #[inline(always)]
    fn start(&self) -> usize {
        self.start
    }

    #[inline(always)]
    fn end(&self) -> usize {
        self.end
    }

    #[inline(always)]
    fn dim(&self) -> usize {
        self.dim
    }

    #[inline(always)]
    fn row(&self, number: usize) -> &[E] {
        let at = (number - self.start) * self.stride;
        &self.rows[at..at + E::row(self.dim)]
    }
}

/// The rows of selected positions of a head, numbered by their place in the list.
#[derive(Clone, Copy)]
pub(super) struct SelectedRows<'a, E> {
    pub(super) pages: &'a [Page<E>],
    pub(super) layout: CacheLayout,
    pub(super) head: usize,
    pub(super) list: &'a [u32],
    pub(super) dim: usize,
}

/// Places start..end of the list.
#[derive(Clone, Copy)]
pub(super) struct ListPlaces<'a, E> {
    start: usize,
    end: usize,
    of: SelectedRows<'a, E>,
}

impl<'a, E: Element> Tiles for SelectedRows<'a, E> {
    type Element = E;
    type Tile = ListPlaces<'a, E>;

    #[inline(always)]
    fn tile(&self, start: usize, end: usize, size: usize) -> ListPlaces<'a, E> {
        ListPlaces { start, end: end.min(start + size), of: *self }
    }
}

impl<E: Element> Tile for ListPlaces<'_, E> {
    type Element = E;

    #[inline(always)]
    fn start(&self) -> usize {
        self.start
    }

    #[inline(always)]
    fn end(&self) -> usize {
        self.end
    }

    #[inline(always)]
    fn dim(&self) -> usize {
        self.of.dim
    }

    #[inline(always)]
    fn row(&self, number: usize) -> &[E] {
        let SelectedRows { pages, layout, head, list, dim } = self.of;
        let position = list[number] as usize;
        // The page length is a power of two, and nothing is overwritten, as `check` asserts.
        let page = &pages[position >> layout.page.trailing_zeros()];
        &page[layout.head(head) + (position & (layout.page - 1)) * layout.dim..][..E::row(dim)]
    }
}
