//! What of a model stays in memory, and how much room is left for what comes and goes.

mod estimate;
mod pieces;
mod slots;
#[cfg(test)]
mod tests;

pub use estimate::PerToken;
pub use slots::SlotClass;

use sws_cache::history::{History, Shape};
use sws_kernels::Functionals;
use sws_model::{Inventory, KvPrecision, ModelSpec, PassSize, State};
use sws_store::{LayoutError, Manifest, PieceId, SLOT_ALIGN};

use super::ledger::{Ledger, Process, Use};
use crate::stand_ins::StandInUse;
use pieces::Pieces;

/// How a model is to be run within a budget. Pure data: nothing has been allocated.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Pieces that stay, in the order of keeping. All other infrastructure streams.
    pub pinned: Vec<PieceId>,
    /// Bytes through which everything flows that neither stays nor has a slot; 0 if nothing does.
    pub ring: usize,
    /// Slots for experts; none if they flow through the ring.
    pub slots: Vec<SlotClass>,
    /// More of them, in what the activations of a prompt take, while tokens come one at a time.
    pub lent: Vec<SlotClass>,
    /// Experts whose stand-ins stay beside them.
    pub stand_ins: Vec<PieceId>,
    /// Whether experts flow through the ring: there is no room for the slots that one layer needs.
    pub experts_stream: bool,
    /// Tokens of a prompt that go through the layers together.
    pub chunk: usize,
    /// Positions of a sequence.
    pub context: usize,
    /// What has been reserved for what.
    pub ledger: Ledger,
    /// What a token is expected to read.
    pub per_token: PerToken,
}

/// What a plan is made for.
#[derive(Clone, Copy, Debug)]
pub struct PlanOptions {
    /// Positions of a sequence; none for what suits the budget.
    pub context: Option<usize>,
    /// Positions that are known to be needed where `context` does not say.
    pub at_least: usize,
    /// Sequences that run together.
    pub batch: usize,
    /// How keys and values are kept.
    pub kv: KvPrecision,
    /// Whether logits of every position are wanted, rather than of the last.
    pub all_logits: bool,
    /// The most tokens of a prompt that go through the layers together.
    pub chunk: usize,
    /// What computes.
    pub functionals: Functionals,
    /// Threads that compute.
    pub threads: usize,
    /// Bytes for encoding texts while the model is there: so many, and more for each position. None
    /// where that is over before there is a plan.
    pub encoding: [u64; 2],
    /// Bytes for the draft, which has them only where experts have slots beside it.
    pub draft: u64,
    /// Which stand-ins stay.
    pub stand_ins: StandInUse,
}

impl Default for PlanOptions {
    fn default() -> Self {
        PlanOptions {
            context: None,
            at_least: 0,
            batch: 1,
            kv: KvPrecision::F32,
            all_logits: false,
            chunk: 512,
            functionals: Functionals::best(),
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            encoding: [0; 2],
            draft: 0,
            stand_ins: StandInUse::Off,
        }
    }
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// Nothing works within the budget.
    #[error(
        "a budget of {} MiB is too small: the smallest that works here is --ram {}MiB (or --ram min), of which keys and values for {context} positions take {} MiB (--context changes that)",
        budget >> 20, smallest >> 20, kv >> 20
    )]
    TooSmall {
        /// The budget.
        budget: u64,
        /// One that works, whole MiB.
        smallest: u64,
        /// The context with that.
        context: usize,
        /// What it takes.
        kv: u64,
    },
    /// More positions than the model was made for.
    #[error("the model was made for {most} positions and {asked} were asked for; lower --context")]
    Context {
        /// Positions asked for.
        asked: usize,
        /// What the model has.
        most: usize,
    },
    /// Stand-ins that do not exist.
    #[error(
        "the model has no stand-ins; make shards with `sws shard --stand-ins q4`, or leave --stand-ins and --tolerance out"
    )]
    NoStandIns,
    /// Stand-ins that have no room.
    #[error(
        "a budget of {} MiB has no room for all stand-ins, which take {} MiB beside what every token needs; the smallest that has is --ram {}MiB, or use --stand-ins auto",
        budget >> 20, bytes >> 20, smallest >> 20
    )]
    StandIns {
        /// The budget.
        budget: u64,
        /// What they take.
        bytes: u64,
        /// One that works, whole MiB.
        smallest: u64,
    },
    /// The manifest is wrong.
    #[error(transparent)]
    Layout(#[from] LayoutError),
}

