//! Multiply-adds a second of one thread that attends over a prompt, by shape, numbers and tier, and
//! the share of what a loop of multiply-adds in registers reaches.
//!
//! ```text
//! cargo run --release -p sws-kernels --example attention [-- POSITIONS TOKENS]
//! ```

use std::error::Error;
use std::io::Write;
use std::time::Instant;

use sws_kernels::functional::{
    Attention, AttentionScratch, CacheLayout, CacheMut, KvCache, KvData, Page, Queries, attention,
    store, zeroed,
};
use sws_kernels::{Tier, fma};

/// Query heads, key-value heads, length of keys and of values.
const SHAPES: [[usize; 4]; 3] = [[9, 3, 64, 64], [32, 4, 128, 128], [16, 16, 128, 128]];
/// The best of so many counts, as other programs only slow it down.
const REPEATS: usize = 7;

fn main() -> Result<(), Box<dyn Error>> {
    let mut numbers = std::env::args().skip(1).map(|word| word.parse::<usize>());
    let positions = numbers.next().transpose()?.unwrap_or(1024).clamp(1, 1 << 17);
    let tokens = numbers.next().transpose()?.unwrap_or(512).clamp(1, positions);
    let mut out = std::io::stdout();
    let peak = (0..100 * REPEATS).map(|_| peak()).fold(0.0, f64::max);
    writeln!(out, "{tokens} tokens up to position {positions}; registers: {peak:.1} G/s")?;
    writeln!(out, "| heads of, elements | numbers | tier | G/s | share |")?;
    writeln!(out, "|---|---|---|---:|---:|")?;
    for [heads, kv_heads, key_dim, value_dim] in SHAPES {
        let first = positions - tokens;
        let layout = |dim| CacheLayout { capacity: positions, page: 512, heads: kv_heads, dim };
        let keys = layout(key_dim);
        let values = layout(value_dim);
        let [k, v] = [keys, values].map(|layout| {
            let rows = noise(positions * kv_heads * layout.dim);
            let len = layout.page_len().expect("a page of some numbers");
            let mut wide: Vec<Page<f32>> =
                (0..layout.pages(positions)).map(|_| zeroed(len)).collect();
            let mut narrow: Vec<Page<u16>> = wide.iter().map(|_| zeroed(len)).collect();
            store(CacheMut::F32(&mut wide), layout, 0, &rows);
            store(CacheMut::Bf16(&mut narrow), layout, 0, &rows);
            (wide, narrow)
        });
        let q = noise(tokens * heads * key_dim);
        let spec = Attention {
            heads,
            kv_heads,
            key_dim,
            value_dim,
            scale: 1.0 / (key_dim as f32).sqrt(),
            window: None,
            aligned: false,
            soft_cap: None,
            sinks: None,
        };
        let pairs = heads * (first + 1..=positions).sum::<usize>();
        let mut y = vec![0.0; tokens * heads * value_dim];
        let mut scratch = [AttentionScratch::new(value_dim, positions)];
        for (name, data) in [
            ("f32", KvData::F32 { keys: &k.0, values: &v.0 }),
            ("bf16", KvData::Bf16 { keys: &k.1, values: &v.1 }),
        ] {
            for tier in Tier::available() {
                if matches!(tier, Tier::SCALAR | Tier::PORTABLE) {
                    continue;
                }
                let cache = KvCache { data, keys, values };
                let queries = Queries { first, q: &q, selected: None, distances: None };
                let rate = (0..REPEATS)
                    .map(|_| {
                        rate(pairs * (key_dim + value_dim), || {
                            attention(tier, &spec, &cache, queries, &mut y, &mut scratch);
                        })
                    })
                    .fold(0.0, f64::max);
                writeln!(
                    out,
                    "| {heads} of {kv_heads}, {key_dim} | {name} | {tier} | {rate:.1} | {:.2} |",
                    rate / peak,
                )?;
            }
        }
    }
    Ok(())
}

/// Billions a second of `count` operations.
#[expect(clippy::disallowed_methods, reason = "the crate has no clock of its own")]
fn rate(count: usize, work: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    work();
    count as f64 / begun.elapsed().as_secs_f64() / 1e9
}

/// Billions of multiply-adds a second on sums in registers.
fn peak() -> f64 {
    const SUMS: usize = 96;
    const ROUNDS: usize = 1 << 14;
    let (x, y) = std::hint::black_box((0.999, 1e-3));
    #[inline(always)]
    fn work(x: f32, y: f32) -> [f32; SUMS] {
        let mut sums = [1.0f32; SUMS];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = fma(*sum, x, y);
            }
        }
        sums
    }
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    fn avx2(x: f32, y: f32) -> [f32; SUMS] {
        work(x, y)
    }
    rate(SUMS * ROUNDS, || {
        #[cfg(target_arch = "x86_64")]
        if sws_kernels::Avx2::detect().is_some() {
            // SAFETY: the CPU has AVX2 and FMA.
            std::hint::black_box(unsafe { avx2(x, y) });
            return;
        }
        std::hint::black_box(work(x, y));
    })
}

/// Numbers about zero.
fn noise(count: usize) -> Vec<f32> {
    let mut state = 1u64;
    let next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(count).collect()
}
