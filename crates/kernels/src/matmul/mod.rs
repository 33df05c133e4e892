//! `y = weights · x` on encoded weights.

mod coded;
mod decoded;
mod input;
mod int8;
mod many;
mod one;
mod output;
mod reference;
mod split;
mod transposed;

use std::sync::{Mutex, PoisonError};

use crate::buffer::Buffer;
use crate::encodings::{EncodingSimd, for_decoder};
use crate::isa::Isa;
use crate::simd::{Portable, Simd};
use crate::{Activations, Matrix, Tier};

pub use input::{PackedInput, Packings};
pub use output::OutputColumns;
pub use transposed::{Strided, matmul_transposed};

/// Working memory of [`matmul`]. It grows to the needs of the largest call and is kept.
#[derive(Debug, Default)]
pub struct MatmulScratch {
    input: PackedInput,
    threads: ScratchPool,
}

/// Working memory of threads that compute together.
#[derive(Debug, Default)]
pub struct ScratchPool {
    threads: Vec<Mutex<ThreadScratch>>,
    divisions: u64,
}

/// Working memory of one thread.
#[derive(Debug, Default)]
pub struct ThreadScratch {
    panel: Buffer,
    sums: Buffer,
}

impl MatmulScratch {
    /// An empty scratch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.input.bytes() + self.threads.bytes()
    }
}

impl ScratchPool {
    /// How often products were divided among threads: each time they begin together and wait for one another.
    pub fn divisions(&self) -> u64 {
        self.divisions
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        let of = |scratch: &Mutex<ThreadScratch>| {
            scratch.lock().unwrap_or_else(PoisonError::into_inner).bytes()
        };
        self.threads.iter().map(of).sum()
    }

    /// The scratches of so many threads.
    fn of(&mut self, threads: usize) -> &[Mutex<ThreadScratch>] {
        if self.threads.len() < threads {
            self.threads.resize_with(threads, Mutex::default);
        }
        &self.threads[..threads]
    }

    /// Grows all to the largest, so that another call of this size allocates nothing, whichever threads
    /// compute it.
    fn level(&mut self) {
        fn of(one: &mut Mutex<ThreadScratch>) -> &mut ThreadScratch {
            one.get_mut().unwrap_or_else(PoisonError::into_inner)
        }
        let [mut panel, mut sums] = [0; 2];
        for one in self.threads.iter_mut().map(of) {
            panel = panel.max(one.panel.room());
            sums = sums.max(one.sums.room());
        }
        for one in self.threads.iter_mut().map(of) {
            one.panel.grown(panel);
            one.sums.grown(sums);
        }
    }
}

impl ThreadScratch {
    /// An empty scratch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.panel.bytes() + self.sums.bytes()
    }

    /// Bytes held after products with up to `tokens` tokens, and weights that need these packings.
    pub fn bytes_for(tier: Tier, packings: Packings, tokens: usize) -> usize {
        fn of<S: Simd>(_: S, packings: Packings, int8: [usize; 2]) -> usize {
            let [panel, sums] = many::scratch_lengths::<S>();
            let coded = if packings.have_codes() { coded::SUMS } else { 0 };
            let sums = sums.max(coded).max(int8[1]);
            Buffer::bytes_for(panel.max(int8[0])) + Buffer::bytes_for(sums)
        }
        let int8 = match tier.activations() {
            Activations::F32 => [0; 2],
            Activations::Int8 => int8::scratch_lengths(tier.isa()),
        };
        match tier.isa() {
            _ if tokens < 2 => 0,
            Isa::Scalar => 0,
            Isa::Portable => of(Portable, packings, int8),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2(token) => of(token, packings, int8),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512(token) => of(token, packings, int8),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon(token) => of(token, packings, int8),
        }
    }
}

/// `y[t][r] = weights[r] · x[t]`, with `x` as `[tokens, cols]` and `y` as `[tokens, rows]`.
///
/// Runs on the current rayon pool, with the rows split into some parts for each thread. The result
/// is the same, bit for bit, in every [`Tier`], for any number of threads, and for a token alone or
/// in a batch. Nothing is allocated once `scratch` has grown.
///
/// # Panics
///
/// If `x` or `y` does not have the length that the shapes require.
pub fn matmul(
    tier: Tier,
    weights: &Matrix,
    x: &[f32],
    tokens: usize,
    y: &mut [f32],
    scratch: &mut MatmulScratch,
) {
    scratch.input.pack(tier, x, tokens, weights.cols());
    let rows = weights.row_count();
    let work = rows.saturating_mul(weights.cols()).saturating_mul(tokens);
    let threads = threads_for(work).min(rows);
    let job =
        MatmulJob { matrix: *weights, x: &scratch.input, y: OutputColumns::new(y, tokens, rows) };
    matmul_jobs(tier, threads, &[Some(job)], &mut scratch.threads);
}

