//! Memory and pipes of macOS, by the functions of its C library. Checked by the compiler, not run by us.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::machine::{LimitSource, SystemMemory};
use crate::process::ProcessMemoryUse;

const TASK_VM_INFO: u32 = 22;
const HOST_VM_INFO64: i32 = 4;

/// The beginning of `task_vm_info`, up to the fields that are read.
#[repr(C)]
#[derive(Default)]
struct TaskVmInfo {
    virtual_size: u64,
    region_count: i32,
    page_size: i32,
    resident_size: u64,
    resident_size_peak: u64,
    device: [u64; 2],
    internal: [u64; 2],
    external: [u64; 2],
    reusable: [u64; 2],
    purgeable: [u64; 3],
    compressed: [u64; 3],
    phys_footprint: u64,
    addresses: [u64; 2],
    phys_footprint_peak: i64,
    /// The system fills the peak only where there is room for all of its revision.
    rest: [i64; 20],
}

/// The beginning of `vm_statistics64`, in pages.
#[repr(C)]
#[derive(Default)]
struct VmStatistics {
    free: u32,
    active: u32,
    inactive: u32,
    wired: u32,
    rest: [u64; 17],
}

// SAFETY: functions of the C library, as `mach/task.h`, `mach/mach_host.h`, `sys/sysctl.h` and `sys/stat.h`
// declare them.
unsafe extern "C" {
    static mach_task_self_: u32;
    fn task_info(task: u32, flavor: u32, info: *mut i32, count: *mut u32) -> i32;
    fn mach_host_self() -> u32;
    fn host_statistics64(host: u32, flavor: i32, info: *mut i32, count: *mut u32) -> i32;
    fn sysctlbyname(
        name: *const std::ffi::c_char,
        old: *mut std::ffi::c_void,
        old_len: *mut usize,
        new: *mut std::ffi::c_void,
        new_len: usize,
    ) -> i32;
    fn mkfifo(path: *const std::ffi::c_char, mode: u16) -> i32;
}

/// Number of the words of which the system fills a structure.
fn words<T>() -> u32 {
    (size_of::<T>() / 4) as u32
}

/// The process's footprint, which Activity Monitor shows and the system limits.
pub(crate) fn memory() -> ProcessMemoryUse {
    let mut info = TaskVmInfo::default();
    let mut count = words::<TaskVmInfo>();
    let to = std::ptr::from_mut(&mut info).cast();
    // SAFETY: `count` words of `info` may be written.
    if unsafe { task_info(mach_task_self_, TASK_VM_INFO, to, &mut count) } != 0 {
        return ProcessMemoryUse::default();
    }
    let now = info.phys_footprint;
    ProcessMemoryUse {
        resident: Some(now),
        peak: Some(now.max(info.phys_footprint_peak.max(0) as u64)),
        anonymous: Some(now),
        page_tables: None,
        threads: None,
    }
}

/// The machine's memory. Nothing limits a process further.
pub(crate) fn machine() -> Option<SystemMemory> {
    let mut total = 0u64;
    let mut len = size_of::<u64>();
    let to = std::ptr::from_mut(&mut total).cast();
    // SAFETY: the name ends with a zero, and `len` bytes may be written.
    let failed =
        unsafe { sysctlbyname(c"hw.memsize".as_ptr(), to, &mut len, std::ptr::null_mut(), 0) };
    let mut pages = VmStatistics::default();
    let mut count = words::<VmStatistics>();
    let to = std::ptr::from_mut(&mut pages).cast();
    // SAFETY: `count` words of `pages` may be written.
    let refused = unsafe { host_statistics64(mach_host_self(), HOST_VM_INFO64, to, &mut count) };
    if failed != 0 || refused != 0 {
        return None;
    }
    let page = rustix::param::page_size() as u64;
    let available = (u64::from(pages.free) + u64::from(pages.inactive)) * page;
    Some(SystemMemory { total, available: available.min(total), holder: LimitSource::Machine })
}

/// Makes a named pipe for this user.
pub(crate) fn make_pipe(path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path ends with a zero.
    match unsafe { mkfifo(path.as_ptr(), 0o600) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
