use std::ptr;

use windows_sys::Win32::System::JobObjects::{
    JOB_OBJECT_LIMIT_JOB_MEMORY, JOB_OBJECT_LIMIT_PROCESS_MEMORY,
    JOBOBJECT_EXTENDED_LIMIT_INFORMATION, JobObjectExtendedLimitInformation,
    QueryInformationJobObject,
};
use windows_sys::Win32::System::SystemInformation::{GlobalMemoryStatusEx, MEMORYSTATUSEX};

use super::{LimitSource, SystemMemory};
use crate::process;

/// The machine's memory and what is left of it: of pages, or of what may be committed, whichever is less.
pub(super) fn memory() -> Option<SystemMemory> {
    // SAFETY: a structure of numbers.
    let mut status: MEMORYSTATUSEX = unsafe { std::mem::zeroed() };
    status.dwLength = size_of_val(&status) as u32;
    // SAFETY: the structure has its own length, as asked for.
    if unsafe { GlobalMemoryStatusEx(&mut status) } == 0 {
        return None;
    }
    let mut memory = SystemMemory {
        total: status.ullTotalPhys,
        available: status.ullAvailPhys.min(status.ullAvailPageFile),
        holder: LimitSource::Machine,
    };
    if let Some(limit) = job_limit() {
        memory.total = memory.total.min(limit);
        let left = limit.saturating_sub(process::memory().anonymous.unwrap_or(0));
        if left < memory.available {
            (memory.available, memory.holder) = (left, LimitSource::Job);
        }
    }
    Some(memory)
}

/// Bytes that the job object of this process lets it commit, if it is in one with a limit.
fn job_limit() -> Option<u64> {
    // SAFETY: a structure of numbers.
    let mut limits: JOBOBJECT_EXTENDED_LIMIT_INFORMATION = unsafe { std::mem::zeroed() };
    // SAFETY: asks for the job of this process, with the structure of this class of information.
    let done = unsafe {
        QueryInformationJobObject(
            ptr::null_mut(),
            JobObjectExtendedLimitInformation,
            ptr::from_mut(&mut limits).cast(),
            size_of_val(&limits) as u32,
            ptr::null_mut(),
        )
    };
    if done == 0 {
        return None;
    }
    let flags = limits.BasicLimitInformation.LimitFlags;
    let one = |flag, bytes: usize| (flags & flag != 0).then_some(bytes as u64);
    let of_process = one(JOB_OBJECT_LIMIT_PROCESS_MEMORY, limits.ProcessMemoryLimit);
    let of_job = one(JOB_OBJECT_LIMIT_JOB_MEMORY, limits.JobMemoryLimit);
    [of_process, of_job].into_iter().flatten().min()
}
