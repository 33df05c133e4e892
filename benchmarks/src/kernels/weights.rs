//! A set of encoded matrices far larger than any cache.

use anyhow::{Context, Result};
use half::{bf16, f16};
use sws_kernels::{
    EncodedRows, Encoder, Encoding, ExponentCounts, Fp8Scales, Matrix, MatrixPart, PartLen,
    SourceDtype, TensorTally,
};
use sws_store::Slot;

use crate::gaussian::{Gaussian, stream};

/// Alignment of parts, as in a shard. Matrices are aligned to whole pages.
const ALIGN: usize = 64;
const PAGE: usize = 4096;

/// Maximum number of copies of a small matrix.
pub const MAX_COPIES: usize = 4096;

/// One random matrix in the parts of its encoding.
pub struct Encoded {
    /// Encoding of the parts.
    pub encoding: Encoding,
    /// Rows and columns.
    pub shape: (usize, usize),
    /// Bytes of the parts, in the order of [`Encoding::parts`].
    pub parts: Vec<Vec<u8>>,
}

/// The bf16 weights that all encodings are made from.
pub fn random_weights(rows: usize, cols: usize) -> Vec<u8> {
    let mut bytes = vec![0u8; rows * cols * 2];
    let gaussian = Gaussian::new(0.0, 1.0 / (cols as f32).sqrt());
    gaussian.fill(stream(0, "kernels"), 0, &mut bytes);
    bytes
}

/// Converts bf16 weights to f32.
pub fn widen(weights: &[u8]) -> Vec<f32> {
    weights.as_chunks::<2>().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect()
}

impl Encoded {
    /// Encodes bf16 weights. Formats that are only read get any codes.
    pub fn new(encoding: Encoding, (rows, cols): (usize, usize), weights: &[u8]) -> Result<Self> {
        let halves: Vec<u8>;
        if let Encoding::Gguf(format) = encoding
            && !encoding.is_made()
        {
            let blocks = rows * cols.div_ceil(format.cols());
            let mut bytes: Vec<u8> =
                weights.iter().copied().cycle().take(blocks * format.bytes()).collect();
            for block in bytes.chunks_mut(format.bytes()) {
                format
                    .scales()
                    .iter()
                    .for_each(|&at| block[at..at + 2].copy_from_slice(&[0, 0x20]));
            }
            return Ok(Encoded { encoding, shape: (rows, cols), parts: vec![bytes] });
        }
        if encoding == Encoding::Top {
            let mut whole = Encoded::new(Encoding::Nested, (rows, cols), weights)?;
            return Ok(Encoded { encoding, parts: vec![whole.parts.swap_remove(1)], ..whole });
        }
        if !encoding.is_made() && encoding.packs().is_none() {
            // e4m3 of these weights: few are subnormal, with which products take three times as long.
            let e4m3 = Encoded::new(Encoding::Fp8(Fp8Scales::Squares), (rows, cols), weights)?
                .parts
                .swap_remove(0);
            let part =
                |(index, part): (usize, &MatrixPart)| match part.len(rows as u64, cols as u64) {
                    Some(PartLen::Exact(len)) if index == 0 && len == e4m3.len() as u64 => {
                        Ok(e4m3.clone())
                    }
                    // Other codes, or scales that are small numbers in each of their types.
                    Some(PartLen::Exact(len)) if index == 0 => {
                        Ok(weights.iter().map(|b| b & 0x77).cycle().take(len as usize).collect())
                    }
                    Some(PartLen::Exact(len)) => Ok(vec![0x30; len as usize]),
                    _ => anyhow::bail!("{encoding} has parts of unknown length"),
                };
            let parts = encoding.parts().iter().enumerate().map(part).collect::<Result<_>>()?;
            return Ok(Encoded { encoding, shape: (rows, cols), parts });
        }
        let codes;
        let mut scales = Vec::new();
        let (encoder, weights) = match encoding {
            Encoding::Fp7(kind) => {
                let plain = Encoded::new(Encoding::Fp8(kind), (rows, cols), weights)?.parts;
                let plain: [Vec<u8>; 2] = plain.try_into().expect("codes and scales");
                [codes, scales] = plain;
                let mut histogram = ExponentCounts::default();
                histogram.add_e4m3(&codes);
                (Encoder::counted(encoding, cols, &histogram)?, &codes[..])
            }
            Encoding::F16 => {
                let narrow = |w| f16::from_f32(w).to_le_bytes();
                halves = widen(weights).into_iter().flat_map(narrow).collect();
                (Encoder::new(encoding, SourceDtype::F16, cols)?, &halves[..])
            }
            _ if encoding.has_patches() => {
                let mut histogram = ExponentCounts::default();
                histogram.add(weights);
                (Encoder::counted(encoding, cols, &histogram)?, weights)
            }
            _ => (Encoder::new(encoding, SourceDtype::Bf16, cols)?, weights),
        };
        let mut block = EncodedRows::default();
        encoder.encode(weights, &mut block)?;
        let mut tally = TensorTally::new(&encoder);
        tally.push(&block)?;
        let [first, second] = block.parts;
        let parts = match encoder.table() {
            Some(table) if !scales.is_empty() => {
                vec![first, table.to_vec(), tally.patches(), scales]
            }
            Some(table) => vec![first, table.to_vec(), tally.patches()],
            None if encoding.has_patches() => vec![first, second, tally.patches()],
            None if encoding.parts().len() == 1 => vec![first],
            None => vec![first, second],
        };
        Ok(Encoded { encoding, shape: (rows, cols), parts })
    }

