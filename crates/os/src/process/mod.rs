//! This process: its memory as the system counts it, and how it ends or becomes another.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

use std::io;
use std::process::Command;

#[cfg(unix)]
use unix as system;
#[cfg(windows)]
use windows as system;

/// Memory of this process in bytes, as far as the system reports it.
///
/// On Windows this is what the process has committed, which is what the system grants and limits there; its
/// working set where that is not told, as under Wine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessMemoryUse {
    /// Memory now.
    pub resident: Option<u64>,
    /// The most that it was.
    pub peak: Option<u64>,
    /// The part that is of no file.
    pub anonymous: Option<u64>,
    /// Tables of the addresses.
    pub page_tables: Option<u64>,
    /// Number of threads.
    pub threads: Option<u64>,
}

/// The memory of this process.
pub fn memory() -> ProcessMemoryUse {
    system::memory()
}

/// Bytes of the program and its libraries that become memory of the process when they are touched, and
/// stay. None on Windows, where they are not committed.
pub fn mapped_files() -> u64 {
    system::mapped_files()
}

/// True if every mapping, and so every stack, consists of huge pages.
pub fn are_all_pages_huge() -> bool {
    crate::machine::huge_pages().is_some_and(|mode| mode == "always")
}

/// Returns freed memory to the system. The allocator keeps it for reuse, which a memory budget
/// cannot account for: after loading a tokenizer of 150,000 words it kept 86 MiB, with 25 MiB in
/// use.
///
/// From then on, freed blocks of 128 KiB and more return to the system at once. By default the
/// allocator raises this threshold to as much as 32 MiB once a block of that size has been freed.
/// Blocks below it are never returned from the heaps of threads other than the first: in a chat
/// each prompt left some of its activations behind.
///
/// Does nothing with allocators other than glibc's.
pub fn release_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        use std::ffi::c_int;

        // SAFETY: the C library's `malloc_trim` and `mallopt`, as `malloc.h` declares them. They
        // take the allocator's own locks and move nothing that is in use.
        unsafe extern "C" {
            safe fn malloc_trim(pad: usize) -> c_int;
            safe fn mallopt(parameter: c_int, value: c_int) -> c_int;
        }
        const M_MMAP_THRESHOLD: c_int = -3;
        // The initial value. Once set, the threshold no longer grows.
        mallopt(M_MMAP_THRESHOLD, 128 << 10);
        malloc_trim(0);
    }
}

/// Ends this process at once, without destructors.
pub fn exit_now(code: i32) -> ! {
    system::exit_now(code)
}

/// Lets another program take the place of this one: where processes cannot be replaced, it runs, and this
/// one ends with its exit code. Returns only if it could not be started.
pub fn become_program(command: &mut Command) -> io::Error {
    system::become_program(command)
}

/// Tells the manager that started this service something, at the address that it gave in `NOTIFY_SOCKET`.
pub fn notify_manager(address: &std::ffi::OsStr, message: &[u8]) -> io::Result<()> {
    system::notify_manager(address, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(any(target_os = "linux", target_os = "macos", windows))]
    fn this_process_has_memory() {
        let it = memory();
        assert!(it.resident > Some(1 << 20) && it.peak >= it.resident, "{it:?}");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn freed_memory_returns_to_the_system() {
        let anonymous = || memory().anonymous.unwrap() >> 10;
        // Small blocks. The last one keeps the heap from shrinking by itself.
        let mut pieces: Vec<Box<[u8; 1000]>> = (0..64 << 10).map(|_| Box::new([1; 1000])).collect();
        let last = pieces.pop();
        drop(pieces);
        let before = anonymous();
        release_freed_memory();
        let after = anonymous();
        assert!(
            cfg!(not(target_env = "gnu")) || after + (32 << 10) < before,
            "{before} {after} kB"
        );
        drop(last);
        // Large blocks return by themselves, whichever thread frees them and whatever it freed
        // before.
        let kept = std::thread::spawn(move || {
            let large = || drop(std::hint::black_box(vec![1u8; 30 << 20]));
            large();
            let before = anonymous();
            large();
            anonymous().saturating_sub(before)
        });
        let kept = kept.join().unwrap();
        assert!(cfg!(not(target_env = "gnu")) || kept < 15 << 10, "{kept} kB");
    }
}
