//! Weights a second that one thread multiplies with a token, from its own cache, by encoding, tier and kind
//! of activations. With `tokens=N` products are those of so many tokens, and rates are times as many.
//!
//! ```text
//! cargo run --release -p sws-kernels --example rate [-- ENCODING.. TIER.. tokens=N]
//! ```

#[path = "../tests/kernels/common.rs"]
mod common;

use std::error::Error;
use std::io::Write;
use std::time::{Duration, Instant};

use common::{Encoded, bf16_bytes, encoder, f32_bytes};
use sws_kernels::{
    Activations, Encoding, Fp8Scales, Matrix, OutputColumns, PackedInput, ThreadScratch, Tier,
    matmul_rows,
};

/// Few enough weights for the cache of a core, also as bf16.
const ROWS: usize = 64;
const COLS: usize = 2048;
/// Time of a measurement, shorter than what the system gives other programs at once. The best of many
/// counts, as those only slow it down.
const TIME: Duration = Duration::from_millis(1);
const REPEATS: usize = 300;

const ENCODINGS: &str = "bf16 bf12 bf11 q8 q4 fp8 mxfp4 nvfp4 int4 q4_0 q4_k q5_k q6_k";

fn main() -> Result<(), Box<dyn Error>> {
    let asked: Vec<String> = std::env::args().skip(1).collect();
    let mut tiers = Vec::<Tier>::new();
    let mut words = Vec::new();
    let mut tokens = 1;
    for word in &asked {
        match (word.parse(), word.strip_prefix("tokens=")) {
            (Ok(tier), _) => tiers.push(tier),
            (_, Some(number)) => tokens = number.parse()?,
            _ => words.push(word.as_str()),
        }
    }
    if words.is_empty() {
        words = ENCODINGS.split(' ').collect();
    }
    if tiers.is_empty() {
        tiers = Tier::available();
    }
    let mut out = std::io::stdout();
    writeln!(out, "| encoding | tier | activations | Gweights/s | GB/s | ns for 64 |")?;
    writeln!(out, "|---|---|---|---:|---:|---:|")?;
    for word in words {
        let encoding: Encoding = word.parse()?;
        let weights = weights(encoding);
        let parts: Vec<Aligned> = weights.parts().into_iter().map(Aligned::new).collect();
        let parts: Vec<&[u8]> = parts.iter().map(Aligned::bytes).collect();
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let matrix = Matrix::new(encoding, ROWS, COLS, &parts)?;
        let kinds =
            tiers.iter().flat_map(|tier| Activations::ALL.map(|of| tier.with_activations(of)));
        for tier in kinds {
            let seconds = seconds(tier, &matrix, tokens);
            let count = (ROWS * COLS * tokens) as f64;
            writeln!(
                out,
                "| {encoding} | {} | {} | {:.2} | {:.2} | {:.2} |",
                tier.name(),
                tier.activations(),
                count / seconds / 1e9,
                bytes as f64 / seconds / 1e9,
                64.0 * seconds / count * 1e9,
            )?;
        }
    }
    Ok(())
}

/// Bytes that begin with a cache line, as matrices in slots do.
struct Aligned {
    padded: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    fn new(bytes: &[u8]) -> Aligned {
        let mut padded = vec![0; bytes.len() + 64];
        let start = padded.as_ptr().align_offset(64);
        padded[start..][..bytes.len()].copy_from_slice(bytes);
        Aligned { padded, start, len: bytes.len() }
    }

    fn bytes(&self) -> &[u8] {
        &self.padded[self.start..][..self.len]
    }
}

/// A matrix of about normal numbers if it can be made of any, with escapes as rare as models have them.
fn weights(encoding: Encoding) -> Encoded {
    if encoding == Encoding::Fp7(Fp8Scales::Squares) {
        return Encoded::fp7(&weights(Encoding::Fp8(Fp8Scales::Squares)));
    }
    if !encoding.is_made() {
        return Encoded::sample(encoding, ROWS, COLS);
    }
    let mut state = 1u64;
    let mut uniform = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    // About normal, as experts have them.
    let mut number = || (0..12).map(|_| uniform()).sum::<f32>() / 40.0 - 0.15;
    let numbers: Vec<f32> = (0..ROWS * COLS).map(|_| number()).collect();
    let source = match encoding.has_patches() || encoding == Encoding::Bf16 {
        true => bf16_bytes(&numbers.iter().map(|n| (n.to_bits() >> 16) as u16).collect::<Vec<_>>()),
        false => f32_bytes(&numbers),
    };
    Encoded::with(&encoder(encoding, &source, COLS), &source, ROWS, COLS, ROWS)
}

/// The least seconds of a product.
#[expect(clippy::disallowed_methods, reason = "the crate has no clock of its own")]
fn seconds(tier: Tier, matrix: &Matrix, tokens: usize) -> f64 {
    let numbers: Vec<f32> = (0..COLS * tokens).map(|i| 1.0 / (1 + i) as f32).collect();
    let mut input = PackedInput::new();
    let mut scratch = ThreadScratch::new();
    input.pack(tier, &numbers, tokens, COLS);
    let mut results = vec![0.0; tokens * ROWS];
    let mut least = f64::INFINITY;
    for _ in 0..REPEATS {
        let begun = Instant::now();
        let mut products = 0;
        while begun.elapsed() < TIME {
            for _ in 0..16usize.div_ceil(tokens) {
                let y = OutputColumns::new(&mut results, tokens, ROWS);
                matmul_rows(tier, std::hint::black_box(matrix), &input, y, &mut scratch);
            }
            products += 16usize.div_ceil(tokens);
        }
        least = least.min(begun.elapsed().as_secs_f64() / products as f64);
    }
    std::hint::black_box(results);
    least
}
