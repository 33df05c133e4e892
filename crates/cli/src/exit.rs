//! Exit codes.

/// Exit code of a verification that found damage or a difference.
pub(crate) const FAILED: u8 = 1;
/// Exit code for bad input or usage, and for operations that the system refused.
pub(crate) const REFUSED: u8 = 2;
