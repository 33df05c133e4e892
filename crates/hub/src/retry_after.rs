//! The header `Retry-After`: seconds, or a date.

use std::time::Duration;

/// The pause that a header asks for. A date is compared with the date of the same answer, `sent`,
/// so that this machine's clock does not matter.
pub(crate) fn pause_asked(retry_after: &str, sent: Option<&str>) -> Option<Duration> {
    let value = retry_after.trim();
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    Some(Duration::from_secs(seconds(value)?.saturating_sub(seconds(sent?)?)))
}

/// Seconds since 1970 of a date in HTTP's format: `Sun, 06 Nov 1994 08:49:37 GMT`.
pub(crate) fn seconds(date: &str) -> Option<u64> {
    const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";
    let after_day = date.trim().split_once(", ")?.1;
    let words: Vec<&str> = after_day.split(' ').collect();
    let [day, month, year, time, "GMT"] = words[..] else { return None };
    let number = |word: &str, most: u64| word.parse::<u64>().ok().filter(|n| *n <= most);
    let month = MONTHS.find(month).filter(|at| month.len() == 3 && at % 3 == 0)? as u64 / 3;
    let day = number(day, 31)?.checked_sub(1)?;
    let year = number(year, 9999)?;
    let mut clock = time.split(':');
    let mut next = |most| number(clock.next()?, most);
    let hours = next(23)?;
    let minutes = next(59)?;
    let seconds = next(60)?;
    // The year begins in March here, so that a leap day is its last day.
    let (year, month) =
        if month < 2 { (year.checked_sub(1)?, month + 10) } else { (year, month - 2) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day;
    let days = days.checked_sub(719_468)?;
    Some(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_http_are_seconds() {
        for (date, expected) in [
            ("Thu, 01 Jan 1970 00:00:00 GMT", Some(0)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(784_111_777)),
            ("Tue, 29 Feb 2000 23:59:60 GMT", Some(951_868_800)),
            ("Fri, 31 Dec 9999 23:59:59 GMT", Some(253_402_300_799)),
            ("Thu, 01 Jan 1969 00:00:00 GMT", None),
            ("Sun, 06 Nov 1994 08:49:37 CET", None),
            ("Sunday, 06-Nov-94 08:49:37 GMT", None),
            ("Sun, 0 Nov 1994 08:49:37 GMT", None),
            ("Sun, 06 ovD 1994 08:49:37 GMT", None),
            ("Sun, 06 Nov 1994 08:49 GMT", None),
            ("", None),
        ] {
            assert_eq!(seconds(date), expected, "{date}");
        }
    }

    #[test]
    fn a_date_counts_from_that_of_the_answer() {
        let sent = Some("Sun, 06 Nov 1994 08:49:37 GMT");
        for (header, sent, expected) in [
            (" 7 ", None, Some(7)),
            ("Sun, 06 Nov 1994 08:50:00 GMT", sent, Some(23)),
            ("Sun, 06 Nov 1994 08:00:00 GMT", sent, Some(0)),
            ("Sun, 06 Nov 1994 08:50:00 GMT", None, None),
            ("soon", sent, None),
        ] {
            assert_eq!(
                pause_asked(header, sent).map(|pause| pause.as_secs()),
                expected,
                "{header}"
            );
        }
    }
}
