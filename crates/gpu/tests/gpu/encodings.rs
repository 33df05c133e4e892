//! Products of all encodings have the bits of the scalar reference: any shape, any bytes, any activations.

use std::cell::RefCell;

use proptest::prelude::*;
use sws_gpu::{
    ComputeDevice, DeviceBuffer, DeviceMatrix, DeviceProduct, Exchange, ExchangeSize, Flaw, Kernel,
    MatrixBytes, OpenClDevice, SampleNumbers,
};
use sws_kernels::{Encoding, MatmulScratch, PartLen, Tier, matmul};

use crate::support::{device, flawed, same, turn};

/// A device with room for matrices of some megabytes.
struct Bench {
    device: OpenClDevice,
    exchange: Exchange,
    weights: DeviceBuffer,
}

impl Bench {
    /// A device that reads only what every device can.
    fn new() -> Option<Bench> {
        let mut device = flawed(Flaw::Strict)?;
        let weights = device.allocate(4 << 20).unwrap();
        let exchange = Exchange::new(&mut device, ExchangeSize::of(8, 600, 2100)).unwrap();
        Some(Bench { device, exchange, weights })
    }

    /// Rows that were compared; at an offset that is no multiple of a part's alignment.
    fn check(
        &mut self,
        encoding: Encoding,
        (rows, cols): (usize, usize),
        parts: &[Vec<u8>],
        inputs: &[&[f32]],
    ) -> usize {
        let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        let bytes = MatrixBytes::new(encoding, rows, cols, &parts).unwrap();
        let placed = DeviceMatrix::place(&bytes, 48).unwrap();
        for (at, part) in placed.parts(&bytes) {
            self.device.write(self.weights, at, part).unwrap();
        }
        let products: Vec<DeviceProduct<'_>> = (0..inputs.len())
            .map(|input| DeviceProduct { matrix: &placed, weights: self.weights, input })
            .collect();
        let mut found = Vec::new();
        self.exchange.multiply(&mut self.device, inputs, &products, &mut found).unwrap();
        let x = inputs.concat();
        let mut expected = vec![0.0; inputs.len() * rows];
        let scratch = &mut MatmulScratch::new();
        matmul(Tier::SCALAR, &bytes.matrix(), &x, inputs.len(), &mut expected, scratch);
        let wrong: Vec<usize> =
            (0..found.len()).filter(|&at| !same(found[at], expected[at])).collect();
        assert!(
            wrong.is_empty() && found.len() == expected.len(),
            "{encoding} {rows} x {cols}: {} of {} differ, the first at {}: {:e} for {:e}",
            wrong.len(),
            expected.len(),
            wrong[0],
            found[wrong[0]],
            expected[wrong[0]],
        );
        found.len()
    }
}

fn supported() -> impl Iterator<Item = Encoding> {
    Encoding::ALL.into_iter().filter(|encoding| Kernel::of(*encoding).is_some())
}

#[test]
fn every_encoding_has_the_bits_of_the_reference() {
    let _turn = turn();
    let Some(mut bench) = Bench::new() else { return };
    let mut compared = 0;
    for encoding in supported() {
        for (seed, shape) in
            (0..).zip([(1, 1), (5, 64), (7, 63), (33, 321), (130, 1536), (513, 100), (3, 2100)])
        {
            let (rows, cols) = shape;
            let mut numbers = SampleNumbers::new(seed);
            let parts = numbers.parts(encoding, rows, cols);
            let vectors = [0, -60, -130, 40].map(|power| numbers.activations(cols, power, 8));
            let inputs = vectors.each_ref().map(Vec::as_slice);
            compared += bench.check(encoding, shape, &parts, &inputs);
        }
    }
    eprintln!("{compared} rows of {} encodings: 0 differ", supported().count());
    assert_eq!(supported().count(), 29);
}

