//! Buffers through which activations reach a device and results come back.

use crate::device::{ComputeDevice, DeviceBuffer, DeviceError, KernelLaunch};
use crate::job::{DeviceJob, JOB_BYTES, RUN, sums_len};
use crate::kernel::Kernel;
use crate::matrix::DeviceMatrix;

/// Sizes of the buffers of an [`Exchange`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangeSize {
    /// Numbers of activations and their sums.
    pub inputs: u32,
    /// Numbers of results.
    pub outputs: u32,
    /// Products.
    pub jobs: u32,
}

impl ExchangeSize {
    /// Products that a launch has at most.
    const MOST_JOBS: u32 = 4096;

    /// Sizes for up to so many products together, of matrices of up to so many rows and columns.
    pub fn of(products: u32, rows: usize, cols: usize) -> ExchangeSize {
        let jobs = products.clamp(1, ExchangeSize::MOST_JOBS);
        ExchangeSize { inputs: times(jobs, input_len(cols)), outputs: times(jobs, rows), jobs }
    }

    /// Bytes on the device, and as many on the host.
    pub fn bytes(&self) -> u64 {
        let numbers = u64::from(self.inputs) + u64::from(self.outputs);
        4 * numbers + u64::from(self.jobs) * JOB_BYTES as u64
    }
}

/// One matrix times one vector.
#[derive(Clone, Copy, Debug)]
pub struct DeviceProduct<'a> {
    /// The matrix.
    pub matrix: &'a DeviceMatrix,
    /// The buffer that it lies in.
    pub weights: DeviceBuffer,
    /// The number of the vector.
    pub input: usize,
}

/// Multiplies matrices on a device by vectors from the host.
#[derive(Debug)]
pub struct Exchange {
    size: ExchangeSize,
    inputs: DeviceBuffer,
    outputs: DeviceBuffer,
    words: DeviceBuffer,
    /// Bytes on their way.
    staged: Vec<u8>,
    jobs: Vec<DeviceJob>,
    /// Places of the inputs of this launch.
    placed: Vec<Option<u32>>,
    /// Products of this launch, by buffer and kernel.
    order: Vec<(DeviceBuffer, Kernel, u32, usize)>,
}

impl Exchange {
    /// Allocates the buffers.
    pub fn new(
        device: &mut dyn ComputeDevice,
        size: ExchangeSize,
    ) -> Result<Exchange, DeviceError> {
        let mut made = Vec::new();
        let jobs = u64::from(size.jobs) * JOB_BYTES as u64;
        for bytes in [4 * u64::from(size.inputs), 4 * u64::from(size.outputs), jobs] {
            match device.allocate(bytes) {
                Ok(buffer) => made.push(buffer),
                Err(error) => {
                    for buffer in made {
                        device.free(buffer);
                    }
                    return Err(error);
                }
            }
        }
        let [inputs, outputs, words] = made[..] else { unreachable!("three buffers") };
        Ok(Exchange {
            size,
            inputs,
            outputs,
            words,
            staged: Vec::new(),
            jobs: Vec::new(),
            placed: Vec::new(),
            order: Vec::new(),
        })
    }

    /// Frees the buffers.
    pub fn free(self, device: &mut dyn ComputeDevice) {
        for buffer in self.buffers() {
            device.free(buffer);
        }
    }

    /// The buffers of inputs, outputs and the words of jobs.
    pub(crate) fn buffers(&self) -> [DeviceBuffer; 3] {
        [self.inputs, self.outputs, self.words]
    }

    /// True if a product with the matrix fits in the buffers.
    pub fn fits(&self, matrix: &DeviceMatrix) -> bool {
        input_len(matrix.cols()) <= self.size.inputs as usize
            && matrix.rows() <= self.size.outputs as usize
    }

