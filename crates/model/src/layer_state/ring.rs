//! Rows of the last positions of one layer of one sequence.

use std::io::{self, Read, Write};
use std::ops::Range;

use super::KvPrecision;
use super::bytes::{read_len, write_numbers};
use super::pages::SharedPage;
use super::rows::PagedRows;

/// A ring of rows, followed by places that each get one row. Rows overwritten in the ring are kept
/// while there is a snapshot. Places after the ring are simply written again after a snapshot was
/// restored.
#[derive(Clone, Debug)]
pub(super) struct RowRing {
    rows: PagedRows,
    slots: usize,
    /// End of the positions stored. Positions a ring's length before it are overwritten, even if
    /// later positions were dropped.
    written: usize,
    journal: RingJournal,
}

/// A snapshot: the length of the journal, and the end of the positions.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingMark {
    positions: usize,
    written: usize,
}

/// Rows that were overwritten since the first snapshot, for restoring it.
#[derive(Clone, Debug, Default)]
struct RingJournal {
    snapshots: usize,
    positions: Vec<usize>,
    numbers: Vec<f32>,
}

impl RowRing {
    /// A ring of `slots` rows of `width` values, followed by `behind` places. Nothing is allocated
    /// yet.
    pub(super) fn new(
        width: usize,
        (slots, behind): (usize, usize),
        precision: KvPrecision,
        page: usize,
    ) -> RowRing {
        let rows = PagedRows::new(width, slots + behind, precision, page);
        RowRing { rows, slots, written: 0, journal: RingJournal::default() }
    }

    /// The maximum size of a ring in bytes.
    pub(super) fn bytes_for(
        width: usize,
        (slots, behind): (usize, usize),
        precision: KvPrecision,
        page: usize,
    ) -> u64 {
        PagedRows::bytes_for(width, slots + behind, precision, page)
    }

    /// Bytes of the journal for each position that overwrites another.
    pub(super) fn journal_bytes(width: usize) -> u64 {
        (width * size_of::<f32>() + size_of::<usize>()) as u64
    }

    /// The rows.
    pub(super) fn rows(&self) -> &PagedRows {
        &self.rows
    }

    /// The place of a position.
    pub(super) fn slot(&self, position: usize) -> usize {
        position % self.slots
    }

    /// The n-th place after the ring.
    pub(super) fn behind(&self, n: usize) -> usize {
        self.slots + n
    }

    /// Makes room for the positions below `end` and `behind` places.
    pub(super) fn reserve(&mut self, end: usize, behind: usize) {
        let slots = if behind > 0 { self.slots + behind } else { self.slots.min(end) };
        self.rows.reserve(slots);
    }

    pub(super) fn clear(&mut self) {
        self.written = 0;
        self.rows.clear();
    }

    /// A ring with the same rows, for another sequence.
    pub(super) fn fork(&self) -> RowRing {
        RowRing { journal: RingJournal::default(), ..self.clone() }
    }

    /// Drops the pages that `len` positions and `behind` places do not need.
    pub(super) fn trim(&mut self, len: usize, behind: usize) {
        let slots = if behind > 0 { self.slots + behind } else { self.slots.min(len) };
        self.rows.trim(slots);
    }

    /// Bytes that positions up to `end` and `behind` places take, assuming that any page may be
    /// written to.
    pub(super) fn growth(&self, end: usize, behind: usize) -> u64 {
        let slots = if behind > 0 { self.slots + behind } else { self.slots.min(end) };
        self.rows.growth(0, slots)
    }

    pub(super) fn each_page(&self, each: &mut dyn FnMut(SharedPage)) {
        self.rows.each_page(each);
    }

    /// Bytes of a value, and the length of the ring.
    pub(super) fn layout(&self) -> [usize; 2] {
        [self.rows.precision().row_bytes(1), self.slots]
    }

    /// Writes the ring of `len` positions.
    pub(super) fn write(&self, len: usize, to: &mut dyn Write) -> io::Result<()> {
        write_numbers(&[self.written as u64], to)?;
        self.rows.write(0..self.slots.min(len), to)
    }

    /// Reads the ring of `len` positions. Its memory must be [reserved](Self::reserve).
    pub(super) fn take(&mut self, len: usize, from: &mut dyn Read) -> io::Result<()> {
        self.written = read_len(from, len)?;
        self.rows.take(0..self.slots.min(len), from)
    }

    /// Writes places after the ring.
    pub(super) fn write_behind(&self, places: Range<usize>, to: &mut dyn Write) -> io::Result<()> {
        self.rows.write(self.slots + places.start..self.slots + places.end, to)
    }

    /// Reads places after the ring.
    pub(super) fn take_behind(
        &mut self,
        places: Range<usize>,
        from: &mut dyn Read,
    ) -> io::Result<()> {
        self.rows.take(self.slots + places.start..self.slots + places.end, from)
    }

    /// True if the positions from `first` on are still present.
    pub(super) fn has(&self, first: usize) -> bool {
        self.written <= self.slots + first
    }

    /// Stores the rows [tokens, width] of consecutive positions. Their memory must be
    /// [reserved](Self::reserve).
    pub(super) fn append(&mut self, first: usize, rows: &[f32]) {
        let width = self.rows.width();
        let end = first + rows.len() / width;
        if self.journal.snapshots > 0 {
            // Nothing is overwritten before the ring wraps.
            let from = first.max(self.slots);
            let RingJournal { positions, numbers, .. } = &mut self.journal;
            let count = end.saturating_sub(from);
            // The capacity is exact, because the budget relies on it.
            positions.reserve_exact(count);
            numbers.reserve_exact(count * width);
            for position in from..end {
                positions.push(position);
                self.rows.read(position % self.slots, numbers);
            }
        }
        for (position, row) in (first..).zip(rows.chunks_exact(width)) {
            self.rows.append(position % self.slots, row);
        }
        self.written = self.written.max(end);
    }

    /// Stores the row of the n-th place after the ring.
    pub(super) fn put(&mut self, n: usize, row: &[f32]) {
        self.rows.append(self.slots + n, row);
    }

    /// Starts to record overwritten rows.
    pub(super) fn snapshot(&mut self) -> RingMark {
        self.journal.snapshots += 1;
        RingMark { positions: self.journal.positions.len(), written: self.written }
    }

    /// Returns to the snapshot with this mark.
    pub(super) fn restore(&mut self, mark: RingMark) {
        self.written = mark.written;
        let width = self.rows.width();
        let RingJournal { positions, numbers, .. } = &mut self.journal;
        for position in positions.drain(mark.positions..).rev() {
            let start = numbers.len() - width;
            self.rows.append(position % self.slots, &numbers[start..]);
            numbers.truncate(start);
        }
        self.keep();
    }

    /// Discards a snapshot.
    pub(super) fn keep(&mut self) {
        self.journal.snapshots -= 1;
        if self.journal.snapshots == 0 {
            self.journal = RingJournal::default();
        }
    }
}
