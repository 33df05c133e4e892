//! Decides when unused memory is lent to slots: that of a prompt's activations, of contexts, and of
//! structured output.

use crate::budget::{HUGE_PAGE, SlotClass, mapped};

/// Number of small passes after which lent slots have paid for the reads that are lost when they
/// are taken back.
const WORTH_LENDING: u32 = 16;

/// Lends slots as long as passes are small, with at most one token of each sequence. Slots are
/// taken back before a prompt, which needs the memory. If prompts follow each other closely,
/// lending resumes later.
#[derive(Clone, Debug, Default)]
pub struct Lending {
    /// Number of slots without the lent ones, if slots are lent.
    own: Option<usize>,
    /// True if lent slots were taken back for another reason than a prompt.
    ended: bool,
    /// Small passes since the last large one, and the number of small passes before slots are lent
    /// again.
    small: u32,
    wait: u32,
}

impl Lending {
    /// Counts a small pass. Returns true if slots should be lent for it.
    pub fn small(&mut self) -> bool {
        self.small = self.small.saturating_add(1);
        self.own.is_none() && self.small > self.wait
    }

    /// Number of slots without lent ones, while some are lent.
    pub(super) fn own(&self) -> Option<usize> {
        self.own
    }

    /// True while slots are lent.
    pub fn has_lent(&self) -> bool {
        self.own.is_some()
    }

    /// Records that slots were lent after `own` others.
    pub fn lent(&mut self, own: usize) {
        self.own = Some(own);
    }

    /// Forgets the lent slots, which were taken back for another reason than a prompt.
    pub(super) fn ended(&mut self) {
        self.ended |= self.own.take().is_some();
    }

    /// Counts a large pass. Returns the number of slots to keep, if others have to be taken back.
    pub fn large(&mut self) -> Option<usize> {
        let small = std::mem::take(&mut self.small);
        let ended = std::mem::take(&mut self.ended);
        if ended || self.own.is_some() || self.wait > 0 {
            self.wait = if small < WORTH_LENDING { WORTH_LENDING } else { 0 };
        }
        self.own.take()
    }
}

/// Approximate number of blocks into which the memory of contexts is divided, and the minimum bytes
/// of a block.
const BLOCKS: usize = 16;
const LEAST_BLOCK: usize = 4 << 20;

/// Slots in the memory of contexts that sequences do not use yet. They are lent block by block. The
/// bytes of one block always stay free, so that a growing sequence rarely takes a block back.
#[derive(Debug, Default)]
pub(super) struct ContextLending {
    blocks: Vec<LentBlock>,
    /// Number of slots before each block that is lent.
    lent: Vec<usize>,
    /// Bytes that sequences do not use.
    idle: u64,
}

#[derive(Debug)]
struct LentBlock {
    /// Lengths of the block's slots.
    slots: Vec<usize>,
    /// Bytes of the block's mapping, page tables included.
    bytes: usize,
}

impl ContextLending {
    /// Divides these slots into blocks. None of them is lent yet.
    pub(super) fn new(classes: &[SlotClass]) -> ContextLending {
        // Every block gets its share of each class.
        let mut slots = Vec::new();
        let mut all = 0;
        let mut longest = 0;
        for &SlotClass { len, count } in classes {
            for n in 0..count {
                slots.push(((n as f64 + 0.5) / count as f64, len));
            }
            all += count * len;
            longest = len.max(longest);
        }
        slots.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        let most =
            all.div_ceil(BLOCKS).max(LEAST_BLOCK).max(longest).next_multiple_of(HUGE_PAGE as usize);
        let mut blocks: Vec<LentBlock> = Vec::new();
        for (_, len) in slots {
            match blocks.last_mut() {
                Some(LentBlock { slots, bytes }) if *bytes + len <= most => {
                    slots.push(len);
                    *bytes += len;
                }
                _ => blocks.push(LentBlock { slots: vec![len], bytes: len }),
            }
        }
        for block in &mut blocks {
            block.bytes = mapped(block.bytes as u64) as usize;
        }
        ContextLending { blocks, lent: Vec::new(), idle: 0 }
    }

    /// False if nothing is ever lent.
    pub(super) fn lends(&self) -> bool {
        !self.blocks.is_empty()
    }

    /// Sets the bytes that sequences do not use. Returns the number of slots to keep, if others
    /// have to be taken back.
    pub(super) fn set_idle(&mut self, idle: u64) -> Option<usize> {
        self.idle = idle;
        let keeps = self.within(0);
        let own = self.lent.get(keeps).copied();
        self.lent.truncate(keeps);
        own
    }

    /// Number of blocks that fit into the idle bytes, with the bytes of `free` blocks left over.
    fn within(&self, free: usize) -> usize {
        let mut bytes = 0;
        for (number, block) in self.blocks.iter().enumerate() {
            bytes += block.bytes;
            if (bytes + free * block.bytes) as u64 > self.idle {
                return number;
            }
        }
        self.blocks.len()
    }

