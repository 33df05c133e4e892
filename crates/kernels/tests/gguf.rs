//! The formats of GGUF files decode to the numbers that gguf-py decodes them to, bit for bit.

mod common;

use sws_kernels::{Encoding, GgufBlocks, Matrix};

/// Blocks of any bytes in a matrix of one row.
const BLOCKS: usize = 256;

/// Made by `tests/goldens/gguf_blocks.py`.
const RECORDED: [(&str, &str); 20] = [
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
    ("mxfp4_gguf", "db64e4c24cb4a325"),
];

#[test]
fn blocks_decode_as_in_gguf_py() {
    for (name, expected) in RECORDED {
        let encoding: Encoding = name.parse().unwrap();
        let Encoding::Gguf(format) = encoding else { panic!("{name}") };
        let bytes = common::random(BLOCKS * format.bytes());
        let matrix = Matrix::new(encoding, 1, BLOCKS * format.cols(), &[&bytes]).unwrap();
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        for bits in common::decode(&matrix, 0) {
            let bits = if f32::from_bits(bits).is_nan() { f32::NAN.to_bits() } else { bits };
            hash = (hash ^ u64::from(bits)).wrapping_mul(0x100_0000_01b3);
        }
        assert_eq!(format!("{hash:016x}"), expected, "{name}");
    }
    assert_eq!(RECORDED.len(), GgufBlocks::ALL.len());
}
