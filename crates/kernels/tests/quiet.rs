//! The steady state does not allocate.

#[path = "kernels/common.rs"]
mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use common::Encoded;
use sws_kernels::functional::{
    Activation, Attention, AttentionScratch, CacheLayout, KvCache, KvData, NormWeight, Page,
    Queries, attention, gate, rms_norm, softmax, top_k,
};
use sws_kernels::{Encoding, MatmulScratch, Tier, matmul};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: forwards every call to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller fulfils the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: the caller fulfils the contract of `GlobalAlloc`.
        unsafe { System.dealloc(p, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Runs `f` once to warm up, then counts the allocations of further runs.
#[track_caller]
fn quiet(what: impl std::fmt::Display, mut f: impl FnMut()) {
    f();
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    (0..20).for_each(|_| f());
    assert_eq!(ALLOCATIONS.load(Ordering::Relaxed), before, "{what}");
}

/// A single test, so that nothing else in this process allocates meanwhile.
#[test]
fn nothing_is_allocated_once_the_scratch_has_grown() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    // Threads allocate as they begin.
    pool.broadcast(|_| ());
    let tiers = Tier::available();
    for tier in tiers.into_iter().filter(|tier| *tier != Tier::SCALAR) {
        pool.install(|| {
            Encoding::ALL.into_iter().for_each(|encoding| products(tier, encoding));
            attention_of_some(tier);
            rows(tier);
        });
    }
}

fn products(tier: Tier, encoding: Encoding) {
    let (rows, cols) = (300, 1000);
    let encoded = Encoded::sample(encoding, rows, cols);
    let matrix = encoded.matrix();
    let x = vec![0.5; 5 * cols];
    let mut y = vec![0.0; 5 * rows];
    let mut scratch = MatmulScratch::new();
    quiet(format!("{tier} {encoding}"), || {
        matmul(tier, &matrix, &x, 5, &mut y, &mut scratch);
        matmul(tier, &matrix, &x[..cols], 1, &mut y[..rows], &mut scratch);
    });
}

fn attention_of_some(tier: Tier) {
    let (heads, kv_heads, dim, positions) = (8, 2, 64, 100);
    let layout = CacheLayout { capacity: positions, page: 64, heads: kv_heads, dim };
    let pages = vec![Page::from(vec![0.5; kv_heads * 64 * dim]); 2];
    let data = KvData::F32 { keys: &pages, values: &pages };
    let cache = KvCache { data, keys: layout, values: layout };
    let spec = Attention {
        heads,
        kv_heads,
        key_dim: dim,
        value_dim: dim,
        scale: 0.1,
        window: None,
        aligned: false,
        soft_cap: Some(30.0),
        sinks: None,
    };
    let q = vec![0.25; 10 * heads * dim];
    let mut y = vec![0.0; q.len()];
    let mut scratch =
        [AttentionScratch::new(dim, positions), AttentionScratch::new(dim, positions)];
    let queries = Queries { first: 90, q: &q, selected: None, distances: None };
    quiet(tier, || attention(tier, &spec, &cache, queries, &mut y, &mut scratch));
}

fn rows(tier: Tier) {
    let mut x = vec![0.5; 1000];
    let (up, mut best) = (vec![0.25; 1000], [0; 8]);
    quiet(tier, || {
        rms_norm(tier, &mut x, 100, NormWeight::OnePlus(&up[..100]), 1e-6);
        gate(tier, Activation::Silu, &mut x, &up);
        softmax(tier, &mut x, 50);
        top_k(&x, &mut best);
    });
}
