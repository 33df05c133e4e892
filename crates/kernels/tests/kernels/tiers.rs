//! The result is the same for every tier, number of tokens, split of the rows and number of
//! threads.

use crate::common::{Encoded, bf16_bytes, f32_bytes, is_published, scale_bytes};
use proptest::prelude::*;
use sws_kernels::{
    ARITHMETIC, Activations, Encoder, Encoding, ExponentCounts, Fp8Scales, GgufBlocks,
    MatmulScratch, Matrix, OutputColumns, PackedInput, PartLen, SourceDtype, Strided,
    ThreadScratch, Tier, fma, matmul, matmul_rows, matmul_transposed,
};

/// Any bits, with special values more frequent than by chance.
fn number() -> impl Strategy<Value = u32> {
    prop_oneof![
        20 => (any::<bool>(), 100u32..140, any::<u32>())
            .prop_map(|(s, e, m)| u32::from(s) << 31 | e << 23 | m >> 9),
        2 => any::<u32>(),
        // Subnormals, and numbers whose products are subnormal.
        2 => any::<u32>().prop_map(|b| b & 0x807f_ffff),
        2 => (any::<bool>(), 1u32..64, any::<u32>())
            .prop_map(|(s, e, m)| u32::from(s) << 31 | e << 23 | m >> 9),
        1 => prop::sample::select(vec![0, 1 << 31, 0x7f80_0000, 0xff80_0000, 0x7fc0_0000, 0x7f7f_ffff]),
    ]
}

/// A matrix in `encoding` whose parts are made of these bits. Any bytes are valid, but random ones
/// would give few interesting numbers.
fn encoded(encoding: Encoding, rows: usize, cols: usize, bits: &[u32], plain: bool) -> Encoded {
    let cell = |i: usize| bits[i % bits.len()].rotate_left((i / bits.len()) as u32 % 5 * 8);
    let n = rows * cols;
    let singles: Vec<u8> =
        (0..n).flat_map(|i| bits[(i * 7 + i / bits.len()) % bits.len()].to_le_bytes()).collect();
    let bf16: Vec<u8> = singles.as_chunks::<4>().0.iter().flat_map(|b| [b[2], b[3]]).collect();
    match encoding {
        Encoding::Fp7(scales) => {
            let plain_codes = encoded(Encoding::Fp8(scales), rows, cols, bits, plain);
            match plain {
                true => Encoded::fp7(&plain_codes),
                false => Encoded::fp7_by(&ExponentCounts::default(), &plain_codes),
            }
        }
        Encoding::F32 => Encoded::from_parts(encoding, rows, cols, &[&singles]),
        Encoding::F16 | Encoding::Bf16 => Encoded::from_parts(encoding, rows, cols, &[&bf16]),
        Encoding::Bf12 | Encoding::Bf11 | Encoding::Nested => {
            let mut histogram = ExponentCounts::default();
            if plain {
                histogram.add(&bf16);
            }
            let encoder = Encoder::counted(encoding, cols, &histogram).unwrap();
            Encoded::with(&encoder, &bf16, rows, cols, rows)
        }
        _ => {
            // Codes of any value; scales taken from the numbers, or any bits for e8m0.
            let parts: Vec<Vec<u8>> = encoding
                .parts()
                .iter()
                .enumerate()
                .map(|(p, kind)| {
                    let len = match kind.len(rows as u64, cols as u64).unwrap() {
                        sws_kernels::PartLen::Exact(len) => len as usize,
                        sws_kernels::PartLen::AtLeast(_) => unreachable!(),
                    };
                    match (p, encoding) {
                        (0, Encoding::Gguf(format)) => {
                            let block = format.bytes();
                            let byte = |i: usize| {
                                let scale =
                                    format.scales().iter().find(|&&at| i % block / 2 == at / 2);
                                match scale {
                                    Some(at) => bf16[(i / block * 4 + at % 4 + i % 2) % bf16.len()],
                                    None => (cell(i) >> 16) as u8,
                                }
                            };
                            (0..len).map(byte).collect()
                        }
                        (0, _) => (0..len).map(|i| (cell(i) >> 16) as u8).collect(),
                        (_, Encoding::Q8 | Encoding::Q4) => {
                            bf16.iter().copied().cycle().take(len).collect()
                        }
                        _ if kind.suffix == ".order" => crate::common::order(len),
                        _ if is_published(encoding) => match scale_bytes(encoding, p) {
                            1 => (0..len).map(|i| (cell(i) >> 23) as u8).collect(),
                            2 => bf16.iter().copied().cycle().take(len).collect(),
                            _ => singles.iter().copied().cycle().take(len).collect(),
                        },
                        (_, Encoding::Fp8(_)) => {
                            singles.iter().copied().cycle().take(len).collect()
                        }
                        _ => (0..len).map(|i| (cell(i) >> 23) as u8).collect::<Vec<u8>>(),
                    }
                })
                .collect();
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            Encoded::from_parts(encoding, rows, cols, &parts)
        }
    }
}

