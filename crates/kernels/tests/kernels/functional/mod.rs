//! Tests of the kernels: tiers against the reference, values against f64, and edge cases.

mod accuracy;
mod attention;
mod cases;
mod q8;
mod recurrent;
mod rope;
mod states;
mod streams;
mod tiers;

use sws_kernels::Tier;

/// Fails unless the two have the same bits; all NaNs count as equal.
#[track_caller]
fn assert_same(got: &[f32], expected: &[f32], what: impl std::fmt::Display) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (i, (a, b)) in got.iter().zip(expected).enumerate() {
        assert!(
            a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan(),
            "{what}: element {i} is {a:?} ({:08x}), expected {b:?} ({:08x})",
            a.to_bits(),
            b.to_bits()
        );
    }
}

/// Runs `f` on a copy of `x` in every tier, checks that all agree with the reference, and returns
/// its result.
#[track_caller]
fn in_all_tiers(x: &[f32], f: impl Fn(Tier, &mut [f32])) -> Vec<f32> {
    let mut expected = x.to_vec();
    f(Tier::SCALAR, &mut expected);
    for tier in Tier::available() {
        let mut got = x.to_vec();
        f(tier, &mut got);
        assert_same(&got, &expected, tier);
    }
    expected
}

/// A reproducible stream of numbers in -1..1.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn vec(&mut self, len: usize, scale: f32) -> Vec<f32> {
        (0..len).map(|_| self.next() * scale).collect()
    }
}

/// A row in 8 bits: what a cache stores.
fn in_8_bits(row: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for block in row.chunks(32) {
        let largest = block.iter().fold(0.0, |largest: f32, x| largest.max(x.abs()));
        let mut scale = half::bf16::from_f32(largest / 127.0);
        if scale.to_f32() < 2f32.powi(-126) {
            scale = half::bf16::ZERO;
        }
        if !block.iter().all(|x| x.is_finite()) {
            scale = half::bf16::NAN;
        }
        bytes.extend(scale.to_le_bytes());
        let code = |x: &f32| match scale.to_f32() {
            scale if scale > 0.0 => (x / scale).round_ties_even().clamp(-127.0, 127.0) as i8,
            _ => 0,
        };
        bytes.extend(block.iter().map(|x| code(x).cast_unsigned()));
    }
    bytes
}
