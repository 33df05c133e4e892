//! Replays recorded routes and counts the misses of a cache.
//!
//! A replay drives the engine's own [`PredictiveCache`] with the engine's own policies, without
//! reads or computation. In addition there is [`Belady`](ReplayPolicy::Belady), which knows all
//! future uses and so has the fewest possible misses.
//!
//! With a [tier](Replay::with_tier), experts are placed there by the engine's own [`Placement`](crate::placement), by
//! assumed times.
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
mod tier;

use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

use crate::correction::{Correction, Corrections};
use crate::history::HistoryShape;
use crate::{RouterStates, Trace};

use crate::cache::{Lookup, LookupCounts, Need, PredictiveCache};
use crate::policy::{ExpertLayers, Policy, PolicyKind, RouterChoice};
use belady::Belady;
use sws_format::{Pass, PieceId};
use tier::TierPlayer;
pub use tier::{AssumedTimes, ReplayTier, TierOutcome};

/// A policy for replaying routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReplayPolicy {
    /// A policy of the engine.
    Engine(PolicyKind),
    /// The default policy of the engine, with the [correction](Replay::corrected) of a replay.
    Corrected,
    /// The default policy of the engine, with a correction that it learns during the replay.
    Learning,
    /// The optimum: evicts the piece whose next use is furthest away.
    Belady,
}

/// The name of an unknown replay policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a policy that can be replayed; there are expected, corrected, learning, lru and belady"
)]
pub struct UnknownReplayPolicy(pub String);

/// Recorded routes, in the order in which a cache meets them.
///
/// The first half of the sequences (of a single sequence, of its tokens) warms cache and tables;
/// the second half is counted. Tokens that went through the layers together do so again. With
/// `batch` sequences at a time, one token of each goes through together, or each sequence has its turn.
/// A layer needs the union of the experts of a pass, each once.
#[derive(Debug)]
pub struct Replay<'a> {
    trace: &'a Trace,
    /// Number of sequences at a time.
    batch: usize,
    passes: Vec<Together>,
    /// Index of the first pass that is counted.
    counted: usize,
    correction: Option<Arc<Correction>>,
    states: ReplayStates<'a>,
    tier: Option<ReplayTier>,
}

/// The router states of a trace, from one or several recordings in succession.
#[derive(Clone, Debug, Default)]
pub struct ReplayStates<'a> {
    /// The states of each recording, with the number of its first token.
    parts: Vec<(usize, RouterStates<'a>)>,
}

/// Results of the counted part of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayOutcome {
    /// Number of tokens.
    pub tokens: usize,
    /// Experts that were needed, each counted once per layer and pass.
    pub uses: u64,
    /// Experts that were needed and neither in the cache nor on the tier.
    pub misses: u64,
    /// Counts of the [tier](Replay::with_tier); `None` without one.
    pub tier: Option<TierOutcome>,
    /// Lookup counts of each layer.
    pub layers: Vec<LookupCounts>,
}

/// Tokens that go through the layers together.
type Together = Vec<PassPart>;

/// The tokens of a pass that belong to one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PassPart {
    /// Number of the sequence among those at the same time.
    sequence: usize,
    first_position: usize,
    tokens: Range<usize>,
}

/// A part of a sequence: the position of its first token, and its tokens.
type SequenceRun = (usize, Range<usize>);

