//! The plan of a budget: pinned pieces, the ring, and expert slots.

mod distribute;
mod estimate;
mod hits;
mod pieces;
mod prompt;
mod shares;
mod sizes;
mod slots;
#[cfg(test)]
mod tests;
mod tier;

pub use estimate::{PerToken, TokenCosts};
pub use hits::{HitBasis, HitCurve};
pub use prompt::PromptReads;
pub use shares::{CONTEXT as DEFAULT_CONTEXT, KV_SHARE, LONG_KV_SHARE};
pub use slots::SlotClass;
pub use tier::TierHits;

use sws_cache::history::{History, HistoryShape};
use sws_cache::policy::ExpectedUse;
use sws_format::{Manifest, PieceId};
use sws_kernels::{Packings, Tier};
use sws_model::{ForwardState, Inventory, KvPrecision, ModelSpec, PassSize};
use sws_store::LayoutError;

use super::ledger::{Ledger, MemoryUse, ProcessMemory, sum_of};
use crate::stand_ins::StandInUse;
use distribute::ArenaSplit;
use pieces::PieceSizes;
pub(crate) use shares::HUGE_PAGE;
use shares::*;

/// A plan for running a model within a budget. Pure data: nothing has been allocated.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Resident pieces, in the order of pinning. All other infrastructure streams.
    pub pinned: Vec<PieceId>,
    /// Bytes of the ring for weights that are neither resident nor have slots; 0 without such
    /// weights.
    pub ring: usize,
    /// Slots for experts; empty if experts flow through the ring.
    pub slots: Vec<SlotClass>,
    /// Additional slots in the memory of a prompt's activations, used while tokens are generated
    /// one at a time.
    pub lent: Vec<SlotClass>,
    /// Further slots in the memory of contexts, used while sequences leave it free, as several
    /// sequences or a long context mostly do.
    pub context_lent: Vec<SlotClass>,
    /// Further slots in the memory of structured output, used while no text has structured output.
    pub structured_lent: Vec<SlotClass>,
    /// The smallest budget that works in another process, in whole MiB.
    pub smallest: u64,
    /// Experts whose stand-ins are resident.
    pub stand_ins: Vec<PieceId>,
    /// True if experts flow through the ring, because there is no room for the slots that one layer
    /// needs.
    pub experts_stream: bool,
    /// Maximum number of prompt tokens that go through the layers together.
    pub chunk: usize,
    /// Maximum number of draft tokens that are verified together, with logits behind each; 0 if
    /// there is no room for two.
    pub verify_len: usize,
    /// Maximum number of positions of a sequence.
    pub context: usize,
    /// Number of sequences for which there is room.
    pub sequences: usize,
    /// Reservations of the whole budget.
    pub ledger: Ledger,
    /// Expected reads per token.
    pub per_token: PerToken,
    /// Expected reads of a prompt.
    pub prompt: PromptReads,
}

/// Requirements of a plan.
#[derive(Clone, Copy, Debug)]
pub struct PlanOptions {
    /// Positions of a sequence; `None` to choose them by the budget.
    pub context: Option<usize>,
    /// Minimum number of positions if `context` is `None`.
    pub min_context: usize,
    /// Sequences that run together.
    pub batch: usize,
    /// Precision of the KV cache.
    pub kv: KvPrecision,
    /// True for logits of every position, rather than of the last.
    pub all_logits: bool,
    /// Maximum number of prompt tokens that go through the layers together.
    pub chunk: usize,
    /// Maximum number of draft tokens that are verified together, if there is room; 0 if none are.
    pub verify_len: usize,
    /// Kernels of the computation.
    pub tier: Tier,
    /// Number of compute threads.
    pub threads: usize,
    /// Bytes for encoding texts while the model is loaded: a constant, and a number per position.
    /// Zeros if encoding ends before planning.
    pub encoding: [u64; 2],
    /// Maximum bytes for structured output. A budget may have fewer. Slots use these bytes while no
    /// text has structured output.
    pub structured: u64,
    /// Bytes for a tier of experts on a device: its buffers in memory.
    pub device: u64,
    /// Bytes of the draft. They are reserved only if experts have slots besides.
    pub draft: u64,
    /// Bytes of the correction of the eviction policy, reserved like those of the draft.
    pub correction: u64,
    /// Stand-ins that stay in memory.
    pub stand_ins: StandInUse,
}

