//! Attention gives the same bits however a sequence is split, stored and divided among threads.

use proptest::prelude::*;

use super::in_8_bits;
use super::{Noise, assert_same};
use sws_kernels::Tier;
use sws_kernels::functional::*;

/// A sequence of queries, keys and values, and the rules of attention.
#[derive(Clone, Debug)]
struct Case {
    heads: usize,
    kv_heads: usize,
    key_dim: usize,
    value_dim: usize,
    window: Option<usize>,
    aligned: bool,
    soft_cap: Option<f32>,
    sinks: Option<Vec<f32>>,
    scale: f32,
    /// Numbers for so many distances: [positions, heads, distances].
    distances: Option<(usize, Vec<f32>)>,
    /// Shapes: [positions, heads, key_dim], [positions, kv_heads, key_dim] and
    /// [positions, kv_heads, value_dim].
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl Case {
    fn new(positions: usize, heads: (usize, usize), dims: (usize, usize), seed: u64) -> Case {
        let mut noise = Noise(seed);
        Case {
            heads: heads.0,
            kv_heads: heads.1,
            key_dim: dims.0,
            value_dim: dims.1,
            window: None,
            aligned: false,
            soft_cap: None,
            sinks: None,
            scale: 0.7,
            distances: None,
            q: noise.vec(positions * heads.0 * dims.0, 2.0),
            k: noise.vec(positions * heads.1 * dims.0, 2.0),
            v: noise.vec(positions * heads.1 * dims.1, 2.0),
        }
    }

    fn spec(&self) -> Attention<'_> {
        Attention {
            heads: self.heads,
            kv_heads: self.kv_heads,
            key_dim: self.key_dim,
            value_dim: self.value_dim,
            scale: self.scale,
            window: self.window,
            aligned: self.aligned,
            soft_cap: self.soft_cap,
            sinks: self.sinks.as_deref(),
        }
    }

    fn positions(&self) -> usize {
        self.q.len() / (self.heads * self.key_dim)
    }
}

/// A way to compute a case, on which the result must not depend.
#[derive(Clone, Copy, Debug)]
struct Way {
    tier: Tier,
    threads: usize,
    chunk: usize,
    /// True for a cache with only the slots that the window needs.
    ring: bool,
    page: usize,
    kv: Kv,
}

/// Precision of the KV cache.
#[derive(Clone, Copy, Debug)]
enum Kv {
    F32,
    Bf16,
    Q8,
}

impl Kv {
    const ALL: [Kv; 3] = [Kv::F32, Kv::Bf16, Kv::Q8];

    /// Elements of a row of so many numbers.
    fn row(self, numbers: usize) -> usize {
        if let Kv::Q8 = self { q8::bytes(numbers) } else { numbers }
    }
}

/// Pages in each precision, of which one is used.
struct Pages {
    kv: Kv,
    layouts: [CacheLayout; 2],
    wide: [Vec<Page<f32>>; 2],
    narrow: [Vec<Page<u16>>; 2],
    bytes: [Vec<Page<u8>>; 2],
}

impl Pages {
    /// A KV cache of `capacity` positions of keys and values of so many numbers. Slots that were never
    /// stored must not matter: they are NaN, in all precisions.
    fn new(kv: Kv, dims: [usize; 2], (capacity, page, heads): (usize, usize, usize)) -> Pages {
        let layouts =
            dims.map(|numbers| CacheLayout { capacity, page, heads, dim: kv.row(numbers) });
        let pages = |layout: CacheLayout| (layout.pages(capacity), layout.page_len().unwrap());
        let sizes = layouts.map(pages);
        Pages {
            kv,
            layouts,
            wide: sizes.map(|(n, len)| vec![Page::from(vec![f32::NAN; len]); n]),
            narrow: sizes.map(|(n, len)| vec![Page::from(vec![0x7FFF; len]); n]),
            bytes: sizes.map(|(n, len)| vec![Page::from(vec![0xFF; len]); n]),
        }
    }

    fn store(&mut self, first: usize, rows: [&[f32]; 2]) {
        for (i, rows) in rows.into_iter().enumerate() {
            let cache = match self.kv {
                Kv::F32 => CacheMut::F32(&mut self.wide[i]),
                Kv::Bf16 => CacheMut::Bf16(&mut self.narrow[i]),
                Kv::Q8 => CacheMut::Q8(&mut self.bytes[i]),
            };
            store(cache, self.layouts[i], first, rows);
        }
    }

