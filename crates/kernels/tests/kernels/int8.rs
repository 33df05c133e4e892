//! Products with activations that are rounded to eight bits.

use crate::common::{Encoded, decode};
use sws_kernels::{
    Activations, Encoding, GgufBlocks, MatmulScratch, OutputColumns, PackedInput, ThreadScratch,
    Tier, matmul, matmul_rows,
};

/// Encodings whose products round activations.
fn encodings() -> impl Iterator<Item = Encoding> {
    let of_gguf = |format| match format {
        GgufBlocks::Q4_0 | GgufBlocks::Q4_1 | GgufBlocks::Q5_0 | GgufBlocks::Q5_1 => true,
        GgufBlocks::Q8_0 | GgufBlocks::Mxfp4 | GgufBlocks::Iq4Nl | GgufBlocks::Iq4Xs => true,
        GgufBlocks::Q2K | GgufBlocks::Q3K | GgufBlocks::Q4K | GgufBlocks::Q5K => true,
        format => matches!(format, GgufBlocks::Q6K | GgufBlocks::Tq2_0),
    };
    Encoding::ALL.into_iter().filter(move |encoding| match *encoding {
        Encoding::Q4 | Encoding::Q8 | Encoding::Mxfp4 => true,
        Encoding::Gguf(format) => of_gguf(format),
        Encoding::Int4(groups) => !groups.has_order(),
        _ => false,
    })
}

fn tiers(kind: Activations) -> impl Iterator<Item = Tier> {
    Tier::available().into_iter().map(move |tier| tier.with_activations(kind))
}

fn product(tier: Tier, encoded: &Encoded, x: &[f32], tokens: usize) -> Vec<f32> {
    let matrix = encoded.matrix();
    let mut y = vec![f32::MAX; tokens * matrix.row_count()];
    matmul(tier, &matrix, x, tokens, &mut y, &mut MatmulScratch::new());
    y
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    let bits = |number: &f32| if number.is_nan() { f32::NAN.to_bits() } else { number.to_bits() };
    numbers.iter().map(bits).collect()
}

#[test]
fn every_tier_gives_the_bits_of_the_reference() {
    for encoding in encodings() {
        // A tile more, a row less; columns of whole spans, of blocks and of neither.
        for (rows, cols) in [(1, 256), (3, 2048), (16, 4352), (37, 288), (70, 96), (33, 777)] {
            let encoded = Encoded::sample(encoding, rows, cols);
            for tokens in [1, 2, 3, 5, 130] {
                let x: Vec<f32> =
                    (0..tokens * cols).map(|i| (i * 7919 % 1013) as f32 / 37.0 - 13.7).collect();
                let scalar = Tier::SCALAR.with_activations(Activations::Int8);
                let expected = bits(&product(scalar, &encoded, &x, tokens));
                for tier in tiers(Activations::Int8) {
                    let found = bits(&product(tier, &encoded, &x, tokens));
                    assert!(found == expected, "{encoding} {tier} {rows} x {cols}, {tokens}");
                }
            }
        }
    }
}

#[test]
fn parts_of_the_rows_give_the_bits_of_all() {
    for encoding in encodings() {
        let (rows, cols, tokens) = (61, 512, 7);
        let encoded = Encoded::sample(encoding, rows, cols);
        let x: Vec<f32> = (0..tokens * cols).map(|i| (i * 37 % 101) as f32 - 50.0).collect();
        for tier in tiers(Activations::Int8) {
            for tokens in [1, tokens] {
                let x = &x[..tokens * cols];
                let expected = bits(&product(tier, &encoded, x, tokens));
                let (mut input, mut scratch) = (PackedInput::new(), ThreadScratch::new());
                input.pack(tier, x, tokens, cols);
                for cut in 0..rows {
                    let mut y = vec![f32::MAX; tokens * rows];
                    let (left, right) = OutputColumns::new(&mut y, tokens, rows).split_at(cut);
                    let matrix = encoded.matrix();
                    matmul_rows(tier, &matrix.rows(cut..rows), &input, right, &mut scratch);
                    matmul_rows(tier, &matrix.rows(0..cut), &input, left, &mut scratch);
                    assert!(bits(&y) == expected, "{encoding} {tier} {tokens} tokens, row {cut}");
                }
            }
        }
    }
}

