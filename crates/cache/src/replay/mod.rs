//! Replays recorded routes and counts the misses of a cache.
//!
//! A replay drives the engine's own [`PredictiveCache`] with the engine's own policies, without
//! reads or computation. In addition there is [`Belady`](ReplayPolicy::Belady), which knows all
//! future uses and so has the fewest possible misses.
//!
//! An engine without speculation has exactly these hits and misses for its own routes if:
//!
//! - there is a slot for each expert that a layer of a pass needs (with fewer slots, the victim
//!   depends on which read ends first),
//! - the experts of a layer lie on the disk in ascending order, as in shards,
//! - every layer has experts (a trace does not record the position of other layers).

mod belady;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use crate::Trace;
use crate::history::Shape;
use sws_store::{Pass, PieceId};

use crate::cache::{Counts, Lookup, Need, PredictiveCache};
use crate::policy::{Choice, Layers, Policy, PolicyKind};
use belady::Belady;

/// A policy for replaying routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReplayPolicy {
    /// A policy of the engine.
    Engine(PolicyKind),
    /// The optimum: evicts the piece whose next use is furthest away.
    Belady,
}

/// The name of an unknown replay policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a policy that can be replayed; there are expected, lru and belady")]
pub struct UnknownReplayPolicy(pub String);

/// Recorded routes, in the order in which a cache meets them.
///
/// The first half of the sequences (of a single sequence, of its tokens) warms cache and tables;
/// the second half is counted. Tokens that went through the layers together do so again. With
/// `batch` sequences at a time, one token of each goes through together. Either way a layer needs
/// the union of their experts, each once.
#[derive(Debug)]
pub struct Replay<'a> {
    trace: &'a Trace,
    passes: Vec<Together>,
    /// Index of the first pass that is counted.
    counted: usize,
}

/// Results of the counted part of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Number of tokens.
    pub tokens: usize,
    /// Experts that were needed, each counted once per layer and pass.
    pub uses: u64,
    /// Experts that were needed and not in the cache.
    pub misses: u64,
    /// Lookup counts of each layer.
    pub layers: Vec<Counts>,
}

/// Tokens that go through the layers together.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Together {
    tokens: Tokens,
    /// Number of tokens per step.
    step: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Tokens {
    Run(Range<usize>),
    Each(Vec<usize>),
}

impl<'a> Replay<'a> {
    /// A replay of `batch` sequences at a time.
    pub fn new(trace: &'a Trace, batch: usize) -> Replay<'a> {
        let mut halves: Vec<Range<usize>> = trace.sequences().collect();
        let counted = if let [only] = &halves[..] {
            // The end of the pass that reaches the middle.
            let middle = only.start + only.len() / 2;
            let cut = trace.passes(only.clone()).map(|pass| pass.end).find(|&end| end >= middle);
            let cut = cut.unwrap_or(middle);
            halves = vec![only.start..cut, cut..only.end];
            1
        } else {
            halves.len() / 2
        };
        let (warming, counting) = halves.split_at(counted);
        let mut passes = arrange(trace, warming, batch);
        let counted = passes.len();
        passes.extend(arrange(trace, counting, batch));
        Replay { trace, passes, counted }
    }

    /// Counts from the first token on, as in an engine with a cold cache.
    pub fn without_warming(mut self) -> Replay<'a> {
        self.counted = 0;
        self
    }

    /// Number of slots for a share of all experts.
    pub fn slots(&self, share: f64) -> usize {
        let shape = self.trace.shape();
        ((share * (shape.layers * shape.experts) as f64).round() as usize).max(1)
    }

