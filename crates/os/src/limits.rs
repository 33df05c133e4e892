//! Resource limits of the process, as set by a shell or a supervisor.

/// Resource limits of the process; `None` where there is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessLimits {
    /// Bytes of address space (`ulimit -v`).
    pub address_space: Option<u64>,
    /// Bytes of the first thread's stack (`ulimit -s`).
    pub stack: Option<u64>,
    /// Bytes of memory that may be locked (`ulimit -l`).
    pub locked: Option<u64>,
    /// Number of open files (`ulimit -n`).
    pub open_files: Option<u64>,
}

impl ProcessLimits {
    /// Returns the current limits.
    #[cfg(unix)]
    pub fn now() -> ProcessLimits {
        use rustix::process::{Resource, getrlimit};

        let limit = |resource| getrlimit(resource).current;
        ProcessLimits {
            address_space: limit(Resource::As),
            stack: limit(Resource::Stack),
            locked: limit(Resource::Memlock),
            open_files: limit(Resource::Nofile),
        }
    }

    /// Returns the current limits: none, as those of a job object limit memory, not addresses.
    #[cfg(windows)]
    pub fn now() -> ProcessLimits {
        ProcessLimits::default()
    }
}

/// Makes an exceeded limit of a file's size an error of the write, which names the file. Otherwise a
/// signal ends the program.
pub fn refuse_large_writes() -> std::io::Result<()> {
    #[cfg(unix)]
    signal_hook::flag::register(signal_hook::consts::SIGXFSZ, std::sync::Arc::default())?;
    Ok(())
}
