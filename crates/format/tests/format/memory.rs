//! Memory that a call allocates, counted per thread, so that tests can run in parallel.

/// Returns the result of `work`, and the most bytes that it held at one time.
pub fn peak<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let mut result = None;
    let counted = allocation_counter::measure(|| result = Some(work()));
    (result.expect("a result of the call"), counted.bytes_max as usize)
}

/// Most bytes that parsing `bytes` of JSON may hold: the JSON, its contents, and growing vectors.
pub fn bound(bytes: usize) -> usize {
    32 * bytes + (256 << 10)
}
