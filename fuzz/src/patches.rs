//! Any bytes as the parts of a matrix with patches, and any bf16 matrix encoded and decoded.

#![allow(dead_code)] // each target uses one of the three

use sws_kernels::{
    EncodedRows, Encoder, Encoding, Histogram, Matrix, PartLen, Scratch, Tally, Tier, matmul,
};

/// True if the bytes made a matrix of bf12.
pub fn bf12(data: &[u8]) -> bool {
    check(Encoding::Bf12, data)
}

/// True if the bytes made a matrix of bf11.
pub fn bf11(data: &[u8]) -> bool {
    check(Encoding::Bf11, data)
}

/// True if the bytes made a matrix of nested.
pub fn nested(data: &[u8]) -> bool {
    check(Encoding::Nested, data)
}

fn check(encoding: Encoding, data: &[u8]) -> bool {
    let [rows, cols, first, rest @ ..] = data else { return false };
    let (rows, cols) = (usize::from(*rows % 9), usize::from(*cols));
    there_and_back(encoding, cols, rest);
    decode(encoding, rows, cols, usize::from(*first), rest)
}

/// Decodes arbitrary codes, a table or tops, and patches; the patches may be invalid in any way.
fn decode(encoding: Encoding, rows: usize, cols: usize, first: usize, bytes: &[u8]) -> bool {
    let len = |part: usize, rows: usize| match encoding.parts()[part]
        .len(rows as u64, cols as u64)
        .expect("a small matrix")
    {
        PartLen::Exact(len) | PartLen::AtLeast(len) => len as usize,
    };
    let Some((codes, rest)) = bytes.split_at_checked(len(0, rows)) else { return false };
    let Some((second, patches)) = rest.split_at_checked(len(1, rows)) else { return false };
    let Ok(whole) = Matrix::new(encoding, rows, cols, &[codes, second, patches]) else {
        assert!(patches.len() < len(2, rows), "only missing offsets are refused");
        return false;
    };
    let honest = whole.check().is_ok();

    let first = first % (rows + 1);
    let before = if encoding.parts()[1].is_whole() { 0 } else { len(1, first) };
    let parts = [&codes[len(0, first)..], &second[before..], patches];
    let block = Matrix::block(encoding, rows, cols, first..rows, &parts)
        .expect("a block of a matrix is one too");
    let mut row = vec![0.0; cols];
    let mut again = vec![0.0; cols];
    for r in 0..rows {
        whole.decode_row(r, &mut row);
        // Every weight is a bf16, whatever the bytes.
        assert!(row.iter().all(|w| w.to_bits() & 0xffff == 0));
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
            matmul(tier, matrix, &x, tokens, &mut y, &mut Scratch::default());
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
    let rows = bytes.len() / (2 * cols);
    let bf16 = &bytes[..rows * 2 * cols];
    let mut histogram = Histogram::default();
    histogram.add(bf16);
    let encoder = Encoder::counted(encoding, cols, &histogram).expect("it has patches");
    let mut encoded = EncodedRows::default();
    let mut tally = Tally::new(&encoder);
    encoder.encode(bf16, &mut encoded).expect("whole rows");
    tally.push(&encoded).expect("few patches");
    let (table, patches) = (encoder.table(), tally.patches());
    let second = table.as_ref().map_or(&encoded.parts[1][..], |table| &table[..]);
    let parts = [&encoded.parts[0][..], second, &patches];
    let matrix = Matrix::new(encoding, rows, cols, &parts).expect("its own encoding");
    matrix.check().expect("its own patches");
    let mut row = vec![0.0; cols];
    for (r, expected) in bf16.chunks_exact(2 * cols).enumerate() {
        matrix.decode_row(r, &mut row);
        for (weight, bits) in row.iter().zip(expected.chunks_exact(2)) {
            let bits = u32::from(u16::from_le_bytes([bits[0], bits[1]])) << 16;
            assert_eq!(weight.to_bits(), bits);
        }
    }
}
