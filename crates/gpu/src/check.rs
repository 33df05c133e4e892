//! The check of a device at each start: the operations of sums, and a matrix of each encoding, beside this CPU.

use sws_kernels::{Encoding, MatmulScratch, Tier, fma, matmul};

use crate::device::{ComputeDevice, DeviceBuffer, DeviceError, KernelLaunch};
use crate::exchange::{DeviceProduct, Exchange, ExchangeSize};
use crate::job::DeviceJob;
use crate::kernel::Kernel;
use crate::ledger::{VramLedger, VramLine};
use crate::matrix::{DeviceMatrix, MatrixBytes};
use crate::sample::SampleNumbers;

/// Comparisons that a device has passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckedCases {
    /// Results of fused multiply-adds, products and sums.
    pub operations: usize,
    /// Rows of matrices.
    pub rows: usize,
}

/// Hard cases of each operation.
const OPERATIONS: usize = 10_000;

/// Rows and columns of the matrices: several groups of rows, and a last block, span and unit that are not whole.
const ROWS: usize = 131;
const COLS: usize = 805;

/// Bytes that a check needs on the device, whatever the encodings: the largest matrix, and an exchange.
const ROOM: u64 = 1 << 20;

/// Bytes on the device while it is checked.
pub(crate) const CHECK_ROOM: u64 = 2 * ROOM;

/// Compares a device with this CPU, bit for bit, where all NaNs are equal: 10,000 hard cases of each operation, and a
/// matrix of each encoding, of those that it has a kernel for. The first difference refuses the device.
pub fn check(
    device: &mut dyn ComputeDevice,
    encodings: &[Encoding],
    ledger: &mut VramLedger,
) -> Result<CheckedCases, DeviceError> {
    if !ledger.take(VramLine::Check, CHECK_ROOM) {
        let device = device.facts().name.clone();
        return Err(DeviceError::TooSmall { device, limit: ledger.limit(), needed: CHECK_ROOM });
    }
    let checked = match device.allocate(ROOM) {
        Ok(weights) => {
            let cases = compare(device, weights, encodings);
            device.free(weights);
            cases
        }
        Err(error) => Err(error),
    };
    ledger.give(VramLine::Check, CHECK_ROOM);
    checked
}

fn compare(
    device: &mut dyn ComputeDevice,
    weights: DeviceBuffer,
    encodings: &[Encoding],
) -> Result<CheckedCases, DeviceError> {
    let size = ExchangeSize { inputs: 1 << 16, outputs: 1 << 16, jobs: 64 };
    assert!(size.bytes() <= ROOM, "room of the check");
    let mut exchange = Exchange::new(device, size)?;
    let cases = compare_through(device, &mut exchange, weights, encodings);
    exchange.free(device);
    cases
}

fn compare_through(
    device: &mut dyn ComputeDevice,
    exchange: &mut Exchange,
    weights: DeviceBuffer,
    encodings: &[Encoding],
) -> Result<CheckedCases, DeviceError> {
    let operations = operations(device, exchange)?;
    let mut rows = 0;
    for &encoding in encodings {
        if Kernel::of(encoding).is_some() {
            rows += matrices(device, exchange, weights, encoding)?;
        }
    }
    Ok(CheckedCases { operations, rows })
}

/// True for the same bits, or two NaNs.
fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}

/// Inputs on which a multiply-add that rounds twice, or flushes subnormal numbers, differs from one that does not.
fn hard_cases() -> Vec<[f32; 3]> {
    let mut numbers = SampleNumbers::new(1);
    let mut cases = Vec::with_capacity(OPERATIONS);
    for number in 0..OPERATIONS {
        let a = numbers.near(0);
        let b = numbers.near(0);
        let product = a * b;
        let ulps = numbers.below(5) as i32 - 2;
        let beside = f32::from_bits(product.to_bits().wrapping_add_signed(ulps));
        cases.push(match number % 8 {
            // Sums that cancel all but the rounding error of the product.
            0 | 1 => [a, b, -beside],
            // A product of which half of a last place is added, or next to nothing less.
            2 => [a, b, f32::from_bits((beside.to_bits() & 0x7f80_0000).wrapping_add(24 << 23))],
            3 => [a, 1.0, f32::from_bits((a.to_bits() & 0x7f80_0000).wrapping_sub(24 << 23))],
            // Products, and then sums, that are subnormal.
            4 => [numbers.near(-66), numbers.near(-68), numbers.near(-132)],
            5 => [a, f32::from_bits(numbers.next_u32() & 0x807f_ffff), numbers.near(-127)],
            // Zeros, infinities, and sums that overflow.
            6 => {
                let special = [0.0, -0.0, 1.0, -1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, a];
                [(); 3].map(|()| special[numbers.below(8) as usize])
            }
            _ => [numbers.near(64), numbers.near(62), -numbers.near(126)],
        });
    }
    cases
}

