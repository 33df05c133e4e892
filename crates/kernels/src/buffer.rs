//! Memory for f32, aligned to cache lines, that grows and never shrinks.

/// One cache line, and the widest register.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
struct Line([f32; 16]);

#[derive(Debug, Default)]
pub(crate) struct Buffer(Vec<Line>);

impl Buffer {
    /// The first `len` numbers, of whatever value, after growing to hold them.
    pub(crate) fn grown(&mut self, len: usize) -> &mut [f32] {
        let lines = len.div_ceil(16);
        if self.0.len() < lines {
            // Freed before the larger one is there, and no longer than asked for: what a caller
            // counts on beforehand is what it takes.
            self.0 = Vec::new();
            self.0 = vec![Line([0.0; 16]); lines];
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

    /// Bytes that `len` numbers take.
    pub(crate) const fn bytes_for(len: usize) -> usize {
        len.div_ceil(16) * size_of::<Line>()
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> usize {
        self.0.capacity() * size_of::<Line>()
    }
}