fn product(tier: Tier, matrix: &Matrix, x: &[f32], tokens: usize) -> Vec<f32> {
    let mut y = vec![f32::MAX; tokens * matrix.row_count()];
    matmul(tier, matrix, x, tokens, &mut y, &mut MatmulScratch::new());
    y
}

#[track_caller]
fn same(ours: &[f32], theirs: &[f32], what: impl std::fmt::Debug) {
    assert_eq!(ours.len(), theirs.len());
    for (i, (a, b)) in ours.iter().zip(theirs).enumerate() {
        assert!(
            a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan(),
            "{what:?}: {i}: {a:e} {b:e}"
        );
    }
}

fn shape() -> impl Strategy<Value = (usize, usize, usize)> {
    let cols = prop_oneof![
        1usize..200,
        (1usize..8).prop_map(|n| 64 * n),
        (1usize..40).prop_map(|n| 32 * n),
        1000usize..2300,
    ];
    let tokens = prop_oneof![Just(1usize), 2usize..10, 1usize..71];
    (1usize..40, cols, tokens)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_tier_gives_the_same_bits(
        (rows, cols, tokens) in shape(),
        which in 0..Encoding::ALL.len(),
        bits in prop::collection::vec(number(), 300..400),
        activations in prop::collection::vec(number(), 300..400),
        kind in prop::sample::select(Activations::ALL.to_vec()),
        tame in any::<bool>(),
        plain in any::<bool>(),
    ) {
        let encoding = Encoding::ALL[which];
        // Half the cases are free of NaN and infinity, or most sums would be NaN.
        let tamed = |b: &u32| if tame && b >> 23 & 255 > 150 { b & 0xbfff_ffff } else { *b };
        let bits: Vec<u32> = bits.iter().map(tamed).collect();
        let x: Vec<f32> = activations
            .iter()
            .map(|b| f32::from_bits(tamed(b)))
            .cycle()
            .take(tokens * cols)
            .enumerate()
            .map(|(i, x)| if i / 311 % 2 == 0 { x } else { -x })
            .collect();
        let encoded = encoded(encoding, rows, cols, &bits, plain);
        let matrix = encoded.matrix();
        let expected = product(Tier::SCALAR.with_activations(kind), &matrix, &x, tokens);
        for tier in Tier::available().into_iter().map(|tier| tier.with_activations(kind)) {
            same(&product(tier, &matrix, &x, tokens), &expected, (tier, encoding, rows, cols, tokens));
            // One token at a time.
            for t in (0..tokens).step_by(1 + tokens / 3) {
                let alone = product(tier, &matrix, &x[t * cols..][..cols], 1);
                same(&alone, &expected[t * rows..][..rows], (tier, encoding, "token", t));
            }
            // Some tokens.
            let some = tokens.div_ceil(2);
            let half = product(tier, &matrix, &x[..some * cols], some);
            same(&half, &expected[..some * rows], (tier, encoding, "tokens", some));
            // Rows in two parts, written to one result.
            let cut = rows / 3;
            let mut input = PackedInput::new();
            input.pack(tier, &x, tokens, cols);
            let mut y = vec![f32::MAX; tokens * rows];
            let (left, right) = OutputColumns::new(&mut y, tokens, rows).split_at(cut);
            let mut scratch = ThreadScratch::new();
            matmul_rows(tier, &matrix.rows(cut..rows), &input, right, &mut scratch);
            matmul_rows(tier, &matrix.rows(0..cut), &input, left, &mut scratch);
            same(&y, &expected, (tier, encoding, "cut", cut));
        }
    }

    #[test]
    fn transposed_products_have_the_same_bits_in_every_tier(
        (rows, cols, tokens) in shape(),
        which in 0..Encoding::ALL.len(),
        bits in prop::collection::vec(number(), 300..400),
        apart in 0usize..5,
        plain in any::<bool>(),
    ) {
        let encoding = Encoding::ALL[which];
        let tamed = |b: &u32| if b >> 23 & 255 > 150 { b & 0xbfff_ffff } else { *b };
        let bits: Vec<u32> = bits.iter().map(tamed).collect();
        let encoded = encoded(encoding, rows, cols, &bits, plain);
        let matrix = encoded.matrix();
        let (x_stride, y_stride) = (rows + apart, cols + 2 * apart);
        let floats = || bits.iter().map(|&b| f32::from_bits(b)).cycle();
        let x: Vec<f32> = floats().take(tokens * x_stride).collect();
        let before: Vec<f32> = floats().skip(7).take(tokens * y_stride).collect();
        let run = |tier, y: &mut [f32], rows: std::ops::Range<usize>, tokens: std::ops::Range<usize>| {
            let x = Strided { numbers: &x[tokens.start * x_stride + rows.start..], stride: x_stride };
            let y = Strided { numbers: &mut y[tokens.start * y_stride..], stride: y_stride };
            matmul_transposed(tier, &matrix.rows(rows), tokens.len(), x, y);
        };
        // The definition, one number after another.
        let mut expected = before.clone();
        for r in 0..rows {
            for (c, &w) in crate::common::decode(&matrix, r).iter().enumerate() {
                for t in 0..tokens {
                    let y = &mut expected[t * y_stride + c];
                    *y = fma(f32::from_bits(w), x[t * x_stride + r], *y);
                }
            }
        }
        for tier in Tier::available() {
            let mut whole = before.clone();
            run(tier, &mut whole, 0..rows, 0..tokens);
            same(&whole, &expected, (tier, encoding, rows, cols, tokens));
            // Rows in two parts, in order, and tokens in two parts.
            let mut parts = before.clone();
            for rows in [0..rows / 3, rows / 3..rows] {
                for tokens in [tokens / 2..tokens, 0..tokens / 2] {
                    run(tier, &mut parts, rows.clone(), tokens);
                }
            }
            same(&parts, &expected, (tier, encoding, rows, cols, "parts"));
        }
    }

    #[test]
    fn exact_encodings_of_bf16_agree(
        (rows, cols, tokens) in shape(),
        bits in prop::collection::vec(number(), 300..400),
        plain in any::<bool>(),
    ) {
        let bf16 = encoded(Encoding::Bf16, rows, cols, &bits, plain);
        let bf12 = encoded(Encoding::Bf12, rows, cols, &bits, plain);
        let bf11 = encoded(Encoding::Bf11, rows, cols, &bits, plain);
        let nested = encoded(Encoding::Nested, rows, cols, &bits, plain);
        let wide: Vec<f32> = (0..rows)
            .flat_map(|r| crate::common::decode(&bf16.matrix(), r))
            .map(f32::from_bits)
            .collect();
        let single = Encoder::new(Encoding::F32, SourceDtype::F32, cols).unwrap();
        let single = Encoded::with(&single, &f32_bytes(&wide), rows, cols, rows);
        let x: Vec<f32> =
            bits.iter().rev().map(|b| f32::from_bits(*b)).cycle().take(tokens * cols).collect();
        for tier in Tier::available() {
            let expected = product(tier, &single.matrix(), &x, tokens);
            same(&product(tier, &bf16.matrix(), &x, tokens), &expected, (tier, "bf16"));
            same(&product(tier, &bf12.matrix(), &x, tokens), &expected, (tier, "bf12"));
            same(&product(tier, &bf11.matrix(), &x, tokens), &expected, (tier, "bf11"));
            same(&product(tier, &nested.matrix(), &x, tokens), &expected, (tier, "nested"));
        }
    }
}

