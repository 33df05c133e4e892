//! Arithmetic on encoded weights: the operations on a model's matrices once their bytes are in
//! memory. The crate knows nothing of files or models.
//!
//! # Main types
//!
//! - [`Encoding`] names how a matrix is stored. Its [`parts`](Encoding::parts) list the runs of
//!   bytes it consists of and which of them belong to which rows ([`MatrixPart`]). `docs/format.md` draws
//!   them.
//! - [`Encoder`] turns rows of a checkpoint into encoded rows, a block at a time, on any number of
//!   threads. [`TensorTally`] joins what spans the blocks. bf12, bf11 and fp7 need a first pass: a
//!   [`ExponentCounts`] gives their [`ExponentTable`] or [`ExponentTiers`]. [`Offsets`] lead to the
//!   patches of a row.
//! - [`Matrix`] is a checked view of encoded bytes, at any address, in borrowed memory. Wrong bytes
//!   give wrong numbers, never an access out of bounds.
//! - [`Tier`] is an implementation together with the proof that this CPU can run it.
//! - [`matmul`](fn@matmul) multiplies a matrix by the activations of one token or many, on the current rayon
//!   pool. [`matmul_rows`] does so on the calling thread, for callers that split the rows
//!   themselves. [`matmul_transposed`] multiplies by the transpose, in which rows are added up.
//! - [`functional`] has the other operations of a decoder.
//!
//! ```
//! use sws_kernels::{EncodedRows, Encoder, Encoding, MatmulScratch, Matrix, SourceDtype, Tier, matmul};
//!
//! // Two rows of three f32 weights become q8: codes, and a scale for every 64 columns.
//! let rows = [1.0f32, 2.0, 3.0, -1.0, 0.5, 0.0].map(f32::to_le_bytes).concat();
//! let encoder = Encoder::new(Encoding::Q8, SourceDtype::F32, 3)?;
//! let mut encoded = EncodedRows::default();
//! encoder.encode(&rows, &mut encoded)?;
//!
//! let [codes, scales] = &encoded.parts;
//! let weights = Matrix::new(Encoding::Q8, 2, 3, &[codes, scales])?;
//! let (x, mut y) = ([1.0, 1.0, 1.0], [0.0; 2]);
//! matmul(Tier::best(), &weights, &x, 1, &mut y, &mut MatmulScratch::new());
//! assert!((y[0] - 6.0).abs() < 0.05 && (y[1] + 0.5).abs() < 0.05);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Bit-identical results
//!
//! Every tier, any number of threads, any split of the rows, and a token alone or in a batch give
//! the same bits (all NaNs count as equal). The order of every sum is fixed: 32 partial sums are
//! chains of fused multiply-adds over ascending columns, folded by a fixed tree. Plain numbers and most
//! encodings decode to one f32 before it is multiplied, so bf11, bf12, nested, bf16 and the same values
//! in f32 agree too. Weights that are small whole numbers under shared scales are summed before they are
//! scaled: `docs/design/sums.md` has both definitions. This rests on the default floating-point
//! environment: a caller that sets flush-to-zero or another rounding mode breaks it.
//!
//! # Threads
//!
//! Products are split into some parts for each thread, joined by `rayon::join`. An idle rayon thread looks
//! for work a few dozen times, yielding in between, and then sleeps on a futex. A pool without work
//! therefore takes no time from threads that read.

/// Version of the definition of products: the bits of the sums of encoded weights. Whatever is kept or
/// published about the bits of outputs names it, or that of its own model's matrices, which
/// [`Encoding::arithmetic`] has. What names none is of version 1.
///
/// 1. Every weight is decoded to f32 before it is multiplied.
/// 2. Weights of formats with codes and shared scales are summed as codes first, and then scaled.
pub const ARITHMETIC: u32 = 2;

mod buffer;
mod encodings;
pub mod functional;
mod isa;
mod matmul;
mod scalar;
mod simd;

pub use encodings::{
    EncodeError, EncodedRows, Encoder, Encoding, ErrorSums, ExponentCounts, ExponentTable,
    ExponentTiers, Fp8Scales, GgufBlocks, Int4Groups, Matrix, MatrixError, MatrixPart, Nvfp4Scale,
    OffsetWriter, Offsets, PartLen, PartRows, SourceDtype, TensorTally, UnknownEncoding,
    ZerosGroup,
};
#[cfg(target_arch = "aarch64")]
pub use isa::Neon;
pub use isa::{Activations, TIER_VARIABLE, Tier, UnknownActivations, UnknownTier};
#[cfg(target_arch = "x86_64")]
pub use isa::{Avx2, Avx512};
pub use matmul::{
    MatmulJob, MatmulScratch, OutputColumns, PackedInput, Packings, ScratchPool, Strided,
    ThreadScratch, matmul, matmul_jobs, matmul_rows, matmul_transposed, threads_for,
};
pub use scalar::fma;
