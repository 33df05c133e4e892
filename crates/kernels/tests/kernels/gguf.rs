//! The formats of GGUF files decode to the numbers that gguf-py decodes them to, bit for bit.

use crate::common::Encoded;
use sws_kernels::{Encoding, GgufBlocks, MatmulScratch, Matrix, Nvfp4Scale, Tier, matmul};

/// Blocks of any bytes in a matrix of one row.
const BLOCKS: usize = 256;

/// Made by `tests/goldens/gguf_blocks.py`.
const RECORDED: [(&str, &str); 23] = [
    ("q8_0", "ca87d535e5d6f265"),
    ("q4_0", "864165f2134aef25"),
    ("q4_1", "54364a62af9eca3f"),
    ("q5_0", "18895166da003125"),
    ("q5_1", "b15d197ab7dac21e"),
    ("q2_k", "b1df880228fcd388"),
    ("q3_k", "57d5486a448cc4a5"),
    ("q4_k", "22513e2f46d8bbcf"),
    ("q5_k", "7e0250a00a584310"),
    ("q6_k", "361699362b008edb"),
    ("iq4_nl", "c1322a8952b17e25"),
    ("iq4_xs", "0ae32e43b7b84483"),
    ("iq1_s", "9e0eb3345b373fa5"),
    ("iq1_m", "039b67cf6fbffee5"),
    ("iq2_xxs", "020d9317b5daed49"),
    ("iq2_xs", "62c52b6981d9c8a5"),
    ("iq2_s", "579fad256e751599"),
    ("iq3_xxs", "4396b5212c046525"),
    ("iq3_s", "3dac95f461921dc5"),
    ("tq1_0", "45a6d13f46b8c325"),
    ("tq2_0", "2975f77f002ac325"),
    ("mxfp4_gguf", "db64e4c24cb4a325"),
    ("nvfp4_gguf", "a043feb1ab0f2325"),
];

#[test]
fn blocks_decode_as_in_gguf_py() {
    for (name, expected) in RECORDED {
        let encoding: Encoding = name.parse().unwrap();
        let Encoding::Gguf(format) = encoding else { panic!("{name}") };
        let bytes = crate::common::random(BLOCKS * format.bytes());
        let matrix = Matrix::new(encoding, 1, BLOCKS * format.cols(), &[&bytes]).unwrap();
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        for bits in crate::common::decode(&matrix, 0) {
            let bits = if f32::from_bits(bits).is_nan() { f32::NAN.to_bits() } else { bits };
            hash = (hash ^ u64::from(bits)).wrapping_mul(0x100_0000_01b3);
        }
        assert_eq!(format!("{hash:016x}"), expected, "{name}");
    }
    assert_eq!(RECORDED.len(), GgufBlocks::ALL.len());
}

/// The largest shape has every point of every table.
#[test]
fn any_number_of_blocks_and_rows_gives_the_same_bits_in_every_tier() {
    for format in GgufBlocks::ALL {
        for (rows, blocks) in [(1, 1), (1, 3), (2, 2), (3, 5), (4, 9), (5, 1), (6, 33), (9, 64)] {
            let cols = blocks * format.cols();
            let encoded = Encoded::sample(Encoding::Gguf(format), rows, cols);
            let x: Vec<f32> = (0..cols).map(|i| (i * 37 % 101) as f32 / 64.0 - 0.7).collect();
            for tokens in [1, 2] {
                let of = |tier| {
                    let x: Vec<f32> = x.iter().copied().cycle().take(tokens * cols).collect();
                    let mut y = vec![f32::MAX; tokens * rows];
                    matmul(tier, &encoded.matrix(), &x, tokens, &mut y, &mut MatmulScratch::new());
                    y.into_iter().map(f32::to_bits).collect::<Vec<u32>>()
                };
                let expected = of(Tier::SCALAR);
                assert!(expected.iter().all(|&y| f32::from_bits(y).is_finite()), "{format:?}");
                for tier in Tier::available() {
                    assert_eq!(of(tier), expected, "{tier} {format:?}: {rows} by {blocks} blocks");
                }
            }
        }
    }
}

/// The blocks of a row of nvfp4, as llama.cpp's converter packs them.
fn in_blocks(codes: &[u8], scales: &[u8], cols: usize) -> Vec<u8> {
    let mut blocks = Vec::new();
    for block in 0..cols / 64 {
        blocks.extend_from_slice(&scales[4 * block..][..4]);
        for run in 0..4 {
            let code = |i: usize| codes[(64 * block + 16 * run + i) / 2] >> (4 * (i % 2)) & 15;
            blocks.extend((0..8).map(|i| code(i) | code(8 + i) << 4));
        }
    }
    blocks
}

#[test]
fn blocks_of_nvfp4_give_the_bits_of_its_parts() {
    for (rows, cols) in [(1, 64), (3, 320), (5, 768), (9, 2112)] {
        let codes = crate::common::random(rows * cols / 2);
        // Any scales but NaN, and no signs.
        let mut scales = crate::common::random(rows * cols / 16);
        scales.iter_mut().for_each(|scale| *scale = (*scale & 0x7f).min(0x7e));
        let rows_of = codes.chunks(cols / 2).zip(scales.chunks(cols / 16));
        let blocks: Vec<u8> =
            rows_of.flat_map(|(codes, scales)| in_blocks(codes, scales, cols)).collect();
        let x: Vec<f32> = (0..3 * cols).map(|i| (i * 37 % 101) as f32 / 64.0 - 0.7).collect();
        for number in [1.0f32, -0.37, 3.1e-4, 2f32.powi(-130), f32::INFINITY] {
            let number = number.to_le_bytes();
            let encoding = |scale| Encoding::Nvfp4(scale);
            let parts: [&[u8]; 3] = [&codes, &scales, &number];
            let apart = Encoded::from_parts(encoding(Nvfp4Scale::Times), rows, cols, &parts);
            let parts: [&[u8]; 2] = [&blocks, &number];
            let ours = Encoded::from_parts(encoding(Nvfp4Scale::OfBlocks), rows, cols, &parts);
            let plain = Encoding::Gguf(GgufBlocks::Nvfp4);
            let plain = Encoded::from_parts(plain, rows, cols, &[&blocks]);
            for tier in Tier::available() {
                let product = |encoded: &Encoded| {
                    let mut y = vec![f32::MAX; 3 * rows];
                    matmul(tier, &encoded.matrix(), &x, 3, &mut y, &mut MatmulScratch::new());
                    y.into_iter().map(f32::to_bits).collect::<Vec<u32>>()
                };
                let expected = product(&apart);
                assert_eq!(product(&ours), expected, "{tier} {rows} x {cols}, {number:?}");
                if number == 1f32.to_le_bytes() {
                    assert_eq!(product(&plain), expected, "{tier} {rows} x {cols}");
                }
            }
            for row in 0..rows {
                let decode = |encoded: &Encoded| crate::common::decode(&encoded.matrix(), row);
                assert_eq!(decode(&ours), decode(&apart), "{rows} x {cols}, {number:?}");
            }
        }
    }
}
