//! The plan of a budget: pinned pieces, the ring, and expert slots.

mod estimate;
mod hits;
mod pieces;
mod prompt;
mod slots;
#[cfg(test)]
mod tests;

pub use estimate::{PerToken, TokenCosts};
pub use hits::{HitBasis, HitCurve};
pub use prompt::PromptReads;
pub use slots::SlotClass;

use sws_cache::history::{History, HistoryShape};
use sws_cache::policy::ExpectedUse;
use sws_kernels::{Packings, Tier};
use sws_model::{ForwardState, Inventory, KvPrecision, ModelSpec, PassSize};
use sws_store::{LayoutError, Manifest, PieceId, SLOT_ALIGN};

use super::ledger::{Ledger, MemoryUse, ProcessMemory};
use crate::stand_ins::StandInUse;
use pieces::PieceSizes;

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
    /// Additional slots in the memory of a prompt's activations, while tokens are generated one at
    /// a time.
    pub lent: Vec<SlotClass>,
    /// Further slots in the memory of contexts, as far as sequences do not need it: of several, or of a long
    /// one.
    pub context_lent: Vec<SlotClass>,
    /// Further slots in the memory of structured output, while no text has one.
    pub structured_lent: Vec<SlotClass>,
    /// The smallest budget that works in another process, in whole MiB.
    pub smallest: u64,
    /// Experts whose stand-ins are resident.
    pub stand_ins: Vec<PieceId>,
    /// True if experts flow through the ring, for lack of room for the slots that one layer needs.
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
    /// Maximum number of bytes for structured output. No budget has to have them, and slots get them while
    /// no text has structured output.
    pub structured: u64,
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
            draft: 0,
            correction: 0,
            stand_ins: StandInUse::Off,
        }
    }
}

/// Positions in a pages of the KV cache. Several sequences grow by pages, and forks share them, and so
/// does one with a long context, most of which may never be used; attention over shorter pages is slower.
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
    /// Positions at the smallest budget, those that budgets soon have, and their maximum.
    context: [usize; 3],
}

