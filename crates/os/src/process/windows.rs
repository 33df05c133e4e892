use std::ffi::OsStr;
use std::io;
use std::process::Command;
use std::ptr;

use windows_sys::Win32::System::ProcessStatus::{
    GetProcessMemoryInfo, PROCESS_MEMORY_COUNTERS, PROCESS_MEMORY_COUNTERS_EX,
};
use windows_sys::Win32::System::Threading::{GetCurrentProcess, TerminateProcess};

use super::ProcessMemoryUse;

pub(super) fn memory() -> ProcessMemoryUse {
    // SAFETY: a structure of numbers.
    let mut counters: PROCESS_MEMORY_COUNTERS_EX = unsafe { std::mem::zeroed() };
    let size = size_of_val(&counters) as u32;
    let to = ptr::from_mut(&mut counters).cast::<PROCESS_MEMORY_COUNTERS>();
    // SAFETY: the longer structure begins with the shorter one, and its size is told.
    if unsafe { GetProcessMemoryInfo(GetCurrentProcess(), to, size) } == 0 {
        return ProcessMemoryUse::default();
    }
    // Wine does not tell what is committed.
    let (now, peak) = match counters.PrivateUsage {
        0 => (counters.WorkingSetSize, counters.PeakWorkingSetSize),
        committed => (committed, counters.PeakPagefileUsage.max(committed)),
    };
    ProcessMemoryUse {
        resident: Some(now as u64),
        peak: Some(peak as u64),
        anonymous: Some(now as u64),
        page_tables: None,
        threads: None,
    }
}

pub(super) fn mapped_files() -> u64 {
    0
}

pub(super) fn exit_now(code: i32) -> ! {
    // SAFETY: ends this process.
    unsafe { TerminateProcess(GetCurrentProcess(), code as u32) };
    std::process::abort()
}

pub(super) fn become_program(command: &mut Command) -> io::Error {
    match command.status() {
        Ok(status) => std::process::exit(status.code().unwrap_or(1)),
        Err(error) => error,
    }
}

pub(super) fn notify_manager(_: &OsStr, _: &[u8]) -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "this system has no such sockets"))
}
