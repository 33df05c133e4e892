//! Attention of one token over long caches, next to a plain sum over as many bytes.

use anyhow::{Result, ensure};
use sws_kernels::Tier;
use sws_kernels::functional::{
    Attention, AttentionScratch, CacheLayout, CacheMut, KvCache, KvData, Page, Queries, Zero,
    attention, q8, store, zeroed,
};

use super::measure::{Contender, alternate};
use super::peers::parallel_sum;
use super::weights::{random_weights, widen};
use crate::size::parse_size;

/// Odd, so that a median is one of the rounds.
const ROUNDS: usize = 9;
/// Positions of a page in long contexts.
const PAGE: usize = 512;

/// Name, query heads, key-value heads, length of a key and of a value. With latents a value is the
/// beginning of its key.
const SHAPES: [(&str, [usize; 4]); 5] = [
    ("OLMoE", [16, 16, 128, 128]),
    ("Mixtral 8x7B", [32, 8, 128, 128]),
    ("gpt-oss", [64, 8, 64, 64]),
    ("Qwen3 30B", [32, 4, 128, 128]),
    ("DeepSeek V3, latents", [128, 1, 576, 512]),
];

/// Options of `sws-bench attention`.
#[derive(clap::Args, Clone, Debug)]
pub struct AttentionArguments {
    /// Positions in the cache
    #[arg(long, value_delimiter = ',', default_values_t = [4096, 32768], value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    positions: Vec<u32>,
    /// Threads
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,
    /// Size of all caches of a cell together; should be far larger than the last-level cache
    #[arg(long, value_parser = parse_size, default_value = "512MiB", value_name = "SIZE")]
    caches: u64,
    /// Time per contender and cell
    #[arg(long, default_value_t = 0.5, value_name = "SECONDS")]
    seconds_per_cell: f64,
}

/// Measures and prints a table.
pub fn run(options: &AttentionArguments) -> Result<()> {
    ensure!(options.caches <= 1 << 34, "--caches must be at most 16GiB");
    ensure!(
        (0.0..1e4).contains(&options.seconds_per_cell),
        "--seconds-per-cell must be between 0 and 10000"
    );
    let mut tiers = Tier::available();
    tiers.retain(|tier| !super::is_slow(tier));
    let threads = options.threads as usize;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
    let names: String = tiers.iter().map(|tier| format!(" {tier} |")).collect();
    println!("| heads of | positions | numbers | sum GB/s |{names}");
    println!("|---|---:|---|---:|{}", "---:|".repeat(tiers.len()));
    for (name, shape) in SHAPES {
        for &positions in &options.positions {
            let cell = Cell { shape, positions: positions as usize };
            type Measure = fn(&Cell, &[Tier], &AttentionArguments) -> Result<Vec<f64>>;
            for (numbers, measure) in [
                ("f32", Cell::measure::<f32> as Measure),
                ("bf16", Cell::measure::<u16>),
                ("q8", Cell::measure::<u8>),
            ] {
                let [speed, ratios @ ..] = &*pool.install(|| measure(&cell, &tiers, options))?
                else {
                    continue;
                };
                let ratios: String = ratios.iter().map(|ratio| format!(" {ratio:.2} |")).collect();
                println!("| {name} | {positions} | {numbers} | {speed:.1} |{ratios}");
            }
        }
    }
    Ok(())
}

/// One line of the table.
struct Cell {
    shape: [usize; 4],
    positions: usize,
}

/// Keys and values of a sequence. With latents there are keys only.
struct Cache<E> {
    keys: Vec<Page<E>>,
    values: Vec<Page<E>>,
}

/// A number, or a byte, as it lies in a cache.
trait Number: Zero + Send + Sync {
    /// Elements of a row of so many numbers.
    fn row(numbers: usize) -> usize {
        numbers
    }

    fn to_fill(pages: &mut [Page<Self>]) -> CacheMut<'_>;
    fn data(cache: &Cache<Self>) -> KvData<'_>;
}

impl Number for f32 {
    fn to_fill(pages: &mut [Page<f32>]) -> CacheMut<'_> {
        CacheMut::F32(pages)
    }

    fn data(cache: &Cache<f32>) -> KvData<'_> {
        KvData::F32 { keys: &cache.keys, values: cache.values() }
    }
}

impl Number for u16 {
    fn to_fill(pages: &mut [Page<u16>]) -> CacheMut<'_> {
        CacheMut::Bf16(pages)
    }

    fn data(cache: &Cache<u16>) -> KvData<'_> {
        KvData::Bf16 { keys: &cache.keys, values: cache.values() }
    }
}

