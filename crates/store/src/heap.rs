//! An allocator that ends the process on failure.

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
