//! Rounded numbers of estimates, which have few digits that count.

/// A number with two digits that count.
pub(crate) fn digits(number: f64) -> String {
    if !(number.is_finite() && number > 0.0) {
        return "-".to_owned();
    }
    let rounded: f64 = format!("{number:.1e}").parse().unwrap_or(number);
    let decimals = 1 - rounded.log10().floor() as i32;
    format!("{rounded:.0$}", decimals.clamp(0, 6) as usize)
}

/// A time in the largest unit of which there are two.
pub(crate) fn time(seconds: f64) -> String {
    match seconds {
        _ if seconds < 0.1 => "< 0.1 s".to_owned(),
        _ if seconds < 120.0 => format!("{} s", digits(seconds)),
        _ if seconds < 7200.0 => format!("{} min", digits(seconds / 60.0)),
        _ => format!("{} h", digits(seconds / 3600.0)),
    }
}

/// An estimate of bytes.
pub(crate) fn about(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB"];
    let mut number = bytes as f64;
    let mut unit = 0;
    while number >= 1000.0 && unit + 1 < units.len() {
        number /= 1024.0;
        unit += 1;
    }
    match bytes {
        0 => "0".to_owned(),
        _ if unit == 0 => format!("{bytes} B"),
        _ => format!("{} {}", digits(number), units[unit]),
    }
}

/// A share in percent, or `-` where it is not known.
pub(crate) fn percent(share: Option<f64>) -> String {
    match share {
        Some(share) => format!("{:.0} %", 100.0 * share),
        None => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_digits_count() {
        let cases = [
            (0.0, "-"),
            (f64::INFINITY, "-"),
            (0.0714, "0.071"),
            (0.5, "0.50"),
            (2.149, "2.1"),
            (17.9, "18"),
            (9.96, "10"),
            (99.6, "100"),
            (4016.9, "4000"),
        ];
        for (number, shown) in cases {
            assert_eq!(digits(number), shown);
        }
        let times = [(0.4, "0.40 s"), (119.0, "120 s"), (130.0, "2.2 min"), (86400.0, "24 h")];
        for (seconds, shown) in times {
            assert_eq!(time(seconds), shown);
        }
        let sizes = [
            (0, "0"),
            (999, "999 B"),
            (1020, "1.0 KiB"),
            (1 << 29, "510 MiB"),
            (7 << 40, "7200 GiB"),
        ];
        for (bytes, shown) in sizes {
            assert_eq!(about(bytes), shown);
        }
    }
}
