//! The allocator: memory that it keeps after it was freed, and the end where it has none to give.

use std::alloc::{GlobalAlloc, Layout};

/// An allocator that never fails: where the system grants no memory, it calls a function that ends the
/// process.
///
/// Rust aborts there, with a number of bytes and no remedy. The function must not allocate.
#[derive(Debug)]
pub struct Granted<A> {
    inner: A,
    refused: fn(usize) -> !,
}

impl<A> Granted<A> {
    /// `refused` is given the number of bytes that were asked for.
    pub const fn new(inner: A, refused: fn(usize) -> !) -> Granted<A> {
        Granted { inner, refused }
    }

    fn checked(&self, memory: *mut u8, bytes: usize) -> *mut u8 {
        if memory.is_null() { (self.refused)(bytes) } else { memory }
    }
}

// SAFETY: every call goes to `inner` with the caller's arguments, and what that returns is returned; the
// caller's promises are those that `inner` asks for.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Granted<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's.
        self.checked(unsafe { self.inner.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's.
        self.checked(unsafe { self.inner.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's.
        self.checked(unsafe { self.inner.realloc(memory, layout, size) }, size)
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { self.inner.dealloc(memory, layout) }
    }
}

/// Gives memory that was freed back to the system. The allocator keeps it for later, which a budget
/// cannot know: after a tokenizer of 150,000 words had been read, 86 MiB were kept beside 25 in use.
///
/// From then on what is freed in pieces of 128 KiB and more goes back at once. By itself the allocator
/// comes to keep pieces of up to 32 MiB, once such a one has been freed, and in the heaps of threads other than
/// the first nothing gives them back: in a chat each prompt left some of its activations behind.
///
/// Does nothing where the allocator has no such functions.
pub fn release_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        use std::ffi::c_int;

        // SAFETY: the C library's `malloc_trim` and `mallopt`, as `malloc.h` declares them. They take the
        // allocator's own locks and move nothing that is in use.
        unsafe extern "C" {
            safe fn malloc_trim(pad: usize) -> c_int;
            safe fn mallopt(parameter: c_int, value: c_int) -> c_int;
        }
        const M_MMAP_THRESHOLD: c_int = -3;
        // What it is at first; once it has been set it does not grow.
        mallopt(M_MMAP_THRESHOLD, 128 << 10);
        malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_was_freed_is_given_back() {
        let anonymous = || {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
            line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap()
        };
        // Small pieces, of which the last one keeps the heap from shrinking by itself.
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
        // Large ones go by themselves, whichever thread frees them and whatever it has freed before.
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