/// The threads among which this many multiplications are divided: below some number, waking a second
/// thread costs more than it saves.
pub fn threads_for(multiplications: usize) -> usize {
    if multiplications < 1 << 18 { 1 } else { rayon::current_num_threads() }
}

/// One of several products that are divided among threads together.
#[derive(Debug)]
pub struct MatmulJob<'a> {
    /// The weights.
    pub matrix: Matrix<'a>,
    /// The activations.
    pub x: &'a PackedInput,
    /// The results.
    pub y: OutputColumns<'a>,
}

/// [`matmul`] of several matrices on packed activations, divided among so many threads together.
///
/// # Panics
///
/// If activations were packed for another tier or number of columns, or results have another shape.
pub fn matmul_jobs(
    tier: Tier,
    threads: usize,
    jobs: &[Option<MatmulJob<'_>>],
    scratch: &mut ScratchPool,
) {
    scratch.divisions += 1;
    split::run(tier, jobs, scratch.of(threads.max(1)));
    scratch.level();
}

/// [`matmul_jobs`] for one matrix on the calling thread alone, for callers that split the work themselves with
/// [`Matrix::rows`] and [`OutputColumns::split_at`].
///
/// # Panics
///
/// As for [`matmul_jobs`].
pub fn matmul_rows(
    tier: Tier,
    weights: &Matrix,
    x: &PackedInput,
    mut y: OutputColumns,
    scratch: &mut ThreadScratch,
) {
    assert_eq!(weights.cols(), x.cols(), "columns of the weights and of the activations");
    assert_eq!((x.tokens(), weights.row_count()), (y.tokens(), y.rows()), "shape of the results");
    let packed = if x.tokens() == 1 { input::InputShape::default() } else { shape(tier) };
    assert_eq!(x.shape(), packed, "activations packed for another tier");
    if weights.row_count() == 0 || x.tokens() == 0 {
        return;
    }
    if weights.cols() == 0 {
        for t in 0..x.tokens() {
            (0..weights.row_count()).for_each(|r| y.set(t, r, 0.0));
        }
        return;
    }
    let rounded = tier.activations() == Activations::Int8;
    assert_eq!(x.is_rounded(), rounded, "activations packed for another kind of these");
    let int8 = rounded && weights.encoding().form().is_some();
    match tier.isa() {
        Isa::Scalar => {
            let activations = tier.activations();
            reference::matmul(activations, weights, x.packed(), x.padded_cols(), |t, r, sum| {
                y.set(t, r, sum);
            });
        }
        isa if int8 => int8::multiply(isa, weights, x, &mut y, scratch),
        Isa::Portable => by_encoding(Portable, weights, x, &mut y, scratch),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2(token) => by_encoding(token, weights, x, &mut y, scratch),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512(token) => by_encoding(token, weights, x, &mut y, scratch),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon(token) => by_encoding(token, weights, x, &mut y, scratch),
    }
}

fn by_encoding<S: EncodingSimd>(
    s: S,
    m: &Matrix,
    x: &PackedInput,
    y: &mut OutputColumns,
    scratch: &mut ThreadScratch,
) {
    if let Some(coding) = m.encoding().coding() {
        let packed = x.coded(coding.fours);
        return match x.tokens() {
            1 => coded::one(s, m, packed, y),
            _ => coded::many(s, m, packed, y, &mut scratch.sums),
        };
    }
    if x.tokens() > 1 {
        return s.compiled(many::ManyTokens { m, x, y, scratch });
    }
    let one = one::OneToken { m, x: x.packed(), y };
    if S::IN_REGISTERS {
        for_decoder(s, m.encoding(), one);
    } else {
        s.compiled(one::OneDecoded(one));
    }
}

/// The layout that a tier requires of the activations of several tokens.
fn shape(tier: Tier) -> input::InputShape {
    fn of<S: Simd>(_: S) -> input::InputShape {
        input::InputShape { tile_tokens: S::TILE_TOKENS, lanes: S::TILE_LANES }
    }
    match tier.isa() {
        Isa::Scalar => input::InputShape::default(),
        Isa::Portable => of(Portable),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2(token) => of(token),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512(token) => of(token),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon(token) => of(token),
    }
}
