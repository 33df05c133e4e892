//! Maximum sizes of requests, from which the memory of a server's limits is computed.

/// Maximum number of additional connections while the server ends.
pub(crate) const TOLD: usize = 16;
/// Bytes of a body that need no permit.
pub(crate) const FREE_BODY: usize = 4 << 10;
/// Bytes of certificates per permit.
pub(crate) const CERTIFICATE_UNIT: usize = 1 << 10;

/// Maximum bytes of all bodies of up to `body` bytes each, besides the one that has the turn.
pub(crate) const fn body_bytes(body: usize, connections: usize) -> usize {
    body + connections * FREE_BODY
}

/// Maximum bytes of routes and hashes in the certificates of all requests, for a server whose
/// requests have up to `body` bytes.
pub(crate) const fn certificate_bytes(body: usize) -> usize {
    body / 2
}