    /// True if another block can be lent. If other slots are lent behind the blocks, they would
    /// have to be taken back first, so it must be worth a quarter of all blocks.
    pub(super) fn has_more(&self, others: bool) -> bool {
        let more = self.within(1).saturating_sub(self.lent.len());
        more > 0 && (!others || more * 4 >= self.blocks.len())
    }

    /// The lengths of the slots of the next block.
    pub(super) fn next(&self) -> Option<&[usize]> {
        let at = self.lent.len();
        if at < self.within(1) { Some(&self.blocks[at].slots) } else { None }
    }

    /// Records that the next block was lent, after `before` slots.
    pub(super) fn lent(&mut self, before: usize) {
        self.lent.push(before);
    }

    /// Forgets the lent slots, which are taken back for another reason than a growing sequence.
    /// Returns the number of slots before them, if some were lent.
    pub(super) fn ended(&mut self) -> Option<usize> {
        let own = self.lent.first().copied();
        self.lent.clear();
        own
    }

    /// Stops lending, because the system granted no memory.
    pub(super) fn stop(&mut self) {
        self.blocks.truncate(self.lent.len());
    }

    /// Bytes of all blocks that are lent.
    pub(super) fn bytes(&self) -> u64 {
        self.blocks[..self.lent.len()].iter().map(|block| block.bytes as u64).sum()
    }
}

/// Slots in the memory of structured output, all of them or none.
#[derive(Debug, Default)]
pub(super) struct StructuredLending {
    /// True if no text has structured output.
    is_idle: bool,
    /// Number of slots before the lent ones, if slots have been lent.
    own: Option<usize>,
}

impl StructuredLending {
    /// True if slots should be lent.
    pub(super) fn is_due(&self) -> bool {
        self.is_idle && self.own.is_none()
    }

    /// True while slots are lent.
    pub(super) fn has_lent(&self) -> bool {
        self.own.is_some()
    }

    /// Records that slots were lent after `own` others.
    pub(super) fn lent(&mut self, own: usize) {
        self.own = Some(own);
    }

    /// Records whether any text has structured output. Returns the number of slots to keep, if
    /// others have to be taken back.
    pub(super) fn set_idle(&mut self, is_idle: bool) -> Option<usize> {
        self.is_idle = is_idle;
        if is_idle { None } else { self.own.take() }
    }

    /// Forgets the lent slots. Returns the number of slots before them, if some were lent.
    pub(super) fn ended(&mut self) -> Option<usize> {
        self.own.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_lent_later_after_prompts_that_follow_each_other() {
        let mut lending = Lending::default();
        assert_eq!(lending.large(), None);
        assert!(lending.small());
        lending.lent(7);
        assert!(!lending.small());
        assert_eq!(lending.large(), Some(7));
        // Only two small passes: not worth it.
        let waited = (0..40).position(|_| lending.small());
        assert_eq!(waited, Some(WORTH_LENDING as usize));
        lending.lent(7);
        assert_eq!(lending.large(), Some(7));
        assert!(lending.small());
        lending.lent(7);
        // The same if they were taken back for a text that grows, shortly before a prompt.
        lending.ended();
        assert_eq!(lending.large(), None);
        assert_eq!((0..40).position(|_| lending.small()), Some(WORTH_LENDING as usize));
    }

    #[test]
    fn contexts_are_lent_in_blocks_with_one_to_spare() {
        const MIB: u64 = 1 << 20;
        let mut lending = ContextLending::new(&[SlotClass { len: 8 << 20, count: 35 }]);
        let sizes: Vec<usize> = lending.blocks.iter().map(|block| block.slots.len()).collect();
        assert_eq!(sizes, [vec![2; 17], vec![1]].concat());
        let lend = |lending: &mut ContextLending, others| {
            let mut slots = 100 + 2 * lending.lent.len();
            let has_more = lending.has_more(others);
            while has_more && let Some(next) = lending.next().map(<[usize]>::len) {
                lending.lent(slots);
                slots += next;
            }
            lending.lent.len()
        };
        // Idle memory in MiB, other slots behind, number of slots to keep, and blocks that are lent then.
        for (idle, others, keeps, blocks) in [
            (20, false, None, 0),
            (60, false, None, 2),
            (110, true, None, 2),
            (110, false, None, 5),
            // What was to spare is used.
            (85, false, None, 5),
            (70, false, Some(108), 4),
            (400, true, None, 18),
            (0, true, Some(100), 0),
        ] {
            assert_eq!(lending.set_idle(idle * MIB), keeps, "{idle} MiB");
            let lent = lend(&mut lending, others);
            assert_eq!(lent, blocks, "{idle} MiB: {} of {} bytes", lending.bytes(), idle * MIB);
            assert!(lending.bytes() <= idle * MIB);
        }
        lending.stop();
        assert_eq!(lending.set_idle(400 * MIB), None);
        assert!(!lending.has_more(false));
        let mut none = ContextLending::new(&[]);
        assert_eq!(none.set_idle(400 * MIB), None);
        assert!(!none.has_more(false));
    }
}
