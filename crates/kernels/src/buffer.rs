//! A growable f32 buffer, aligned to cache lines, that never shrinks.

/// The length of a cache line, and of the widest register.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
struct CacheLine([f32; 16]);

#[derive(Debug, Default)]
pub(crate) struct Buffer(Vec<CacheLine>);

impl Buffer {
    /// Grows to at least `len` numbers and returns the first `len`, with unspecified values.
    pub(crate) fn grown(&mut self, len: usize) -> &mut [f32] {
        let lines = len.div_ceil(16);
        if self.0.len() < lines {
            // The old buffer is freed before the new one is allocated, and the new one has no spare
            // capacity, so memory use is what callers computed beforehand with `bytes_for`.
            self.0 = Vec::new();
            self.0 = vec![CacheLine([0.0; 16]); lines];
        }
        // SAFETY: a `Line` is sixteen f32 without padding, and there are enough of them.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), len) }
    }

    /// The first `len` numbers.
    pub(crate) fn get(&self, len: usize) -> &[f32] {
        assert!(len <= 16 * self.0.len());
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), len) }
    }

    /// Numbers that there is room for.
    pub(crate) fn room(&self) -> usize {
        16 * self.0.len()
    }

    /// Bytes needed for `len` numbers.
    pub(crate) const fn bytes_for(len: usize) -> usize {
        len.div_ceil(16) * size_of::<CacheLine>()
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        self.0.capacity() * size_of::<CacheLine>()
    }
}