    /// Appends the rows of all products to `y`, in their order.
    ///
    /// # Panics
    ///
    /// If a vector has another length than the rows of its matrix, or a product [does not fit](Self::fits).
    pub fn multiply(
        &mut self,
        device: &mut dyn ComputeDevice,
        inputs: &[&[f32]],
        products: &[DeviceProduct<'_>],
        y: &mut Vec<f32>,
    ) -> Result<(), DeviceError> {
        let mut rest = products;
        while !rest.is_empty() {
            let (count, results) = self.stage(inputs, rest);
            let (now, later) = rest.split_at(count);
            device.write(self.inputs, 0, &self.staged)?;
            self.launch(device, now)?;
            self.staged.resize(4 * results, 0);
            device.read(self.outputs, 0, &mut self.staged)?;
            y.extend(self.staged.as_chunks().0.iter().copied().map(f32::from_le_bytes));
            rest = later;
        }
        Ok(())
    }

    /// Puts the vectors of the first products into `staged`, and their places into `placed`; returns the number of
    /// products that fit, and of their results.
    fn stage(&mut self, inputs: &[&[f32]], products: &[DeviceProduct<'_>]) -> (usize, usize) {
        self.staged.clear();
        self.order.clear();
        self.placed.clear();
        self.placed.resize(inputs.len(), None);
        let mut results = 0;
        for (number, product) in products.iter().enumerate() {
            let DeviceProduct { matrix, weights, input } = *product;
            let x = inputs[input];
            assert_eq!(x.len(), matrix.cols(), "columns of the weights and of the activations");
            let at = self.staged.len() / 4;
            let more = if self.placed[input].is_some() { 0 } else { input_len(x.len()) };
            let fits = number < self.size.jobs as usize
                && at + more <= self.size.inputs as usize
                && results + matrix.rows() <= self.size.outputs as usize;
            if !fits {
                assert!(number > 0, "a product that fits in the buffers");
                return (number, results);
            }
            if self.placed[input].is_none() {
                self.placed[input] = Some(at as u32);
                append_input(x, &mut self.staged);
            }
            self.order.push((weights, matrix.kernel(), results as u32, number));
            results += matrix.rows();
        }
        (products.len(), results)
    }

    /// Runs the staged products: a launch for each kernel and buffer of weights.
    fn launch(
        &mut self,
        device: &mut dyn ComputeDevice,
        products: &[DeviceProduct<'_>],
    ) -> Result<(), DeviceError> {
        self.order.sort_unstable();
        for group in self.order.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
            self.jobs.clear();
            self.jobs.extend(group.iter().map(|&(_, _, output, number)| {
                let DeviceProduct { matrix, input, .. } = products[number];
                let input = self.placed[input].expect("an input that is staged");
                matrix.job(input, input + matrix.cols() as u32, output)
            }));
            let &Exchange { inputs, outputs, words, .. } = &*self;
            let weights = group[0].0;
            device.launch(&KernelLaunch { jobs: &self.jobs, weights, inputs, outputs, words })?;
        }
        Ok(())
    }
}

/// Numbers of so many jobs with `n` each.
fn times(jobs: u32, n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX / 4).saturating_mul(jobs)
}

/// Numbers of a vector and the sums of its runs.
fn input_len(cols: usize) -> usize {
    cols + sums_len(cols)
}

/// Appends a vector and the sums of its runs, by the tree of `sum_of_16` in `crates/kernels/src/scalar/sums.rs`.
fn append_input(x: &[f32], to: &mut Vec<u8>) {
    to.extend(x.iter().copied().flat_map(f32::to_le_bytes));
    for run in 0..sums_len(x.len()) {
        let mut sums = [0.0; RUN];
        for (sum, x) in sums.iter_mut().zip(x.iter().skip(RUN * run)) {
            *sum = counted(*x);
        }
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                sums[i] += sums[i + half];
            }
        }
        to.extend(sums[0].to_le_bytes());
    }
}

/// An activation, or zero for one below 2⁻¹⁰⁰.
fn counted(x: f32) -> f32 {
    const SMALLEST: f32 = f32::from_bits((127 - 100) << 23);
    if x.abs() < SMALLEST { 0.0 } else { x }
}
