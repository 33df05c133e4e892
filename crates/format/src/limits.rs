//! Resource limits of the process, as set by a shell or a supervisor.

use rustix::process::{Resource, getrlimit};

/// Resource limits of the process; `None` where there is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessLimits {
    /// Bytes of address space (`ulimit -v`).
    pub address_space: Option<u64>,
    /// Bytes of the first thread's stack (`ulimit -s`).
    pub stack: Option<u64>,
    /// Bytes of memory that may be locked (`ulimit -l`).
    pub locked: Option<u64>,
}

impl ProcessLimits {
    /// Returns the current limits.
    pub fn now() -> ProcessLimits {
        let limit = |resource| getrlimit(resource).current;
        ProcessLimits {
            address_space: limit(Resource::As),
            stack: limit(Resource::Stack),
            locked: limit(Resource::Memlock),
        }
    }
}