/// Makes plans of one model for any budget.
#[derive(Debug)]
pub struct Planner {
    spec: ModelSpec,
    pieces: Pieces,
    process: Process,
    options: PlanOptions,
    /// Positions at the smallest budget, and where growing ends.
    context: [usize; 2],
}

/// Positions, if nobody says how many: few chats need more, and keys and values take memory from
/// weights.
const CONTEXT: usize = 4096;
/// What the default is lowered to where memory is scarce.
const LEAST_CONTEXT: usize = 512;
/// More positions than any model has: sizes are computed before they are believed.
const MOST_CONTEXT: usize = 1 << 30;
/// Of what a budget has above the least, keys and values get one part in so many, and of the rest a
/// longer chunk does.
const KV_SHARE: u64 = 8;
const CHUNK_SHARE: u64 = 4;
/// Whatever its share, a chunk may take what the arena has above one part in so many of the weights:
/// from there on prompts go through in one chunk.
const WEIGHTS_SHARE: u64 = 4;
/// Stand-ins have one part in so many of what experts have beyond the fewest slots, where nobody asks
/// for all.
const STAND_IN_SHARE: u64 = 8;
/// A draft takes one part in so many of a budget, or the floor.
const DRAFT_SHARE: u64 = 20;
const DRAFT_FLOOR: u64 = 1 << 20;
/// The ring has one part in so many of the arena, as far as there is something to gain.
const RING_SHARE: u64 = 32;
const RING_LIMIT: u64 = 64 << 20;
/// What is passing through, and what is read meanwhile.
const UNITS: u64 = 2;
/// Embedding rows read at once.
const LOOKUPS: u64 = 16;
/// How far measurements of the same process lie apart from one start to the next.
const MARGIN: u64 = 2 << 20;
const MIB: u64 = 1 << 20;
const HUGE_PAGE: u64 = 2 << 20;
const PAGE: u64 = SLOT_ALIGN as u64;

impl Planner {
    /// For a model whose weights `inventory` has found, in a process that takes `process` without
    /// them.
    pub fn new(
        spec: &ModelSpec,
        inventory: &Inventory,
        manifest: &Manifest,
        process: Process,
        options: PlanOptions,
    ) -> Result<Planner, PlanError> {
        let pieces = Pieces::new(spec, inventory, manifest)?;
        let most = spec.context.min(MOST_CONTEXT);
        let context = match options.context {
            Some(asked) if asked > most => return Err(PlanError::Context { asked, most }),
            Some(asked) => [asked.max(1); 2],
            None => [LEAST_CONTEXT, CONTEXT].map(|n| n.max(options.at_least).min(most)),
        };
        Ok(Planner { spec: spec.clone(), pieces, process, options, context })
    }

    /// The most that a draft may take of a budget.
    pub fn most_draft(ram: u64) -> u64 {
        (ram / DRAFT_SHARE).max(DRAFT_FLOOR)
    }

    /// Reserves so many bytes for a draft in every plan that has slots for experts beside it, whose
    /// ledger then says so: [`Use::Draft`] is the share within which to make the draft.
    pub fn reserve_draft(&mut self, bytes: u64) {
        self.options.draft = bytes;
    }

    /// The smallest budget that works, in this process: what `min` means.
    pub fn least(&self) -> u64 {
        if self.must_hold_stand_ins() { self.smallest() } else { self.minimum() }
    }

    /// The smallest budget that works without stand-ins, to the byte, in this process.
    pub fn minimum(&self) -> u64 {
        // What the process has had once counts for ever.
        self.needed().max(self.process.peak)
    }

    /// The sum of all that must be there.
    fn needed(&self) -> u64 {
        self.base() + with_tables(self.least_arena())
    }

    /// The smallest budget that works, to be asked for in another process: whole MiB.
    pub fn smallest(&self) -> u64 {
        if !self.must_hold_stand_ins() {
            return (self.minimum() + MARGIN).next_multiple_of(MIB);
        }
        let lacks = |mib: usize| self.planned(mib as u64 * MIB).is_err();
        let first = self.minimum().div_ceil(MIB) as usize;
        let mut most = first;
        while lacks(most) {
            most *= 2;
        }
        let least = if most == first { first } else { largest(first..=most, lacks) + 1 };
        least as u64 * MIB + MARGIN
    }

    fn must_hold_stand_ins(&self) -> bool {
        self.options.stand_ins == StandInUse::All && !self.pieces.stand_ins.is_empty()
    }

