//! Any bytes as the parts of a matrix, in any encoding without patches, which have targets of their
//! own.

use sws_kernels::{Encoding, MatmulScratch, Matrix, PartLen, Tier, matmul};

/// True if the bytes made a matrix.
pub fn check(data: &[u8]) -> bool {
    let Some((&[which, rows, first, low, high], mut bytes)) = data.split_first_chunk() else {
        return false;
    };
    let encoding = Encoding::ALL[usize::from(which) % Encoding::ALL.len()];
    let rows = 1 + usize::from(rows % 5);
    let cols = 1 + usize::from(u16::from_le_bytes([low, high]) % 600);
    let mut parts = Vec::new();
    for part in encoding.parts() {
        let Some(PartLen::Exact(len)) = part.len(rows as u64, cols as u64) else { return false };
        let Some((part, behind)) = bytes.split_at_checked(len as usize) else { return false };
        parts.push(part);
        bytes = behind;
    }
    let matrix = Matrix::new(encoding, rows, cols, &parts).expect("parts of the right lengths");
    matrix.check().expect("any bytes are codes and scales");

    let decoded = decode(&matrix);
    let first = usize::from(first) % rows;
    let block = matrix.rows(first..rows);
    assert!(same(&decode(&block), &decoded[first * cols..]), "{encoding}: rows from {first}");

    // Products are the same in every tier: those of the decoded numbers, where codes are not summed.
    let numbers: Vec<u8> = decoded.iter().flat_map(|number| number.to_le_bytes()).collect();
    let plain = Matrix::new(Encoding::F32, rows, cols, &[&numbers]).expect("as many numbers");
    for tokens in [1, 5] {
        let summed = if encoding.arithmetic() == 2 { &matrix } else { &plain };
        let expected = product(Tier::SCALAR, summed, tokens);
        for tier in Tier::available() {
            let found = product(tier, &matrix, tokens);
            assert!(same(&found, &expected), "{encoding} {tier}, {tokens} tokens");
        }
    }
    true
}

fn decode(matrix: &Matrix<'_>) -> Vec<f32> {
    let mut decoded = vec![0.0; matrix.row_count() * matrix.cols()];
    for (row, out) in decoded.chunks_exact_mut(matrix.cols()).enumerate() {
        matrix.decode_row(row, out);
    }
    decoded
}

fn product(tier: Tier, matrix: &Matrix<'_>, tokens: usize) -> Vec<f32> {
    let x: Vec<f32> = (0..tokens * matrix.cols()).map(|i| (i % 7) as f32 - 3.0).collect();
    let mut y = vec![0.0; tokens * matrix.row_count()];
    matmul(tier, matrix, &x, tokens, &mut y, &mut MatmulScratch::default());
    y
}

/// All NaNs count as equal.
fn same(one: &[f32], other: &[f32]) -> bool {
    let pairs = || one.iter().zip(other);
    one.len() == other.len()
        && pairs().all(|(a, b)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()))
}