/// Default number of positions before memory is plentiful: few chats need more, and keys and values
/// take memory from weights.
const CONTEXT: usize = 4096;
/// Lower bound of the default, for scarce memory.
const LEAST_CONTEXT: usize = 512;
/// Positions of the text that the estimate of a token is for. A context lends the memory of all others.
const ESTIMATED_POSITIONS: usize = 1024;
/// More positions than any model has: sizes are computed before they are checked.
const MOST_CONTEXT: usize = 1 << 30;
/// Default maximum of a chunk. Twice as many tokens would spare the half of an already small number of
/// bytes per token.
const CHUNK: usize = 4096;
/// Share of the budget above the minimum for the KV cache, and share of the remainder for a
/// longer chunk: one part in this many.
const KV_SHARE: u64 = 8;
/// Share of the budget above the minimum up to which more positions than the default before have keys and
/// values, as far as the model has them: one part in this many.
const LONG_KV_SHARE: u64 = 16;
const CHUNK_SHARE: u64 = 4;
/// Share of the budget above the minimum for structured output, which lend it: one part in this many.
const STRUCTURED_SHARE: u64 = 2;
/// Beyond its share, a chunk may take memory that the arena has above one part in this many of the
/// weights. Prompts then go through in one chunk.
const WEIGHTS_SHARE: u64 = 4;
/// A chunk of more than a strip takes at most one part in this many of the room for slots beyond the
/// fewest: while tokens come one at a time it is lent to slots.
const SLOTS_SHARE: u64 = 2;
/// Share of the work beyond that of a token for verifying draft tokens: one part in this many. It is
/// lost to lent slots.
const VERIFIED_SHARE: u64 = 16;
/// Share of the experts' memory beyond the minimum slots for stand-ins under [`StandInUse::Auto`]:
/// one part in this many.
const STAND_IN_SHARE: u64 = 8;
/// Share of a budget for a draft: one part in this many, but at least the floor.
const DRAFT_SHARE: u64 = 20;
const DRAFT_FLOOR: u64 = 1 << 20;
/// Share of a budget for a correction of evictions that is learned on the way.
const LEARNED_SHARE: u64 = 128;
/// Share of the arena for the ring: one part in this many, up to a limit above which a longer ring
/// gains nothing.
const RING_SHARE: u64 = 32;
const RING_LIMIT: u64 = 64 << 20;
/// Blocks in the ring: one being computed with, and one being read.
const UNITS: u64 = 2;
/// The allocator rounds sizes up, and leaves pages partly filled: by one part in this many.
const SLACK_SHARE: u64 = 64;
/// Variation of a process's measurements from one start to the next.
const MARGIN: u64 = 2 << 20;
const MIB: u64 = 1 << 20;
pub(crate) const HUGE_PAGE: u64 = 2 << 20;
const PAGE: u64 = SLOT_ALIGN as u64;

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

    /// The most memory that a budget gives to learning a correction of evictions. It saves a few percent of
    /// the misses, and must not add as many by the slots in whose place it is.
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
            StandInUse::All => self.pieces.stand_ins.iter().map(|(_, len)| len).sum(),
            StandInUse::Off | StandInUse::Auto => 0,
        }
    }

    /// Bytes of all weights.
    pub fn weights(&self) -> u64 {
        self.pieces.bytes()
    }

    /// Bytes of the tables of layers, and of reading the rows of a token, which every token does at any
    /// budget; `None` without one.
    pub fn layer_tables(&self) -> Option<[u64; 2]> {
        let bytes = self.pieces.table_bytes();
        (bytes > 0).then(|| [bytes, self.table_rows()])
    }

    /// Bytes that a token reads of the tables of layers.
    fn table_rows(&self) -> u64 {
        self.pieces.layer_tables.iter().map(|table| table.rows * table.sizes.row).sum()
    }

    /// Plans for a budget.
    pub fn plan(&self, ram: u64) -> Result<Plan, PlanError> {
        self.try_plan(ram).map_err(|error| match error {
            PlanError::TooSmall { budget, context, kv, .. } => {
                PlanError::TooSmall { budget, smallest: self.smallest(), context, kv }
            }
            PlanError::StandIns { budget, bytes, .. } => {
                PlanError::StandIns { budget, bytes, smallest: self.smallest() }
            }
            error => error,
        })
    }

    /// Finds the smallest budget whose plan is `enough`, as that for `most` is, to `within` bytes. With
    /// experts of one length, more memory never means fewer slots.
    pub fn smallest_with(
        &self,
        most: u64,
        within: u64,
        enough: impl Fn(&Plan) -> bool,
    ) -> Result<u64, PlanError> {
        let (mut low, mut high) = (self.minimum(), most);
        while high - low > within {
            let middle = low.midpoint(high);
            if enough(&self.plan(middle)?) { high = middle } else { low = middle }
        }
        Ok(high)
    }

    /// As [`plan`](Self::plan), but errors lack the smallest budget.
    fn try_plan(&self, ram: u64) -> Result<Plan, PlanError> {
        let Some(more) = ram.checked_sub(self.minimum()) else {
            let (context, budget) = (self.context[0], ram);
            let kv = self.kv(context);
            return Err(match self.mandatory_stand_ins() {
                0 => PlanError::TooSmall { budget, smallest: 0, context, kv },
                bytes => PlanError::StandIns { budget, bytes, smallest: 0 },
            });
        };
        let structured = (more / STRUCTURED_SHARE).min(self.options.structured);
        let more = more - structured;
        // Both forecast experts for slots. Without slots they have no use.
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

    /// Distributes a budget that exceeds the minimum, the structured output, the draft and the correction
    /// by `more` bytes.
    fn distribute(
        &self,
        ram: u64,
        more: u64,
        structured: u64,
        [draft, correction]: [u64; 2],
    ) -> Result<Plan, PlanError> {
        let [least_kv, most_kv, longest_kv] = self.context.map(|n| self.of_positions(n));
        // The budget above the minimum is divided so that every share grows with it, and none by
        // more than was added. More memory then never means more reads, except for less than two of
        // the longest slots if experts have several lengths.
        let kv = (least_kv + more / KV_SHARE).min(most_kv);
        let kv = kv.max((more / LONG_KV_SHARE).min(longest_kv));
        let context = self.context_within(kv);
        let beyond = self.beyond(context);
        let of_kv =
            kv - self.encoding(context) - beyond.iter().map(|(_, bytes)| bytes).sum::<u64>();
        let more = more - (kv - least_kv);
        let least_arena = with_tables(self.least_arena()) + (self.minimum() - self.needed());
        let least_work = self.least_work();
        let most_work = self.work(self.chunks()[1]).max(least_work);
        let share = more / CHUNK_SHARE;
        let enough = (least_arena + more)
            .saturating_sub(with_tables(self.pieces.bytes_without_tables() / WEIGHTS_SHARE));
        let share = share.max(enough.min(more));
        let work = (least_work + share).min(most_work);
        let more = more - (work - least_work);
        let left = share - (work - least_work);
        let longer = left.min(self.room_for_longer(least_arena + more, work));
        let work = work + longer;
        let chunk = self.chunk_within(work);
        let arena = arena_within(least_arena + more - longer);
        let stand_in_bytes = self.stand_ins(arena)?;
        let split = self.split_arena(arena - stand_in_bytes);
        let (mut left, mut stand_ins) = (stand_in_bytes, Vec::new());
        if !split.slots.is_empty() {
            stand_ins.extend(self.pieces.stand_ins.iter().map_while(|&(id, len)| {
                left = left.checked_sub(len)?;
                Some(id)
            }));
        }

        let bytes = |slots: &[SlotClass]| slots.iter().map(SlotClass::bytes).sum::<u64>();
        let kernel = (MemoryUse::Kernel, with_tables(arena) - arena);
        let reservations = self.fixed().chain(beyond).chain([
            kernel,
            (MemoryUse::Draft, draft),
            (MemoryUse::Correction, correction),
            (MemoryUse::KvCache, of_kv),
            (MemoryUse::Encoding, self.encoding(context)),
            (MemoryUse::Structured, structured),
            (MemoryUse::Activations, work),
            (MemoryUse::Pinned, split.pinned_bytes),
            (MemoryUse::Ring, split.ring),
            (MemoryUse::StandIns, stand_in_bytes),
            (MemoryUse::Slots, bytes(&split.slots)),
        ]);
        let ledger = Ledger::new(ram, reservations).expect("shares within the budget");
        let (verify_len, kept) = self.verify_len_within(work, least_work);
        // Slots in the memory of each in turn, beside those before.
        let mut held = split.slots.clone();
        let mut lend = |bytes| {
            if held.is_empty() {
                return Vec::new();
            }
            let lent = self.pieces.slots.additional(&held, arena_within(bytes));
            held = SlotClass::together(&held, &lent);
            lent
        };
        let structured_lent = lend(structured);
        let lent = lend(work - kept);
        let context_lent = match page(self.options.batch, context) > context {
            true => Vec::new(),
            false => lend(of_kv),
        };
        let count = |classes: &[SlotClass]| classes.iter().map(|class| class.count).sum::<usize>();
        let in_contexts = count(&context_lent) as f64 * idle_share(context);
        let slots =
            count(&split.slots) + count(&structured_lent) + count(&lent) + in_contexts as usize;
        let per_token = self.per_token(&split, slots);
        let prompt = self.prompt_reads(&split, chunk);
        Ok(Plan {
            pinned: split.pinned,
            ring: split.ring as usize,
            experts_stream: split.slots.is_empty() && self.pieces.slots.experts() > 0,
            slots: split.slots,
            lent,
            context_lent,
            structured_lent,
            smallest: self.smallest(),
            stand_ins,
            chunk,
            verify_len,
            context,
            sequences: self.options.batch.max(1),
            ledger,
            per_token,
            prompt,
        })
    }

    /// Reservations that do not depend on the budget.
    fn fixed(&self) -> impl Iterator<Item = (MemoryUse, u64)> {
        let work = self.work(self.chunks()[1]).max(self.least_work());
        let grown = self.kv(self.context[1]) + work + self.tables();
        let lines = [
            (MemoryUse::Slack, MIB + grown / SLACK_SHARE),
            (MemoryUse::Tables, self.tables()),
            (MemoryUse::Vectors, self.pieces.vectors),
        ];
        self.process.lines().into_iter().chain(lines)
    }

    /// Bytes of everything but the arena, at the smallest budget.
    fn base(&self) -> u64 {
        let fixed: u64 = self.fixed().map(|(_, bytes)| bytes).sum();
        let context = self.context[0];
        fixed + self.kv(context) + self.encoding(context) + self.least_work()
    }

    /// Bytes of the tables: locations of pieces, uses of experts over time, after tokens and by each
    /// sequence, what sequences share of them, the last routes, and candidates of the sampler.
    fn tables(&self) -> u64 {
        let used = self.spec.moes().map(|moe| {
            let experts = moe.experts as u64;
            experts * experts * size_of::<f32>() as u64 + experts * 300
        });
        let sampling = (self.options.batch * self.spec.vocab * 32) as u64 + self.shared_logits();
        let shape = routes_of(&self.spec);
        let tokens = (History::bytes_of_tokens(shape) + ExpectedUse::bytes_of_routes(shape)) as u64;
        let others = self.options.batch.saturating_sub(1) as u64;
        let sharing = if others > 0 { ExpectedUse::bytes_of_sharing(shape) as u64 } else { 0 };
        let sequences = others * History::bytes_of_sequence(shape) as u64 + sharing;
        self.pieces.tables + used.sum::<u64>() + tokens + sequences + sampling
    }

    /// Bytes of the logits that a step of several sequences collects.
    fn shared_logits(&self) -> u64 {
        let batch = self.options.batch;
        if batch > 1 { (batch * self.spec.vocab * size_of::<f32>()) as u64 } else { 0 }
    }

    fn kv(&self, context: usize) -> u64 {
        let (batch, kv) = (self.options.batch, self.options.kv);
        ForwardState::paged_bytes(&self.spec, context, kv, page(batch, context)) * batch as u64
    }

    fn encoding(&self, context: usize) -> u64 {
        let [once, each] = self.options.encoding;
        once + each * context as u64
    }

    /// Bytes of keys, values and encoding of so many positions, and of what else takes more with them.
    fn of_positions(&self, context: usize) -> u64 {
        let beyond = self.beyond(context).into_iter().map(|(_, bytes)| bytes);
        self.kv(context) + self.encoding(context) + beyond.sum::<u64>()
    }

    /// What takes more with so many positions than with those that every plan counts for: working memory
    /// and slack. Positions have it in their share, so that the smallest budget does not grow.
    fn beyond(&self, context: usize) -> [(MemoryUse, u64); 2] {
        let [_, counted, _] = self.context;
        if context <= counted {
            return [(MemoryUse::Activations, 0), (MemoryUse::Slack, 0)];
        }
        let more = |tokens| self.work_at(tokens, context).saturating_sub(self.work(tokens));
        let work = more(self.chunks()[0]).max(more(self.longest_chunk()));
        let grown = work + self.kv(context).saturating_sub(self.kv(counted));
        [(MemoryUse::Activations, work), (MemoryUse::Slack, grown.div_ceil(SLACK_SHARE))]
    }

    /// Maximum number of positions that `bytes` suffice for.
    fn context_within(&self, bytes: u64) -> usize {
        let [least, _, most] = self.context;
        largest(least..=most, |context| self.of_positions(context) <= bytes)
    }

    /// Minimum and maximum number of tokens that go through the layers together in any plan.
    fn chunks(&self) -> [usize; 2] {
        let batch = self.options.batch.max(1);
        [batch, batch.max(self.options.chunk.min(self.context[1]).min(PassSize::STRIP))]
    }

    /// Maximum number of tokens that go through the layers together if experts have slots. They save
    /// reads of experts. Infrastructure is resident then, so that strips can use it again and again.
    fn longest_chunk(&self) -> usize {
        let [_, most] = self.chunks();
        if self.options.all_logits {
            most
        } else {
            most.max(self.options.chunk.min(self.context[1]))
        }
    }

    /// Bytes by which the working memory of a pass may exceed `work`, out of an arena with its page
    /// tables in which experts have slots.
    fn room_for_longer(&self, arena: u64, work: u64) -> u64 {
        if self.pieces.slots.experts() == 0 {
            return 0;
        }
        let slots = self.least_slots_arena() + whole_pages(self.mandatory_stand_ins());
        let beyond = arena.saturating_sub(with_tables(whole_pages(slots)));
        (beyond / SLOTS_SHARE).min(self.work(self.longest_chunk()).saturating_sub(work))
    }

    fn work(&self, tokens: usize) -> u64 {
        self.work_at(tokens, self.context[1])
    }

    /// Working memory of a pass of `tokens` in contexts of so many positions.
    fn work_at(&self, tokens: usize, positions: usize) -> u64 {
        let PlanOptions { all_logits, threads, tier, .. } = self.options;
        let logits = if all_logits { tokens } else { self.options.batch.max(1) };
        let strip = PassSize::STRIP;
        let packings = self.packings;
        let size = |tokens| PassSize { tokens, logits, positions, threads, strip, packings };
        // A pass over several sequences can be undone, and so can a token that ran ahead.
        let passes = match (self.options.batch, self.options.stand_ins) {
            (0..=1, StandInUse::Off) => (0, 0),
            (0..=1, _) => (1, 1),
            (batch, _) => (batch, tokens),
        };
        let journal = ForwardState::journal_bytes(&self.spec, passes, self.options.kv);
        let bytes = self.spec.work_bytes(tier, size(tokens));
        // The slack of every plan is that of a strip.
        let strip = if tokens > strip { self.spec.work_bytes(tier, size(strip)) } else { bytes };
        bytes + bytes.saturating_sub(strip) / SLACK_SHARE + journal
    }

    /// Working memory of verifying so many tokens, with the choices of experts that are not heard of yet.
    fn verifying(&self, tokens: usize) -> u64 {
        let PlanOptions { threads, tier, .. } = self.options;
        let (positions, strip) = (self.context[1], PassSize::STRIP);
        let packings = self.packings;
        let size = PassSize { tokens, logits: tokens, positions, threads, strip, packings };
        let choices = self.spec.moes().map(|moe| tokens * moe.top_k * size_of::<u32>());
        self.spec.work_bytes(tier, size) + choices.sum::<usize>() as u64
    }

    /// The least working memory of any plan. What stand-ins draft pays only if many tokens are verified
    /// together, so who has all of them has room for that in any case.
    fn least_work(&self) -> u64 {
        let least = self.work(self.chunks()[0]);
        match self.mandatory_stand_ins() {
            0 => least,
            _ => least.max(self.verifying(self.max_verify_len())),
        }
    }

    /// Maximum number of draft tokens that are verified together in any plan; below 2 if none are.
    fn max_verify_len(&self) -> usize {
        self.options.verify_len.min(self.context[0])
    }

    /// The largest number of draft tokens that are verified within a share of `work` bytes, and the
    /// bytes that are not lent. These grow with the work, and never by more.
    fn verify_len_within(&self, work: u64, least_work: u64) -> (usize, u64) {
        let most = self.max_verify_len();
        if most < 2 {
            return (0, least_work);
        }
        let kept = (least_work + (work - least_work) / VERIFIED_SHARE)
            .min(self.verifying(most))
            .max(least_work);
        let fits = |tokens| tokens < 2 || self.verifying(tokens) <= kept;
        let verify_len = Some(largest(0..=most, fits)).filter(|&tokens| tokens > 1);
        (verify_len.unwrap_or(0), kept)
    }

    /// The longest chunk whose working memory fits into `work` bytes.
    fn chunk_within(&self, work: u64) -> usize {
        let [least, _] = self.chunks();
        largest(least..=self.longest_chunk(), |tokens| self.work(tokens) <= work)
    }

    /// Bytes of the arena with nothing pinned and no slots, or with all stand-ins, which nothing but slots
    /// has a use for.
    fn least_arena(&self) -> u64 {
        whole_pages(match self.mandatory_stand_ins() {
            0 => self.least_ring(),
            bytes => self.least_ring().max(self.least_slots_arena() + bytes),
        })
    }

    /// Bytes of the shortest arena in which experts have slots.
    fn least_slots_arena(&self) -> u64 {
        self.pieces.cyclic_bytes() + self.lookup_ring() + self.pieces.slots.least_bytes()
    }

    /// Bytes of the shortest ring for all weights that may have to stream.
    fn least_ring(&self) -> u64 {
        let PieceSizes { cyclic_unit, expert_unit, .. } = self.pieces;
        UNITS * cyclic_unit.max(expert_unit) + self.lookup_ring()
    }

    /// Bytes of the shortest ring for rows of tables alone.
    fn lookup_ring(&self) -> u64 {
        let embedding = self.pieces.embedding.map_or(0, |table| table.ring());
        embedding + self.table_ring()
    }

    /// Bytes of the shortest ring for rows of the tables of layers.
    fn table_ring(&self) -> u64 {
        self.pieces.layer_tables.iter().map(|table| table.sizes.ring()).sum()
    }

    /// Bytes of an arena for stand-ins, in whole pages. They grow with the arena, and never by
    /// more. Stand-ins are useful only if experts have slots.
    fn stand_ins(&self, arena: u64) -> Result<u64, PlanError> {
        let PieceSizes { slots, stand_ins, .. } = &self.pieces;
        if self.options.stand_ins != StandInUse::Off && stand_ins.is_empty() {
            return Err(PlanError::NoStandIns);
        }
        let bytes: u64 = stand_ins.iter().map(|(_, len)| len).sum();
        let room = arena.saturating_sub(self.least_slots_arena());
        Ok(match self.options.stand_ins {
            StandInUse::Off => 0,
            // If every expert has a slot, stand-ins are not needed.
            StandInUse::Auto if room >= slots.bytes() => 0,
            StandInUse::Auto => (room / STAND_IN_SHARE / PAGE * PAGE).min(bytes),
            StandInUse::All => bytes,
        })
    }

    /// Splits the arena into pinned pieces, the ring and slots.
    fn split_arena(&self, arena: u64) -> ArenaSplit {
        let PieceSizes { cyclic, embedding, slots, .. } = &self.pieces;
        let rest = arena.checked_sub(self.pieces.cyclic_bytes());
        if let Some(rest) = rest {
            let mut pinned: Vec<PieceId> = cyclic.iter().map(|piece| piece.id).collect();
            let pinned_bytes = self.pieces.cyclic_bytes();
            // Pinning the embedding comes last: a row saves little compared with an expert's slot.
            if let Some(embedding) = embedding
                && let Some(room) = rest.checked_sub(self.table_ring())
                && room >= slots.bytes() + embedding.len
            {
                pinned.push(PieceId::EMBED);
                let pinned_bytes = pinned_bytes + embedding.len;
                let (ring, slots) = (self.table_ring(), slots.cut(room));
                return ArenaSplit { pinned, pinned_bytes, ring, slots };
            }
            let ring = self.lookup_ring();
            if let Some(room) = rest.checked_sub(ring)
                && room >= slots.least_bytes()
            {
                return ArenaSplit { pinned, pinned_bytes, ring, slots: slots.cut(room) };
            }
        }
        let least = self.least_ring();
        let ring = (arena / RING_SHARE / PAGE * PAGE).clamp(least, least.max(RING_LIMIT));
        let (mut pinned, mut left) = (Vec::new(), arena - ring);
        for piece in cyclic {
            if piece.len <= left {
                left -= piece.len;
                pinned.push(piece.id);
            }
        }
        ArenaSplit { pinned, pinned_bytes: arena - ring - left, ring, slots: Vec::new() }
    }
}

