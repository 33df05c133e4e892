//! Checks each OpenCL device, and measures products on it beside this CPU: `cargo run --release -p sws-gpu --example
//! measure`. Of each encoding some matrices as large as experts are multiplied by one vector, all in one launch; times
//! include the transfers of the vector and the results. Reports of cards are welcome, with the whole output.

#![allow(clippy::print_stdout)]

use sws_format::Clock;
use sws_gpu::{
    ComputeDevice, DeviceMatrix, DeviceProduct, Exchange, ExchangeSize, Flaw, Kernel, MatrixBytes,
    OpenClDevice, SampleNumbers, VramLedger, check,
};
use sws_kernels::{Encoding, MatmulScratch, Tier, matmul};

/// The shape of a matrix, and the number of matrices: 32 MB of bf16 each time, more than a card's cache of most kinds.
const ROWS: usize = 768;
const COLS: usize = 2048;
const MATRICES: usize = 64;

/// Repetitions, of which the fastest counts.
const TIMES: usize = 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for (number, facts) in OpenClDevice::list()?.into_iter().enumerate() {
        println!("{} ({}), {} MiB", facts.name, facts.driver, facts.memory >> 20);
        match OpenClDevice::open(number, OpenClDevice::LIMIT, Flaw::None) {
            Ok(mut device) => measure(&mut device)?,
            Err(error) => println!("  {error}"),
        }
    }
    Ok(())
}

fn measure(device: &mut dyn ComputeDevice) -> Result<(), Box<dyn std::error::Error>> {
    let encodings: Vec<Encoding> =
        Encoding::ALL.into_iter().filter(|it| Kernel::of(*it).is_some()).collect();
    let cases = check(device, &encodings, &mut VramLedger::new(64 << 20))?;
    println!("  {} operations and {} rows have this CPU's bits", cases.operations, cases.rows);
    println!("  {:<18} {:>12} {:>12}", "encoding", "device, GB/s", "CPU, GB/s");
    let size = ExchangeSize::of(MATRICES as u32, ROWS, COLS);
    let mut exchange = Exchange::new(device, size)?;
    let weights = device.allocate((MATRICES * (4 * ROWS * COLS + 4096)) as u64)?;
    for encoding in encodings {
        let mut numbers = SampleNumbers::new(1);
        let parts = numbers.parts(encoding, ROWS, COLS);
        let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        let bytes = MatrixBytes::new(encoding, ROWS, COLS, &parts)?;
        let mut placed = Vec::new();
        let mut end = 0;
        for _ in 0..MATRICES {
            let matrix = DeviceMatrix::place(&bytes, end).ok_or("no kernel")?;
            for (at, part) in matrix.parts(&bytes) {
                device.write(weights, at, part)?;
            }
            end = matrix.end();
            placed.push(matrix);
        }
        let x = numbers.activations(COLS, 0, 16);
        let product = |matrix| DeviceProduct { matrix, weights, input: 0 };
        let products: Vec<DeviceProduct<'_>> = placed.iter().map(product).collect();
        let mut y = Vec::new();
        let there = fastest(|| {
            y.clear();
            exchange.multiply(device, &[&x], &products, &mut y)
        })?;
        let mut expected = vec![0.0; ROWS];
        let mut scratch = MatmulScratch::new();
        let matrix = bytes.matrix();
        let here = fastest(|| {
            matmul(Tier::best(), &matrix, &x, 1, &mut expected, &mut scratch);
            Ok(())
        })?;
        let same = y
            .chunks(ROWS)
            .all(|y| y.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits()));
        let len = matrix.bytes() as f64 / 1e9;
        println!(
            "  {:<18} {:>12.1} {:>12.1}{}",
            encoding.name(),
            MATRICES as f64 * len / there,
            len / here,
            if same { "" } else { "  OTHER BITS" }
        );
    }
    exchange.free(device);
    device.free(weights);
    Ok(())
}

/// Seconds of the fastest repetition.
fn fastest(
    mut run: impl FnMut() -> Result<(), sws_gpu::DeviceError>,
) -> Result<f64, sws_gpu::DeviceError> {
    let clock = Clock::real();
    let mut best = f64::INFINITY;
    for _ in 0..TIMES {
        let begun = clock.now();
        run()?;
        best = best.min((clock.now() - begun).as_secs_f64());
    }
    Ok(best)
}
