//! An allocator that ends the process on failure, and the return of freed memory to the system.

use std::alloc::{GlobalAlloc, Layout};

/// An allocator that never returns null: on failure it calls a function that ends the process.
///
/// Rust's own handler aborts with a number of bytes, without a remedy. The function must not
/// allocate.
#[derive(Debug)]
pub struct Granted<A> {
    inner: A,
    refused: fn(usize) -> !,
}

impl<A> Granted<A> {
    /// Wraps `inner`. On failure `refused` is called with the number of bytes requested.
    pub const fn new(inner: A, refused: fn(usize) -> !) -> Granted<A> {
        Granted { inner, refused }
    }

    /// The allocator inside.
    pub const fn inner(&self) -> &A {
        &self.inner
    }

    fn checked(&self, memory: *mut u8, bytes: usize) -> *mut u8 {
        if memory.is_null() { (self.refused)(bytes) } else { memory }
    }
}

// SAFETY: every call is forwarded to `inner` with the caller's arguments, and its result is
// returned. The caller's obligations are those of `inner`.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Granted<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: guaranteed by the caller.
        self.checked(unsafe { self.inner.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: guaranteed by the caller.
        self.checked(unsafe { self.inner.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: guaranteed by the caller.
        self.checked(unsafe { self.inner.realloc(memory, layout, size) }, size)
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: guaranteed by the caller.
        unsafe { self.inner.dealloc(memory, layout) }
    }
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

#[cfg(test)]
mod tests {
    #[test]
    fn freed_memory_returns_to_the_system() {
        let anonymous = || {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
            line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap()
        };
        // Small blocks. The last one keeps the heap from shrinking by itself.
        let mut pieces: Vec<Box<[u8; 1000]>> = (0..64 << 10).map(|_| Box::new([1; 1000])).collect();
        let last = pieces.pop();
        drop(pieces);
        let before = anonymous();
        super::release_freed_memory();
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
