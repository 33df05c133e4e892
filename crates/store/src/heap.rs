//! What the allocator keeps of memory that was freed.

/// Gives memory that was freed back to the system. The allocator keeps it for later, which a budget
/// cannot know: after a tokenizer of 150,000 words had been read, 86 MiB were kept beside 25 in use.
///
/// Does nothing where the allocator has no such function.
pub fn release_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: the C library's `malloc_trim`, as `malloc.h` declares it. It takes the
        // allocator's own locks and moves nothing that is in use.
        unsafe extern "C" {
            safe fn malloc_trim(pad: usize) -> std::ffi::c_int;
        }
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
    }
}
