//! The meaning of failures at an address, and their remedies.

use sws_format::MANIFEST_FILE;
use sws_hub::http::HttpFailure;

use crate::{FarError, FarOrigin};

/// Maximum length of a server's reason in a message.
const LONGEST: usize = 100;
/// Prefix of the code of a failure that another region causes.
pub(crate) const REGION: &str = "region ";

impl FarOrigin {
    /// Explains the failure of a request for a file.
    pub(crate) fn explained(&self, failure: HttpFailure, file: &str) -> FarError {
        let (url, status, code) = match failure {
            HttpFailure::Connection { url, reason } => return FarError::Connection { url, reason },
            HttpFailure::Answer { url, reason } | HttpFailure::Garbled { url, reason } => {
                return FarError::Answer { url, reason };
            }
            HttpFailure::Status { url, status, code, .. } => (url, status, code),
        };
        let bucket = || self.address.in_bucket(file).map_or("", |(bucket, _)| bucket).to_owned();
        if let Some(region) = code.strip_prefix(REGION) {
            return FarError::Region { bucket: bucket(), region: region.to_owned() };
        }
        match (status, code.as_str()) {
            (_, "NoSuchBucket") if self.aws.is_some() => {
                let host = self.at(file).ok().and_then(|at| at.host().map(str::to_owned));
                FarError::NoBucket { bucket: bucket(), host: host.unwrap_or_default() }
            }
            (404 | 410, _) if file == MANIFEST_FILE => {
                FarError::NoManifest { address: self.address.to_string() }
            }
            (404 | 410, _) => FarError::Missing { url },
            (401 | 403, _) | (400, "ExpiredToken" | "InvalidToken" | "TokenRefreshRequired") => {
                let advice = self.advice(&code);
                FarError::Refused { url, status, code, advice }
            }
            (300..400, _) => {
                let advice = match self.aws {
                    Some(_) => {
                        "set AWS_REGION to the region of the bucket, or AWS_ENDPOINT_URL to its server"
                    }
                    None => "give the address to which it redirects",
                };
                FarError::Elsewhere { url, status, advice }
            }
            _ => FarError::Status { url, status, code },
        }
    }

    /// The remedy for a request that was refused.
    fn advice(&self, code: &str) -> &'static str {
        let signs = self.aws.as_ref().is_some_and(|aws| aws.credentials.is_some());
        let expired = code.to_ascii_lowercase().contains("expired");
        match code {
            "RequestTimeTooSkewed" => "set the clock of this machine",
            "SignatureDoesNotMatch" => "check AWS_SECRET_ACCESS_KEY",
            "InvalidAccessKeyId" => "check AWS_ACCESS_KEY_ID",
            _ if expired && signs => "the credentials have expired; get fresh ones",
            _ if expired => "the signature of the address has expired; get a fresh one",
            _ if signs => "check that these credentials may read it, and that it is there",
            _ if self.address.has_query() => "check the address and its signature",
            _ if self.aws.is_some() => {
                "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or check that the bucket is public"
            }
            _ => "check that it is public, or give an address with a signature",
        }
    }
}

/// The reason in an answer of S3, `<Code>`. An expired signature has no code of its own, so a word
/// is added for it.
pub(crate) fn reason(body: &str) -> String {
    let element = |name: &str| {
        let (_, rest) = body.split_once(&format!("<{name}>"))?;
        Some(rest.split_once('<')?.0)
    };
    let plain = |c: &char| c.is_ascii_alphanumeric();
    let code: String = element("Code").unwrap_or("").chars().filter(plain).take(LONGEST).collect();
    let message = element("Message").unwrap_or("").to_ascii_lowercase();
    match code.is_empty() || code.contains("Expired") || !message.contains("expired") {
        true => code,
        false => format!("{code}, expired"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_found_and_cleaned() {
        let error = |code: &str, message: &str| {
            format!("<Error><Code>{code}</Code><Message>{message}</Message></Error>")
        };
        for (body, expected) in [
            (error("NoSuchKey", "no"), "NoSuchKey"),
            (error("AccessDenied", "Request has expired"), "AccessDenied, expired"),
            (error("ExpiredToken", "The token has expired"), "ExpiredToken"),
            (error("a\u{1b}[1mb", ""), "a1mb"),
            ("<Code>".to_owned(), ""),
            (String::new(), ""),
        ] {
            assert_eq!(reason(&body), expected);
        }
    }
}
