//! Sizes with units.

/// Parses `14MiB`, `1.5GB`, `4096`.
pub fn parse_size(word: &str) -> Result<u64, String> {
    let digits = word.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor: f64 = match &word[digits.len()..] {
        "" | "B" => 1.0,
        "kB" | "KB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        "TB" => 1e12,
        "KiB" => 1024.0,
        "MiB" => 1048576.0,
        "GiB" => 1073741824.0,
        "TiB" => 1099511627776.0,
        unit => return Err(format!("`{unit}` is not a unit of size; write for instance 14MiB")),
    };
    let bytes = digits.parse::<f64>().map_or(f64::NAN, |n| n * factor);
    if (0.0..1e18).contains(&bytes) {
        Ok(bytes.round() as u64)
    } else {
        Err(format!("`{word}` is not a size; write for instance 14MiB, 1.5GB or 4096"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (word, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("14MiB", 14 << 20),
            ("1.5GB", 1_500_000_000),
            ("2KiB", 2048),
        ] {
            assert_eq!(parse_size(word), Ok(bytes), "{word}");
        }
        for word in ["", "MiB", "-1", "1 MiB", "12QiB", "1e400", "nan", "inf", "1e300GB"] {
            assert!(parse_size(word).is_err(), "{word}");
        }
    }
}
