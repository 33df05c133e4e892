//! Rows in 8 bits: the bytes of the definition, its edges and its error.

use proptest::prelude::*;

use super::Noise;
use super::in_8_bits;
use sws_kernels::functional::q8;

const INF: f32 = f32::INFINITY;
/// The least normal number.
const LEAST: f32 = f32::MIN_POSITIVE;

/// The bytes of a row, which are those of the reference.
fn stored(row: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0xAA; q8::bytes(row.len())];
    q8::store(&mut bytes, row);
    assert_eq!(bytes, in_8_bits(row), "{row:?}");
    bytes
}

fn values(bytes: &[u8]) -> Vec<f32> {
    let mut values = Vec::new();
    q8::read(bytes, &mut values);
    values
}

#[test]
fn bytes_of_the_definition() {
    // Scales in bf16: 1 is 3f80, the least normal number 0080.
    for (row, scale, codes) in [
        // Zeros of both signs.
        (&[0.0, -0.0][..], 0x0000, &[0i8, 0][..]),
        (&[127.0, -127.0, 1.0, 0.0], 0x3f80, &[127, -127, 1, 0]),
        // Ties to even.
        (&[127.0, 0.5, 1.5, -0.5, -2.5], 0x3f80, &[127, 0, 2, 0, -2]),
        (&[-254.0, 3.0, 5.0], 0x4000, &[-127, 2, 2]),
        // 1/127 is rounded down, and 1.006/127 up: the code of the largest is 127 all the same.
        (&[1.0, 0.5], 0x3c01, &[127, 64]),
        (&[1.006], 0x3c02, &[127]),
        // The ends of the range: the largest is not infinite, and the least scale is normal.
        (&[f32::MAX, f32::MIN], 0x7c01, &[127, -127]),
        (&[127.0 * LEAST, LEAST, LEAST / 2.0], 0x0080, &[127, 1, 0]),
        (&[126.0 * LEAST, LEAST], 0x0000, &[0, 0]),
        (&[f32::from_bits(1), -LEAST], 0x0000, &[0, 0]),
        // Never hidden.
        (&[1.0, f32::NAN, 0.0], 0x7fc0, &[0, 0, 0]),
        (&[1.0, -INF], 0x7fc0, &[0, 0]),
        (&[INF, -f32::NAN], 0x7fc0, &[0, 0]),
    ] {
        let mut expected = u16::to_le_bytes(scale).to_vec();
        expected.extend(codes.iter().map(|code| code.cast_unsigned()));
        assert_eq!(stored(row), expected, "{row:?}");
    }
}

/// A block is by itself, and the last may be short.
#[test]
fn blocks_have_scales_of_their_own() {
    let mut row = [1.0; 70];
    row[..32].fill(127.0);
    row[40] = f32::NAN;
    row[64..].fill(-254.0);
    let bytes = stored(&row);
    assert_eq!(bytes.len(), 70 + 3 * 2);
    let found = values(&bytes);
    assert_eq!(found[..32], row[..32]);
    assert!(found[32..64].iter().all(|x| x.is_nan()));
    assert_eq!(found[64..], row[64..]);
    // The beginning of a row is the row of its beginning.
    assert_eq!(stored(&row[..64]), bytes[..q8::bytes(64)]);
    assert_eq!(stored(&row[..32]), bytes[..q8::bytes(32)]);
}

#[test]
fn lengths_go_there_and_back() {
    for (numbers, bytes) in [(0, 0), (1, 3), (31, 33), (32, 34), (33, 37), (128, 136), (576, 612)] {
        assert_eq!((q8::bytes(numbers), q8::numbers(bytes)), (bytes, numbers));
    }
    (0..300).for_each(|numbers| assert_eq!(q8::numbers(q8::bytes(numbers)), numbers));
}

proptest! {
    /// Any bits: the bytes of the reference, a bounded error, and no further loss when values are
    /// stored again.
    #[test]
    fn values_are_within_half_a_scale(
        mut row in prop::collection::vec(any::<u32>().prop_map(f32::from_bits), 1..100),
        finite: bool,
        magnitude in prop::option::of(-140i32..127),
        seed: u64,
    ) {
        if let Some(magnitude) = magnitude {
            let mut noise = Noise(seed);
            row.iter_mut().for_each(|x| *x = noise.next() * 2f32.powi(magnitude));
        } else if finite {
            row.iter_mut().for_each(|x| *x = if x.is_finite() { *x } else { 1.0 });
        }
        let bytes = stored(&row);
        let found = values(&bytes);
        prop_assert_eq!(&stored(&found), &bytes);
        for (row, found) in row.chunks(32).zip(found.chunks(32)) {
            let largest = row.iter().fold(0.0, |m: f32, x| m.max(x.abs()));
            for (x, found) in row.iter().zip(found) {
                if row.iter().all(|x| x.is_finite()) {
                    // Half of 1/127, and the rounding of the scale; a block below 2^-119 is zeros.
                    let bound = f64::from(largest) / 254.0 * (1.0 + 1.0 / 255.0);
                    let bound = if largest < 2f32.powi(-119) { f64::from(largest) } else { bound };
                    let error = (f64::from(*x) - f64::from(*found)).abs();
                    prop_assert!(error <= bound, "{} became {}", x, found);
                } else {
                    prop_assert!(found.is_nan());
                }
            }
        }
    }
}
