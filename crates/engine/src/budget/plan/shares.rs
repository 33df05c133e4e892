//! The constants by which a budget is divided, each with its reason.

use sws_store::SLOT_ALIGN;

/// Default number of positions before memory is plentiful: few chats need more, and keys and values
/// take memory from weights.
pub const CONTEXT: usize = 4096;
/// Lower bound of the default, for scarce memory.
pub(super) const LEAST_CONTEXT: usize = 512;
/// Number of positions of the text for which a token is estimated. The memory of all other
/// positions is lent to slots.
pub(super) const ESTIMATED_POSITIONS: usize = 1024;
/// Upper bound that exceeds the context of any model: sizes are computed before they are checked.
pub(super) const MOST_CONTEXT: usize = 1 << 30;
/// Default maximum of a chunk. Doubling it would only halve a number of bytes per token that is
/// already small.
pub(super) const CHUNK: usize = 4096;
/// Share of the budget above the minimum for the KV cache, and share of the remainder for a
/// longer chunk: one part in this many.
pub const KV_SHARE: u64 = 8;
/// Share of the budget above the minimum for a KV cache with more positions than the default, up to
/// the context of the model: one part in this many.
pub const LONG_KV_SHARE: u64 = 16;
pub(super) const CHUNK_SHARE: u64 = 4;
/// Share of the budget above the minimum for structured output: one part in this many. This memory
/// is lent to slots.
pub(super) const STRUCTURED_SHARE: u64 = 2;
/// Share of the weights above which a chunk may take arena memory beyond its own share: one part in
/// this many. Prompts then go through in one chunk.
pub(super) const WEIGHTS_SHARE: u64 = 4;
/// Maximum share of a chunk longer than a strip in the room for additional slots: one part in this
/// many. This memory is lent to slots while tokens are generated one at a time.
pub(super) const SLOTS_SHARE: u64 = 2;
/// Share of the working memory above that of a token for verifying draft tokens: one part in this
/// many. It cannot be lent to slots.
pub(super) const VERIFIED_SHARE: u64 = 16;
/// Share of the experts' memory beyond the minimum slots for stand-ins under [`StandInUse::Auto`]:
/// one part in this many.
pub(super) const STAND_IN_SHARE: u64 = 8;
/// Maximum share of a budget for a draft: one part in this many, but at least the floor.
pub(super) const DRAFT_SHARE: u64 = 20;
pub(super) const DRAFT_FLOOR: u64 = 1 << 20;
/// Maximum share of a budget for a correction of evictions that is learned during runs: one part in
/// this many.
pub(super) const LEARNED_SHARE: u64 = 128;
/// Share of the arena for the ring: one part in this many, up to a limit above which a longer ring
/// gains nothing.
pub(super) const RING_SHARE: u64 = 32;
pub(super) const RING_LIMIT: u64 = 64 << 20;
/// Blocks in the ring: one that is used for computing, and one that is being read.
pub(super) const UNITS: u64 = 2;
/// Share of memory lost by an allocator that rounds sizes up and leaves pages partly filled: one
/// part in this many.
pub(super) const SLACK_SHARE: u64 = 64;
/// Variation of a process's measurements from one start to the next.
pub(super) const MARGIN: u64 = 2 << 20;
pub(super) const MIB: u64 = 1 << 20;
pub(crate) const HUGE_PAGE: u64 = 2 << 20;
pub(super) const PAGE: u64 = SLOT_ALIGN as u64;
