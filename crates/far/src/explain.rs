//! The meaning of failures at an address, and their remedies.

use sws_format::MANIFEST_FILE;
use sws_hub::http::HttpFailure;

use crate::origin::REGION;
use crate::{FarError, FarOrigin};

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
        if let Some(region) = code.strip_prefix(REGION) {
            return FarError::Region { bucket: self.bucket(file), region: region.to_owned() };
        }
        match (status, code.as_str()) {
            (_, "NoSuchBucket") if self.aws.is_some() => {
                let host = self.at(file).ok().and_then(|at| at.host().map(str::to_owned));
                FarError::NoBucket { bucket: self.bucket(file), host: host.unwrap_or_default() }
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

    /// Name of the bucket; empty for a web server.
    fn bucket(&self, file: &str) -> String {
        match self.address.in_bucket(file) {
            Some((bucket, _)) => bucket.to_owned(),
            None => String::new(),
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
