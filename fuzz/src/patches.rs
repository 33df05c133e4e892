//! Any bytes as the parts of a matrix with patches, and any matrix of bf16 or of codes encoded and
//! decoded.

#![allow(dead_code)] // each target uses one of the four

use sws_kernels::{
    EncodedRows, Encoder, Encoding, ExponentCounts, Fp8Scales, MatmulScratch, Matrix, PartLen,
    PartRows, SourceDtype, TensorTally, Tier, matmul,
};

/// True if the bytes made a matrix of bf12.
pub fn bf12(data: &[u8]) -> bool {
    check(Encoding::Bf12, 0, data)
}

/// True if the bytes made a matrix of bf11.
pub fn bf11(data: &[u8]) -> bool {
    check(Encoding::Bf11, 0, data)
}

/// True if the bytes made a matrix of nested.
pub fn nested(data: &[u8]) -> bool {
    check(Encoding::Nested, 0, data)
}

/// True if the bytes made a matrix of fp7, with scales of any kind.
pub fn fp7(data: &[u8]) -> bool {
    let Some((&kind, rest)) = data.split_first() else { return false };
    let (kind, is_tall) = (usize::from(kind) % 8, kind & 8 != 0);
    // Some scales are for 128 rows.
    let more = if is_tall { 124 } else { 0 };
    check(Encoding::Fp7(Fp8Scales::ALL[kind]), more, rest)
}

/// Checks a matrix that has so many rows more than the bytes say.
fn check(encoding: Encoding, more: usize, data: &[u8]) -> bool {
    let [rows, cols, first, rest @ ..] = data else { return false };
    let (rows, cols) = (usize::from(*rows % 9) + more, usize::from(*cols));
    there_and_back(encoding, cols, rest);
    decode(encoding, rows, cols, usize::from(*first), rest)
}

/// Decodes arbitrary codes, a table or tops, scales, and patches behind them; the patches may be invalid
/// in any way.
fn decode(encoding: Encoding, rows: usize, cols: usize, first: usize, bytes: &[u8]) -> bool {
    const PATCHES: usize = 2;
    let (mut parts, mut rest, mut least) = (Vec::new(), bytes, 0);
    for part in encoding.parts() {
        match part.len(rows as u64, cols as u64).expect("a small matrix") {
            PartLen::Exact(len) => {
                let Some((part, behind)) = rest.split_at_checked(len as usize) else {
                    return false;
                };
                parts.push(part);
                rest = behind;
            }
            PartLen::AtLeast(len) => least = len as usize,
        }
    }
    parts.insert(PATCHES, rest);
    let Ok(whole) = Matrix::new(encoding, rows, cols, &parts) else {
        assert!(rest.len() < least, "only missing offsets are refused");
        return false;
    };
    let honest = whole.check().is_ok();

    let first = first % (rows + 1);
    for (kind, part) in encoding.parts().iter().zip(&mut parts) {
        let range = kind.rows(first as u64..rows as u64, cols as u64).expect("a small matrix");
        if let PartRows::Bytes(bytes) = range {
            *part = &part[bytes.start as usize..bytes.end as usize];
        }
    }
    let block = Matrix::block(encoding, rows, cols, first..rows, &parts)
        .expect("a block of a matrix is one too");
    let mut row = vec![0.0; cols];
    let mut again = vec![0.0; cols];
    for r in 0..rows {
        whole.decode_row(r, &mut row);
        // Every weight is a bf16, whatever the bytes, unless it has a scale.
        let is_bf16 = |w: &f32| w.to_bits() & 0xffff == 0;
        assert!(matches!(encoding, Encoding::Fp7(_)) || row.iter().all(is_bf16));
        if r >= first {
            block.decode_row(r - first, &mut again);
            assert!(row.iter().zip(&again).all(|(a, b)| a.to_bits() == b.to_bits()));
        }
    }
    if honest {
        assert!(block.check().is_ok());
    }
    multiply(&whole);
    true
}

/// Checks that all tiers compute the same product, for one token and for several.
fn multiply(matrix: &Matrix) {
    for tokens in [1, 5] {
        let x: Vec<f32> = (0..tokens * matrix.cols()).map(|i| (i % 7) as f32 - 3.0).collect();
        let results = Tier::available().into_iter().map(|tier| {
            let mut y = vec![0.0; tokens * matrix.row_count()];
            matmul(tier, matrix, &x, tokens, &mut y, &mut MatmulScratch::default());
            // All NaNs count as equal.
            y.iter().map(|y| if y.is_nan() { None } else { Some(y.to_bits()) }).collect::<Vec<_>>()
        });
        let results: Vec<_> = results.collect();
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "{:?}", Tier::available());
    }
}

fn there_and_back(encoding: Encoding, cols: usize, bytes: &[u8]) {
    if cols == 0 {
        return;
    }
    let (source, add): (_, fn(&mut ExponentCounts, &[u8])) = match encoding {
        Encoding::Fp7(_) => (SourceDtype::E4m3, ExponentCounts::add_e4m3),
        _ => (SourceDtype::Bf16, ExponentCounts::add),
    };
    let rows = bytes.len() / (source.size() * cols);
    let numbers = &bytes[..rows * source.size() * cols];
    let mut histogram = ExponentCounts::default();
    add(&mut histogram, numbers);
    let encoder = Encoder::counted(encoding, cols, &histogram).expect("it has patches");
    let mut encoded = EncodedRows::default();
    let mut tally = TensorTally::new(&encoder);
    encoder.encode(numbers, &mut encoded).expect("whole rows");
    tally.push(&encoded).expect("few patches");
    let (table, patches) = (encoder.table(), tally.patches());
    let second = table.as_ref().map_or(&encoded.parts[1][..], |table| &table[..]);
    let mut parts = vec![&encoded.parts[0][..], second, &patches];
    let scales = encoding.parts().get(3).map(|part| match part.len(rows as u64, cols as u64) {
        Some(PartLen::Exact(len)) => vec![0; len as usize],
        _ => unreachable!("scales have a length"),
    });
    parts.extend(scales.as_deref());
    let matrix = Matrix::new(encoding, rows, cols, &parts).expect("its own encoding");
    matrix.check().expect("its own patches");
    let mut back = Vec::new();
    matrix.to_source(source, &mut back).expect("it is lossless");
    assert!(back == numbers);
}
