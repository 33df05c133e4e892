//! The machine: its memory, within the limits of whatever holds this process, its processors and their time.

mod cgroup;
mod ticks;
#[cfg(windows)]
mod windows;

use std::fmt;
use std::path::PathBuf;

pub use ticks::Ticks;

/// Memory as the system counts it, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemMemory {
    /// Upper limit for this process: the machine's memory, or the smallest limit of a control group
    /// around the process.
    pub total: u64,
    /// Memory that it could allocate now without evicting anything that cannot be read again.
    pub available: u64,
    /// Source of the limit on `available`.
    pub holder: LimitSource,
}

/// Source of the limit on available memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitSource {
    /// The whole machine.
    Machine,
    /// A control group with a limit, by its directory.
    Cgroup(PathBuf),
    /// A job object, Windows' group of processes.
    Job,
}

impl fmt::Display for LimitSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LimitSource::Machine => f.write_str("the machine"),
            LimitSource::Job => f.write_str("the job object"),
            LimitSource::Cgroup(dir) => write!(f, "the control group `{}`", dir.display()),
        }
    }
}

impl SystemMemory {
    /// Returns the memory of this process; `None` where the system does not report it.
    pub fn now() -> Option<SystemMemory> {
        #[cfg(windows)]
        return windows::memory();
        #[cfg(target_os = "macos")]
        return crate::macos::machine();
        #[cfg(not(any(windows, target_os = "macos")))]
        SystemMemory::below(std::path::Path::new("/"))
    }
}

/// Name of the processor, as its maker has it.
pub fn processor() -> Option<String> {
    if cfg!(not(target_os = "linux")) {
        return std::env::var("PROCESSOR_IDENTIFIER").ok();
    }
    let told = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = told.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// File of the setting that [`huge_pages`] reads.
pub const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// Where the kernel uses huge pages: `always`, `madvise` or `never`. `None` in a kernel without them.
pub fn huge_pages() -> Option<String> {
    if cfg!(not(target_os = "linux")) {
        return None;
    }
    let text = std::fs::read_to_string(HUGE_PAGES).ok()?;
    Some(text.split(['[', ']']).nth(1).unwrap_or("unknown").to_owned())
}
