//! Limits that a shell or a supervisor has set for the process.

use rustix::process::{Resource, getrlimit};

/// Limits of the process that are set; none where there is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of address space (`ulimit -v`).
    pub address_space: Option<u64>,
    /// Bytes of the first thread's stack (`ulimit -s`).
    pub stack: Option<u64>,
}

impl Limits {
    /// The limits that hold now.
    pub fn now() -> Limits {
        let limit = |resource| getrlimit(resource).current;
        Limits { address_space: limit(Resource::As), stack: limit(Resource::Stack) }
    }
}
