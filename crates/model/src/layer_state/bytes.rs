//! Rows of a state as bytes, little-endian, in the order of their positions.

use std::ops::Range;
use std::sync::Arc;

use sws_kernels::functional::{CacheLayout, Page};

/// A number of a state.
pub(super) trait Number: Copy {
    /// Appends its bytes.
    fn write(self, to: &mut Vec<u8>);

    /// Takes it from the beginning of `from`; `None` at the end.
    fn read(from: &mut &[u8]) -> Option<Self>;
}

impl Number for f32 {
    fn write(self, to: &mut Vec<u8>) {
        to.extend(self.to_bits().to_le_bytes());
    }

    fn read(from: &mut &[u8]) -> Option<f32> {
        from.split_off(..4).map(|b| f32::from_le_bytes(b.try_into().expect("four bytes")))
    }
}

impl Number for u16 {
    fn write(self, to: &mut Vec<u8>) {
        to.extend(self.to_le_bytes());
    }

    fn read(from: &mut &[u8]) -> Option<u16> {
        from.split_off(..2).map(|b| u16::from_le_bytes(b.try_into().expect("two bytes")))
    }
}

impl Number for u64 {
    fn write(self, to: &mut Vec<u8>) {
        to.extend(self.to_le_bytes());
    }

    fn read(from: &mut &[u8]) -> Option<u64> {
        from.split_off(..8).map(|b| u64::from_le_bytes(b.try_into().expect("eight bytes")))
    }
}

/// Appends the rows of positions, which are within one round of a ring.
pub(super) fn write_rows<E: Number>(
    pages: &[Page<E>],
    layout: &CacheLayout,
    positions: Range<usize>,
    to: &mut Vec<u8>,
) {
    for position in positions {
        for head in 0..layout.heads {
            let (page, start) = layout.place(head, position);
            pages[page][start..start + layout.dim].iter().for_each(|number| number.write(to));
        }
    }
}

/// Takes the rows of positions, for which there is room. `None` if there are too few.
pub(super) fn read_rows<E: Number>(
    pages: &mut [Page<E>],
    layout: &CacheLayout,
    positions: Range<usize>,
    from: &mut &[u8],
) -> Option<()> {
    for position in positions {
        for head in 0..layout.heads {
            let (page, start) = layout.place(head, position);
            read_numbers(&mut Arc::make_mut(&mut pages[page])[start..start + layout.dim], from)?;
        }
    }
    Some(())
}

/// Takes numbers. `None` if there are too few.
pub(super) fn read_numbers<E: Number>(to: &mut [E], from: &mut &[u8]) -> Option<()> {
    to.iter_mut().try_for_each(|number| {
        *number = E::read(from)?;
        Some(())
    })
}
