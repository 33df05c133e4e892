//! Attention gives the same bits however a sequence is split, stored and divided among threads.

use proptest::prelude::*;

use super::{Noise, assert_same};
use crate::Tier;
use crate::functional::*;

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
    bf16: bool,
}

const PLAIN: Way = Way {
    tier: Tier::SCALAR,
    threads: 1,
    chunk: usize::MAX,
    ring: false,
    page: 1 << 20,
    bf16: false,
};

fn run(case: &Case, way: Way) -> Vec<f32> {
    let positions = case.positions();
    let chunk = way.chunk.min(positions).max(1);
    let capacity = match case.window {
        Some(window) if way.ring => (window + chunk - 1).clamp(1, positions),
        _ => positions,
    };
    let dims = [case.key_dim, case.value_dim];
    let [key_layout, value_layout] =
        dims.map(|dim| CacheLayout { capacity, page: way.page, heads: case.kv_heads, dim });
    // Slots that were never stored must not matter: they are NaN, in both precisions.
    let pages = |layout: CacheLayout| (layout.pages(capacity), layout.page_len().unwrap());
    let layouts = [key_layout, value_layout];
    let mut wide = layouts.map(pages).map(|(n, len)| vec![Page::from(vec![f32::NAN; len]); n]);
    let mut narrow = layouts.map(pages).map(|(n, len)| vec![Page::from(vec![0x7FFFu16; len]); n]);
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
        for (i, (rows, layout)) in [(k, key_layout), (v, value_layout)].into_iter().enumerate() {
            let cache = match way.bf16 {
                true => CacheMut::Bf16(&mut narrow[i]),
                false => CacheMut::F32(&mut wide[i]),
            };
            store(cache, layout, first, rows);
        }
        let data = match way.bf16 {
            true => KvData::Bf16 { keys: &narrow[0], values: &narrow[1] },
            false => KvData::F32 { keys: &wide[0], values: &wide[1] },
        };
        let cache = KvCache { data, keys: key_layout, values: value_layout };
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
        Way { tier, threads, chunk, ring, page, bf16: false }
    })
}

proptest! {
    #[test]
    fn all_ways_agree(case in any_case(), ways in prop::collection::vec(any_way(), 4), bf16: bool) {
        let expected = run(&case, Way { bf16, ..PLAIN });
        for tier in Tier::available() {
            assert_same(&run(&case, Way { bf16, tier, ..PLAIN }), &expected, tier);
        }
        for way in ways {
            let way = Way { bf16, ..way };
            assert_same(&run(&case, way), &expected, format!("{way:?}"));
        }
    }

    /// A bf16 cache is equivalent to an f32 cache of the rounded numbers.
    #[test]
    fn bf16_is_only_rounding(case in any_case()) {
        let rounded = |v: &[f32]| v.iter().map(|&x| half::bf16::from_f32(x).to_f32()).collect();
        let wide = Case { k: rounded(&case.k), v: rounded(&case.v), ..case.clone() };
        let tier = Tier::best();
        let narrow = run(&case, Way { tier, bf16: true, ..PLAIN });
        assert_same(&narrow, &run(&wide, Way { tier, ..PLAIN }), "bf16");
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
    for (heads, lists, dims, page, bf16) in [
        ((3, 1), 1, (33, 20), 64, false),
        ((17, 1), 1, (64, 64), 1 << 20, false),
        ((9, 1), 1, (40, 32), 64, true),
        ((12, 2), 4, (14, 33), 64, false),
        ((12, 3), 2, (20, 18), 128, true),
        ((40, 2), 2, (16, 40), 64, false),
        ((6, 3), 1, (33, 20), 64, false),
    ] {
        let case = Case::new(150, heads, dims, 9);
        let (heads, kv_heads) = heads;
        let dims = [case.key_dim, case.value_dim];
        let layouts = dims.map(|dim| CacheLayout { capacity: 150, page, heads: kv_heads, dim });
        let [keys, values] = layouts;
        let caches = |k: &[f32], v: &[f32]| {
            let mut wide = layouts
                .map(|layout| vec![zeroed::<f32>(layout.page_len().unwrap()); layout.pages(150)]);
            let mut narrow = layouts
                .map(|layout| vec![zeroed::<u16>(layout.page_len().unwrap()); layout.pages(150)]);
            for (i, rows) in [k, v].into_iter().enumerate() {
                store(CacheMut::F32(&mut wide[i]), layouts[i], 0, rows);
                store(CacheMut::Bf16(&mut narrow[i]), layouts[i], 0, rows);
            }
            (wide, narrow)
        };
        type Pages<E> = [Vec<Page<E>>; 2];
        fn view<'a>(
            (wide, narrow): &'a (Pages<f32>, Pages<u16>),
            bf16: bool,
            (keys, values): (CacheLayout, CacheLayout),
        ) -> KvCache<'a> {
            let data = match bf16 {
                true => KvData::Bf16 { keys: &narrow[0], values: &narrow[1] },
                false => KvData::F32 { keys: &wide[0], values: &wide[1] },
            };
            KvCache { data, keys, values }
        }
        let all = caches(&case.k, &case.v);
        let cache = view(&all, bf16, (keys, values));
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
                let cache = view(&own, bf16, (keys, values));
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
        let layout = CacheLayout { capacity: 200, page, heads: 1, dim };
        let mut wide = vec![zeroed::<f32>(layout.page_len().unwrap()); layout.pages(200)];
        let mut narrow = vec![zeroed::<u16>(layout.page_len().unwrap()); layout.pages(200)];
        store(CacheMut::F32(&mut wide), layout, 0, &rows);
        store(CacheMut::Bf16(&mut narrow), layout, 0, &rows);
        for data in [
            KvData::F32 { keys: &wide, values: &wide },
            KvData::Bf16 { keys: &narrow, values: &narrow },
        ] {
            let keys = KvCache { data, keys: layout, values: layout };
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
            if let KvData::F32 { .. } = data {
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
