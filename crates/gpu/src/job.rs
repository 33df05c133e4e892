//! A product of one matrix and one vector, in the words that kernels read (`src/kernels/numbers.c`).

use crate::kernel::Kernel;

/// Words of a job.
const JOB_WORDS: usize = 24;

/// Their bytes.
pub(crate) const JOB_BYTES: usize = 4 * JOB_WORDS;

/// One matrix times one vector. Offsets of weights are in bytes, all others in numbers.
#[derive(Clone, Copy, Debug)]
pub struct DeviceJob {
    pub(crate) kernel: Kernel,
    /// The offset behind all its weights.
    pub(crate) weights_end: u64,
    /// The first part, and the bytes of a row in it.
    pub(crate) codes: u64,
    pub(crate) codes_step: u32,
    /// The part with scales or a table, the bytes that rows have in it, the rows that share them as a
    /// power of two, the columns that share one likewise, and the kind of numbers.
    pub(crate) scales: u64,
    pub(crate) scales_step: u32,
    pub(crate) row_shift: u32,
    pub(crate) col_shift: u32,
    pub(crate) scale_kind: u32,
    /// Patches, or the groups of columns; their bytes, those of the offsets before the patches, and 1 if
    /// rows share offsets.
    pub(crate) beside: u64,
    pub(crate) beside_len: u32,
    pub(crate) offsets_len: u32,
    pub(crate) shared_offsets: u32,
    pub(crate) rows: u32,
    pub(crate) cols: u32,
    pub(crate) input: u32,
    pub(crate) sums: u32,
    pub(crate) output: u32,
    /// The bias, as f32.
    pub(crate) bias: Option<u64>,
}

impl DeviceJob {
    /// A job without any matrix.
    pub(crate) const fn new(kernel: Kernel, rows: u32, cols: u32) -> DeviceJob {
        DeviceJob {
            kernel,
            weights_end: 0,
            codes: 0,
            codes_step: 0,
            scales: 0,
            scales_step: 0,
            row_shift: 0,
            col_shift: 0,
            scale_kind: 0,
            beside: 0,
            beside_len: 0,
            offsets_len: 0,
            shared_offsets: 0,
            rows,
            cols,
            input: 0,
            sums: 0,
            output: 0,
            bias: None,
        }
    }

    /// The kernel that it is for.
    pub fn kernel(&self) -> Kernel {
        self.kernel
    }

    /// True if all that its kernel accesses is within buffers of so many bytes.
    pub(crate) fn is_within(&self, weights: usize, inputs: usize, outputs: usize) -> bool {
        let (read, more, written) = match self.kernel {
            Kernel::Check => (3 * u64::from(self.cols), 0, 3 * u64::from(self.cols)),
            _ => (u64::from(self.cols), sums_len(self.cols as usize) as u64, self.rows.into()),
        };
        self.weights_end <= weights as u64
            && are_within(self.input, read, inputs)
            && are_within(self.sums, more, inputs)
            && are_within(self.output, written, outputs)
    }

    /// Appends the words as bytes.
    pub(crate) fn write(&self, to: &mut Vec<u8>) {
        let bias = self.bias.unwrap_or(0);
        let words: [u32; JOB_WORDS] = [
            low(self.codes),
            high(self.codes),
            self.codes_step,
            low(self.scales),
            high(self.scales),
            self.scales_step,
            self.row_shift,
            self.col_shift,
            self.scale_kind,
            low(self.beside),
            high(self.beside),
            self.beside_len,
            self.offsets_len,
            self.shared_offsets,
            self.rows,
            self.cols,
            self.input,
            self.sums,
            self.output,
            u32::from(self.bias.is_some()),
            low(bias),
            high(bias),
            0,
            0,
        ];
        to.extend(words.into_iter().flat_map(u32::to_le_bytes));
    }
}

/// True if so many numbers from the first one on are within a buffer of so many bytes.
fn are_within(first: u32, len: u64, bytes: usize) -> bool {
    match (u64::from(first) + len).checked_mul(4) {
        Some(end) => end <= bytes as u64,
        None => false,
    }
}

const fn low(wide: u64) -> u32 {
    wide as u32
}

const fn high(wide: u64) -> u32 {
    (wide >> 32) as u32
}

/// Columns of a span of codes, whose last one in a row is filled with zeros.
const SPAN: usize = 256;

/// Columns whose activations have a sum.
pub(crate) const RUN: usize = 16;

/// Numbers of the sums of runs.
pub(crate) fn sums_len(cols: usize) -> usize {
    cols.div_ceil(SPAN) * (SPAN / RUN)
}
