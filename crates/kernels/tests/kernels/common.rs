//! Encoded matrices for tests.
#![allow(dead_code)] // each test binary uses only a part

use sws_kernels::{
    EncodedRows, Encoder, Encoding, ExponentCounts, Fp8Scales, GgufBlocks, Matrix, Nvfp4Scale,
    PartLen, SourceDtype, TensorTally,
};

pub(crate) fn bf16_bytes(bits: &[u16]) -> Vec<u8> {
    bits.iter().flat_map(|b| b.to_le_bytes()).collect()
}

pub(crate) fn f32_bytes(weights: &[f32]) -> Vec<u8> {
    weights.iter().flat_map(|w| w.to_le_bytes()).collect()
}

/// A matrix that owns its parts, each at an odd address.
pub(crate) struct Encoded {
    encoding: Encoding,
    rows: usize,
    cols: usize,
    parts: Vec<Vec<u8>>,
    pub(crate) escapes: usize,
}

impl Encoded {
    pub(crate) fn from_parts(
        encoding: Encoding,
        rows: usize,
        cols: usize,
        parts: &[&[u8]],
    ) -> Self {
        let parts = parts.iter().map(|p| [&[0xee], *p].concat()).collect();
        Encoded { encoding, rows, cols, parts, escapes: 0 }
    }

    /// Encodes in blocks of `block` rows.
    pub(crate) fn with(
        encoder: &Encoder,
        source: &[u8],
        rows: usize,
        cols: usize,
        block: usize,
    ) -> Self {
        let mut out = EncodedRows::default();
        let mut tally = TensorTally::new(encoder);
        let mut parts = [Vec::new(), Vec::new()];
        let row = source.len() / rows.max(1);
        for chunk in source.chunks((row * block).max(1)) {
            encoder.encode(chunk, &mut out).unwrap();
            tally.push(&out).unwrap();
            parts.iter_mut().zip(&out.parts).for_each(|(all, new)| all.extend_from_slice(new));
        }
        let [first, second] = &parts;
        let patches = tally.patches();
        let table = encoder.table();
        let encoding = encoder.encoding();
        let parts: Vec<&[u8]> = match &table {
            Some(table) => vec![first, table, &patches],
            None => vec![first, second, &patches],
        };
        let parts = &parts[..encoding.parts().len().min(3)];
        Encoded { escapes: tally.escapes(), ..Encoded::from_parts(encoding, rows, cols, parts) }
    }

    /// A matrix with patches, with exponents counted in itself.
    pub(crate) fn packed(encoding: Encoding, source: &[u8], cols: usize) -> Self {
        let encoder = encoder(encoding, source, cols);
        let rows = source.len() / (2 * cols);
        Self::with(&encoder, source, rows, cols, rows)
    }

    /// A matrix of e4m3 codes, packed by the exponents counted in itself.
    pub(crate) fn fp7(plain: &Encoded) -> Self {
        let mut histogram = ExponentCounts::default();
        histogram.add_e4m3(plain.parts()[0]);
        Self::fp7_by(&histogram, plain)
    }

    /// The same by these counts.
    pub(crate) fn fp7_by(histogram: &ExponentCounts, plain: &Encoded) -> Self {
        let Encoded { rows, cols, .. } = *plain;
        let [codes, scales] = plain.parts()[..] else { panic!("codes and scales") };
        let Encoding::Fp8(kind) = plain.encoding else { panic!("{}", plain.encoding) };
        let encoder = Encoder::counted(Encoding::Fp7(kind), cols, histogram).unwrap();
        let mut packed = Self::with(&encoder, codes, rows, cols, rows);
        packed.parts.push([&[0xee], scales].concat());
        packed
    }

    pub(crate) fn sample(encoding: Encoding, rows: usize, cols: usize) -> Self {
        if let Encoding::Fp7(scales) = encoding {
            return Self::fp7(&Self::sample(Encoding::Fp8(scales), rows, cols));
        }
        if let Encoding::Gguf(format) = encoding
            && !encoding.is_made()
        {
            let mut bytes = random(rows * cols.div_ceil(format.cols()) * format.bytes());
            for block in bytes.chunks_mut(format.bytes()) {
                // Below two, or about one.
                format.scales().iter().for_each(|at| block[at + 1] &= 0xbf);
                if format == GgufBlocks::Mxfp4 {
                    block[0] = 120 | block[0] & 7;
                }
            }
            return Self::from_parts(encoding, rows, cols, &[&bytes]);
        }
        if is_published(encoding) {
            let parts = encoding.parts().iter().enumerate().map(|(index, part)| {
                let PartLen::Exact(len) = part.len(rows as u64, cols as u64).unwrap() else {
                    unreachable!("no patches")
                };
                if part.suffix == ".order" {
                    return order(len as usize);
                }
                let mut bytes = random(len as usize);
                match (index, scale_bytes(encoding, index)) {
                    // No code of e4m3 that is NaN.
                    (0, _) => bytes.iter_mut().for_each(|b| *b &= 0xf7),
                    // About one, as e4m3 or as e8m0.
                    (_, 1) => bytes.iter_mut().for_each(|b| *b = 0x78 | *b & 3),
                    // The high byte of f32 or bf16.
                    (_, n) => bytes.iter_mut().skip(n - 1).step_by(n).for_each(|b| *b = 0x3f),
                }
                bytes
            });
            let parts: Vec<Vec<u8>> = parts.collect();
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            return Self::from_parts(encoding, rows, cols, &parts);
        }
        if encoding == Encoding::Top {
            let whole = Self::sample(Encoding::Nested, rows, cols);
            return Self::from_parts(encoding, rows, cols, &whole.parts()[1..2]);
        }
        let source = sample_source(encoding, rows, cols);
        Self::with(&encoder(encoding, &source, cols), &source, rows, cols, rows)
    }

