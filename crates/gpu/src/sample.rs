//! Matrices and activations for checks: any bytes, of which the exponents are such that sums neither overflow nor lose
//! all but a few weights.

use sws_kernels::{
    EncodedRows, Encoder, Encoding, ExponentCounts, Fp8Scales, GgufBlocks, PartLen, TensorTally,
};

/// Numbers that look random, and are the same in every run.
#[derive(Clone, Debug)]
pub struct SampleNumbers(u64);

impl SampleNumbers {
    /// A sequence.
    pub fn new(seed: u64) -> SampleNumbers {
        SampleNumbers(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// The next number.
    pub fn next_u32(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let mixed = (self.0 ^ self.0 >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed >> 32) as u32
    }

    /// A number below another.
    pub fn below(&mut self, end: u32) -> u32 {
        ((u64::from(self.next_u32()) * u64::from(end)) >> 32) as u32
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        for four in bytes.chunks_mut(4) {
            let next = self.next_u32().to_le_bytes();
            four.copy_from_slice(&next[..four.len()]);
        }
        bytes
    }

    /// Any number of about 2^exponent.
    pub fn near(&mut self, exponent: i32) -> f32 {
        let spread = self.below(13) as i32 - 6;
        let power = (127 + exponent + spread).clamp(0, 254) as u32;
        f32::from_bits(self.next_u32() & 0x807f_ffff | power << 23)
    }

    /// Activations of about 2^exponent, of which one in so many is special to sums: zero of either sign, subnormal, or
    /// so small that it does not count beside codes.
    pub fn activations(&mut self, len: usize, exponent: i32, one_in: u32) -> Vec<f32> {
        let one = |_| match self.below(4 * one_in) {
            0 => 0.0,
            1 => -0.0,
            2 => f32::from_bits(self.next_u32() & 0x807f_ffff),
            3 => self.near(-101),
            _ => self.near(exponent),
        };
        (0..len).map(one).collect()
    }

    /// The parts of a matrix.
    pub fn parts(&mut self, encoding: Encoding, rows: usize, cols: usize) -> Vec<Vec<u8>> {
        if encoding.has_patches() {
            return self.packed(encoding, rows, cols);
        }
        let mut parts = Vec::new();
        for (index, part) in encoding.parts().iter().enumerate() {
            let len = match part.len(rows as u64, cols as u64) {
                Some(PartLen::Exact(len) | PartLen::AtLeast(len)) => len as usize,
                None => 0,
            };
            let mut bytes = self.bytes(len);
            tame(encoding, index, &mut bytes);
            parts.push(bytes);
        }
        parts
    }

    /// The parts of a matrix with patches, whose exponents are counted in itself.
    fn packed(&mut self, encoding: Encoding, rows: usize, cols: usize) -> Vec<Vec<u8>> {
        let mut source = Vec::with_capacity(2 * rows * cols);
        for _ in 0..rows * cols {
            // Few exponents are frequent, so that all tiers and patches are used.
            let spread = [0, 0, 0, 1, 2, 3, 5, 8][self.below(8) as usize] * self.below(4);
            let bits = self.next_u32() & 0x8000_0000 | (127 - spread) << 23 | self.next_u32() >> 9;
            source.extend(((bits >> 16) as u16).to_le_bytes());
        }
        let mut counts = ExponentCounts::default();
        counts.add(&source);
        let encoder = Encoder::counted(encoding, cols, &counts).expect("an encoding with counts");
        let mut tally = TensorTally::new(&encoder);
        let mut out = EncodedRows::default();
        encoder.encode(&source, &mut out).expect("whole rows");
        tally.push(&out).expect("fewer patches than 4 GiB");
        let table = encoder.table().map(|table| table.to_vec()).unwrap_or_default();
        vec![out.parts[0].clone(), table, tally.patches()]
    }
}

/// Changes the exponents of a part's numbers.
fn tame(encoding: Encoding, part: usize, bytes: &mut [u8]) {
    match (encoding, part) {
        (Encoding::F32, _) => single(bytes),
        (Encoding::Bf16, _) | (Encoding::Q8 | Encoding::Q4, 1) => sixteen(bytes),
        (Encoding::F16, _) => bytes.as_chunks_mut::<2>().0.iter_mut().for_each(f16),
        (Encoding::Fp8(_), 0) => {
            for byte in bytes {
                *byte &= 0xf7;
            }
        }
        (Encoding::Fp8(Fp8Scales::Squares | Fp8Scales::Rows | Fp8Scales::Whole), _) => {
            single(bytes)
        }
        (Encoding::Fp8(Fp8Scales::SquaresE8m0 | Fp8Scales::Thirtytwos) | Encoding::Mxfp4, 1) => {
            bytes.iter_mut().for_each(e8m0);
        }
        (Encoding::Fp8(_), _) => sixteen(bytes),
        (Encoding::Int4(groups), 1) if groups.zeros_group().is_none() => sixteen(bytes),
        (Encoding::Int4(_), 1) => single(bytes),
        // Groups of columns in any order, some past the last.
        (Encoding::Int4(_), 2) => {
            for [low, high] in bytes.as_chunks_mut::<2>().0 {
                (*low, *high) = (*low % 12, 0);
            }
        }
        (Encoding::Gguf(format), _) => {
            for block in bytes.chunks_mut(format.bytes()) {
                for &at in format.scales() {
                    f16((&mut block[at..at + 2]).try_into().expect("two bytes"));
                }
                if format == GgufBlocks::Mxfp4 {
                    e8m0(&mut block[0]);
                }
            }
        }
        _ => {}
    }
}

fn sixteen(bytes: &mut [u8]) {
    bytes.as_chunks_mut::<2>().0.iter_mut().for_each(bf16);
}

fn single(bytes: &mut [u8]) {
    for [_, _, low, high] in bytes.as_chunks_mut::<4>().0 {
        let mut upper = [*low, *high];
        bf16(&mut upper);
        [*low, *high] = upper;
    }
}

/// About one; a sixteenth are subnormal or next to it.
fn bf16([low, high]: &mut [u8; 2]) {
    *high = *high & 0x80 | if *low & 15 == 0 { 0 } else { 0x3c | *high & 3 };
}

/// Below two, subnormal ones included.
fn f16([_, high]: &mut [u8; 2]) {
    *high &= 0xbf;
}

/// About one; a sixteenth are the least powers, of which the first is subnormal.
fn e8m0(byte: &mut u8) {
    *byte = if *byte >> 4 == 0 { *byte & 1 } else { 0x78 | *byte & 7 };
}
