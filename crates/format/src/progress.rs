//! Progress of a long operation.

/// Progress of a long operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of input done, including those of an earlier, interrupted run.
    pub done: u64,
    /// Total bytes of input.
    pub total: u64,
}
