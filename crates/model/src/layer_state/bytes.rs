//! Rows of a state as bytes, little-endian, in the order of their positions.

use std::io::{self, Read, Write};
use std::ops::Range;
use std::sync::Arc;

use sws_kernels::functional::{CacheLayout, Page};

/// Size of the buffer for conversion to bytes.
const PART: usize = 4096;

/// A value of a state.
pub(super) trait Number: Copy {
    /// Number of bytes of a value.
    const BYTES: usize;

    /// Writes the value to [`BYTES`](Self::BYTES) bytes.
    fn write(self, to: &mut [u8]);

    /// Reads a value from [`BYTES`](Self::BYTES) bytes.
    fn read(from: &[u8]) -> Self;
}

impl Number for u8 {
    const BYTES: usize = 1;

    fn write(self, to: &mut [u8]) {
        to.copy_from_slice(&[self]);
    }

    fn read(from: &[u8]) -> u8 {
        from[0]
    }
}

impl Number for f32 {
    const BYTES: usize = 4;

    fn write(self, to: &mut [u8]) {
        to.copy_from_slice(&self.to_bits().to_le_bytes());
    }

    fn read(from: &[u8]) -> f32 {
        f32::from_le_bytes(from.try_into().expect("four bytes"))
    }
}

impl Number for u16 {
    const BYTES: usize = 2;

    fn write(self, to: &mut [u8]) {
        to.copy_from_slice(&self.to_le_bytes());
    }

    fn read(from: &[u8]) -> u16 {
        u16::from_le_bytes(from.try_into().expect("two bytes"))
    }
}

impl Number for u64 {
    const BYTES: usize = 8;

    fn write(self, to: &mut [u8]) {
        to.copy_from_slice(&self.to_le_bytes());
    }

    fn read(from: &[u8]) -> u64 {
        u64::from_le_bytes(from.try_into().expect("eight bytes"))
    }
}

/// Writes numbers.
pub(super) fn write_numbers<E: Number>(numbers: &[E], to: &mut dyn Write) -> io::Result<()> {
    let mut part = [0; PART];
    for numbers in numbers.chunks(PART / E::BYTES) {
        let bytes = &mut part[..numbers.len() * E::BYTES];
        for (place, number) in bytes.chunks_exact_mut(E::BYTES).zip(numbers) {
            number.write(place);
        }
        to.write_all(bytes)?;
    }
    Ok(())
}

/// Reads values. Fails if there are too few bytes.
pub(super) fn read_numbers<E: Number>(numbers: &mut [E], from: &mut dyn Read) -> io::Result<()> {
    let mut part = [0; PART];
    for numbers in numbers.chunks_mut(PART / E::BYTES) {
        let bytes = &mut part[..numbers.len() * E::BYTES];
        from.read_exact(bytes)?;
        for (number, place) in numbers.iter_mut().zip(bytes.chunks_exact(E::BYTES)) {
            *number = E::read(place);
        }
    }
    Ok(())
}

/// Reads a number of positions that is at least `least`.
pub(super) fn read_len(from: &mut dyn Read, least: usize) -> io::Result<usize> {
    let mut len = [0u64];
    read_numbers(&mut len, from)?;
    match usize::try_from(len[0]) {
        Ok(len) if len >= least => Ok(len),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Writes the rows of these positions, which must lie within one round of a ring.
pub(super) fn write_rows<E: Number>(
    pages: &[Page<E>],
    layout: &CacheLayout,
    positions: Range<usize>,
    to: &mut dyn Write,
) -> io::Result<()> {
    for position in positions {
        for head in 0..layout.heads {
            let (page, start) = layout.place(head, position);
            write_numbers(&pages[page][start..start + layout.dim], to)?;
        }
    }
    Ok(())
}

/// Reads the rows of these positions, for which memory is reserved. Fails if there are too few
/// bytes.
pub(super) fn read_rows<E: Number>(
    pages: &mut [Page<E>],
    layout: &CacheLayout,
    positions: Range<usize>,
    from: &mut dyn Read,
) -> io::Result<()> {
    for position in positions {
        for head in 0..layout.heads {
            let (page, start) = layout.place(head, position);
            let row = &mut Arc::make_mut(&mut pages[page])[start..start + layout.dim];
            read_numbers(row, from)?;
        }
    }
    Ok(())
}
