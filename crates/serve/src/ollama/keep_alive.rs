//! `keep_alive`: the time for which a model stays loaded.

use std::time::Duration;

use serde_json::Value;

/// Seconds of the units of Go's durations.
const UNITS: [(&str, f64); 7] = [
    ("ns", 1e-9),
    ("us", 1e-6),
    ("µs", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("m", 60.0),
    ("h", 3600.0),
];
/// Seconds beyond which a time has no end.
const MOST: f64 = 1e9;

/// Reads a number of seconds, or a duration such as `1h30m`; negative ones have no end. `None` for
/// another value.
pub(super) fn keep_alive(value: &Value) -> Option<Option<Duration>> {
    let seconds = match value {
        Value::Number(seconds) => seconds.as_f64()?,
        Value::String(text) => text.trim().parse().ok().or_else(|| duration(text.trim()))?,
        _ => return None,
    };
    if seconds.is_nan() {
        return None;
    }
    let is_bounded = (0.0..MOST).contains(&seconds);
    Some(is_bounded.then(|| Duration::from_secs_f64(seconds)))
}

/// Seconds of a sum of numbers with units.
fn duration(text: &str) -> Option<f64> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text),
    };
    if rest.is_empty() {
        return None;
    }
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(digits);
        let end = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let each = UNITS.iter().find(|(name, _)| *name == unit)?.1;
        seconds += number.parse::<f64>().ok()? * each;
        rest = after;
    }
    Some(sign * seconds)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn times_are_those_of_clients() {
        let seconds = |seconds| Some(Some(Duration::from_secs_f64(seconds)));
        for (value, expected) in [
            (json!(0), seconds(0.0)),
            (json!("0"), seconds(0.0)),
            (json!("0s"), seconds(0.0)),
            (json!(1.5), seconds(1.5)),
            (json!("5m"), seconds(300.0)),
            (json!("1h30m"), seconds(5400.0)),
            (json!(" 1.5h "), seconds(5400.0)),
            (json!("250ms"), seconds(0.25)),
            (json!(-1), Some(None)),
            (json!("-1"), Some(None)),
            (json!("-1m"), Some(None)),
            (json!("99999999h"), Some(None)),
            (json!(1e300), Some(None)),
            (json!("inf"), Some(None)),
            (json!("nan"), None),
            (json!(""), None),
            (json!("-"), None),
            (json!("5 m"), None),
            (json!("m"), None),
            (json!("5x"), None),
            (json!("1.2.3s"), None),
            (json!([5]), None),
            (json!(true), None),
        ] {
            assert_eq!(keep_alive(&value), expected, "{value}");
        }
    }
}
