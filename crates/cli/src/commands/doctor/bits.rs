//! The self-test of the kernels: products in every encoding, with both kinds of activations, on every
//! tier of this CPU.

use sws_kernels::{
    Activations, EncodedRows, Encoder, Encoding, ExponentCounts, GgufBlocks, MatmulScratch, Matrix,
    PartLen, TensorTally, Tier, matmul,
};

use super::DoctorLine;

const ROWS: usize = 128;
const TOKENS: usize = 3;
/// Whole blocks of every encoding, and rows that end within one.
const WIDTHS: [usize; 2] = [512, 167];

/// Compares the bits of all tiers with those of the scalar kernels.
pub(super) fn line() -> DoctorLine {
    let tiers = Tier::available();
    match compare(&tiers) {
        Ok(()) => {
            let names: Vec<&str> = tiers.iter().copied().map(Tier::name).collect();
            let count = Encoding::ALL.len();
            DoctorLine::ok(
                "bits",
                format!("the same in {}, for {count} encodings", names.join(", ")),
            )
        }
        Err(found) => DoctorLine::hurts(
            "bits",
            found,
            "use `--tier scalar`, test the memory of this machine, and report it with the CPU's name",
        ),
    }
}

fn compare(tiers: &[Tier]) -> Result<(), String> {
    for encoding in Encoding::ALL {
        for cols in WIDTHS {
            let parts = parts(encoding, cols);
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            let matrix = Matrix::new(encoding, ROWS, cols, &parts)
                .map_err(|e| format!("{encoding} cannot be tested: {e}"))?;
            for activations in Activations::ALL {
                for tokens in [1, TOKENS] {
                    if let Some(tier) = differing(tiers, activations, &matrix, tokens) {
                        return Err(format!(
                            "{tier} and scalar kernels differ in {encoding} with {activations} activations"
                        ));
                    }
                }
            }
        }
    }
    Ok(())
}

/// The first tier whose product has other bits than that of scalar kernels.
fn differing(
    tiers: &[Tier],
    activations: Activations,
    matrix: &Matrix<'_>,
    tokens: usize,
) -> Option<Tier> {
    let scalar = product(Tier::SCALAR.with_activations(activations), matrix, tokens);
    let mut others = tiers.iter().copied();
    others.find(|tier| product(tier.with_activations(activations), matrix, tokens) != scalar)
}

/// Bits of the product of a matrix with fixed numbers.
fn product(tier: Tier, matrix: &Matrix<'_>, tokens: usize) -> Vec<u32> {
    let x: Vec<f32> = (0..(tokens * matrix.cols()) as u32).map(number).collect();
    let mut y = vec![0.0; tokens * ROWS];
    matmul(tier, matrix, &x, tokens, &mut y, &mut MatmulScratch::new());
    y.into_iter().map(f32::to_bits).collect()
}

/// A number from -1 to 1.
fn number(i: u32) -> f32 {
    (mixed(i) >> 8) as f32 / 8_388_608.0 - 1.0
}

/// The parts of a matrix of fixed bytes, which decode to finite numbers.
fn parts(encoding: Encoding, cols: usize) -> Vec<Vec<u8>> {
    if let Encoding::Fp7(scales) = encoding {
        let mut plain = parts(Encoding::Fp8(scales), cols);
        let mut histogram = ExponentCounts::default();
        histogram.add_e4m3(&plain[0]);
        return [packed(encoding, cols, &histogram, &plain[0]), plain.split_off(1)].concat();
    }
    if encoding.has_patches() {
        let numbers = of_few_exponents(cols);
        let mut histogram = ExponentCounts::default();
        histogram.add(&numbers);
        return packed(encoding, cols, &histogram, &numbers);
    }
    if encoding == Encoding::Top {
        return vec![parts(Encoding::Nested, cols).swap_remove(1)];
    }
    let plain = encoding.is_plain();
    let mut parts = Vec::new();
    for (index, part) in encoding.parts().iter().enumerate() {
        let len = match part.len(ROWS as u64, cols as u64) {
            Some(PartLen::Exact(len) | PartLen::AtLeast(len)) => len as usize,
            None => 0,
        };
        let mut bytes = noise(len);
        match encoding {
            Encoding::Gguf(blocks) => {
                for block in bytes.chunks_exact_mut(blocks.bytes()) {
                    // The upper half of an f16 below two.
                    for &at in blocks.scales() {
                        block[at + 1] &= 0xbf;
                    }
                    if blocks == GgufBlocks::Mxfp4 {
                        block[0] &= 0x7f;
                    }
                }
            }
            _ if plain || index > 0 => bytes.iter_mut().for_each(about_one),
            _ => {
                for byte in &mut bytes {
                    // NaN, in e4m3.
                    if *byte & 0x7f == 0x7f {
                        *byte ^= 1;
                    }
                }
            }
        }
        parts.push(bytes);
    }
    parts
}

/// bf16 numbers of sixteen exponents.
fn of_few_exponents(cols: usize) -> Vec<u8> {
    let mut numbers = noise(2 * ROWS * cols);
    for number in numbers.chunks_exact_mut(2) {
        about_one(&mut number[1]);
    }
    numbers
}

/// Rows with escapes.
fn packed(
    encoding: Encoding,
    cols: usize,
    counted: &ExponentCounts,
    numbers: &[u8],
) -> Vec<Vec<u8>> {
    let encoder = Encoder::counted(encoding, cols, counted).expect("an encoding with patches");
    let mut rows = EncodedRows::default();
    let mut tally = TensorTally::new(&encoder);
    let encoded = encoder.encode(numbers, &mut rows).and_then(|()| tally.push(&rows));
    encoded.expect("whole rows of finite numbers");
    let [codes, second] = rows.parts;
    let second = match encoder.table() {
        Some(table) => table.to_vec(),
        None => second,
    };
    vec![codes, second, tally.patches()]
}

/// Makes a byte one of a number that is neither large nor NaN, of any type of float.
fn about_one(byte: &mut u8) {
    *byte = *byte & 0x87 | 0x38;
}

fn noise(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (mixed(i) >> 24) as u8).collect()
}

/// A number without a pattern for each other one.
fn mixed(i: u32) -> u32 {
    let once = i.wrapping_add(1).wrapping_mul(2_654_435_761);
    (once ^ once >> 15).wrapping_mul(2_246_822_519)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_encoding_is_tested_with_finite_numbers() {
        for encoding in Encoding::ALL {
            for cols in WIDTHS {
                let parts = parts(encoding, cols);
                let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
                let matrix = Matrix::new(encoding, ROWS, cols, &parts).unwrap();
                let mut row = vec![0.0; cols];
                let mut values = std::collections::BTreeSet::new();
                for r in 0..ROWS {
                    matrix.decode_row(r, &mut row);
                    assert!(row.iter().all(|w| w.is_finite()), "{encoding}, row {r}");
                    values.extend(row.iter().map(|w| w.to_bits()));
                }
                assert!(values.len() > 8, "{encoding}: {} values", values.len());
                let products = product(Tier::SCALAR, &matrix, TOKENS);
                assert!(
                    products.iter().all(|&bits| f32::from_bits(bits).is_finite()),
                    "{encoding}"
                );
            }
        }
    }
}