/// Larger than the threshold below which a single thread works, so that the rows are really split.
#[test]
fn threads_do_not_change_bits() {
    for encoding in Encoding::ALL {
        let (rows, cols, tokens) = (301, 1100, 5);
        let encoded = Encoded::sample(encoding, rows, cols);
        let matrix = encoded.matrix();
        let x: Vec<f32> = (0..tokens * cols).map(|i| ((i * 37) % 101) as f32 / 7.0 - 7.0).collect();
        for tier in Tier::available() {
            for tokens in [1, tokens] {
                let mut results = [1, 2, 3, 5].map(|threads| {
                    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
                    pool.unwrap().install(|| product(tier, &matrix, &x[..tokens * cols], tokens))
                });
                let (first, rest) = results.split_first_mut().unwrap();
                rest.iter().for_each(|y| same(y, first, (tier, encoding, tokens)));
            }
        }
    }
}

#[test]
fn a_sum_that_underflowed_to_minus_zero_stays_so() {
    // The padding of a short row must not add +0.
    let tiny = f32::from_bits(1);
    for cols in [1, 31, 33, 63, 64, 65] {
        let mut weights = vec![0f32; cols];
        weights.fill(-0.0);
        weights[0] = -tiny;
        let encoded = Encoded::from_parts(Encoding::F32, 1, cols, &[&f32_bytes(&weights)]);
        let x = vec![0.25; 2 * cols];
        for tier in Tier::available() {
            for tokens in [1, 2] {
                let y = product(tier, &encoded.matrix(), &x[..tokens * cols], tokens);
                let expected =
                    product(Tier::SCALAR, &encoded.matrix(), &x[..tokens * cols], tokens);
                same(&y, &expected, (tier, cols, tokens));
            }
        }
    }
    // If all 32 lanes are -0, the sum itself is -0.
    for cols in [32, 33, 63, 64, 95, 96, 1056] {
        let encoded =
            Encoded::from_parts(Encoding::F32, 1, cols, &[&f32_bytes(&vec![-tiny; cols])]);
        for tier in Tier::available() {
            for tokens in 1..7 {
                for y in product(tier, &encoded.matrix(), &vec![0.25; tokens * cols], tokens) {
                    assert_eq!(y.to_bits(), 1 << 31, "{tier} {cols} columns, {tokens} tokens");
                }
            }
        }
    }
}

