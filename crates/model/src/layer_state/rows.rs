//! A row of numbers for each position of one layer of one sequence, in pages.

use std::io::{self, Read, Write};
use std::ops::Range;

use sws_kernels::functional::{CacheLayout, CacheMut, KvCache, KvData, Page, q8, store};

use super::KvPrecision;
use super::bytes::{read_rows, write_rows};
use super::pages::{
    SharedPage, bytes, drop_shared, each_page, grow, growth, positions_held, positions_per_page,
};

/// Rows of one length. Pages are allocated as positions arrive, and shared with sequences that have
/// a common prefix.
///
/// A row is overwritten only after its sequence was rewound or truncated, so snapshots need not
/// keep rows.
#[derive(Clone, Debug)]
pub(super) struct PagedRows {
    pages: Pages,
    layout: CacheLayout,
    /// Numbers of a row.
    width: usize,
}

#[derive(Clone, Debug)]
enum Pages {
    F32(Vec<Page<f32>>),
    Bf16(Vec<Page<u16>>),
    Q8(Vec<Page<u8>>),
}

impl PagedRows {
    /// Rows of `width` numbers for positions below `limit`, in pages of `page`; none is allocated
    /// yet.
    pub(super) fn new(width: usize, limit: usize, precision: KvPrecision, page: usize) -> Self {
        let page = positions_per_page(page);
        let pages = match precision {
            KvPrecision::F32 => Pages::F32(Vec::new()),
            KvPrecision::Bf16 => Pages::Bf16(Vec::new()),
            KvPrecision::Q8 => Pages::Q8(Vec::new()),
        };
        let dim = precision.row(width);
        PagedRows { pages, layout: CacheLayout { capacity: limit, page, heads: 1, dim }, width }
    }

    /// The maximum size in bytes of `limit` rows in pages of `page`.
    pub(super) fn bytes_for(
        width: usize,
        limit: usize,
        precision: KvPrecision,
        page: usize,
    ) -> u64 {
        positions_held(limit, page) as u64 * precision.row_bytes(width) as u64
    }

    /// Bytes held, including shared pages.
    pub(super) fn bytes(&self) -> u64 {
        match &self.pages {
            Pages::F32(pages) => bytes(pages),
            Pages::Bf16(pages) => bytes(pages),
            Pages::Q8(pages) => bytes(pages),
        }
    }

    /// Makes room for the positions below `end`.
    pub(super) fn reserve(&mut self, end: usize) {
        let needed = self.layout.pages(end);
        let len = self.page_len();
        match &mut self.pages {
            Pages::F32(pages) => grow(pages, needed, len),
            Pages::Bf16(pages) => grow(pages, needed, len),
            Pages::Q8(pages) => grow(pages, needed, len),
        }
    }

    /// Drops shared pages, and keeps the memory of the others.
    pub(super) fn clear(&mut self) {
        match &mut self.pages {
            Pages::F32(pages) => drop_shared(pages),
            Pages::Bf16(pages) => drop_shared(pages),
            Pages::Q8(pages) => drop_shared(pages),
        }
    }

    /// Drops the pages of positions from `end` on.
    pub(super) fn trim(&mut self, end: usize) {
        let needed = self.layout.pages(end);
        match &mut self.pages {
            Pages::F32(pages) => pages.truncate(needed),
            Pages::Bf16(pages) => pages.truncate(needed),
            Pages::Q8(pages) => pages.truncate(needed),
        }
    }

    /// Bytes that the positions from `len` to `end` take.
    pub(super) fn growth(&self, len: usize, end: usize) -> u64 {
        match &self.pages {
            Pages::F32(pages) => growth(pages, &self.layout, len, end),
            Pages::Bf16(pages) => growth(pages, &self.layout, len, end),
            Pages::Q8(pages) => growth(pages, &self.layout, len, end),
        }
    }

    /// Calls `each` with every page.
    pub(super) fn each_page(&self, each: &mut dyn FnMut(SharedPage)) {
        match &self.pages {
            Pages::F32(pages) => each_page(pages, each),
            Pages::Bf16(pages) => each_page(pages, each),
            Pages::Q8(pages) => each_page(pages, each),
        }
    }

    /// Precision of the numbers.
    pub(super) fn precision(&self) -> KvPrecision {
        match &self.pages {
            Pages::F32(_) => KvPrecision::F32,
            Pages::Bf16(_) => KvPrecision::Bf16,
            Pages::Q8(_) => KvPrecision::Q8,
        }
    }

    /// Writes the rows of positions.
    pub(super) fn write(&self, positions: Range<usize>, to: &mut dyn Write) -> io::Result<()> {
        match &self.pages {
            Pages::F32(pages) => write_rows(pages, &self.layout, positions, to),
            Pages::Bf16(pages) => write_rows(pages, &self.layout, positions, to),
            Pages::Q8(pages) => write_rows(pages, &self.layout, positions, to),
        }
    }

    /// Reads the rows of positions. Their memory must be [reserved](Self::reserve).
    pub(super) fn take(&mut self, positions: Range<usize>, from: &mut dyn Read) -> io::Result<()> {
        match &mut self.pages {
            Pages::F32(pages) => read_rows(pages, &self.layout, positions, from),
            Pages::Bf16(pages) => read_rows(pages, &self.layout, positions, from),
            Pages::Q8(pages) => read_rows(pages, &self.layout, positions, from),
        }
    }

    /// Stores the rows [tokens, width] of consecutive positions. Their memory must be
    /// [reserved](Self::reserve).
    pub(super) fn append(&mut self, first: usize, rows: &[f32]) {
        let pages = match &mut self.pages {
            Pages::F32(pages) => CacheMut::F32(pages),
            Pages::Bf16(pages) => CacheMut::Bf16(pages),
            Pages::Q8(pages) => CacheMut::Q8(pages),
        };
        store(pages, self.layout, first, rows);
    }

    /// Appends the row of a position to `to`.
    pub(super) fn read(&self, position: usize, to: &mut Vec<f32>) {
        let (page, at) = self.layout.place(0, position);
        let range = at..at + self.layout.dim;
        match &self.pages {
            Pages::F32(pages) => to.extend_from_slice(&pages[page][range]),
            Pages::Bf16(pages) => {
                let wide = |&bits: &u16| f32::from_bits(u32::from(bits) << 16);
                to.extend(pages[page][range].iter().map(wide));
            }
            Pages::Q8(pages) => q8::read(&pages[page][range], to),
        }
    }

    /// The row of a position.
    ///
    /// # Panics
    ///
    /// If rows are stored rounded.
    pub(super) fn row(&self, position: usize) -> &[f32] {
        let (page, at) = self.layout.place(0, position);
        match &self.pages {
            Pages::F32(pages) => &pages[page][at..at + self.layout.dim],
            Pages::Bf16(_) | Pages::Q8(_) => panic!("rounded rows are only read as a copy"),
        }
    }

    /// Numbers of a row.
    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// The rows as keys of one head, and their beginnings as values.
    pub(super) fn view(&self) -> KvCache<'_> {
        let data = match &self.pages {
            Pages::F32(pages) => KvData::F32 { keys: pages, values: pages },
            Pages::Bf16(pages) => KvData::Bf16 { keys: pages, values: pages },
            Pages::Q8(pages) => KvData::Q8 { keys: pages, values: pages },
        };
        KvCache { data, keys: self.layout, values: self.layout }
    }

    /// Number of positions kept.
    pub(super) fn capacity(&self) -> usize {
        self.layout.capacity
    }

    fn page_len(&self) -> usize {
        self.layout.page_len().expect("the formula has counted it before")
    }
}