    /// Replays all passes with `slots` slots. `progress` gets the number of tokens after each pass.
    pub fn run(
        &self,
        policy: ReplayPolicy,
        slots: usize,
        progress: &mut dyn FnMut(usize),
    ) -> Outcome {
        let shape = self.trace.shape();
        let policy: Box<dyn Policy> = match policy {
            ReplayPolicy::Belady => Box::new(Belady::new(shape, self.uses())),
            ReplayPolicy::Engine(kind) => kind.build(layers(shape)),
        };
        let mut player = Player::new(shape, policy, slots);
        let mut experts = Vec::new();
        let mut tokens = 0;
        for (number, pass) in self.passes.iter().enumerate() {
            if number == self.counted {
                player.cache.reset_counts();
            }
            let together = pass.tokens.iter().count();
            if number >= self.counted {
                tokens += together;
            }
            let store_pass = self.store_pass(pass);
            player.cache.begin_pass(&store_pass);
            for layer in 0..shape.layers {
                self.experts(pass, layer, &mut experts);
                player.layer(&store_pass, layer as u32, &experts, pass.step * shape.top_k);
            }
            progress(together);
        }
        let counts = player.cache.counts();
        let of = |layer: usize| counts.get(&(layer as u32)).copied().unwrap_or_default();
        let layers: Vec<Counts> = (0..shape.layers).map(of).collect();
        let hits: u64 = layers.iter().map(|layer| layer.hits).sum();
        let misses = layers.iter().map(|layer| layer.misses).sum();
        Outcome { tokens, uses: hits + misses, misses, layers }
    }

    /// A pass with its token ids; without tokens if the trace has no ids.
    fn store_pass(&self, pass: &Together) -> Pass {
        let mut store_pass = Pass::default();
        let ids = self.trace.tokens();
        match &pass.tokens {
            _ if ids.is_empty() => {}
            Tokens::Run(run) => store_pass.push(0, run.start, &ids[run.clone()]),
            Tokens::Each(tokens) => {
                for (sequence, &token) in tokens.iter().enumerate() {
                    store_pass.push(sequence, token, &ids[token..=token]);
                }
            }
        }
        store_pass
    }

    /// Experts that the tokens of a pass chose in a layer.
    fn experts(&self, pass: &Together, layer: usize, experts: &mut Vec<u32>) {
        experts.clear();
        for token in pass.tokens.iter() {
            experts.extend(self.trace.experts(token, layer).iter().map(|&e| u32::from(e)));
        }
    }

    /// For each layer and expert, the passes that use it, ascending.
    fn uses(&self) -> Vec<Vec<u32>> {
        let shape = self.trace.shape();
        let mut uses = vec![Vec::new(); shape.layers * shape.experts];
        let mut experts = Vec::new();
        for (number, pass) in self.passes.iter().enumerate() {
            for layer in 0..shape.layers {
                self.experts(pass, layer, &mut experts);
                for &expert in &experts {
                    let uses: &mut Vec<u32> = &mut uses[layer * shape.experts + expert as usize];
                    if uses.last() != Some(&(number as u32)) {
                        uses.push(number as u32);
                    }
                }
            }
        }
        uses
    }
}

/// A cache driven as an engine drives it.
#[derive(Debug)]
struct Player {
    cache: PredictiveCache<()>,
    missing: Vec<u32>,
}

/// A cache without memory, driven route by route, which reports the misses.
#[derive(Debug)]
pub struct Residency {
    player: Player,
    pass: Pass,
}

impl Residency {
    /// An empty cache with `slots` slots.
    pub fn new(shape: Shape, policy: PolicyKind, slots: usize) -> Residency {
        let policy = policy.build(layers(shape));
        Residency { player: Player::new(shape, policy, slots), pass: Pass::default() }
    }

    /// Begins a pass.
    pub fn begin(&mut self, pass: &Pass) {
        self.pass.clone_from(pass);
        self.player.cache.begin_pass(pass);
    }

    /// Applies the choice of a layer, `per_step` experts in each step. Returns the misses,
    /// ascending. `layer` is an index among the layers with experts.
    pub fn layer(&mut self, layer: usize, experts: &[u32], per_step: usize) -> &[u32] {
        self.player.layer(&self.pass, layer as u32, experts, per_step);
        &self.player.missing
    }
}

fn layers(shape: Shape) -> Layers {
    let count = shape.layers as u32;
    let with_experts = (0..count).collect();
    Layers { count, with_experts, experts: shape.experts, top_k: shape.top_k }
}

