//! Permissions that browsers request before a foreign page may use the server and read its answers.

use axum::body::Body;
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HeaderValue, ORIGIN, VARY,
};
use axum::http::{HeaderMap, Method, Request, Response, StatusCode};

use crate::ServerConfig;

/// Response headers that pages may read.
const EXPOSED: HeaderValue =
    HeaderValue::from_static("retry-after, sws-engine, x-request-id, x-should-retry");
const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, DELETE");
/// Seconds for which a browser may cache a permission.
const AGE: HeaderValue = HeaderValue::from_static("600");

/// The origin of a request, if pages of that origin are allowed.
pub(crate) fn allowed(config: &ServerConfig, headers: &HeaderMap) -> Option<HeaderValue> {
    let origin = headers.get(ORIGIN)?;
    let is_origin = |known: &String| known.as_bytes().eq_ignore_ascii_case(origin.as_bytes());
    config.origins.iter().any(is_origin).then(|| origin.clone())
}

/// The answer to a browser that asks if a page may send a request. Such a question has no key.
pub(crate) fn preflight(request: &Request<Body>) -> Option<Response<Body>> {
    let headers = request.headers();
    if request.method() != Method::OPTIONS || !headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD) {
        return None;
    }
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let told = response.headers_mut();
    told.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    told.insert(ACCESS_CONTROL_MAX_AGE, AGE);
    if let Some(asked) = headers.get(ACCESS_CONTROL_REQUEST_HEADERS) {
        told.insert(ACCESS_CONTROL_ALLOW_HEADERS, asked.clone());
    }
    Some(response)
}

/// Allows pages of an origin to read a response.
pub(crate) fn share(response: &mut Response<Body>, origin: HeaderValue) {
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    headers.append(VARY, HeaderValue::from_static("origin"));
}
