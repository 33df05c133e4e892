//! Offsets of the rows in the patches of bf12, bf11, nested and fp7.

/// Arrangement of the offsets that stand before the patches of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offsets {
    /// A u32 for each row.
    Single,
    /// Sixteen rows share a u32, and each has a u16 that is added to it. The patches of fifteen rows
    /// of bf11, nested or fp7 with fewer than 2048 columns are at most 46,080 bytes long.
    Shared,
}

/// Rows that share a base.
const GROUP: u64 = 16;
/// Bytes of the base and the offsets of a group.
const GROUP_LEN: u64 = 4 + 2 * GROUP;
/// Least number of columns of a row with an offset of its own.
const LONG: u64 = 2048;

impl Offsets {
    /// The arrangement of a matrix with this number of columns, whose patches are in tiers or not.
    #[inline(always)]
    pub(super) const fn of(in_tiers: bool, cols: u64) -> Offsets {
        if in_tiers && cols < LONG { Offsets::Shared } else { Offsets::Single }
    }

    /// Length of the offsets of so many rows, and of the end of the last; `None` if it exceeds 2⁶⁴.
    pub fn len(self, rows: u64) -> Option<u64> {
        let entries = rows.checked_add(1)?;
        match self {
            Offsets::Single => entries.checked_mul(4),
            Offsets::Shared => {
                entries.checked_mul(2)?.checked_add(entries.div_ceil(GROUP).checked_mul(4)?)
            }
        }
    }

    /// Row whose bytes must be in view for the offset of `row`: itself, or the first of its group.
    pub fn first(self, row: u64) -> u64 {
        match self {
            Offsets::Single => row,
            Offsets::Shared => row - row % GROUP,
        }
    }

    /// Place of the offset of a row that is its own [`first`](Self::first).
    pub fn place(self, row: u64) -> u64 {
        match self {
            Offsets::Single => 4 * row,
            Offsets::Shared => row / GROUP * GROUP_LEN,
        }
    }

    /// The offset of a row.
    ///
    /// # Panics
    ///
    /// If `bytes` are too short.
    #[inline(always)]
    pub fn get(self, bytes: &[u8], row: usize) -> usize {
        let u32_at = |at: usize| {
            let bytes = bytes[at..].first_chunk().expect("four bytes");
            u32::from_le_bytes(*bytes) as usize
        };
        match self {
            Offsets::Single => u32_at(4 * row),
            Offsets::Shared => {
                let group = row / GROUP as usize * GROUP_LEN as usize;
                let at = group + 4 + 2 * (row % GROUP as usize);
                u32_at(group) + usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
            }
        }
    }
}

/// Writes offsets, row by row.
#[derive(Clone, Debug)]
pub struct OffsetWriter {
    offsets: Offsets,
    row: u64,
    base: u32,
    bytes: [u8; 6],
}

impl OffsetWriter {
    /// A writer before the first row.
    pub fn new(offsets: Offsets) -> Self {
        OffsetWriter { offsets, row: 0, base: 0, bytes: [0; 6] }
    }

    /// The bytes of the next row's offset, which must not be below the one before. After the last
    /// row comes its end.
    pub fn push(&mut self, offset: u32) -> &[u8] {
        let is_first = self.row.is_multiple_of(GROUP);
        self.row += 1;
        if self.offsets == Offsets::Single || is_first {
            self.base = offset;
            self.bytes[..4].copy_from_slice(&offset.to_le_bytes());
        }
        if self.offsets == Offsets::Single {
            return &self.bytes[..4];
        }
        let behind = (offset - self.base) as u16;
        self.bytes[4..].copy_from_slice(&behind.to_le_bytes());
        if is_first { &self.bytes } else { &self.bytes[4..] }
    }
}