    /// The bytes of all weights.
    pub fn weights(&self) -> u64 {
        self.pieces.bytes()
    }

    /// The plan for a budget.
    pub fn plan(&self, ram: u64) -> Result<Plan, PlanError> {
        self.planned(ram).map_err(|error| match error {
            PlanError::TooSmall { budget, context, kv, .. } => {
                PlanError::TooSmall { budget, smallest: self.smallest(), context, kv }
            }
            PlanError::StandIns { budget, bytes, .. } => {
                PlanError::StandIns { budget, bytes, smallest: self.smallest() }
            }
            error => error,
        })
    }

    /// The smallest budget, to `within` bytes, whose plan is `enough`, as that for `most` is. With
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

    /// The same, but for the smallest budget, which errors leave to [`plan`](Self::plan).
    fn planned(&self, ram: u64) -> Result<Plan, PlanError> {
        let Some(more) = ram.checked_sub(self.minimum()) else {
            let context = self.context[0];
            let kv = self.kv(context);
            return Err(PlanError::TooSmall { budget: ram, smallest: 0, context, kv });
        };
        // A draft forecasts what slots are filled with: without them there is nothing that it is for.
        let draft = self.options.draft;
        if let (1.., Some(beside)) = (draft, more.checked_sub(draft))
            && let Ok(plan) = self.divided(ram, beside, draft)
            && !plan.slots.is_empty()
        {
            return Ok(plan);
        }
        self.divided(ram, more, 0)
    }

    /// The plan for a budget that is `more` than what must be there and a draft.
    fn divided(&self, ram: u64, more: u64, draft: u64) -> Result<Plan, PlanError> {
        let of_positions = |context| self.kv(context) + self.encoding(context);
        let [least_kv, most_kv] = self.context.map(of_positions);
        // What a budget has above the least is divided so that every share grows with it, and none
        // takes more than was added: more memory never means more reading, but for less than two of
        // the longest slots where experts have several lengths.
        let kv = (least_kv + more / KV_SHARE).min(most_kv);
        let context = self.context_within(kv);
        let more = more - (kv - least_kv);
        let least_arena = with_tables(self.least_arena()) + (self.minimum() - self.needed());
        let [least_work, most_work] = self.chunks().map(|tokens| self.work(tokens));
        let share = more / CHUNK_SHARE;
        let enough =
            (least_arena + more).saturating_sub(with_tables(self.pieces.bytes() / WEIGHTS_SHARE));
        let work = (least_work + share.max(enough.min(more))).min(most_work);
        let chunk = self.chunk_within(work);
        let more = more - (work - least_work);
        let arena = arena_within(least_arena + more);
        let kept = self.stand_ins(ram, arena)?;
        let cut = self.cut(arena - kept);
        let (mut left, mut stand_ins) = (kept, Vec::new());
        if !cut.slots.is_empty() {
            stand_ins.extend(self.pieces.stand_ins.iter().map_while(|&(id, len)| {
                left = left.checked_sub(len)?;
                Some(id)
            }));
        }

        let bytes = |slots: &[SlotClass]| slots.iter().map(SlotClass::bytes).sum::<u64>();
        let kernel = (Use::Kernel, with_tables(arena) - arena);
        let reservations = self.fixed().chain([
            kernel,
            (Use::Draft, draft),
            (Use::KvCache, kv - self.encoding(context)),
            (Use::Encoding, self.encoding(context)),
            (Use::Activations, work),
            (Use::Pinned, cut.pinned_bytes),
            (Use::Ring, cut.ring),
            (Use::StandIns, kept),
            (Use::Slots, bytes(&cut.slots)),
        ]);
        let ledger = Ledger::new(ram, reservations).expect("shares of what there is");
        let lent = match &*cut.slots {
            [] => Vec::new(),
            slots => self.pieces.slots.further(slots, arena_within(work - least_work)),
        };
        let per_token = self.per_token(&cut, &lent);
        Ok(Plan {
            pinned: cut.pinned,
            ring: cut.ring as usize,
            experts_stream: cut.slots.is_empty() && self.pieces.slots.experts() > 0,
            slots: cut.slots,
            lent,
            stand_ins,
            chunk,
            context,
            ledger,
            per_token,
        })
    }