#[test]
fn every_code_and_scale_decodes_alike_in_every_tier() {
    // A column of ones selects the weights one by one.
    let codes: Vec<u8> = (0..=255).collect();
    let ordered: Vec<u8> = (0..32u32).map(|i| (i * 0x11) as u8).collect();
    let mut cases = Vec::new();
    for scale in [1.0f32, -3.0, 2f32.powi(-140), 2f32.powi(127), f32::INFINITY, f32::NAN, 0.0] {
        let one = scale.to_le_bytes();
        cases.push(Encoded::from_parts(
            Encoding::Fp8(Fp8Scales::Squares),
            1,
            256,
            &[&codes, &one.repeat(2)],
        ));
        let half = bf16_bytes(&[(scale.to_bits() >> 16) as u16]);
        cases.push(Encoded::from_parts(Encoding::Q8, 1, 256, &[&codes, &half.repeat(4)]));
        cases.push(Encoded::from_parts(Encoding::Q4, 1, 64, &[&ordered, &half]));
    }
    for scale in [0x3c00u16, 0xc200, 0x0001, 0x83ff, 0x7bff, 0x7c00, 0xfc00, 0x7e00, 0x7d01, 0] {
        let scale = scale.to_le_bytes();
        let unit = |codes: &[u8]| [&scale, codes].concat();
        let units: Vec<u8> = codes.chunks(32).flat_map(unit).collect();
        cases.push(Encoded::from_parts(Encoding::Gguf(GgufBlocks::Q8_0), 1, 256, &[&units]));
        for format in GgufBlocks::ALL {
            let mut blocks = crate::common::random(1024 / format.cols() * format.bytes());
            for block in blocks.chunks_mut(format.bytes()) {
                format.scales().iter().for_each(|&at| block[at..at + 2].copy_from_slice(&scale));
            }
            cases.push(Encoded::from_parts(Encoding::Gguf(format), 1, 1024, &[&blocks]));
        }
    }
    for power in 0..=255u8 {
        let top = [&ordered[..], &[power, power]].concat();
        cases.push(Encoded::from_parts(Encoding::Top, 1, 64, &[&top]));
    }
    for scale in 0..=255u8 {
        cases.push(Encoded::from_parts(Encoding::Mxfp4, 1, 64, &[&ordered, &[scale, scale]]));
    }
    for encoding in crate::common::published() {
        for code in 0..=255u8 {
            let parts = encoding.parts().iter().enumerate().map(|(p, part)| {
                let PartLen::Exact(len) = part.len(1, 256).unwrap() else { unreachable!() };
                match p {
                    0 => codes[..len as usize].to_vec(),
                    // Scales of any exponent.
                    _ => match crate::common::scale_bytes(encoding, p) {
                        1 => vec![code; len as usize],
                        n => [&vec![0x40; n - 2][..], &[code << 7, code]]
                            .concat()
                            .repeat(len as usize / n),
                    },
                }
            });
            let parts: Vec<Vec<u8>> = parts.collect();
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            cases.push(Encoded::from_parts(encoding, 1, 256, &parts));
        }
    }
    let is_night = std::env::var_os("SWS_NIGHT").is_some();
    for (number, encoded) in cases.iter().enumerate() {
        let matrix = encoded.matrix();
        let cols = matrix.cols();
        for c in 0..cols {
            // At other times than at night, three cases in a row have all columns.
            if c % 3 != number % 3 && !is_night {
                continue;
            }
            let mut x = vec![0.0; cols];
            x[c] = 1.0;
            let expected = product(Tier::SCALAR, &matrix, &x, 1);
            for tier in Tier::available() {
                same(&product(tier, &matrix, &x, 1), &expected, (tier, matrix.encoding(), c));
            }
        }
    }
}

