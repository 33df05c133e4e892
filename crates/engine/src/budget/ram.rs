//! The memory budget as a user types it.

use std::fmt;
use std::str::FromStr;

/// Value of `--ram`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RamBudget {
    /// Available memory, less a reserve that keeps the machine usable.
    Auto,
    /// The smallest budget that the model runs in.
    Min,
    /// A number of bytes.
    Bytes(u64),
    /// A share of the machine's memory, or of a control group's limit: above 0, at most 1.
    Share(f64),
}

/// Memory left to other processes under [`RamBudget::Auto`]: one part in this many of the total, and
/// at least this many bytes.
const RESERVED_SHARE: u64 = 16;
const LEAST_RESERVED: u64 = 512 << 20;

/// The smallest number of bytes accepted without a unit.
const MIN_WITHOUT_UNIT: u64 = 1 << 20;

/// Units by name. Binary ones may lack `iB`. Long names come first, as each ends in a shorter one.
const UNITS: [(&str, u64); 13] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
    ("b", 1),
];

/// A word that is not an amount of memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not an amount of memory; give one with its unit (8GiB, 512MiB), a share of the machine's (80%), `min` or `auto`"
)]
pub struct UnknownBudget(pub String);

impl RamBudget {
    /// Returns the budget in bytes. `total` is the memory that the process can have, `available`
    /// the memory that is free now, and `minimum` the smallest budget of the model.
    pub fn resolve(self, total: u64, available: u64, minimum: u64) -> u64 {
        match self {
            RamBudget::Auto => {
                available.saturating_sub((total / RESERVED_SHARE).max(LEAST_RESERVED))
            }
            RamBudget::Min => minimum,
            RamBudget::Bytes(bytes) => bytes,
            RamBudget::Share(share) => (total as f64 * share) as u64,
        }
    }
}

impl FromStr for RamBudget {
    type Err = UnknownBudget;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        let unknown = || UnknownBudget(word.to_owned());
        let lower = word.trim().to_ascii_lowercase();
        match lower.as_str() {
            "auto" => return Ok(RamBudget::Auto),
            "min" => return Ok(RamBudget::Min),
            _ => {}
        }
        if let Some(digits) = lower.strip_suffix('%') {
            let share = number(digits).ok_or_else(unknown)? / 100.0;
            return (share > 0.0 && share <= 1.0)
                .then_some(RamBudget::Share(share))
                .ok_or_else(unknown);
        }
        // Scripts pass plain bytes. A small number without a unit is more likely a mistake.
        if let Ok(bytes) = lower.parse::<u64>()
            && bytes >= MIN_WITHOUT_UNIT
        {
            return Ok(RamBudget::Bytes(bytes));
        }
        let (digits, unit) = UNITS
            .iter()
            .find_map(|&(name, unit)| Some((lower.strip_suffix(name)?, unit)))
            .ok_or_else(unknown)?;
        let bytes = number(digits).ok_or_else(unknown)? * unit as f64;
        (bytes < u64::MAX as f64).then_some(RamBudget::Bytes(bytes as u64)).ok_or_else(unknown)
    }
}

/// Parses a number of digits and points only, to refuse `inf`, `nan` and `1e9`.
fn number(digits: &str) -> Option<f64> {
    let digits = digits.trim_end();
    let plain = digits.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    if plain { digits.parse().ok() } else { None }
}

impl fmt::Display for RamBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RamBudget::Auto => f.write_str("auto"),
            RamBudget::Min => f.write_str("min"),
            RamBudget::Bytes(bytes) => write!(f, "{bytes}B"),
            RamBudget::Share(share) => write!(f, "{}%", share * 100.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use RamBudget::{Auto, Bytes, Min, Share};

    #[test]
    fn amounts_are_parsed() {
        let cases = [
            ("auto", Some(Auto)),
            ("MIN", Some(Min)),
            ("8GiB", Some(Bytes(8 << 30))),
            ("8 GiB", Some(Bytes(8 << 30))),
            (" 8g ", Some(Bytes(8 << 30))),
            ("8GB", Some(Bytes(8_000_000_000))),
            ("1.5GiB", Some(Bytes(3 << 29))),
            ("512MiB", Some(Bytes(512 << 20))),
            ("512m", Some(Bytes(512 << 20))),
            ("100kb", Some(Bytes(100_000))),
            ("2TiB", Some(Bytes(2 << 40))),
            ("0MiB", Some(Bytes(0))),
            ("123B", Some(Bytes(123))),
            ("80%", Some(Share(0.8))),
            ("12.5 %", Some(Share(0.125))),
            ("100%", Some(Share(1.0))),
            ("", None),
            ("8", None),
            ("1048575", None),
            ("8589934592", Some(Bytes(8 << 30))),
            ("GiB", None),
            ("%", None),
            ("-1GiB", None),
            ("+1GiB", None),
            ("0%", None),
            ("101%", None),
            ("1e3MiB", None),
            ("infGiB", None),
            ("nan%", None),
            ("8GiBs", None),
            ("8 G i B", None),
            ("1.2.3GiB", None),
            ("99999999999TiB", None),
            ("some", None),
        ];
        for (word, expected) in cases {
            let found = word.parse::<RamBudget>();
            assert_eq!(found, expected.ok_or_else(|| UnknownBudget(word.to_owned())), "{word}");
        }
    }

    #[test]
    fn printed_budget_parses_back() {
        for budget in [Auto, Min, Bytes(7), Bytes(8 << 30), Share(0.8), Share(0.125)] {
            assert_eq!(budget.to_string().parse(), Ok(budget));
        }
    }

    #[test]
    fn auto_leaves_the_machine_usable() {
        const GIB: u64 = 1 << 30;
        let cases = [
            // budget, total, available, minimum, expected
            (Auto, 64 * GIB, 60 * GIB, GIB, 56 * GIB),
            (Auto, 4 * GIB, 3 * GIB, GIB, 5 * GIB / 2),
            (Auto, 4 * GIB, GIB / 4, GIB, 0),
            (Min, 4 * GIB, GIB, 77, 77),
            (Share(0.5), 4 * GIB, GIB, 77, 2 * GIB),
            (Bytes(5), 4 * GIB, GIB, 77, 5),
        ];
        for (budget, total, available, minimum, expected) in cases {
            assert_eq!(budget.resolve(total, available, minimum), expected, "{budget}");
        }
    }
}