    /// What does not depend on the budget.
    fn fixed(&self) -> impl Iterator<Item = (Use, u64)> {
        // The allocator hands out a little more than it is asked for, and pages that are not full.
        let grown = self.kv(self.context[1]) + self.work(self.chunks()[1]) + self.tables();
        let lines = [
            (Use::Slack, MIB + grown / 64),
            (Use::Tables, self.tables()),
            (Use::Vectors, self.pieces.vectors),
        ];
        self.process.lines().into_iter().chain(lines)
    }

    /// All but the arena, at the smallest budget.
    fn base(&self) -> u64 {
        let fixed: u64 = self.fixed().map(|(_, bytes)| bytes).sum();
        let context = self.context[0];
        fixed + self.kv(context) + self.encoding(context) + self.work(self.chunks()[0])
    }

    /// Where pieces lie and would lie, when experts were used and after which tokens, and what is sampled
    /// from.
    fn tables(&self) -> u64 {
        let used = self.spec.moes().map(|moe| {
            let experts = moe.experts as u64;
            experts * experts * size_of::<f32>() as u64 + experts * 300
        });
        let sampling = (self.options.batch * self.spec.vocab * 32) as u64;
        let (layers, experts) = self
            .spec
            .moes()
            .fold((0, 0), |(layers, experts), moe| (layers + 1, moe.experts.max(experts)));
        let tokens = History::bytes_of_tokens(Shape { layers, experts, top_k: 0 }) as u64;
        self.pieces.tables + used.sum::<u64>() + tokens + sampling
    }

    fn kv(&self, context: usize) -> u64 {
        State::cache_bytes(&self.spec, context, self.options.kv) * self.options.batch as u64
    }

    fn encoding(&self, context: usize) -> u64 {
        let [once, each] = self.options.encoding;
        once + each * context as u64
    }

    /// The most positions whose keys and values, and whose text while it is encoded, take no more.
    fn context_within(&self, bytes: u64) -> usize {
        let [least, most] = self.context;
        largest(least..=most, |context| self.kv(context) + self.encoding(context) <= bytes)
    }

    /// Tokens that go through the layers together: the fewest, and the most.
    fn chunks(&self) -> [usize; 2] {
        let batch = self.options.batch.max(1);
        [batch, batch.max(self.options.chunk.min(self.context[1]))]
    }

    fn work(&self, tokens: usize) -> u64 {
        let PlanOptions { all_logits, threads, functionals, .. } = self.options;
        let logits = if all_logits { tokens } else { self.options.batch.max(1) };
        let size = PassSize { tokens, logits, positions: self.context[1], threads };
        self.spec.work_bytes(functionals, size)
    }

    /// The longest chunk that works in no more than that.
    fn chunk_within(&self, work: u64) -> usize {
        let [least, most] = self.chunks();
        largest(least..=most, |tokens| self.work(tokens) <= work)
    }

    /// With nothing pinned and no slots.
    fn least_arena(&self) -> u64 {
        whole_pages(self.least_ring())
    }

    /// The shortest ring for all that could have to flow through it.
    fn least_ring(&self) -> u64 {
        let Pieces { cyclic_unit, expert_unit, .. } = self.pieces;
        UNITS * cyclic_unit.max(expert_unit) + self.lookup_ring()
    }

    /// The shortest ring for embedding rows alone.
    fn lookup_ring(&self) -> u64 {
        self.pieces.embedding.map_or(0, |embedding| embedding.rest + LOOKUPS * embedding.row)
    }

    /// The bytes of an arena that stand-ins have: a share that grows with it, never by more, whole
    /// pages. They are of use only where experts have slots.
    fn stand_ins(&self, budget: u64, arena: u64) -> Result<u64, PlanError> {
        let Pieces { slots, stand_ins, .. } = &self.pieces;
        let bytes: u64 = stand_ins.iter().map(|(_, len)| len).sum();
        let fixed = self.pieces.cyclic_bytes() + self.lookup_ring() + slots.least_bytes();
        let room = arena.checked_sub(fixed);
        match self.options.stand_ins {
            StandInUse::Off => Ok(0),
            _ if stand_ins.is_empty() => Err(PlanError::NoStandIns),
            // Where every expert has a slot none is ever missing.
            StandInUse::Auto if room.is_some_and(|room| room >= slots.bytes()) => Ok(0),
            StandInUse::Auto => Ok((room.unwrap_or(0) / STAND_IN_SHARE / PAGE * PAGE).min(bytes)),
            StandInUse::All if room.is_some_and(|room| bytes <= room) => Ok(bytes),
            StandInUse::All => Err(PlanError::StandIns { budget, bytes, smallest: 0 }),
        }
    }