impl Default for PlanOptions {
    fn default() -> Self {
        PlanOptions {
            context: None,
            min_context: 0,
            batch: 1,
            kv: KvPrecision::F32,
            all_logits: false,
            chunk: CHUNK,
            verify_len: 0,
            tier: Tier::best(),
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            encoding: [0; 2],
            structured: 0,
            device: 0,
            draft: 0,
            correction: 0,
            stand_ins: StandInUse::Off,
        }
    }
}

/// Positions in a page of the KV cache. Several sequences grow by pages, and forks share pages. A
/// single long context grows by pages too, as most of it may never be used. Attention over shorter
/// pages is slower.
pub(crate) fn page(sequences: usize, context: usize) -> usize {
    if sequences > 1 || context > CONTEXT { 512 } else { usize::MAX }
}

/// Reasons why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum PlanError {
    /// The budget is below the minimum.
    #[error(
        "a budget of {} MiB is too small: the smallest that works here is --ram {}MiB (or --ram min), of which the KV cache of {context} positions takes {} MiB (--context changes that)",
        budget >> 20, smallest >> 20, kv >> 20
    )]
    TooSmall {
        budget: u64,
        /// The smallest budget that works, in whole MiB.
        smallest: u64,
        /// Positions with that budget.
        context: usize,
        /// Bytes of their KV cache.
        kv: u64,
    },
    /// The context exceeds that of the model.
    #[error("the model was made for {most} positions and {asked} were asked for; lower --context")]
    Context {
        asked: usize,
        /// Positions of the model.
        most: usize,
    },
    /// The model has no stand-ins.
    #[error(
        "the model has no stand-ins; make shards with `sws shard --stand-ins q4` or `--encoding nested`, or leave --stand-ins and --tolerance out"
    )]
    NoStandIns,
    /// The budget has no room for all stand-ins.
    #[error(
        "a budget of {} MiB has no room for all stand-ins, which take {} MiB beside what every token needs; the smallest that has is --ram {}MiB, or use --stand-ins auto",
        budget >> 20, bytes >> 20, smallest >> 20
    )]
    StandIns {
        budget: u64,
        /// Bytes of all stand-ins.
        bytes: u64,
        /// The smallest budget that works, in whole MiB.
        smallest: u64,
    },
    /// The manifest is invalid.
    #[error(transparent)]
    Layout(#[from] LayoutError),
}

/// Plans one model for any budget.
#[derive(Debug)]
pub struct Planner {
    spec: ModelSpec,
    pieces: PieceSizes,
    packings: Packings,
    process: ProcessMemory,
    options: PlanOptions,
    hits: HitCurve,
    /// Positions at the smallest budget, at slightly larger budgets, and at most.
    context: [usize; 3],
}

impl Planner {
    /// Creates a planner of a model with the weights of `inventory`, in a process that takes
    /// `process` without them.
    pub fn new(
        spec: &ModelSpec,
        inventory: &Inventory,
        manifest: &Manifest,
        process: ProcessMemory,
        options: PlanOptions,
    ) -> Result<Planner, PlanError> {
        let pieces = PieceSizes::new(spec, inventory, manifest, options.stand_ins)?;
        let most = spec.context.min(MOST_CONTEXT);
        let context = match options.context {
            Some(asked) if asked > most => return Err(PlanError::Context { asked, most }),
            Some(asked) => [asked.max(1); 3],
            None => [LEAST_CONTEXT, CONTEXT, most].map(|n| n.max(options.min_context).min(most)),
        };
        let hits = HitCurve::general(routes_of(spec));
        let packings =
            manifest.packings(options.tier.activations(), options.stand_ins != StandInUse::Off);
        Ok(Planner { spec: spec.clone(), pieces, packings, process, options, hits, context })
    }

    /// The largest draft that a budget allows.
    pub fn most_draft(ram: u64) -> u64 {
        (ram / DRAFT_SHARE).max(DRAFT_FLOOR)
    }

    /// The maximum memory for learning a correction of the eviction policy. The correction saves a
    /// few percent of the misses, so it must not cause as many by taking the memory of slots.
    pub fn most_learned(ram: u64) -> u64 {
        ram / LEARNED_SHARE
    }

    /// Reserves this many bytes for a draft in every plan that has slots for experts besides it. The
    /// ledger's [`MemoryUse::Draft`] is then the share within which to make the draft.
    pub fn reserve_draft(&mut self, bytes: u64) {
        self.options.draft = bytes;
    }