/// Bits of the first version of the arithmetic.
#[test]
fn products_are_those_of_decoded_weights_unless_a_later_version_changed_them() {
    let (rows, cols) = (5, 777);
    let x: Vec<f32> = (0..2 * cols).map(|i| ((i * 7919) % 1013) as f32 / 37.0 - 13.0).collect();
    for encoding in Encoding::ALL {
        let encoded = Encoded::sample(encoding, rows, cols);
        let bits = (0..rows).flat_map(|row| crate::common::decode(&encoded.matrix(), row));
        let bytes: Vec<u8> = bits.flat_map(u32::to_le_bytes).collect();
        let decoded = Encoded::from_parts(Encoding::F32, rows, cols, &[&bytes]);
        let [ours, plain] =
            [&encoded, &decoded].map(|matrix| product(Tier::best(), &matrix.matrix(), &x, 2));
        if encoding.arithmetic() == 1 {
            same(&ours, &plain, encoding);
        } else {
            assert_ne!(ours, plain, "{encoding}");
        }
    }
    let newest = Encoding::ALL.map(Encoding::arithmetic).into_iter().max();
    assert_eq!(newest, Some(ARITHMETIC));
}

#[test]
fn empty_shapes_have_empty_or_zero_results() {
    for tier in Tier::available() {
        for encoding in Encoding::ALL {
            let encoded = Encoded::sample(encoding, 0, 5);
            assert_eq!(product(tier, &encoded.matrix(), &[1.0; 10], 2), [0f32; 0]);
            let encoded = Encoded::sample(encoding, 3, 5);
            assert_eq!(product(tier, &encoded.matrix(), &[], 0), [0f32; 0]);
        }
        let none = Matrix::new(Encoding::Bf16, 3, 0, &[&[]]).unwrap();
        assert_eq!(product(tier, &none, &[], 2), [0.0; 6]);
    }
}