    /// Divides the arena.
    fn cut(&self, arena: u64) -> Cut {
        let Pieces { cyclic, embedding, slots, .. } = &self.pieces;
        let rest = arena.checked_sub(self.pieces.cyclic_bytes());
        if let Some(rest) = rest {
            let mut pinned: Vec<PieceId> = cyclic.iter().map(|piece| piece.id).collect();
            let pinned_bytes = self.pieces.cyclic_bytes();
            // A row of an embedding is little beside what an expert's slot saves.
            if let Some(embedding) = embedding
                && rest >= slots.bytes() + embedding.len
            {
                pinned.push(PieceId::EMBED);
                let pinned_bytes = pinned_bytes + embedding.len;
                return Cut { pinned, pinned_bytes, ring: 0, slots: slots.cut(rest) };
            }
            let ring = self.lookup_ring();
            if let Some(room) = rest.checked_sub(ring)
                && room >= slots.least_bytes()
            {
                return Cut { pinned, pinned_bytes, ring, slots: slots.cut(room) };
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
        Cut { pinned, pinned_bytes: arena - ring - left, ring, slots: Vec::new() }
    }
}

/// What an arena is divided into.
struct Cut {
    pinned: Vec<PieceId>,
    pinned_bytes: u64,
    ring: u64,
    slots: Vec<SlotClass>,
}

impl Plan {
    /// The bytes of the one mapping that all weights lie in.
    pub fn arena_bytes(&self) -> usize {
        let used =
            [Use::Pinned, Use::Ring, Use::StandIns, Use::Slots].map(|what| self.ledger.get(what));
        whole_pages(used.into_iter().sum()) as usize
    }

    /// The bytes of a mapping of its own for the slots that are lent.
    pub fn lent_bytes(&self) -> usize {
        self.lent.iter().map(SlotClass::bytes).sum::<u64>() as usize
    }

    /// How many experts there can be in memory while tokens come one at a time.
    pub fn most_experts(&self) -> usize {
        self.slots.iter().chain(&self.lent).map(|class| class.count).sum()
    }

    /// The plan for a lower budget that keeps what is pinned, the ring, context and chunk: only
    /// slots become fewer, so that it can be followed while the model runs.
    pub fn shrink(&self, ram: u64) -> Result<Plan, PlanError> {
        let mut plan = self.clone();
        let mut excess = self.ledger.budget().saturating_sub(ram);
        // What rounds the arena up stays.
        let spare = excess.min(plan.ledger.get(Use::Spare).saturating_sub(HUGE_PAGE));
        plan.ledger.release(Use::Spare, spare);
        excess -= spare;
        while excess > 0 {
            // Of the class that has most left, so that all keep their share.
            let class =
                plan.slots.iter_mut().filter(|class| class.count > 2).max_by_key(|c| c.bytes());
            let Some(class) = class else {
                let smallest = plan.ledger.budget().next_multiple_of(MIB);
                let (context, kv) = (self.context, self.ledger.get(Use::KvCache));
                return Err(PlanError::TooSmall { budget: ram, smallest, context, kv });
            };
            class.count -= 1;
            let len = class.len as u64;
            plan.ledger.release(Use::Slots, len);
            excess = excess.saturating_sub(len);
        }
        let left = ram.saturating_sub(plan.ledger.budget());
        plan.ledger.grant(left);
        Ok(plan)
    }
}

/// The largest number for which something holds that holds for none above one for which it does not.
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

/// What an arena of so many bytes is in memory: whole huge pages, where it is large enough for one.
fn whole_pages(bytes: u64) -> u64 {
    bytes.next_multiple_of(if bytes >= HUGE_PAGE { HUGE_PAGE } else { PAGE })
}

/// An arena with its page tables: a page of entries for 512 pages, kept ready for huge ones too, and
/// the few tables above.
fn with_tables(arena: u64) -> u64 {
    arena + arena.div_ceil(512).next_multiple_of(PAGE) + 4 * PAGE
}

/// The largest arena that with its page tables takes no more than that.
fn arena_within(bytes: u64) -> u64 {
    let pages =
        largest(0..=(bytes / PAGE) as usize, |pages| with_tables(pages as u64 * PAGE) <= bytes);
    let arena = pages as u64 * PAGE;
    if arena >= HUGE_PAGE { arena / HUGE_PAGE * HUGE_PAGE } else { arena }
}