    /// The matrix over these parts.
    pub fn matrix(&self) -> Result<Matrix<'_>> {
        let parts: Vec<&[u8]> = self.parts.iter().map(Vec::as_slice).collect();
        Ok(Matrix::new(self.encoding, self.shape.0, self.shape.1, &parts)?)
    }
}

/// Copies of one encoded matrix, each in its own memory: the cost of arithmetic does not depend on
/// the numbers, the cost of memory depends on the addresses.
pub struct WorkingSet {
    encoding: Encoding,
    shape: (usize, usize),
    /// In huge pages, as in an engine.
    memory: Slot,
    stride: usize,
    parts: Vec<std::ops::Range<usize>>,
    copies: usize,
}

impl WorkingSet {
    /// Makes as many copies of `encoded` as fill `bytes`, at least one and at most [`MAX_COPIES`].
    pub fn new(encoded: &Encoded, bytes: usize) -> Result<Self> {
        let mut end = 0;
        let mut parts = Vec::new();
        for part in &encoded.parts {
            let start = usize::next_multiple_of(end, ALIGN);
            end = start + part.len();
            parts.push(start..end);
        }
        let stride = end.next_multiple_of(PAGE);
        let copies = (bytes / stride).clamp(1, MAX_COPIES);
        let mut memory = Slot::alone(copies * stride)?;
        for copy in 0..copies {
            for (range, part) in parts.iter().zip(&encoded.parts) {
                let at = copy * stride + range.start;
                memory[at..at + part.len()].copy_from_slice(part);
            }
        }
        let encoding = encoded.encoding;
        let shape = encoded.shape;
        Ok(WorkingSet { encoding, shape, memory, stride, parts, copies })
    }

    /// Number of matrices.
    pub fn copies(&self) -> usize {
        self.copies
    }

    /// The bytes of one matrix, from its first part to the end of its last.
    pub fn bytes(&self, copy: usize) -> &[u8] {
        let end = self.parts.last().map_or(0, |part| part.end);
        &self.memory[copy * self.stride..][..end]
    }

    /// All matrices.
    pub fn matrices(&self) -> Result<Vec<Matrix<'_>>> {
        let (rows, cols) = self.shape;
        (0..self.copies)
            .map(|copy| {
                let bytes = self.bytes(copy);
                let parts: Vec<_> = self.parts.iter().map(|part| &bytes[part.clone()]).collect();
                Matrix::new(self.encoding, rows, cols, &parts).context("encoded just now")
            })
            .collect()
    }
}