    /// Reserves this many bytes for the correction of the eviction policy in every plan that has slots
    /// for experts besides it.
    pub fn reserve_correction(&mut self, bytes: u64) {
        self.options.correction = bytes;
    }

    /// Estimates with these hit rates instead of the general ones.
    pub fn set_hits(&mut self, hits: HitCurve) {
        self.hits = hits;
    }

    /// The hit rates it estimates with.
    pub fn hits(&self) -> &HitCurve {
        &self.hits
    }

    /// The smallest budget that works in this process, to the byte: the value of `min`.
    pub fn minimum(&self) -> u64 {
        // A limit on the peak has to cover the peak so far.
        self.needed().max(self.process.peak)
    }

    /// Sum of all mandatory memory.
    fn needed(&self) -> u64 {
        self.base() + with_tables(self.least_arena())
    }

    /// The smallest budget that works in another process, in whole MiB.
    pub fn smallest(&self) -> u64 {
        (self.minimum() + MARGIN).next_multiple_of(MIB)
    }

    /// Bytes of all stand-ins, if all are to stay in memory; 0 otherwise.
    fn mandatory_stand_ins(&self) -> u64 {
        match self.options.stand_ins {
            StandInUse::All => self.pieces.stand_in_bytes(),
            StandInUse::Off | StandInUse::Auto => 0,
        }
    }

    /// Bytes of all weights.
    pub fn weights(&self) -> u64 {
        self.pieces.bytes()
    }

    /// Bytes of the tables of layers, and bytes of the rows that each token reads of them at any
    /// budget; `None` without such tables.
    pub fn layer_tables(&self) -> Option<[u64; 2]> {
        let bytes = self.pieces.table_bytes();
        if bytes > 0 { Some([bytes, self.table_rows()]) } else { None }
    }

    /// Bytes of the rows that a token reads from the tables of layers.
    fn table_rows(&self) -> u64 {
        self.pieces.layer_tables.iter().map(|table| table.rows * table.sizes.row).sum()
    }

    /// Plans for a budget.
    pub fn plan(&self, ram: u64) -> Result<Plan, PlanError> {
        match self.try_plan(ram) {
            Err(PlanError::TooSmall { budget, context, kv, .. }) => {
                Err(PlanError::TooSmall { budget, smallest: self.smallest(), context, kv })
            }
            Err(PlanError::StandIns { budget, bytes, .. }) => {
                Err(PlanError::StandIns { budget, bytes, smallest: self.smallest() })
            }
            planned => planned,
        }
    }

    /// Finds the smallest budget, to within `within` bytes, whose plan satisfies `enough`. The plan
    /// for `most` must satisfy it. With experts of one length, more memory never means fewer slots.
    pub fn smallest_with(
        &self,
        most: u64,
        within: u64,
        enough: impl Fn(&Plan) -> bool,
    ) -> Result<u64, PlanError> {
        let mut low = self.minimum();
        let mut high = most;
        while high - low > within {
            let middle = low.midpoint(high);
            if enough(&self.plan(middle)?) { high = middle } else { low = middle }
        }
        Ok(high)
    }

    /// Like [`plan`](Self::plan), but errors lack the smallest budget.
    fn try_plan(&self, ram: u64) -> Result<Plan, PlanError> {
        let Some(more) = ram.checked_sub(self.minimum()) else {
            let context = self.context[0];
            let budget = ram;
            let kv = self.kv(context);
            return Err(match self.mandatory_stand_ins() {
                0 => PlanError::TooSmall { budget, smallest: 0, context, kv },
                bytes => PlanError::StandIns { budget, bytes, smallest: 0 },
            });
        };
        let structured = (more / STRUCTURED_SHARE).min(self.options.structured);
        let more = more - structured;
        // The draft and the correction forecast experts for slots, so they are useless without
        // slots.
        let PlanOptions { draft, correction, .. } = self.options;
        for forecasts in [[draft, correction], [0, correction]] {
            let taken = forecasts.iter().sum();
            if let (1.., Some(remaining)) = (taken, more.checked_sub(taken))
                && let Ok(plan) = self.distribute(ram, remaining, structured, forecasts)
                && !plan.slots.is_empty()
            {
                return Ok(plan);
            }
        }
        self.distribute(ram, more, structured, [0; 2])
    }
}

