//! Error of a lossy encoding.

/// Sums from which the error of a lossy encoding is computed.
///
/// The order of each sum is fixed. Within a row, column `c` goes to lane `c % 8`, and the lanes are
/// added in a tree. Then rows are added one after another, then blocks of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ErrorSums {
    /// Σ (ŵ − w)²
    pub difference: f64,
    /// Σ w²
    pub total: f64,
    /// max |ŵ − w|
    pub max: f64,
}

impl ErrorSums {
    /// ‖ŵ − w‖ / ‖w‖ in the Frobenius norm; 0 if no weight changed.
    pub fn relative(&self) -> f64 {
        if self.difference == 0.0 { 0.0 } else { (self.difference / self.total).sqrt() }
    }

    pub(in crate::encodings) fn add(&mut self, other: &ErrorSums) {
        self.difference += other.difference;
        self.total += other.total;
        self.max = self.max.max(other.max);
    }
}

/// Lanes of one row's sums. With a single lane each addition would wait for the one before.
const LANES: usize = 8;

/// The sums of one row.
#[derive(Default)]
pub(in crate::encodings) struct ErrorLanes {
    difference: [f64; LANES],
    total: [f64; LANES],
    max: [f64; LANES],
}

impl ErrorLanes {
    /// Adds the next `N` columns, a multiple of eight. Zeros that stay zeros add nothing.
    #[inline(always)]
    pub(in crate::encodings) fn add<const N: usize>(&mut self, old: &[f32; N], new: &[f32; N]) {
        for (old, new) in old.as_chunks::<LANES>().0.iter().zip(new.as_chunks::<LANES>().0) {
            for i in 0..LANES {
                let old = f64::from(old[i]);
                let new = f64::from(new[i]);
                let difference = new - old;
                self.difference[i] += difference * difference;
                self.total[i] += old * old;
                let magnitude = difference.abs();
                self.max[i] = if magnitude > self.max[i] { magnitude } else { self.max[i] };
            }
        }
    }

    pub(in crate::encodings) fn sums(&self) -> ErrorSums {
        ErrorSums {
            difference: tree(self.difference),
            total: tree(self.total),
            max: self.max.into_iter().fold(0.0, f64::max),
        }
    }
}

fn tree(mut lanes: [f64; LANES]) -> f64 {
    for half in [4, 2, 1] {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
    }
    lanes[0]
}

/// The largest magnitude; not finite if any number is not. Bits without the sign have the order of
/// the magnitudes, and the maximum of integers may be taken in any order.
#[inline(always)]
pub(in crate::encodings) fn magnitude(weights: &[f32]) -> f32 {
    let bits = weights.iter().map(|w| (w.to_bits() & 0x7fff_ffff) as i32);
    f32::from_bits(bits.fold(0, i32::max) as u32)
}