#[test]
#[should_panic(expected = "activations of 2 x 5")]
fn activations_of_another_shape_panic() {
    let encoded = Encoded::sample(Encoding::Bf16, 3, 5);
    product(Tier::SCALAR, &encoded.matrix(), &[0.0; 9], 2);
}

#[test]
#[should_panic(expected = "results of 2 x 3")]
fn results_of_another_shape_panic() {
    let encoded = Encoded::sample(Encoding::Bf16, 3, 5);
    let (x, y) = (&[0.0; 10], &mut [0.0; 5]);
    matmul(Tier::SCALAR, &encoded.matrix(), x, 2, y, &mut MatmulScratch::new());
}

/// Other tests compare tiers on one machine; this one compares machines. Another hash of an encoding is a
/// new version of the arithmetic.
#[test]
fn bits_match_every_other_architecture() {
    let hash = |encoding| {
        let encoded = Encoded::sample(encoding, 19, 777);
        let x: Vec<f32> = (0..3 * 777).map(|i| ((i * 7919) % 1013) as f32 / 37.0 - 13.0).collect();
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        for y in product(Tier::best(), &encoded.matrix(), &x, 3) {
            hash = (hash ^ u64::from(y.to_bits())).wrapping_mul(0x100_0000_01b3);
        }
        format!("{hash:016x}")
    };
    let found: Vec<_> = Encoding::ALL.map(|encoding| (encoding.name(), hash(encoding))).into();
    let expected = [
        ("f32", "57fd6c51b9c8132e"),
        ("f16", "e1ab14bde1203c20"),
        ("bf16", "ad7276c49ad3dee6"),
        ("bf12", "ad7276c49ad3dee6"),
        ("bf11", "ad7276c49ad3dee6"),
        ("nested", "ad7276c49ad3dee6"),
        ("top", "1aa41b29dfb9ee8c"),
        ("q8", "1e7eb09c86ee0057"),
        ("q4", "5da98f700f6d1bc3"),
        ("fp8", "539e1170c79c7f61"),
        ("mxfp4", "05936e0712966dee"),
        ("q8_0", "655578cd22cfd5a8"),
        ("q4_0", "50ea1be7dce505b9"),
        ("q4_1", "94167503eaff035e"),
        ("q5_0", "ffd622ccb8bd9cb6"),
        ("q5_1", "dd99e6b7daa6ec7a"),
        ("q2_k", "7e3f62a04fddefc4"),
        ("q3_k", "36a90974adaa3e8f"),
        ("q4_k", "29505c53967cc388"),
        ("q5_k", "d0469b3e5f4a220b"),
        ("q6_k", "79d528ce8c32828a"),
        ("iq4_nl", "73cf77ed8bde201a"),
        ("iq4_xs", "97e226e9b47019ec"),
        ("iq1_s", "363449963fc81208"),
        ("iq1_m", "508d41191dc020c7"),
        ("iq2_xxs", "167575236ce3cf92"),
        ("iq2_xs", "2f36afc9305fc210"),
        ("iq2_s", "1358c92f5391b973"),
        ("iq3_xxs", "4f72ea9d0dbeeb3c"),
        ("iq3_s", "30d847c6e7e1c9c2"),
        ("tq1_0", "212bdd581006be0a"),
        ("tq2_0", "426f722b5912f441"),
        ("mxfp4_gguf", "67383f17713f3389"),
        ("nvfp4_gguf", "2cc2ba3e25f550ac"),
        ("fp8_bf16", "8a4aa79925fa82b5"),
        ("fp8_e8m0", "4fbd7af0311587fb"),
        ("fp8_rows", "87ab7f07e79c107b"),
        ("fp8_rows_bf16", "b464278142ebf7ea"),
        ("fp8_whole", "7f785e9956b857f3"),
        ("fp8_whole_bf16", "58a7ed3f09454924"),
        ("mxfp8", "11ff67f7d907a160"),
        ("int4", "16ca69c774788e2d"),
        ("int4_128", "7c8ffe6a17011ca7"),
        ("int4_zeros_32", "9ce98756e5562b0f"),
        ("int4_zeros_64", "cd7c89bb4377292b"),
        ("int4_zeros_128", "108494c648a89553"),
        ("int4_act_order_32", "c1b03a8e5bbcf9c2"),
        ("int4_act_order_64", "db91bb6f8c38e1f6"),
        ("int4_act_order_128", "c16bf202a899f722"),
        ("nvfp4", "68cdf16abb07fc2b"),
        ("nvfp4_divided", "6111a02dcba76e83"),
        ("nvfp4_gguf_scaled", "a2b26b7694d65514"),
        // Those of the codes that are packed.
        ("fp7", "539e1170c79c7f61"),
        ("fp7_bf16", "8a4aa79925fa82b5"),
        ("fp7_e8m0", "4fbd7af0311587fb"),
        ("fp7_rows", "87ab7f07e79c107b"),
        ("fp7_rows_bf16", "b464278142ebf7ea"),
        ("fp7_whole", "7f785e9956b857f3"),
        ("fp7_whole_bf16", "58a7ed3f09454924"),
        ("mxfp7", "11ff67f7d907a160"),
    ];
    let expected: Vec<_> = expected.map(|(name, hash)| (name, hash.to_owned())).into();
    assert_eq!(found, expected);
}