impl Number for u8 {
    fn row(numbers: usize) -> usize {
        q8::bytes(numbers)
    }

    fn to_fill(pages: &mut [Page<u8>]) -> CacheMut<'_> {
        CacheMut::Q8(pages)
    }

    fn data(cache: &Cache<u8>) -> KvData<'_> {
        KvData::Q8 { keys: &cache.keys, values: cache.values() }
    }
}

impl Cell {
    /// Speed of the sum in GB/s, and of each tier relative to it.
    fn measure<E: Number>(&self, tiers: &[Tier], options: &AttentionArguments) -> Result<Vec<f64>> {
        let size = size_of::<E>();
        let [heads, kv_heads, key_dim, value_dim] = self.shape;
        let layout = |dim| CacheLayout {
            capacity: self.positions,
            page: PAGE.min(self.positions.next_power_of_two()),
            heads: kv_heads,
            dim: E::row(dim),
        };
        let keys = layout(key_dim);
        let values = layout(self.value_row());
        let of_value = if self.is_latent() { 0 } else { value_dim };
        let numbers = self.positions * kv_heads * (key_dim + of_value);
        let bytes = self.positions * kv_heads * (E::row(key_dim) + E::row(of_value)) * size;
        let copies = (options.caches as usize / bytes).clamp(1, 64);
        let filled = |layout: CacheLayout, dim: usize| {
            let len = layout.page_len().expect("a page of some numbers");
            let mut pages: Vec<Page<E>> =
                (0..layout.pages(self.positions)).map(|_| zeroed(len)).collect();
            for first in (0..self.positions).step_by(PAGE) {
                let count = PAGE.min(self.positions - first);
                let rows = widen(&random_weights(count, layout.heads * dim));
                store(E::to_fill(&mut pages), layout, first, &rows);
            }
            pages
        };
        let caches: Vec<Cache<E>> = (0..copies)
            .map(|_| Cache {
                keys: filled(keys, key_dim),
                values: if self.is_latent() { Vec::new() } else { filled(values, value_dim) },
            })
            .collect();
        let mut flat = sws_store::Slot::alone((copies * bytes).next_multiple_of(1 << 21))?;
        // Pages that nothing was written to are all the same one.
        for (at, byte) in flat.iter_mut().enumerate() {
            *byte = at as u8;
        }
        let q = widen(&random_weights(heads, key_dim));
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
        let sum = Contender {
            name: "sum".to_owned(),
            bytes: bytes as f64,
            weights: numbers as f64,
            call: Box::new(|i| {
                let at = i % copies * bytes;
                std::hint::black_box(parallel_sum(&flat[at..at + bytes]));
                Ok(())
            }),
        };
        let ours = tiers.iter().map(|&tier| {
            let mut y = vec![0.0; heads * value_dim];
            let scratch = || AttentionScratch::new(value_dim, self.positions);
            let mut scratch: Vec<_> = (0..options.threads).map(|_| scratch()).collect();
            let caches = &caches;
            let q = &q;
            let spec = &spec;
            Contender {
                name: tier.to_string(),
                bytes: bytes as f64,
                weights: numbers as f64,
                call: Box::new(move |i| {
                    let cache = KvCache { data: E::data(&caches[i % copies]), keys, values };
                    let first = self.positions - 1;
                    let queries = Queries { first, q, selected: None, distances: None };
                    attention(tier, spec, &cache, queries, &mut y, &mut scratch);
                    std::hint::black_box(&y);
                    Ok(())
                }),
            }
        });
        let mut contenders: Vec<Contender> = std::iter::once(sum).chain(ours).collect();
        let timings = alternate(&mut contenders, ROUNDS, options.seconds_per_cell)?;
        let mut found = vec![bytes as f64 / timings[0].median() / 1e9];
        found.extend(timings[1..].iter().map(|timing| timing.speed_over(&timings[0])));
        Ok(found)
    }

    fn is_latent(&self) -> bool {
        let [_, _, key_dim, value_dim] = self.shape;
        key_dim != value_dim
    }

    /// Elements from one value to the next.
    fn value_row(&self) -> usize {
        let [_, _, key_dim, value_dim] = self.shape;
        if self.is_latent() { key_dim } else { value_dim }
    }
}

impl<E> Cache<E> {
    fn values(&self) -> &[Page<E>] {
        if self.values.is_empty() { &self.keys } else { &self.values }
    }
}
