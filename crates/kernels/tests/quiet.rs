//! In the steady state nothing is allocated.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use sws_kernels::{EncodedRows, Encoder, Encoding, Matrix, Scratch, Source, Tier, matmul};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: hands every call on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller vouches.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: as the caller vouches.
        unsafe { System.dealloc(p, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn a_product_allocates_nothing_once_its_scratch_has_grown() {
    let (rows, cols) = (300, 1000);
    let source: Vec<u8> = (0..rows * cols).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let encoder = Encoder::new(Encoding::F32, Source::F32, cols).unwrap();
    let mut encoded = EncodedRows::default();
    encoder.encode(&source, &mut encoded).unwrap();
    let matrix = Matrix::new(Encoding::F32, rows, cols, &[&encoded.parts[0]]).unwrap();
    let x = vec![0.5; 5 * cols];
    let mut y = vec![0.0; 5 * rows];
    let mut scratch = Scratch::new();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    pool.install(|| {
        for tier in Tier::available() {
            if matches!(tier, Tier::Scalar) {
                continue;
            }
            let mut product = || {
                matmul(tier, &matrix, &x, 5, &mut y, &mut scratch);
                matmul(tier, &matrix, &x[..cols], 1, &mut y[..rows], &mut scratch);
            };
            product();
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            (0..20).for_each(|_| product());
            assert_eq!(ALLOCATIONS.load(Ordering::Relaxed), before, "{tier}");
        }
    });
}