    fn view(&self) -> KvCache<'_> {
        let data = match self.kv {
            Kv::F32 => KvData::F32 { keys: &self.wide[0], values: &self.wide[1] },
            Kv::Bf16 => KvData::Bf16 { keys: &self.narrow[0], values: &self.narrow[1] },
            Kv::Q8 => KvData::Q8 { keys: &self.bytes[0], values: &self.bytes[1] },
        };
        let [keys, values] = self.layouts;
        KvCache { data, keys, values }
    }
}

const PLAIN: Way = Way {
    tier: Tier::SCALAR,
    threads: 1,
    chunk: usize::MAX,
    ring: false,
    page: 1 << 20,
    kv: Kv::F32,
};

fn run(case: &Case, way: Way) -> Vec<f32> {
    let positions = case.positions();
    let chunk = way.chunk.min(positions).max(1);
    let capacity = match case.window {
        Some(window) if way.ring => (window + chunk - 1).clamp(1, positions),
        _ => positions,
    };
    let dims = [case.key_dim, case.value_dim];
    let mut pages = Pages::new(way.kv, dims, (capacity, way.page, case.kv_heads));
    let mut scratch: Vec<_> =
        (0..way.threads).map(|_| AttentionScratch::new(case.value_dim, capacity)).collect();
    let mut out = Vec::new();
    let kv_rows = case.k.chunks(chunk * case.kv_heads * case.key_dim);
    let v_rows = case.v.chunks(chunk * case.kv_heads * case.value_dim);
    for ((first, q), (k, v)) in (0..)
        .step_by(chunk)
        .zip(case.q.chunks(chunk * case.heads * case.key_dim))
        .zip(kv_rows.zip(v_rows))
    {
        pages.store(first, [k, v]);
        let cache = pages.view();
        let mut y = vec![f32::NAN; q.len() / case.key_dim * case.value_dim];
        let distances = case.distances.as_ref().map(|(extent, all)| Distances {
            bias: &all[first * case.heads * extent..][..q.len() / case.key_dim * extent],
            extent: *extent,
        });
        attention(
            way.tier,
            &case.spec(),
            &cache,
            Queries { first, q, selected: None, distances },
            &mut y,
            &mut scratch,
        );
        out.extend(y);
    }
    out
}

fn any_case() -> impl Strategy<Value = Case> {
    let dim = prop_oneof![Just(32usize), Just(64), 1usize..70];
    (
        (1usize..90, 1usize..4, 1usize..5, dim.clone(), dim, any::<u64>()),
        (prop::option::of(1usize..50), any::<bool>()),
        prop::option::of(1f32..30.0),
        prop::option::of(-4f32..8.0),
        (0.01f32..2.0, prop::option::of(1usize..100)),
    )
        .prop_map(
            |((positions, kv_heads, group, dk, dv, seed), window, soft_cap, sink, others)| {
                let (scale, extent) = others;
                let (window, aligned) = window;
                let mut case = Case::new(positions, (kv_heads * group, kv_heads), (dk, dv), seed);
                let sinks = |s: f32| (0..case.heads).map(|h| s + h as f32 * 0.5).collect();
                case.sinks = sink.map(sinks);
                (case.window, case.aligned) = (window, aligned);
                (case.soft_cap, case.scale) = (soft_cap, scale);
                case.distances = extent.map(|extent| {
                    let count = positions * case.heads * extent;
                    (extent, Noise(seed.wrapping_add(1)).vec(count, 2.0))
                });
                case
            },
        )
}

fn any_way() -> impl Strategy<Value = Way> {
    let tier = prop::sample::select(Tier::available());
    let chunk = prop_oneof![Just(1usize), Just(usize::MAX), 1usize..40];
    let page = prop_oneof![Just(64usize), Just(128), Just(1 << 20)];
    (tier, 1usize..4, chunk, any::<bool>(), page).prop_map(|(tier, threads, chunk, ring, page)| {
        Way { tier, threads, chunk, ring, page, kv: Kv::F32 }
    })
}