impl Plan {
    /// Bytes of the one mapping that holds all weights.
    pub fn arena_bytes(&self) -> usize {
        let used = [MemoryUse::Pinned, MemoryUse::Ring, MemoryUse::StandIns, MemoryUse::Slots]
            .map(|what| self.ledger.get(what));
        whole_pages(used.into_iter().sum()) as usize
    }

    /// Bytes of the separate mapping for the lent slots.
    pub fn lent_bytes(&self) -> usize {
        self.lent.iter().map(SlotClass::bytes).sum::<u64>() as usize
    }

    /// The smallest budget, in whole MiB, that reserves this many bytes for structured output, or
    /// as many as the planner allows.
    pub fn ram_for_structured(&self, bytes: u64) -> u64 {
        self.smallest + (STRUCTURED_SHARE * bytes).next_multiple_of(MIB)
    }

    /// Maximum number of experts in memory while tokens are generated one at a time.
    pub fn most_experts(&self) -> usize {
        SlotClass::count_of(&self.slots)
            + SlotClass::count_of(&self.structured_lent)
            + SlotClass::count_of(&self.lent)
    }

    /// Returns the plan for a lower budget. It has fewer slots, but the same pinned pieces, ring,
    /// context and chunk, so that it can be applied while the model runs.
    pub fn shrink(&self, ram: u64) -> Result<Plan, PlanError> {
        let mut plan = self.clone();
        let mut excess = self.ledger.budget().saturating_sub(ram);
        // The bytes lost by rounding the arena stay spare.
        let spare = excess.min(plan.ledger.get(MemoryUse::Spare).saturating_sub(HUGE_PAGE));
        plan.ledger.release(MemoryUse::Spare, spare);
        excess -= spare;
        while excess > 0 {
            // The class with the most bytes left gives up a slot, so that all classes keep their
            // shares.
            let class =
                plan.slots.iter_mut().filter(|class| class.count > 2).max_by_key(|c| c.bytes());
            let Some(class) = class else {
                let smallest = plan.ledger.budget().next_multiple_of(MIB);
                let context = self.context;
                let kv = self.ledger.get(MemoryUse::KvCache);
                return Err(PlanError::TooSmall { budget: ram, smallest, context, kv });
            };
            class.count -= 1;
            let len = class.len as u64;
            plan.ledger.release(MemoryUse::Slots, len);
            excess = excess.saturating_sub(len);
        }
        let left = ram.saturating_sub(plan.ledger.budget());
        plan.ledger.grant(left);
        Ok(plan)
    }
}

/// The number of layers with experts of a model, and of their experts.
pub fn routes_of(spec: &ModelSpec) -> HistoryShape {
    let mut layers = 0;
    let mut experts = 0;
    for moe in spec.moes() {
        layers += 1;
        experts = moe.experts.max(experts);
    }
    HistoryShape { layers, experts, top_k: spec.max_top_k() }
}

/// Returns the largest number for which `holds` is true. It must be true for the start of the
/// range, and false above any number for which it is false.
fn largest(range: std::ops::RangeInclusive<usize>, holds: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = range.into_inner();
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if holds(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

/// Share of the slots in the memory of contexts that a text of [`ESTIMATED_POSITIONS`] leaves to
/// experts. Lending always keeps one block of sixteen free.
fn idle_share(context: usize) -> f64 {
    (1.0 - ESTIMATED_POSITIONS as f64 / context as f64 - 1.0 / 16.0).max(0.0)
}

/// Rounds an arena up to whole pages: huge ones if it is large enough for one.
fn whole_pages(bytes: u64) -> u64 {
    bytes.next_multiple_of(if bytes >= HUGE_PAGE { HUGE_PAGE } else { PAGE })
}

/// Bytes of an arena with its page tables: a page of entries for 512 pages, reserved for huge pages
/// too, and the few tables above.
fn with_tables(arena: u64) -> u64 {
    arena + arena.div_ceil(512).next_multiple_of(PAGE) + 4 * PAGE
}

/// Bytes of a mapping of this length, including its page tables.
pub(crate) fn mapped(bytes: u64) -> u64 {
    with_tables(whole_pages(bytes))
}

/// The largest arena that fits into `bytes` with its page tables.
fn arena_within(bytes: u64) -> u64 {
    let pages =
        largest(0..=(bytes / PAGE) as usize, |pages| with_tables(pages as u64 * PAGE) <= bytes);
    let arena = pages as u64 * PAGE;
    if arena >= HUGE_PAGE { arena / HUGE_PAGE * HUGE_PAGE } else { arena }
}