impl<'a> Replay<'a> {
    /// A replay of `batch` sequences at a time, which share passes.
    pub fn new(trace: &'a Trace, batch: usize) -> Replay<'a> {
        Replay::of(trace, batch, None)
    }

    /// A replay of `batch` sequences at a time, which take turns of `turn` tokens.
    pub fn in_turns(trace: &'a Trace, batch: usize, turn: usize) -> Replay<'a> {
        Replay::of(trace, batch, Some(turn))
    }

    fn of(trace: &'a Trace, batch: usize, turn: Option<usize>) -> Replay<'a> {
        let mut halves: Vec<SequenceRun> = trace.sequences().map(|tokens| (0, tokens)).collect();
        let counted = if let [(_, only)] = &halves[..] {
            // The warm-up ends with the pass that reaches the middle.
            let middle = only.start + only.len() / 2;
            let cut = trace.passes(only.clone()).map(|pass| pass.end).find(|&end| end >= middle);
            let cut = cut.unwrap_or(middle);
            halves = vec![(0, only.start..cut), (cut - only.start, cut..only.end)];
            1
        } else {
            halves.len() / 2
        };
        let (warming, counting) = halves.split_at(counted);
        let mut passes = arrange(trace, warming, batch, turn);
        let counted = passes.len();
        passes.extend(arrange(trace, counting, batch, turn));
        let batch = batch.max(1);
        let states = ReplayStates::default();
        Replay { trace, batch, passes, counted, correction: None, states, tier: None }
    }

    /// Counts from the first token on, as in an engine with a cold cache.
    pub fn without_warming(mut self) -> Replay<'a> {
        self.counted = 0;
        self
    }

    /// Adds a correction.
    pub fn corrected(self, correction: Arc<Correction>) -> Replay<'a> {
        Replay { correction: Some(correction), ..self }
    }

    /// Adds the hidden states that corrections use.
    pub fn with_states(self, states: ReplayStates<'a>) -> Replay<'a> {
        Replay { states, ..self }
    }

    /// Adds a tier of experts beside the cache, such as a graphics card. [`Belady`](ReplayPolicy::Belady) does not
    /// foresee it, and is no optimum then.
    pub fn with_tier(self, tier: ReplayTier) -> Replay<'a> {
        Replay { tier: Some(tier), ..self }
    }

    /// The parts of the trace that warm cache and tables, in the order in which they run.
    pub fn warming(&self) -> Vec<Range<usize>> {
        let parts = self.passes[..self.counted].iter().flatten();
        let mut parts: Vec<Range<usize>> = parts.map(|part| part.tokens.clone()).collect();
        parts.sort_unstable_by_key(|tokens| tokens.start);
        let mut ranges: Vec<Range<usize>> = Vec::new();
        let ends: Vec<usize> = self.trace.sequences().map(|tokens| tokens.end).collect();
        for part in parts {
            match ranges.last_mut() {
                Some(last) if last.end == part.start && ends.binary_search(&last.end).is_err() => {
                    last.end = part.end;
                }
                _ => ranges.push(part),
            }
        }
        ranges
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
    ) -> ReplayOutcome {
        let shape = self.trace.shape();
        let policy: Box<dyn Policy> = match policy {
            ReplayPolicy::Belady => Box::new(Belady::new(shape, self.uses())),
            ReplayPolicy::Engine(kind) => kind.build(layers(shape, self.batch)),
            ReplayPolicy::Corrected => self.corrected_policy(match &self.correction {
                Some(correction) => Corrections::Fitted(Arc::clone(correction)),
                None => Corrections::None,
            }),
            ReplayPolicy::Learning => {
                self.corrected_policy(Corrections::Learned { hidden: self.states.hidden() })
            }
        };

        let mut player = Player::new(shape, policy, slots);
        player.tier = self.tier.map(TierPlayer::new);
        let mut experts = Vec::new();
        let mut tokens = 0;
        let mut state = vec![0.0; player.cache.policy().hidden()];
        for (number, together) in self.passes.iter().enumerate() {
            if number == self.counted {
                player.reset_counts();
            }
            let pass = self.pass(together);
            if number >= self.counted {
                tokens += pass.len();
            }
            player.begin(&pass);
            for layer in 0..shape.layers {
                self.experts(together, layer, &mut experts);
                player.layer(&pass, layer as u32, &experts, |policy| {
                    for PassPart { sequence, tokens, .. } in together {
                        if !state.is_empty()
                            && let Some(last) = tokens.end.checked_sub(1)
                            && self.states.copy(last, layer, &mut state)
                        {
                            policy.on_router_state(layer as u32, *sequence, &state);
                        }
                    }
                });
            }
            progress(pass.len());
        }
        let tier = player.tier.as_ref().map(|tier| tier.counts);
        let counts = player.cache.counts();
        let mut layers = Vec::with_capacity(shape.layers);
        let mut hits = 0;
        let mut misses = 0;
        for layer in 0..shape.layers as u32 {
            let counts: LookupCounts = counts.get(&layer).copied().unwrap_or_default();
            hits += counts.hits;
            misses += counts.misses;
            layers.push(counts);
        }
        let uses = hits + misses + tier.map_or(0, |tier| tier.hits);
        ReplayOutcome { tokens, uses, misses, tier, layers }
    }

    fn corrected_policy(&self, corrections: Corrections) -> Box<dyn Policy> {
        let layers = layers(self.trace.shape(), self.batch);
        PolicyKind::default().build_corrected(layers, corrections)
    }

    /// A pass as an engine describes it.
    fn pass(&self, together: &Together) -> Pass {
        let mut pass = Pass::default();
        for &PassPart { sequence, first_position, ref tokens } in together {
            match self.trace.tokens().get(tokens.clone()) {
                Some(ids) => pass.push(sequence, first_position, ids),
                None => pass.push_unknown(sequence, first_position, tokens.len()),
            }
        }
        pass
    }

    /// Experts that the tokens of a pass chose in a layer.
    fn experts(&self, together: &Together, layer: usize, experts: &mut Vec<u32>) {
        experts.clear();
        for token in together.iter().flat_map(|part| part.tokens.clone()) {
            experts.extend(self.trace.experts(token, layer).iter().copied().map(u32::from));
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

impl<'a> ReplayStates<'a> {
    /// Adds the states of another trace, whose first token has this number.
    pub fn push(&mut self, first: usize, states: RouterStates<'a>) {
        self.parts.push((first, states));
    }

    /// Elements of a state; 0 without states.
    pub fn hidden(&self) -> usize {
        self.parts.first().map_or(0, |(_, states)| states.hidden())
    }

    /// Writes the state of a layer for a token. False if it is unknown.
    fn copy(&self, token: usize, layer: usize, state: &mut [f32]) -> bool {
        let part = self.parts.partition_point(|&(first, _)| first <= token);
        let Some((first, states)) = self.parts[..part].last() else { return false };
        states.copy(token - first, layer, state);
        true
    }
}

/// A cache, driven in the same way as by an engine.
#[derive(Debug)]
struct Player {
    shape: HistoryShape,
    cache: PredictiveCache<()>,
    tier: Option<TierPlayer>,
    missing: Vec<u32>,
}

/// A cache without memory, driven route by route, which reports the misses.
#[derive(Debug)]
pub struct Residency {
    player: Player,
    pass: Pass,
}

impl Residency {
    /// An empty cache with `slots` slots, for up to `sequences` sequences at the same time.
    pub fn new(
        shape: HistoryShape,
        policy: PolicyKind,
        slots: usize,
        sequences: usize,
    ) -> Residency {
        let policy = policy.build(layers(shape, sequences));
        Residency { player: Player::new(shape, policy, slots), pass: Pass::default() }
    }

    /// Adds slots, up to one for each expert. Returns the number of slots before.
    pub fn extend(&mut self, slots: usize) -> usize {
        let Player { cache, shape, .. } = &mut self.player;
        let most = shape.layers * shape.experts;
        cache.extend(vec![(1, ()); slots.min(most.saturating_sub(cache.slots()))])
    }

    /// Removes all but the first `slots` slots, between passes.
    pub fn truncate(&mut self, slots: usize) {
        self.player.cache.truncate(slots);
    }

    /// Begins a pass.
    pub fn begin(&mut self, pass: &Pass) {
        self.pass.clone_from(pass);
        self.player.begin(pass);
    }

    /// True if an expert is in the cache. `layer` is an index among the layers with experts.
    pub fn holds(&self, layer: usize, expert: u32) -> bool {
        self.player.cache.contains(PieceId::expert(layer as u32, expert))
    }

    /// Applies the choice of a layer for all rows of the pass. Returns the misses, ascending.
    /// `layer` is an index among the layers with experts.
    pub fn layer(&mut self, layer: usize, experts: &[u32]) -> &[u32] {
        self.player.layer(&self.pass, layer as u32, experts, |_| ());
        &self.player.missing
    }
}

fn layers(shape: HistoryShape, sequences: usize) -> ExpertLayers {
    let HistoryShape { layers, experts, top_k } = shape;
    let count = layers as u32;
    let with_experts = (0..count).collect();
    ExpertLayers { count, with_experts, visits: Vec::new(), experts, top_k, sequences }
}

impl Player {
    fn new(shape: HistoryShape, policy: Box<dyn Policy>, slots: usize) -> Player {
        // More slots than pieces would change nothing.
        let slots = slots.min(shape.layers * shape.experts);
        let cache = PredictiveCache::new(policy, vec![(1, ()); slots]);
        Player { shape, cache, tier: None, missing: Vec::new() }
    }

    fn reset_counts(&mut self) {
        self.cache.reset_counts();
        self.tier.iter_mut().for_each(|tier| tier.counts = TierOutcome::default());
    }

    fn begin(&mut self, pass: &Pass) {
        self.tier.iter_mut().for_each(TierPlayer::pass_begins);
        self.cache.begin_pass(pass);
    }

    /// Runs a layer. `report_states` reports to the policy the states from which the router has chosen.
    fn layer(
        &mut self,
        pass: &Pass,
        layer: u32,
        experts: &[u32],
        report_states: impl FnOnce(&mut dyn Policy),
    ) {
        let Player { cache, tier, missing, .. } = self;
        if let Some(tier) = tier {
            tier.layer_begins(pass.len());
        }
        cache.routed(&RouterChoice { pass, layer, experts });
        report_states(cache.policy_mut());
        missing.clear();
        let mut distinct: Vec<u32> = experts.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        for &expert in &distinct {
            let id = PieceId::expert(layer, expert);
            if tier.as_ref().is_some_and(|tier| tier.holds(id)) {
                continue;
            }
            match cache.lookup(id) {
                // With too few slots for all of them, cached experts are computed first.
                Lookup::Ready if distinct.len() > cache.capacity() => cache.computed(id),
                Lookup::Ready => {}
                Lookup::Loading | Lookup::Absent => missing.push(expert),
            }
        }
        if let Some(tier) = tier {
            tier.chosen(layer, &distinct, missing);
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
        cache.policy_mut().on_layer_demanded(layer);
        if let Some(tier) = tier {
            tier.layer_ends(cache, layer, &distinct, missing);
        }
    }
}

/// Arranges sequences in passes, `batch` at a time. When a sequence ends, the next one begins.
/// Sequences at the same time share passes, with one token of each, or take turns of several
/// tokens.
fn arrange(
    trace: &Trace,
    runs: &[SequenceRun],
    batch: usize,
    turn: Option<usize>,
) -> Vec<Together> {
    if batch <= 1 {
        let mut passes = Vec::new();
        for (position, all) in runs {
            for tokens in trace.passes(all.clone()) {
                let first_position = position + tokens.start - all.start;
                passes.push(vec![PassPart { sequence: 0, first_position, tokens }]);
            }
        }
        return passes;
    }
    let mut waiting = runs.iter().filter(|(_, tokens)| !tokens.is_empty());
    let mut running: Vec<SequenceRun> = vec![(0, 0..0); batch];
    let mut passes = Vec::new();
    loop {
        let mut together = Vec::new();
        for (sequence, (position, rest)) in running.iter_mut().enumerate() {
            if rest.start == rest.end
                && let Some(next) = waiting.next()
            {
                (*position, *rest) = next.clone();
            }
            for token in rest.by_ref().take(turn.unwrap_or(1)) {
                let first_position = *position;
                together.push(PassPart { sequence, first_position, tokens: token..token + 1 });
                *position += 1;
            }
        }
        if together.is_empty() {
            return passes;
        }
        match turn {
            None => passes.push(together),
            Some(_) => passes.extend(together.into_iter().map(|part| vec![part])),
        }
    }
}

impl ReplayOutcome {
    /// Misses per token.
    pub fn misses_per_token(&self) -> f64 {
        self.misses as f64 / self.tokens.max(1) as f64
    }

    /// Share of uses that were hits, in the cache or on the tier.
    pub fn hit_rate(&self) -> f64 {
        1.0 - self.misses as f64 / self.uses.max(1) as f64
    }

    /// Share of uses that were computed on the tier; `None` without one.
    pub fn tier_rate(&self) -> Option<f64> {
        self.tier.map(|tier| tier.hits as f64 / self.uses.max(1) as f64)
    }

    /// Share of the misses saved by `best` over `baseline` that this replay saves too. `None` if
    /// `best` saves none.
    pub fn gap_closed(&self, baseline: &ReplayOutcome, best: &ReplayOutcome) -> Option<f64> {
        let possible = baseline.misses.checked_sub(best.misses).filter(|&saved| saved > 0)?;
        Some((baseline.misses as f64 - self.misses as f64) / possible as f64)
    }
}

impl ReplayPolicy {
    /// All policies, the baseline first and the optimum last.
    pub const ALL: [ReplayPolicy; 5] = [
        ReplayPolicy::Engine(PolicyKind::Lru),
        ReplayPolicy::Engine(PolicyKind::Expected),
        ReplayPolicy::Corrected,
        ReplayPolicy::Learning,
        ReplayPolicy::Belady,
    ];
}

impl fmt::Display for ReplayPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReplayPolicy::Engine(kind) => kind.fmt(f),
            ReplayPolicy::Corrected => f.write_str("corrected"),
            ReplayPolicy::Learning => f.write_str("learning"),
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