proptest! {
    #[test]
    fn all_ways_agree(
        case in any_case(),
        ways in prop::collection::vec(any_way(), 4),
        kv in prop::sample::select(Kv::ALL.to_vec()),
    ) {
        let expected = run(&case, Way { kv, ..PLAIN });
        for tier in Tier::available() {
            assert_same(&run(&case, Way { kv, tier, ..PLAIN }), &expected, tier);
        }
        for way in ways {
            let way = Way { kv, ..way };
            assert_same(&run(&case, way), &expected, format!("{way:?}"));
        }
    }

    /// A rounded cache is equivalent to an f32 cache of the rounded numbers.
    #[test]
    fn narrow_caches_are_only_rounding(case in any_case()) {
        let to_bf16 = |v: &[f32], _| v.iter().map(|&x| half::bf16::from_f32(x).to_f32()).collect();
        let to_q8 = |v: &[f32], dim| {
            let mut values = Vec::new();
            v.chunks(dim).for_each(|row| q8::read(&in_8_bits(row), &mut values));
            values
        };
        type Rounding = fn(&[f32], usize) -> Vec<f32>;
        for (kv, rounded) in [(Kv::Bf16, to_bf16 as Rounding), (Kv::Q8, to_q8)] {
            let (k, v) = (rounded(&case.k, case.key_dim), rounded(&case.v, case.value_dim));
            let wide = Case { k, v, ..case.clone() };
            let tier = Tier::best();
            let narrow = run(&case, Way { tier, kv, ..PLAIN });
            assert_same(&narrow, &run(&wide, Way { tier, ..PLAIN }), format!("{kv:?}"));
        }
    }

    #[test]
    fn against_double_precision(case in any_case()) {
        let got = run(&case, Way { tier: Tier::best(), ..PLAIN });
        for (got, exact) in got.iter().zip(in_double_precision(&case)) {
            prop_assert!((f64::from(*got) - exact).abs() < 3e-5, "{} for {}", got, exact);
        }
    }
}

fn in_double_precision(case: &Case) -> Vec<f64> {
    let group = case.heads / case.kv_heads;
    let wide = |v: &[f32]| v.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    let (q, k, v) = (wide(&case.q), wide(&case.k), wide(&case.v));
    let mut out = Vec::new();
    for t in 0..case.positions() {
        for h in 0..case.heads {
            let first = match case.window {
                Some(window) if case.aligned => t / window * window,
                window => window.map_or(0, |w| (t + 1).saturating_sub(w)),
            };
            let q = &q[(t * case.heads + h) * case.key_dim..][..case.key_dim];
            let row = |j: usize| j * case.kv_heads + h / group;
            let score = |j: usize| {
                let k = &k[row(j) * case.key_dim..][..case.key_dim];
                let s = q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>() * f64::from(case.scale);
                let s = case.soft_cap.map_or(s, |cap| f64::from(cap) * (s / f64::from(cap)).tanh());
                let bias = case.distances.as_ref().filter(|(extent, _)| t - j < *extent);
                let of = |(extent, all): &(usize, Vec<f32>)| {
                    f64::from(all[(t * case.heads + h) * extent + t - j])
                };
                s + bias.map_or(0.0, of)
            };
            let weights: Vec<f64> = (first..=t).map(|j| score(j).exp()).collect();
            let sink = case.sinks.as_ref().map_or(0.0, |s| f64::from(s[h]).exp());
            let sum = weights.iter().sum::<f64>() + sink;
            out.extend((0..case.value_dim).map(|d| {
                let v = |j: usize| v[row(j) * case.value_dim + d];
                (first..=t).zip(&weights).map(|(j, w)| w * v(j)).sum::<f64>() / sum
            }));
        }
    }
    out
}

fn in_all_ways(case: &Case) -> Vec<f32> {
    let expected = run(case, PLAIN);
    for tier in Tier::available() {
        for chunk in [1, usize::MAX] {
            assert_same(&run(case, Way { tier, chunk, ..PLAIN }), &expected, tier);
        }
    }
    expected
}

