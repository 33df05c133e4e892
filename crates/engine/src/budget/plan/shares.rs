//! How a budget is shared: each constant with its reason.

use sws_store::SLOT_ALIGN;

/// Default number of positions before memory is plentiful: few chats need more, and keys and values
/// take memory from weights.
pub(super) const CONTEXT: usize = 4096;
/// Lower bound of the default, for scarce memory.
pub(super) const LEAST_CONTEXT: usize = 512;
/// Positions of the text that the estimate of a token is for. A context lends the memory of all others.
pub(super) const ESTIMATED_POSITIONS: usize = 1024;
/// More positions than any model has: sizes are computed before they are checked.
pub(super) const MOST_CONTEXT: usize = 1 << 30;
/// Default maximum of a chunk. Twice as many tokens would spare the half of an already small number of
/// bytes per token.
pub(super) const CHUNK: usize = 4096;
/// Share of the budget above the minimum for the KV cache, and share of the remainder for a
/// longer chunk: one part in this many.
pub(super) const KV_SHARE: u64 = 8;
/// Share of the budget above the minimum up to which more positions than the default before have keys and
/// values, as far as the model has them: one part in this many.
pub(super) const LONG_KV_SHARE: u64 = 16;
pub(super) const CHUNK_SHARE: u64 = 4;
/// Share of the budget above the minimum for structured output, which lend it: one part in this many.
pub(super) const STRUCTURED_SHARE: u64 = 2;
/// Beyond its share, a chunk may take memory that the arena has above one part in this many of the
/// weights. Prompts then go through in one chunk.
pub(super) const WEIGHTS_SHARE: u64 = 4;
/// A chunk of more than a strip takes at most one part in this many of the room for slots beyond the
/// fewest: while tokens come one at a time it is lent to slots.
pub(super) const SLOTS_SHARE: u64 = 2;
/// Share of the work beyond that of a token for verifying draft tokens: one part in this many. It is
/// lost to lent slots.
pub(super) const VERIFIED_SHARE: u64 = 16;
/// Share of the experts' memory beyond the minimum slots for stand-ins under [`StandInUse::Auto`]:
/// one part in this many.
pub(super) const STAND_IN_SHARE: u64 = 8;
/// Share of a budget for a draft: one part in this many, but at least the floor.
pub(super) const DRAFT_SHARE: u64 = 20;
pub(super) const DRAFT_FLOOR: u64 = 1 << 20;
/// Share of a budget for a correction of evictions that is learned on the way.
pub(super) const LEARNED_SHARE: u64 = 128;
/// Share of the arena for the ring: one part in this many, up to a limit above which a longer ring
/// gains nothing.
pub(super) const RING_SHARE: u64 = 32;
pub(super) const RING_LIMIT: u64 = 64 << 20;
/// Blocks in the ring: one being computed with, and one being read.
pub(super) const UNITS: u64 = 2;
/// The allocator rounds sizes up, and leaves pages partly filled: by one part in this many.
pub(super) const SLACK_SHARE: u64 = 64;
/// Variation of a process's measurements from one start to the next.
pub(super) const MARGIN: u64 = 2 << 20;
pub(super) const MIB: u64 = 1 << 20;
pub(crate) const HUGE_PAGE: u64 = 2 << 20;
pub(super) const PAGE: u64 = SLOT_ALIGN as u64;
