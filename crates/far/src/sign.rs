//! Signatures of requests to S3: version 4, with HMAC and SHA-256.

use ring::hmac::{HMAC_SHA256, Key, Tag, sign};

use crate::aws::Credentials;
use crate::key::{hex, sha256};

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const SERVICE: &str = "s3";
/// Seconds of a day.
const DAY: u64 = 86_400;

/// A request to be signed.
pub(crate) struct SignedRequest<'a> {
    pub(crate) method: &'static str,
    /// Host, with its port if the address has one.
    pub(crate) host: &'a str,
    /// Path, escaped.
    pub(crate) path: &'a str,
    /// The requested range, as in the header.
    pub(crate) range: Option<&'a str>,
    /// SHA-256 of the body.
    pub(crate) body: &'a str,
    /// Seconds since 1970.
    pub(crate) time: u64,
}

/// The headers that sign a request, besides `Host` and `Range`.
pub(crate) fn headers(
    request: &SignedRequest<'_>,
    credentials: &Credentials,
    region: &str,
) -> Vec<(&'static str, String)> {
    let time = stamp(request.time);
    let day = &time[..8];
    let mut headers = vec![("host", request.host.to_owned())];
    headers.extend(request.range.map(|range| ("range", range.to_owned())));
    headers.push(("x-amz-content-sha256", request.body.to_owned()));
    headers.push(("x-amz-date", time.clone()));
    headers.extend(credentials.token.clone().map(|token| ("x-amz-security-token", token)));
    let mut names = Vec::new();
    let mut lines = String::new();
    for (name, value) in &headers {
        names.push(*name);
        lines += &format!("{name}:{value}\n");
    }
    let names = names.join(";");
    let SignedRequest { method, path, body, .. } = request;
    let canonical = format!("{method}\n{path}\n\n{lines}\n{names}\n{body}");
    let scope = format!("{day}/{region}/{SERVICE}/aws4_request");
    let text = format!("{ALGORITHM}\n{time}\n{scope}\n{}", sha256(canonical.as_bytes()));
    let mut key = hmac(format!("AWS4{}", credentials.secret).as_bytes(), day);
    for part in [region, SERVICE, "aws4_request"] {
        key = hmac(key.as_ref(), part);
    }
    let signature = hex(hmac(key.as_ref(), &text).as_ref());
    let id = &credentials.id;
    let authorization = format!(
        "{ALGORITHM} Credential={id}/{scope}, SignedHeaders={names}, Signature={signature}"
    );
    headers.retain(|(name, _)| !matches!(*name, "host" | "range"));
    headers.push(("authorization", authorization));
    headers
}

fn hmac(key: &[u8], text: &str) -> Tag {
    sign(&Key::new(HMAC_SHA256, key), text.as_bytes())
}

/// A time in the format `20130524T000000Z`.
fn stamp(seconds: u64) -> String {
    let days = seconds / DAY;
    let rest = seconds % DAY;
    // Years of the proleptic calendar begin in March here, so that a leap day is the last day.
    let days = days + 719_468;
    let era = days / 146_097;
    let day = days % 146_097;
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = match month {
        0..10 => (era * 400 + year, month + 3),
        _ => (era * 400 + year + 1, month - 9),
    };
    let hours = rest / 3600;
    let minutes = rest / 60 % 60;
    let seconds = rest % 60;
    format!("{year:04}{month:02}{day:02}T{hours:02}{minutes:02}{seconds:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_dates() {
        for (seconds, expected) in [
            (0, "19700101T000000Z"),
            (951_868_799, "20000229T235959Z"),
            (951_868_800, "20000301T000000Z"),
            (1_369_353_600, "20130524T000000Z"),
            (4_107_542_399, "21000228T235959Z"),
            (4_107_542_400, "21000301T000000Z"),
        ] {
            assert_eq!(stamp(seconds), expected);
        }
    }

    /// The example of Amazon's documentation, `GET Object` with a range.
    #[test]
    fn signature_is_that_of_the_specification() {
        let credentials = Credentials {
            id: "AKIAIOSFODNN7EXAMPLE".to_owned(),
            secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".to_owned(),
            token: None,
        };
        let request = SignedRequest {
            method: "GET",
            host: "examplebucket.s3.amazonaws.com",
            path: "/test.txt",
            range: Some("bytes=0-9"),
            body: &sha256(b""),
            time: 1_369_353_600,
        };
        let headers = headers(&request, &credentials, "us-east-1");
        let (_, authorization) = headers.last().unwrap();
        assert_eq!(
            authorization,
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, \
             SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, \
             Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
        );
    }
}