#[test]
fn edges() {
    const INF: f32 = f32::INFINITY;
    let base = Case::new(3, (2, 1), (5, 4), 1);

    // A query that sees one key gets that key's value.
    let itself = in_all_ways(&Case { window: Some(1), ..base.clone() });
    let values = base.v.chunks(4).flat_map(|v| [v, v].concat()).collect::<Vec<_>>();
    assert_same(&itself, &values, "window of one");
    assert_same(&in_all_ways(&base)[..8], &values[..8], "the first query");

    let nothing = in_all_ways(&Case { window: Some(0), ..base.clone() });
    assert_same(&nothing, &[0.0; 24], "an empty window");

    let sinks = |s| Case { sinks: Some(vec![s, s]), ..base.clone() };
    assert_same(&in_all_ways(&sinks(-INF)), &in_all_ways(&base), "a sink of -inf takes nothing");
    assert_same(&in_all_ways(&sinks(1e9)), &[0.0; 24], "a huge sink takes everything");
    assert_same(&in_all_ways(&sinks(f32::NAN)), &[f32::NAN; 24], "a sink that is NaN");

    // If all scores are -inf, the result is NaN; a sink, if there is one, takes all the weight.
    let mut lost = base.clone();
    lost.q.fill(1.0);
    lost.k.fill(-INF);
    assert_same(&in_all_ways(&lost), &[f32::NAN; 24], "all scores -inf");
    lost.sinks = Some(vec![0.0, 0.0]);
    assert_same(&in_all_ways(&lost), &[0.0; 24], "all scores -inf and a sink");

    // NaN in the key or the value of position 1 reaches only the queries that see it.
    for (name, key) in [("key", true), ("value", false)] {
        let mut hurt = Case { window: Some(2), ..Case::new(5, (1, 1), (3, 2), 2) };
        let whole = in_all_ways(&hurt);
        if key {
            hurt.k[3] = f32::NAN;
        } else {
            hurt.v[2..4].fill(f32::NAN);
        }
        let mut expected = whole.clone();
        expected[2..6].fill(f32::NAN);
        assert_same(&in_all_ways(&hurt), &expected, name);
    }
}

/// Covers sums that are stored between tiles, and rings that end within a tile.
#[test]
fn same_bits_across_tiles_of_values() {
    for (heads, window) in [((8, 1), None), ((5, 1), Some(530)), ((2, 2), Some(40)), ((1, 1), None)]
    {
        let case = Case { window, ..Case::new(600, heads, (33, 34), 5) };
        let expected = run(&case, PLAIN);
        for tier in Tier::available() {
            for (chunk, ring, page) in
                [(1, true, 64), (7, true, 1 << 20), (usize::MAX, false, 64), (60, false, 256)]
            {
                let way = Way { tier, chunk, ring, page, threads: 2, ..PLAIN };
                assert_same(&run(&case, way), &expected, format!("{heads:?}, {way:?}"));
            }
        }
    }
}

/// Covers blocks of queries that see more positions of a lane than are mixed at once, 64.
#[test]
fn same_bits_across_runs_of_a_lane() {
    for (window, scale) in [(None, 0.1), (Some(2100), 0.1)] {
        let case = Case { window, scale, ..Case::new(2200, (2, 1), (3, 10), 6) };
        let expected = run(&case, PLAIN);
        for tier in Tier::available() {
            for (chunk, ring, page) in [(40, true, 64), (usize::MAX, false, 1 << 20)] {
                let way = Way { tier, chunk, ring, page, ..PLAIN };
                assert_same(&run(&case, way), &expected, format!("{way:?}"));
            }
        }
    }
}

/// Selected positions, in lists of up to `most`.
fn some_positions(first: usize, tokens: usize, lists: usize, most: usize) -> Vec<u32> {
    let mut positions = vec![Selected::END; tokens * lists * most];
    for (number, list) in positions.chunks_mut(most).enumerate() {
        let seen = first + number / lists + 1;
        // Fewer in each further list, of those that see more than there is room for.
        let count = if seen > most { most.saturating_sub(number % lists).max(1) } else { seen };
        for (place, position) in list[..count].iter_mut().enumerate() {
            // Evenly spread, ascending; all of them if there is room.
            *position = ((place + 1) * seen / count - 1) as u32;
        }
    }
    positions
}

