//! The server's side of signatures of S3, version 4, by its specification and not by our client's code.

use std::ops::Range;

use ring::hmac;

use super::Request;
use crate::hub::{hex, sha256};

/// Longest difference of clocks, in seconds.
const SKEW: i64 = 15 * 60;

/// Keys that requests must be signed with.
#[derive(Clone, Debug)]
pub struct Keys {
    /// The public part.
    pub id: String,
    /// The secret part.
    pub secret: String,
    /// The token of temporary keys.
    pub token: Option<String>,
    /// The region of the bucket.
    pub region: String,
}

impl Keys {
    /// Checks the signature of a request. Returns the status and the code of a refusal.
    pub(super) fn check(
        &self,
        request: &Request,
        body: &[u8],
        now: i64,
    ) -> Result<(), (u16, &'static str)> {
        let authorization = request.header("authorization");
        if authorization.is_empty() {
            return Err((403, "AccessDenied"));
        }
        let malformed = (400, "AuthorizationHeaderMalformed");
        let rest = authorization.strip_prefix("AWS4-HMAC-SHA256 ").ok_or(malformed)?;
        let credential = part(rest, "Credential=").ok_or(malformed)?;
        let [id, day, region, "s3", "aws4_request"] = credential.split('/').collect::<Vec<_>>()[..]
        else {
            return Err(malformed);
        };
        if id != self.id {
            return Err((403, "InvalidAccessKeyId"));
        }
        if region != self.region {
            return Err(malformed);
        }
        let stamp = request.header("x-amz-date");
        let sent = seconds(stamp).ok_or((403, "AccessDenied"))?;
        if (sent - now).abs() > SKEW {
            return Err((403, "RequestTimeTooSkewed"));
        }
        let names = part(rest, "SignedHeaders=").ok_or(malformed)?;
        let signed: Vec<&str> = names.split(';').collect();
        // All of these headers must be signed.
        let of_amazon = request.headers.keys().filter(|name| name.starts_with("x-amz-"));
        if !signed.is_sorted()
            || !signed.contains(&"host")
            || !of_amazon.clone().all(|name| signed.contains(&name.as_str()))
        {
            return Err((403, "AccessDenied"));
        }
        if self.token.as_deref().unwrap_or("") != request.header("x-amz-security-token") {
            return Err((400, "InvalidToken"));
        }
        let hash = request.header("x-amz-content-sha256");
        if hash != sha256(body) {
            return Err((400, "XAmzContentSHA256Mismatch"));
        }
        let lines: String =
            signed.iter().map(|name| format!("{name}:{}\n", request.header(name))).collect();
        let Request { method, path, query, .. } = request;
        let query = query.as_deref().unwrap_or("");
        let canonical = format!("{method}\n{path}\n{query}\n{lines}\n{names}\n{hash}");
        let scope = format!("{day}/{region}/s3/aws4_request");
        let text = format!("AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{}", sha256(canonical.as_bytes()));
        let mut key = format!("AWS4{}", self.secret).into_bytes();
        for text in [day, region, "s3", "aws4_request", &text] {
            let by = hmac::Key::new(hmac::HMAC_SHA256, &key);
            key = hmac::sign(&by, text.as_bytes()).as_ref().to_vec();
        }
        match part(rest, "Signature=") == Some(&hex(&key)) && stamp.starts_with(day) {
            true => Ok(()),
            false => Err((403, "SignatureDoesNotMatch")),
        }
    }
}

/// The part of an authorization with this name.
fn part<'h>(authorization: &'h str, name: &str) -> Option<&'h str> {
    authorization.split(", ").find_map(|part| part.strip_prefix(name))
}

/// Days since 1970 of a date.
fn days(year: i64, month: i64, day: i64) -> i64 {
    // Counted one by one: this is the other side of a test.
    let years: i64 = (1970..year).map(|year| 365 + i64::from(is_leap(year))).sum();
    let february = 28 + i64::from(is_leap(year));
    let months = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    years + months.iter().take(usize::try_from(month - 1).unwrap_or(0)).sum::<i64>() + day - 1
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

/// Seconds since 1970 of `20130524T000000Z`.
fn seconds(stamp: &str) -> Option<i64> {
    let (date, time) = stamp.strip_suffix('Z')?.split_once('T')?;
    let year = number(date, 0..4)?;
    let month = number(date, 4..6)?;
    let day = number(date, 6..8)?;
    let hours = number(time, 0..2)?;
    let minutes = number(time, 2..4)?;
    let seconds = number(time, 4..6)?;
    Some(days(year, month, day) * 86_400 + hours * 3600 + minutes * 60 + seconds)
}

fn number(text: &str, at: Range<usize>) -> Option<i64> {
    text.get(at)?.parse().ok()
}

/// A date as HTTP writes it.
pub(super) fn date(seconds: i64) -> String {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    let day = seconds.div_euclid(86_400);
    let rest = seconds.rem_euclid(86_400);
    let year = (1970..).take_while(|&year| days(year, 1, 1) <= day).last().unwrap_or(1970);
    let month = (1..=12).take_while(|&month| days(year, month, 1) <= day).last().unwrap_or(1);
    let of_month = day - days(year, month, 1) + 1;
    let hours = rest / 3600;
    let minutes = rest / 60 % 60;
    let seconds = rest % 60;
    let of_week = DAYS[usize::try_from(day.rem_euclid(7)).unwrap_or(0)];
    let name = MONTHS[usize::try_from(month - 1).unwrap_or(0)];
    format!("{of_week}, {of_month:02} {name} {year} {hours:02}:{minutes:02}:{seconds:02} GMT")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_read_and_written() {
        assert_eq!(seconds("19941106T084937Z"), Some(784_111_777));
        assert_eq!(date(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(date(951_782_400), "Tue, 29 Feb 2000 00:00:00 GMT");
        assert_eq!(seconds("20000229T000000Z"), Some(951_782_400));
    }
}