impl Player {
    fn new(shape: Shape, policy: Box<dyn Policy>, slots: usize) -> Player {
        // More slots than pieces would change nothing.
        let slots = slots.min(shape.layers * shape.experts);
        let cache = PredictiveCache::new(policy, vec![(1, ()); slots]);
        Player { cache, missing: Vec::new() }
    }

    fn layer(&mut self, pass: &Pass, layer: u32, experts: &[u32], per_step: usize) {
        let Player { cache, missing } = self;
        cache.routed(&Choice { pass, layer, experts, per_step });
        missing.clear();
        let mut distinct: Vec<u32> = experts.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        for &expert in &distinct {
            match cache.lookup(PieceId::expert(layer, expert)) {
                // With too few slots for all of them, cached experts are computed first.
                Lookup::Ready if distinct.len() > cache.capacity() => {
                    cache.computed(PieceId::expert(layer, expert));
                }
                Lookup::Ready => {}
                Lookup::Loading | Lookup::Absent => missing.push(expert),
            }
        }
        for &expert in missing.iter() {
            let piece = PieceId::expert(layer, expert);
            if cache.begin(layer, piece, 1, Need::Now).is_ok() {
                cache.ready(piece, ());
            }
            if distinct.len() > cache.capacity() {
                cache.computed(piece);
            }
        }
    }
}

impl Tokens {
    fn iter(&self) -> impl Iterator<Item = usize> {
        let (run, each) = match self {
            Tokens::Run(run) => (run.clone(), &[][..]),
            Tokens::Each(each) => (0..0, &each[..]),
        };
        run.chain(each.iter().copied())
    }
}

/// Arranges sequences in passes, `batch` at a time: the next sequence begins where one ends.
fn arrange(trace: &Trace, sequences: &[Range<usize>], batch: usize) -> Vec<Together> {
    if batch <= 1 {
        let passes = sequences.iter().flat_map(|sequence| trace.passes(sequence.clone()));
        return passes.map(|run| Together { tokens: Tokens::Run(run), step: 1 }).collect();
    }
    let mut waiting = sequences.iter().filter(|sequence| !sequence.is_empty()).cloned();
    let mut running: Vec<Range<usize>> = waiting.by_ref().take(batch).collect();
    let mut passes = Vec::new();
    while !running.is_empty() {
        let tokens: Vec<usize> = running.iter().map(|sequence| sequence.start).collect();
        passes.push(Together { step: tokens.len(), tokens: Tokens::Each(tokens) });
        running.retain_mut(|sequence| {
            sequence.start += 1;
            if sequence.start >= sequence.end
                && let Some(next) = waiting.next()
            {
                *sequence = next;
            }
            sequence.start < sequence.end
        });
    }
    passes
}

impl Outcome {
    /// Misses per token.
    pub fn misses_per_token(&self) -> f64 {
        self.misses as f64 / self.tokens.max(1) as f64
    }

    /// Share of uses that were hits.
    pub fn hit_rate(&self) -> f64 {
        1.0 - self.misses as f64 / self.uses.max(1) as f64
    }

    /// Share of the misses that `best` saves over `baseline` and this saves too. `None` if `best`
    /// saves none.
    pub fn gap_closed(&self, baseline: &Outcome, best: &Outcome) -> Option<f64> {
        let possible = baseline.misses.checked_sub(best.misses).filter(|&saved| saved > 0)?;
        Some((baseline.misses as f64 - self.misses as f64) / possible as f64)
    }
}

impl ReplayPolicy {
    /// All policies, the baseline first and the optimum last.
    pub const ALL: [ReplayPolicy; 3] = [
        ReplayPolicy::Engine(PolicyKind::Lru),
        ReplayPolicy::Engine(PolicyKind::Expected),
        ReplayPolicy::Belady,
    ];
}

impl fmt::Display for ReplayPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReplayPolicy::Engine(kind) => kind.fmt(f),
            ReplayPolicy::Belady => f.write_str("belady"),
        }
    }
}

impl FromStr for ReplayPolicy {
    type Err = UnknownReplayPolicy;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = ReplayPolicy::ALL.into_iter().find(|policy| policy.to_string() == name);
        found.ok_or_else(|| UnknownReplayPolicy(name.to_owned()))
    }
}