/// Attention to selected positions: equal in all tiers and in chunks, that of a cache that holds
/// these positions alone, and that of all positions where all are selected.
#[test]
fn selected_positions_alone_are_attended() {
    for (heads, lists, dims, page, kv) in [
        ((3, 1), 1, (33, 20), 64, Kv::F32),
        ((17, 1), 1, (64, 64), 1 << 20, Kv::F32),
        ((9, 1), 1, (40, 32), 64, Kv::Bf16),
        ((12, 2), 4, (14, 33), 64, Kv::Q8),
        ((12, 3), 2, (20, 18), 128, Kv::Bf16),
        ((40, 2), 2, (16, 40), 64, Kv::F32),
        ((6, 3), 1, (33, 20), 64, Kv::Q8),
    ] {
        let case = Case::new(150, heads, dims, 9);
        let (heads, kv_heads) = heads;
        let dims = [case.key_dim, case.value_dim];
        let caches = |k: &[f32], v: &[f32]| {
            let mut pages = Pages::new(kv, dims, (150, page, kv_heads));
            pages.store(0, [k, v]);
            pages
        };
        let all = caches(&case.k, &case.v);
        let cache = all.view();
        let q_width = heads * case.key_dim;
        let run = |tier, (first, tokens): (usize, usize), most: Option<usize>, threads| {
            let q = &case.q[first * q_width..(first + tokens) * q_width];
            let positions = most.map(|most| some_positions(first, tokens, lists, most));
            let selected = positions.as_ref().map(|positions| {
                let most = most.unwrap();
                Selected { positions, lists, most }
            });
            let mut y = vec![f32::NAN; tokens * heads * case.value_dim];
            let new = || AttentionScratch::new(case.value_dim, 150);
            let mut scratch: Vec<_> = (0..threads).map(|_| new()).collect();
            let queries = Queries { first, q, selected, distances: None };
            attention(tier, &case.spec(), &cache, queries, &mut y, &mut scratch);
            y
        };
        for most in [1, 31, 40, 150] {
            let expected = run(Tier::SCALAR, (0, 150), Some(most), 1);
            for tier in Tier::available() {
                let found = run(tier, (0, 150), Some(most), 2);
                assert_same(&found, &expected, format!("{tier}, {most} positions"));
                let mut parts = run(tier, (0, 77), Some(most), 1);
                parts.extend(run(tier, (77, 73), Some(most), 3));
                assert_same(&parts, &expected, format!("{tier}, {most} positions, in chunks"));
                if most == 150 {
                    let whole = run(tier, (0, 150), None, 1);
                    assert_same(&whole, &expected, format!("{tier}, all positions"));
                }
            }
            // The last query, with a cache of the positions of each list alone.
            let positions = some_positions(149, 1, lists, most);
            for number in 0..lists {
                let list = Selected { positions: &positions, lists, most }.of(0, number);
                let of = |rows: &[f32], dim: usize| -> Vec<f32> {
                    let width = kv_heads * dim;
                    let row = |&p: &u32| rows[p as usize * width..][..width].to_vec();
                    list.iter().flat_map(row).collect()
                };
                let own = caches(&of(&case.k, case.key_dim), &of(&case.v, case.value_dim));
                let cache = own.view();
                let mut y = vec![f32::NAN; heads * case.value_dim];
                let q = &case.q[149 * q_width..];
                let queries = Queries { first: list.len() - 1, q, selected: None, distances: None };
                let mut scratch = [AttentionScratch::new(case.value_dim, 150)];
                attention(Tier::best(), &case.spec(), &cache, queries, &mut y, &mut scratch);
                let share = y.len() / lists;
                let (own, all) = (number * share, 149 * y.len() + number * share);
                let what = format!("{most} positions alone, list {number}");
                assert_same(&y[own..][..share], &expected[all..][..share], what);
            }
        }
    }
}

#[test]
#[should_panic(expected = "attention: a list without positions")]
fn lists_without_positions_are_refused() {
    let case = Case::new(1, (1, 1), (4, 4), 3);
    let layout = CacheLayout { capacity: 1, page: 64, heads: 1, dim: 4 };
    let pages = [zeroed::<f32>(4)];
    let data = KvData::F32 { keys: &pages, values: &pages };
    let cache = KvCache { data, keys: layout, values: layout };
    let selected = Some(Selected { positions: &[Selected::END], lists: 1, most: 1 });
    let queries = Queries { first: 0, q: &case.q, selected, distances: None };
    let mut scratch = [AttentionScratch::new(4, 1)];
    attention(Tier::best(), &case.spec(), &cache, queries, &mut [0.0; 4], &mut scratch);
}

