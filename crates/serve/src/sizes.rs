//! Sizes of what requests may hold, of which the limits of a server count the memory.

/// Maximum number of connections while the server ends, beside those that are open.
pub(crate) const TOLD: usize = 16;
/// Bytes of a body that need no permit.
pub(crate) const FREE_BODY: usize = 4 << 10;
/// Bytes of certificates for which a permit stands.
pub(crate) const CERTIFICATE_UNIT: usize = 1 << 10;

/// Bytes that bodies of at most so many bytes take together, beside the one that has the turn.
pub(crate) const fn body_bytes(body: usize, connections: usize) -> usize {
    body + connections * FREE_BODY
}

/// Bytes of routes and hashes of the certificates of all requests that wait or run, of a server whose
/// requests have at most so many bytes.
pub(crate) const fn certificate_bytes(body: usize) -> usize {
    body / 2
}