/// Blocks of bf11 with any number of escapes from each tier, beside the numbers that decide which
/// code decodes them, at the start of the patches and at their end.
#[test]
fn blocks_with_any_number_of_escapes_agree() {
    let mut histogram = ExponentCounts::default();
    (100..109).for_each(|exponent| histogram.0[exponent] = 1000 - exponent as u64);
    let mut numbers = crate::common::random(4096).into_iter().cycle();
    let mut next = || numbers.next().unwrap();
    let mut bits = Vec::new();
    for n in [0, 1, 21, 31, 32, 33, 57, 58, 64] {
        for m in [0, 1, 9, 27, 28, 29, 64] {
            for k in [0, 1, 2, 3, 4, 64] {
                let m = n.min(m);
                let counts = [n, m, m.min(k)];
                // Which lanes escape differs from block to block.
                let (step, first) = (2 * usize::from(next() % 32) + 1, usize::from(next()));
                for lane in 0..64 {
                    let place = (lane * step + first) % 64;
                    let tier = counts.iter().filter(|count| place < **count).count() as u16;
                    let exponent = match tier {
                        3 => [0, 1, 2, 90, 120, 130][usize::from(next()) % 6],
                        _ => 100 + 3 * tier + u16::from(next()) % 3,
                    };
                    let byte = u16::from(next());
                    bits.push((byte & 0x80) << 8 | exponent << 7 | byte & 0x7f);
                }
            }
        }
    }
    let source = bf16_bytes(&bits);
    for (rows, cols) in [(bits.len() / 64, 64), (bits.len() / 384, 384), (1, bits.len())] {
        let encoder = Encoder::counted(Encoding::Bf11, cols, &histogram).unwrap();
        let bf11 = Encoded::with(&encoder, &source, rows, cols, rows);
        let bf16 = Encoded::from_parts(Encoding::Bf16, rows, cols, &[&source]);
        let x: Vec<f32> = (0..cols).map(|_| f32::from(next()) / 256.0 - 0.5).collect();
        for tier in Tier::available() {
            let expected = product(tier, &bf16.matrix(), &x, 1);
            same(&product(tier, &bf11.matrix(), &x, 1), &expected, (tier, cols));
        }
        for row in 0..rows {
            assert_eq!(
                crate::common::decode(&bf11.matrix(), row),
                crate::common::decode(&bf16.matrix(), row)
            );
        }
    }
}