/// Any bytes: NaN, infinities, patches that are missing, offsets that lead anywhere.
#[test]
fn any_bytes_have_the_bits_of_the_reference() {
    let _turn = turn();
    let Some(bench) = Bench::new() else { return };
    let cases = if sws_testing::is_night() { 10_000 } else { 300 };
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases) };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let state = RefCell::new((bench, 0));
    let encodings: Vec<Encoding> = supported().collect();
    let cases = (0..encodings.len(), 1..70usize, 1..700usize, any::<u64>(), any::<bool>());
    let run = runner.run(&cases, |(encoding, rows, cols, seed, special)| {
        let encoding = encodings[encoding];
        let mut numbers = SampleNumbers::new(seed);
        let parts: Vec<Vec<u8>> = encoding
            .parts()
            .iter()
            .map(|part| match part.len(rows as u64, cols as u64).unwrap() {
                PartLen::Exact(len) => any_bytes(&mut numbers, len),
                PartLen::AtLeast(len) => {
                    let more = u64::from(numbers.below(3 * (rows * cols) as u32 / 16 + 2));
                    let mut bytes = any_bytes(&mut numbers, len + more);
                    // Offsets that are near the patches, as those far off lead to none.
                    bytes[..len as usize].chunks_mut(4).for_each(|offset| {
                        offset
                            .iter_mut()
                            .skip(1)
                            .for_each(|byte| *byte &= 3 * u8::from(seed % 2 == 0));
                    });
                    bytes
                }
            })
            .collect();
        let activation = |numbers: &mut SampleNumbers| match special {
            true => f32::from_bits(numbers.next_u32()),
            false => numbers.activations(1, 0, 8)[0],
        };
        let x: Vec<f32> = (0..cols).map(|_| activation(&mut numbers)).collect();
        let (bench, compared) = &mut *state.borrow_mut();
        *compared += bench.check(encoding, (rows, cols), &parts, &[&x]);
        Ok(())
    });
    run.unwrap();
    eprintln!("{} rows of any bytes: 0 differ", state.borrow().1);
}

fn any_bytes(numbers: &mut SampleNumbers, len: u64) -> Vec<u8> {
    (0..len).map(|_| numbers.next_u32() as u8).collect()
}

/// Products of several matrices, kernels and vectors share launches, and those that do not fit take turns.
#[test]
fn products_together_are_those_alone() {
    let _turn = turn();
    let Some(mut device) = device() else { return };
    let weights = device.allocate(4 << 20).unwrap();
    let size = ExchangeSize { inputs: 1000, outputs: 150, jobs: 5 };
    let mut exchange = Exchange::new(&mut device, size).unwrap();
    let mut numbers = SampleNumbers::new(3);
    let encodings = [Encoding::Bf16, Encoding::Q8, Encoding::Bf16, Encoding::Q4];
    let shapes = [(50, 300), (100, 300), (3, 300), (149, 300)];
    let mut at = 0;
    let mut placed = Vec::new();
    let mut expected = Vec::new();
    let vectors: Vec<Vec<f32>> = (0..5).map(|_| numbers.activations(300, 0, 9)).collect();
    for (encoding, (rows, cols)) in encodings.into_iter().zip(shapes) {
        let parts = numbers.parts(encoding, rows, cols);
        let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        let bytes = MatrixBytes::new(encoding, rows, cols, &parts).unwrap();
        let matrix = DeviceMatrix::place(&bytes, at).unwrap();
        for (at, part) in matrix.parts(&bytes) {
            device.write(weights, at, part).unwrap();
        }
        at = matrix.end();
        placed.push(matrix);
        let results = vectors.iter().map(|x| {
            let mut y = vec![0.0; rows];
            matmul(Tier::SCALAR, &bytes.matrix(), x, 1, &mut y, &mut MatmulScratch::new());
            y
        });
        expected.push(results.collect::<Vec<_>>());
    }
    let inputs: Vec<&[f32]> = vectors.iter().map(Vec::as_slice).collect();
    let pairs = (0..inputs.len()).flat_map(|input| (0..placed.len()).map(move |of| (of, input)));
    let pairs: Vec<(usize, usize)> = pairs.collect();
    let products: Vec<DeviceProduct<'_>> = pairs
        .iter()
        .map(|&(of, input)| DeviceProduct { matrix: &placed[of], weights, input })
        .collect();
    let mut found = Vec::new();
    exchange.multiply(&mut device, &inputs, &products, &mut found).unwrap();
    let expected: Vec<u32> =
        pairs.iter().flat_map(|&(of, input)| &expected[of][input]).map(|y| y.to_bits()).collect();
    assert_eq!(found.iter().map(|y| y.to_bits()).collect::<Vec<u32>>(), expected);
}