fn operations(device: &mut dyn ComputeDevice, exchange: &Exchange) -> Result<usize, DeviceError> {
    let cases = hard_cases();
    let numbers = cases.as_flattened().iter().copied();
    let mut bytes: Vec<u8> = numbers.flat_map(f32::to_le_bytes).collect();
    let [inputs, outputs, words] = exchange.buffers();
    device.write(inputs, 0, &bytes)?;
    let jobs = [DeviceJob::new(Kernel::Check, OPERATIONS.div_ceil(32) as u32, OPERATIONS as u32)];
    // No weights are read.
    device.launch(&KernelLaunch { jobs: &jobs, weights: words, inputs, outputs, words })?;
    device.read(outputs, 0, &mut bytes)?;
    let results = bytes.as_chunks().0.iter().copied().map(f32::from_le_bytes);
    let expected = cases.iter().flat_map(|&[a, b, c]| [fma(a, b, c), a * b, a + c]);
    let mut wrong = results.zip(expected).enumerate().filter(|(_, (found, is))| !same(*found, *is));
    let Some((at, (found, is))) = wrong.next() else { return Ok(3 * OPERATIONS) };
    let [a, b, c] = cases[at / 3];
    let operation = match at % 3 {
        0 => format!("{a:e} · {b:e} + {c:e}"),
        1 => format!("{a:e} · {b:e}"),
        _ => format!("{a:e} + {c:e}"),
    };
    Err(DeviceError::OtherBits {
        device: device.facts().name.clone(),
        case: format!(
            "{operation} is {is:e}, and it gives {found:e}; {} of {} results differ",
            1 + wrong.count(),
            3 * OPERATIONS
        ),
    })
}

/// Compares a matrix in an encoding; returns the number of rows.
fn matrices(
    device: &mut dyn ComputeDevice,
    exchange: &mut Exchange,
    weights: DeviceBuffer,
    encoding: Encoding,
) -> Result<usize, DeviceError> {
    let mut numbers = SampleNumbers::new(2);
    let parts = numbers.parts(encoding, ROWS, COLS);
    let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
    let bytes = MatrixBytes::new(encoding, ROWS, COLS, &parts).expect("parts of its lengths");
    let placed = DeviceMatrix::place(&bytes, 0).expect("an encoding with a kernel");
    for (at, part) in placed.parts(&bytes) {
        device.write(weights, at, part)?;
    }
    // Ordinary activations, and such that products and sums are subnormal.
    let vectors = [numbers.activations(COLS, 0, 16), numbers.activations(COLS, -130, 16)];
    let inputs = [vectors[0].as_slice(), &vectors[1]];
    let products = [0, 1].map(|input| DeviceProduct { matrix: &placed, weights, input });
    let mut found = Vec::new();
    exchange.multiply(device, &inputs, &products, &mut found)?;
    let mut expected = vec![0.0; 2 * ROWS];
    let x = inputs.concat();
    matmul(Tier::best(), &bytes.matrix(), &x, 2, &mut expected, &mut MatmulScratch::new());
    let wrong = found.iter().zip(&expected).filter(|(found, is)| !same(**found, **is)).count();
    if wrong == 0 {
        return Ok(2 * ROWS);
    }
    Err(DeviceError::OtherBits {
        device: device.facts().name.clone(),
        case: format!("{wrong} of {} rows of a {encoding} matrix differ", 2 * ROWS),
    })
}
