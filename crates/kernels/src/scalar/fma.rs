//! The fused multiply-add of which every sum is made.

/// a · b + c, rounded once, on every target.
///
/// [`f32::mul_add`] is not: where a function is compiled without the instruction, `windows-gnu` calls a
/// `fmaf` of its C library that rounds twice, which gave other bits in a quarter of ordinary cases. So
/// clippy.toml refuses it everywhere else.
#[inline(always)]
#[allow(clippy::disallowed_methods)]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    #[cfg(all(windows, target_env = "gnu", not(target_feature = "fma")))]
    return libm::fmaf(a, b, c);
    #[cfg(not(all(windows, target_env = "gnu", not(target_feature = "fma"))))]
    a.mul_add(b, c)
}