/// The largest codes and activations of all signs: nothing is saturated.
#[test]
fn extremes_do_not_overflow() {
    for encoding in encodings() {
        let (rows, cols) = (3, 512);
        for byte in [0u8, 0x7f, 0x80, 0xff] {
            let sample = Encoded::sample(encoding, rows, cols);
            let mut parts: Vec<Vec<u8>> = sample.parts().iter().map(|part| part.to_vec()).collect();
            for (i, to) in parts[0].iter_mut().enumerate() {
                let is_scale = match encoding {
                    Encoding::Gguf(format) => {
                        let i = i % format.bytes();
                        format.scales().iter().any(|at| i / 2 == at / 2)
                            || format == GgufBlocks::Mxfp4 && i == 0
                    }
                    _ => false,
                };
                if !is_scale {
                    *to = byte;
                }
            }
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            let encoded = Encoded::from_parts(encoding, rows, cols, &parts);
            for alternating in [false, true] {
                let sign =
                    |i: usize| if alternating && i.is_multiple_of(2) { -127.0 } else { 127.0 };
                let x: Vec<f32> = (0..4 * cols).map(|i| sign(i) * (1 + i / cols) as f32).collect();
                // All activations are ±127 times a scale, so that nothing is rounded but sums.
                let scalar = Tier::SCALAR.with_activations(Activations::Int8);
                let expected = product(scalar, &encoded, &x, 4);
                for r in 0..rows {
                    let weights = decode(&encoded.matrix(), r);
                    for t in 0..4 {
                        let products = weights.iter().zip(&x[t * cols..]);
                        let (mut sum, mut size) = (0f64, 0f64);
                        for (w, x) in products {
                            let w = f64::from(f32::from_bits(*w));
                            sum += w * f64::from(*x);
                            size += w.abs() * f64::from(x.abs());
                        }
                        let error = (f64::from(expected[t * rows + r]) - sum).abs();
                        assert!(error <= 1e-6 * size, "{encoding} {byte}: {error:e} of {size:e}");
                    }
                }
                for tier in tiers(Activations::Int8) {
                    for tokens in [1, 4] {
                        let found = product(tier, &encoded, &x[..tokens * cols], tokens);
                        let expected = &expected[..tokens * rows];
                        assert_eq!(bits(&found), bits(expected), "{encoding} {tier} {byte}");
                    }
                }
            }
        }
    }
}

/// An activation that is not a number makes all products of its token NaN, and none of another token.
#[test]
fn infinite_activations_give_nan() {
    for encoding in encodings() {
        let encoded = Encoded::sample(encoding, 5, 256);
        for bad in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            let mut x = vec![1.0; 3 * 256];
            x[256 + 77] = bad;
            for tier in tiers(Activations::Int8) {
                let y = product(tier, &encoded, &x, 3);
                assert!(y[..5].iter().all(|y| y.is_finite()), "{encoding} {tier} {y:?}");
                assert!(y[5..10].iter().all(|y| y.is_nan()), "{encoding} {tier} {y:?}");
                assert!(y[10..].iter().all(|y| y.is_finite()), "{encoding} {tier} {y:?}");
                assert!(product(tier, &encoded, &x[256..512], 1).iter().all(|y| y.is_nan()));
            }
        }
    }
}

/// Products are near those with activations as they are, and are not these.
#[test]
fn errors_are_those_of_eight_bits() {
    for encoding in encodings() {
        let (rows, cols) = (16, 2048);
        let encoded = Encoded::sample(encoding, rows, cols);
        let x: Vec<f32> = (0..cols).map(|i| (i * 7919 % 1013) as f32 / 37.0 - 13.7).collect();
        let [exact, rounded] = Activations::ALL
            .map(|kind| product(Tier::best().with_activations(kind), &encoded, &x, 1));
        for r in 0..rows {
            let weights = decode(&encoded.matrix(), r);
            let products = weights.iter().zip(&x).map(|(w, x)| f32::from_bits(*w) * x);
            let size = products.map(|product| product * product).sum::<f32>().sqrt();
            let error = (exact[r] - rounded[r]).abs() / size;
            assert!(error > 0.0 && error < 0.03, "{encoding}, row {r}: {error:e}");
        }
    }
}

/// Encodings that have no such products keep theirs, and activations count as they are.
#[test]
fn other_encodings_are_exact() {
    let rounded: Vec<Encoding> = encodings().collect();
    for encoding in Encoding::ALL.into_iter().filter(|encoding| !rounded.contains(encoding)) {
        let encoded = Encoded::sample(encoding, 7, 320);
        let x: Vec<f32> = (0..3 * 320).map(|i| (i * 37 % 101) as f32 / 7.0 - 7.0).collect();
        for tier in Tier::available() {
            for tokens in [1, 3] {
                let [f32, int8] = Activations::ALL.map(|kind| {
                    product(tier.with_activations(kind), &encoded, &x[..tokens * 320], tokens)
                });
                assert_eq!(bits(&f32), bits(&int8), "{encoding} {tier}");
            }
        }
    }
}
