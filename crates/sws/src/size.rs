//! Amounts of memory in readable form.

use std::fmt;

/// A number of bytes, displayed with a unit: `1.50 GiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        if self.0 < 1 << 10 {
            return write!(f, "{} B", self.0);
        }
        let power = self.0.ilog2() / 10;
        let amount = self.0 as f64 / (1u64 << (10 * power)) as f64;
        write!(f, "{amount:.2} {}", UNITS[power as usize - 1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_use_the_largest_unit_that_fits() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (1536 << 10, "1.50 MiB"),
            ((1 << 30) - 1, "1024.00 MiB"),
            (3 << 30, "3.00 GiB"),
            (u64::MAX, "16.00 EiB"),
        ];
        for (bytes, shown) in cases {
            assert_eq!(Size(bytes).to_string(), shown);
        }
    }
}