#[test]
fn scores_of_positions_have_the_same_bits_in_all_tiers() {
    for (heads, dim, page) in [(1, 1, 64), (5, 14, 64), (8, 32, 128), (21, 70, 1 << 20)] {
        let mut noise = Noise(11);
        let (q, weights) = (noise.vec(heads * dim, 2.0), noise.vec(heads, 2.0));
        let rows = noise.vec(200 * dim, 2.0);
        for kv in Kv::ALL {
            let mut pages = Pages::new(kv, [dim; 2], (200, page, 1));
            pages.store(0, [&rows, &rows]);
            let keys = pages.view();
            let query = IndexQuery { q: &q, weights: &weights };
            let mut expected = vec![f32::NAN; 197];
            index_scores(Tier::SCALAR, query, &keys, 0, &mut expected);
            for tier in Tier::available() {
                let mut found = vec![f32::NAN; 197];
                let (before, after) = found.split_at_mut(96);
                index_scores(tier, query, &keys, 96, after);
                index_scores(tier, query, &keys, 0, before);
                assert_same(&found, &expected, format!("{tier}, {heads} heads of {dim}"));
            }
            let mut products = vec![f32::NAN; 197];
            key_products(Tier::SCALAR, &q[..dim], &keys, 0, &mut products);
            for tier in Tier::available() {
                let mut found = vec![f32::NAN; 197];
                let (before, after) = found.split_at_mut(32);
                key_products(tier, &q[..dim], &keys, 32, after);
                key_products(tier, &q[..dim], &keys, 0, before);
                assert_same(&found, &products, format!("{tier}, products of {dim}"));
            }
            // The score by one head of weight 1.
            let query = IndexQuery { q: &q[..dim], weights: &[1.0] };
            let mut scores = vec![f32::NAN; 197];
            index_scores(Tier::best(), query, &keys, 0, &mut scores);
            products.iter_mut().for_each(|product| *product = product.max(0.0));
            assert_same(&products, &scores, format!("products of {dim}"));
            if let Kv::F32 = kv {
                for (score, row) in expected.iter().zip(rows.chunks(dim)) {
                    let product = |q: &[f32]| -> f64 {
                        q.iter().zip(row).map(|(q, k)| f64::from(q * k)).sum()
                    };
                    let heads = q.chunks(dim).zip(&weights);
                    let exact: f64 = heads.map(|(q, w)| f64::from(*w) * product(q).max(0.0)).sum();
                    assert!((exact - f64::from(*score)).abs() < 1e-3, "{score} for {exact}");
                }
            }
        }
    }
}

/// Eight heads of 2^61 elements are 2^64, which wraps to 0.
#[test]
#[should_panic(expected = "attention: outputs")]
fn shapes_whose_product_wraps_are_refused() {
    let value_dim = 1usize << (usize::BITS - 3);
    let layout = CacheLayout { capacity: 2, page: 64, heads: 1, dim: 1 };
    let cache = KvCache {
        data: KvData::F32 { keys: &[Page::from([0.0; 2])], values: &[] },
        keys: layout,
        values: CacheLayout { dim: value_dim, ..layout },
    };
    let case = Case::new(1, (8, 1), (1, 1), 4);
    let spec = Attention { value_dim, ..case.spec() };
    let mut scratch = [AttentionScratch::new(1, 2)];
    let queries = Queries { first: 1, q: &case.q, selected: None, distances: None };
    attention(Tier::best(), &spec, &cache, queries, &mut [], &mut scratch);
}

#[test]
#[should_panic(expected = "already dropped a key that is visible")]
fn a_ring_too_small_is_refused() {
    let pages = [Page::from([0.0; 8])];
    let cache = KvCache {
        data: KvData::F32 { keys: &pages, values: &pages },
        keys: CacheLayout { capacity: 4, page: 64, heads: 1, dim: 2 },
        values: CacheLayout { capacity: 4, page: 64, heads: 1, dim: 2 },
    };
    let case = Case { window: Some(4), ..Case::new(2, (1, 1), (2, 2), 3) };
    let mut scratch = [AttentionScratch::new(2, 4)];
    let queries = Queries { first: 7, q: &case.q, selected: None, distances: None };
    attention(Tier::best(), &case.spec(), &cache, queries, &mut [0.0; 4], &mut scratch);
}
