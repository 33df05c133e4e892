//! The random numbers of sampling.

/// SplitMix64 (Steele, Lea and Flood, 2014): a counter and a mixing function. These few lines are
/// its whole specification, so a seed means the same on every machine and in every version.
/// Adjacent seeds give unrelated streams.
#[derive(Clone, Debug)]
pub struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    /// The increment of the counter.
    pub(super) const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

    /// The stream of a seed.
    pub fn new(seed: u64) -> SplitMix64 {
        SplitMix64 { state: seed }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(Self::STEP);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The next number in [0, 1): the upper 53 bits, exactly.
    pub fn next_unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}
