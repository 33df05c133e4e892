//! Peers of our kernels.

use anyhow::Result;
use candle_core::quantized::{GgmlDType, QMatMul, QStorage, QTensor};
use candle_core::{DType, Device, Module, Tensor};
use rayon::prelude::*;

/// Sum of all bytes as little-endian u64.
///
/// There are enough accumulators to wait for memory only, and four streams, like four rows of a
/// matrix: hardware prefetching restarts at every page, and four streams keep more of it in flight.
/// On one thread this measured 39 GB/s, against 35 with one stream.
pub fn plain_sum(bytes: &[u8]) -> u64 {
    const BLOCK: usize = 128;
    let (blocks, tail) = bytes.as_chunks::<BLOCK>();
    let (streams, rest) = blocks.split_at(blocks.len() / 4 * 4);
    let (ab, cd) = streams.split_at(streams.len() / 2);
    let (a, b) = ab.split_at(ab.len() / 2);
    let (c, d) = cd.split_at(cd.len() / 2);
    let mut sums = [0u64; BLOCK / 8];
    let mut add = |block: &[u8; BLOCK]| {
        for (sum, word) in sums.iter_mut().zip(block.as_chunks::<8>().0) {
            *sum = sum.wrapping_add(u64::from_le_bytes(*word));
        }
    };
    for ((a, b), (c, d)) in a.iter().zip(b).zip(c.iter().zip(d)) {
        add(a);
        add(b);
        add(c);
        add(d);
    }
    rest.iter().for_each(add);
    let tail = tail.iter().fold(0u64, |sum, &byte| sum.wrapping_add(u64::from(byte)));
    sums.iter().fold(tail, |sum, &lane| sum.wrapping_add(lane))
}

/// [`plain_sum`] on every thread of the pool, each with one contiguous share.
pub fn parallel_sum(bytes: &[u8]) -> u64 {
    let share = bytes.len().div_ceil(rayon::current_num_threads()).max(1);
    bytes.par_chunks(share).map(plain_sum).reduce(|| 0, u64::wrapping_add)
}

/// `y [tokens, rows] = x [tokens, cols] · wᵀ` by the `gemm` crate in f32.
#[expect(unsafe_code, reason = "the gemm crate has no safe entry point")]
pub fn gemm_f32(w: &[f32], rows: usize, cols: usize, x: &[f32], tokens: usize, y: &mut [f32]) {
    assert!(w.len() == rows * cols && x.len() == tokens * cols && y.len() == tokens * rows);
    let threads = match rayon::current_num_threads() {
        1 => gemm::Parallelism::None,
        n => gemm::Parallelism::Rayon(n),
    };
    let row = cols as isize;
    let col = rows as isize;
    // SAFETY: the three pointers come from slices whose lengths, asserted above, are those of a
    // rows × cols, a cols × tokens and a rows × tokens matrix with the strides given here; `y` is
    // borrowed mutably, so it overlaps neither of the others.
    unsafe {
        gemm::gemm(
            rows,
            tokens,
            cols,
            y.as_mut_ptr(),
            col,
            1,
            false,
            w.as_ptr(),
            1,
            row,
            x.as_ptr(),
            row,
            1,
            0.0,
            1.0,
            false,
            false,
            false,
            threads,
        );
    }
}

/// Formats of candle under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CandleFormat {
    /// `Tensor` of f32.
    F32,
    /// `Tensor` of bf16.
    Bf16,
    /// `QTensor` of blocks of 32 bytes with a scale.
    Q80,
    /// `QTensor` of super-blocks of 256 four-bit codes.
    Q4K,
}

impl CandleFormat {
    /// Name in tables.
    pub fn name(self) -> &'static str {
        match self {
            CandleFormat::F32 => "candle f32",
            CandleFormat::Bf16 => "candle bf16",
            CandleFormat::Q80 => "candle q8_0",
            CandleFormat::Q4K => "candle q4_k",
        }
    }

    /// Bits per weight.
    pub fn bits(self) -> f64 {
        match self {
            CandleFormat::F32 => 32.0,
            CandleFormat::Bf16 => 16.0,
            CandleFormat::Q80 => 8.5,
            CandleFormat::Q4K => 4.5,
        }
    }

    fn quantised(self) -> Option<GgmlDType> {
        match self {
            CandleFormat::F32 | CandleFormat::Bf16 => None,
            CandleFormat::Q80 => Some(GgmlDType::Q8_0),
            CandleFormat::Q4K => Some(GgmlDType::Q4K),
        }
    }
}

/// Copies of one matrix, each in its own memory, as candle stores them.
pub struct CandleSet {
    matrices: Vec<CandleMatrix>,
    x: Tensor,
}