    pub(crate) fn parts(&self) -> Vec<&[u8]> {
        self.parts.iter().map(|p| &p[1..]).collect()
    }

    pub(crate) fn matrix(&self) -> Matrix<'_> {
        Matrix::new(self.encoding, self.rows, self.cols, &self.parts()).unwrap()
    }
}

/// True for codes with scales beside them that are only read.
pub(crate) fn is_published(encoding: Encoding) -> bool {
    let has_codes = matches!(encoding, Encoding::Fp8(_) | Encoding::Int4(_) | Encoding::Nvfp4(_));
    has_codes && !encoding.is_made()
}

/// Every such encoding.
pub(crate) fn published() -> impl Iterator<Item = Encoding> {
    Encoding::ALL.into_iter().filter(|encoding| is_published(*encoding))
}

/// Bytes of each number in a part with scales.
pub(crate) fn scale_bytes(encoding: Encoding, part: usize) -> usize {
    match encoding {
        Encoding::Fp8(Fp8Scales::Rows | Fp8Scales::Whole) => 4,
        Encoding::Int4(groups) if groups.zeros_group().is_some() && part == 1 => 4,
        Encoding::Nvfp4(Nvfp4Scale::OfBlocks) => 4,
        Encoding::Nvfp4(_) if part == 2 => 4,
        Encoding::Fp8(Fp8Scales::SquaresE8m0 | Fp8Scales::Thirtytwos) | Encoding::Nvfp4(_) => 1,
        _ => 2,
    }
}

/// Groups of columns in any order. Some are past the last.
pub(crate) fn order(len: usize) -> Vec<u8> {
    let mut bytes = random(len);
    bytes.chunks_mut(2).for_each(|index| index.copy_from_slice(&[index[0] % 5, 0]));
    bytes
}

/// Any bytes.
pub(crate) fn random(len: usize) -> Vec<u8> {
    let mut state = len as u64;
    let byte = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8
    };
    std::iter::repeat_with(byte).take(len).collect()
}

/// The encoder of `encoding` for rows made by [`sample_source`].
pub(crate) fn encoder(encoding: Encoding, source: &[u8], cols: usize) -> Encoder {
    match encoding {
        _ if encoding.has_patches() => {
            let mut histogram = ExponentCounts::default();
            histogram.add(source);
            Encoder::counted(encoding, cols, &histogram).unwrap()
        }
        _ => Encoder::new(encoding, source_of(encoding), cols).unwrap(),
    }
}

fn source_of(encoding: Encoding) -> SourceDtype {
    match encoding {
        Encoding::Bf16 | Encoding::Bf12 | Encoding::Bf11 | Encoding::Nested => SourceDtype::Bf16,
        Encoding::F16 => SourceDtype::F16,
        _ => SourceDtype::F32,
    }
}

/// Numbers of many magnitudes, so that bf12 and bf11 have escapes and scales differ.
pub(crate) fn sample_source(encoding: Encoding, rows: usize, cols: usize) -> Vec<u8> {
    let mut state = (rows * 1000 + cols) as u64;
    let mut bytes = Vec::new();
    for _ in 0..rows * cols {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let random = (state >> 33) as u32;
        let exponent = 127 - (random % 7 + random / 7 % 5 * (random / 35 % 4));
        let w = f32::from_bits(random << 24 & 1 << 31 | exponent << 23 | random >> 8);
        match source_of(encoding) {
            SourceDtype::F32 => bytes.extend(w.to_le_bytes()),
            SourceDtype::F16 => bytes.extend(half::f16::from_f32(w).to_le_bytes()),
            SourceDtype::Bf16 => bytes.extend(((w.to_bits() >> 16) as u16).to_le_bytes()),
            SourceDtype::E4m3 => unreachable!("packed from codes"),
        }
    }
    bytes
}

/// The bits of a row's weights.
pub(crate) fn decode(matrix: &Matrix, row: usize) -> Vec<u32> {
    let mut out = vec![0.0; matrix.cols()];
    matrix.decode_row(row, &mut out);
    out.iter().map(|w| w.to_bits()).collect()
}