/// The parts of an arena.
struct ArenaSplit {
    pinned: Vec<PieceId>,
    pinned_bytes: u64,
    ring: u64,
    slots: Vec<SlotClass>,
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

    /// The smallest budget, in whole MiB, that has so many bytes for structured output, as far as it has any.
    pub fn ram_for_structured(&self, bytes: u64) -> u64 {
        self.smallest + (STRUCTURED_SHARE * bytes).next_multiple_of(MIB)
    }

    /// Maximum number of experts in memory while tokens are generated one at a time.
    pub fn most_experts(&self) -> usize {
        let all = self.slots.iter().chain(&self.structured_lent).chain(&self.lent);
        all.map(|class| class.count).sum()
    }

    /// Returns the plan for a lower budget. It has fewer slots, but the same pinned pieces, ring,
    /// context and chunk, so that it can be applied while the model runs.
    pub fn shrink(&self, ram: u64) -> Result<Plan, PlanError> {
        let mut plan = self.clone();
        let mut excess = self.ledger.budget().saturating_sub(ram);
        // The rounding of the arena stays.
        let spare = excess.min(plan.ledger.get(MemoryUse::Spare).saturating_sub(HUGE_PAGE));
        plan.ledger.release(MemoryUse::Spare, spare);
        excess -= spare;
        while excess > 0 {
            // From the class with the most bytes left, so that all keep their shares.
            let class =
                plan.slots.iter_mut().filter(|class| class.count > 2).max_by_key(|c| c.bytes());
            let Some(class) = class else {
                let smallest = plan.ledger.budget().next_multiple_of(MIB);
                let (context, kv) = (self.context, self.ledger.get(MemoryUse::KvCache));
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

/// The layers with experts of a model, and their experts.
pub fn routes_of(spec: &ModelSpec) -> HistoryShape {
    let (layers, experts) =
        spec.moes().fold((0, 0), |(layers, experts), moe| (layers + 1, moe.experts.max(experts)));
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

/// Share of the slots in the memory of contexts that a text of [`ESTIMATED_POSITIONS`] leaves to experts. The
/// lender keeps a block of sixteen free.
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

/// Bytes of a mapping for so many bytes, with its page tables.
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
