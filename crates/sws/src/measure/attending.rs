//! Measures how long this machine computes a prompt of a model, without its weights.

use std::ops::Range;

use sws_engine::PerToken;
use sws_format::{Clock, Manifest};
use sws_kernels::Tier;
use sws_kernels::functional::{
    Attention, AttentionScratch, CacheLayout, KvCache, KvData, Queries, attention, zeroed,
};
use sws_model::{LayerSpec, Mixer, ModelSpec};

use super::computing::{Computing, Dry};
use crate::Threads;

/// Number of positions with keys and values, and of queries at the last of them. The queries
/// suffice for all threads.
const POSITIONS: usize = 2048;
const QUERIES: usize = 32;
/// Number of measurements, of which the fastest counts.
const RUNS: usize = 3;

/// Tokens of a measured prompt pass, and the numbers of passes. More tokens hardly make a product
/// faster.
const PROMPT: usize = 128;
const PROMPT_PASSES: [usize; 2] = [2, 4];

/// Measured time of computing a prompt, from weights in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptComputing {
    /// Time of a token without its attention to earlier positions.
    token: Computing,
    /// Seconds per number of a key or a value, multiplied with a query.
    attending: f64,
    /// For each layer: the numbers of one position that a token is multiplied with, and the maximum
    /// number of positions that it sees.
    layers: Vec<[usize; 2]>,
}

impl Dry<'_> {
    /// Measures a prompt of a model in the same way as a token. Takes up to half a second.
    pub fn prompt(&mut self, spec: &ModelSpec, manifest: &Manifest) -> Option<PromptComputing> {
        let pass = self.passes(spec, manifest, PROMPT, PROMPT_PASSES)?;
        let token = Computing { seconds: pass.seconds / PROMPT as f64, ..pass };
        Some(PromptComputing::measure(spec, self.tier, self.threads, token))
    }
}

impl PromptComputing {
    fn measure(
        spec: &ModelSpec,
        tier: Tier,
        threads: &Threads,
        token: Computing,
    ) -> PromptComputing {
        let layers: Vec<_> = spec.in_order().filter_map(seen).collect();
        let attending = match spec.layers.iter().filter_map(shape).next_back() {
            Some(shape) => seconds(shape, tier, threads),
            None => 0.0,
        };
        PromptComputing { token, attending, layers }
    }

    /// Seconds of computing the tokens at these positions.
    pub fn seconds(&self, token: &PerToken, positions: &Range<usize>) -> f64 {
        let numbers = self.layers.iter().map(|&[numbers, most]| {
            numbers as f64 * (seen_before(positions.end, most) - seen_before(positions.start, most))
        });
        self.token.seconds(token) * positions.len() as f64 + self.attending * numbers.sum::<f64>()
    }
}

/// The number of positions that all tokens before `end` see, of which each sees `most` at most.
fn seen_before(end: usize, most: usize) -> f64 {
    let all = end.min(most) as f64;
    let rest = end.saturating_sub(most) as f64;
    all * (all + 1.0) / 2.0 + rest * most as f64
}

/// The numbers of one position that a token is multiplied with, and the maximum number of positions
/// that it sees.
fn seen(layer: &LayerSpec) -> Option<[usize; 2]> {
    match &layer.mixer {
        Mixer::Attention(spec) => {
            let numbers = spec.heads * (spec.head_dim + spec.value_dim);
            Some([numbers, spec.window.unwrap_or(usize::MAX)])
        }
        Mixer::Latent(spec) => {
            let most = match spec.sparse {
                Some(sparse) => sparse.most,
                None => usize::MAX,
            };
            Some([spec.heads * (spec.width() + spec.rank), most])
        }
        Mixer::Compressed(_)
        | Mixer::Delta(_)
        | Mixer::Conv(_)
        | Mixer::StateSpace(_)
        | Mixer::None => None,
    }
}

/// Query heads, KV heads, key length and value length.
type AttentionShape = [usize; 4];

fn shape(layer: &LayerSpec) -> Option<AttentionShape> {
    match &layer.mixer {
        Mixer::Attention(spec) => Some([spec.heads, spec.kv_heads, spec.head_dim, spec.value_dim]),
        Mixer::Latent(spec) => Some([spec.heads, 1, spec.width(), spec.rank]),
        _ => None,
    }
}

/// Seconds per number that a query is multiplied with.
fn seconds(
    [heads, kv_heads, key_dim, value_dim]: AttentionShape,
    tier: Tier,
    threads: &Threads,
) -> f64 {
    let rule = Attention {
        heads,
        kv_heads,
        key_dim,
        value_dim,
        scale: 1.0,
        window: None,
        aligned: false,
        soft_cap: None,
        sinks: None,
    };
    let keys = CacheLayout { capacity: POSITIONS, page: POSITIONS, heads: kv_heads, dim: key_dim };
    let values = CacheLayout { dim: value_dim, ..keys };
    let of_keys = [zeroed::<f32>(keys.page_len().unwrap_or(0))];
    let of_values = [zeroed::<f32>(values.page_len().unwrap_or(0))];
    let cache = KvCache { data: KvData::F32 { keys: &of_keys, values: &of_values }, keys, values };
    let q = vec![0.0; QUERIES * heads * key_dim];
    let mut y = vec![0.0; QUERIES * heads * value_dim];
    let each = (0..threads.count()).map(|_| AttentionScratch::new(value_dim, POSITIONS));
    let mut scratch: Vec<_> = each.collect();
    let clock = Clock::real();
    let fastest = threads.run(|| {
        let runs = (0..RUNS).map(|_| {
            let started = clock.now();
            let first = POSITIONS - QUERIES;
            let queries = Queries { first, q: &q, selected: None, distances: None };
            attention(tier, &rule, &cache, queries, &mut y, &mut scratch);
            (clock.now() - started).as_secs_f64()
        });
        runs.min_by(f64::total_cmp)
    });
    let numbers = QUERIES * heads * (key_dim + value_dim) * POSITIONS;
    fastest.unwrap_or(0.0) / numbers as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_a_prompt_grows_with_the_positions_before_it() {
        let token = Computing { seconds: 2.0, active: 100 };
        let layers = vec![[10, usize::MAX], [5, 3]];
        let prompt = PromptComputing { token, attending: 0.1, layers };
        let of = |range: Range<usize>| {
            prompt.seconds(&PerToken { active: 50, ..PerToken::default() }, &range)
        };
        // 10 · 1 + 5 · 1 numbers, then 10 · 4 + 5 · 3.
        assert!((of(0..1) - (1.0 + 1.5)).abs() < 1e-9);
        assert!((of(3..4) - (1.0 + 5.5)).abs() < 1e-9);
        let apart: f64 = (0..50).map(|n| of(n..n + 1)).sum();
        assert!((of(0..50) - apart).abs() < 1e-6);
    }
}