enum CandleMatrix {
    Plain(Tensor),
    Quantised(QMatMul),
}

impl CandleSet {
    /// Makes `copies` of `w [rows, cols]`, to be multiplied with `x [tokens, cols]`.
    pub fn new(
        format: CandleFormat,
        w: &[f32],
        (rows, cols): (usize, usize),
        copies: usize,
    ) -> Result<Self> {
        let w = Tensor::from_slice(w, (rows, cols), &Device::Cpu)?;
        let matrices = match format.quantised() {
            None => {
                let kept = match format {
                    CandleFormat::F32 => w,
                    _ => w.to_dtype(DType::BF16)?,
                };
                let copy = |_| Ok(CandleMatrix::Plain(kept.copy()?));
                (0..copies).map(copy).collect::<Result<_>>()?
            }
            Some(dtype) => {
                let first = QTensor::quantize(&w, dtype)?;
                let bytes = first.data()?;
                let copy = |_| {
                    let storage = QStorage::from_data(bytes.as_ref().into(), &Device::Cpu, dtype)?;
                    let tensor = QTensor::new(storage, (rows, cols))?;
                    Ok(CandleMatrix::Quantised(QMatMul::from_qtensor(tensor)?))
                };
                (0..copies).map(copy).collect::<Result<_>>()?
            }
        };
        let dtype = match format {
            CandleFormat::Bf16 => DType::BF16,
            _ => DType::F32,
        };
        Ok(CandleSet { matrices, x: Tensor::zeros((1, cols), dtype, &Device::Cpu)? })
    }

    /// Sets the activations, and uses each copy once: candle repacks quantised weights on first
    /// use.
    pub fn activations(&mut self, x: &[f32], tokens: usize) -> Result<()> {
        let cols = self.x.dims()[1];
        let x = Tensor::from_slice(x, (tokens, cols), &Device::Cpu)?;
        self.x = x.to_dtype(self.x.dtype())?;
        for copy in 0..self.matrices.len() {
            self.run(copy)?;
        }
        Ok(())
    }

    /// Multiplies the activations with one of the copies.
    pub fn run(&self, copy: usize) -> Result<Tensor> {
        Ok(match &self.matrices[copy % self.matrices.len()] {
            CandleMatrix::Plain(w) => self.x.matmul(&w.t()?)?,
            CandleMatrix::Quantised(w) => w.forward(&self.x)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::weights::{random_weights, widen};

    #[test]
    fn the_sum_sees_every_byte() {
        for len in [0, 1, 7, 127, 128, 512, 513, 640, 5000] {
            let bytes = vec![1u8; len];
            let words = (len / 128 * 16) as u64;
            let expected = words.wrapping_mul(0x0101_0101_0101_0101).wrapping_add(len as u64 % 128);
            assert_eq!(plain_sum(&bytes), expected, "{len}");
        }
        let mut bytes = vec![0u8; 4096];
        for i in (0..4096).step_by(8) {
            bytes[i] = 1;
            assert_eq!(plain_sum(&bytes), 1, "{i}");
            bytes[i] = 0;
        }
    }

    /// The peers must compute the same product as our kernels.
    #[test]
    fn peers_multiply() {
        let rows = 48;
        let cols = 512;
        let w = widen(&random_weights(rows, cols));
        for tokens in [1, 8] {
            let x = widen(&random_weights(tokens, cols));
            let expected: Vec<f64> = x
                .chunks(cols)
                .flat_map(|x| w.chunks(cols).map(move |w| (w, x)))
                .map(|(w, x)| w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum())
                .collect();
            let close = |name: &str, got: &[f32], tolerance: f64| {
                let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|v| v * v).sum::<f64>().sqrt();
                let off = norm(&mut got.iter().zip(&expected).map(|(g, e)| f64::from(*g) - e));
                let size = norm(&mut expected.iter().copied());
                assert!(off < tolerance * size, "{name}: off by {off} of {size}");
            };
            let mut y = vec![0f32; tokens * rows];
            gemm_f32(&w, rows, cols, &x, tokens, &mut y);
            close("gemm", &y, 1e-5);
            for (format, tolerance) in [
                (CandleFormat::F32, 1e-5),
                (CandleFormat::Bf16, 1e-2),
                (CandleFormat::Q80, 2e-2),
                (CandleFormat::Q4K, 2e-1),
            ] {
                let mut set = CandleSet::new(format, &w, (rows, cols), 2).unwrap();
                set.activations(&x, tokens).unwrap();
                for copy in 0..3 {
                    let y = set.run(copy).unwrap().to_dtype(DType::F32).unwrap();
                    let y = y.flatten_all().unwrap().to_vec1::<f32>().unwrap();
                    close(format.name(), &y, tolerance);
                }
            }
        }
    }
}
