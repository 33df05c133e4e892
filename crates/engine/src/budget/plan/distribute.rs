//! Division of the budget above the minimum.

use super::shares::*;
use super::*;

/// The pinned pieces, ring and slots that an arena is split into.
pub(super) struct ArenaSplit {
    pub(super) pinned: Vec<PieceId>,
    pub(super) pinned_bytes: u64,
    pub(super) ring: u64,
    pub(super) slots: Vec<SlotClass>,
}

impl Planner {
    /// Distributes a budget that exceeds the minimum, the structured output, the draft and the correction
    /// by `more` bytes.
    pub(super) fn distribute(
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
        let of_kv = kv - self.encoding(context) - sum_of(beyond);
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
        let mut left = stand_in_bytes;
        let mut stand_ins = Vec::new();
        if !split.slots.is_empty() {
            for &(id, len) in &self.pieces.stand_ins {
                let Some(remaining) = left.checked_sub(len) else { break };
                left = remaining;
                stand_ins.push(id);
            }
        }

        let slot_bytes: u64 = split.slots.iter().map(SlotClass::bytes).sum();
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
            (MemoryUse::Slots, slot_bytes),
        ]);
        let ledger = Ledger::new(ram, reservations).expect("shares within the budget");
        let (verify_len, kept) = self.verify_len_within(work, least_work);
        // Slots are cut from each memory in turn, for experts without a slot so far.
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
        let slots = usual_slots([&split.slots, &structured_lent, &lent], &context_lent, context);
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

    /// Splits the arena into pinned pieces, the ring and slots.
    pub(super) fn split_arena(&self, arena: u64) -> ArenaSplit {
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
                let ring = self.table_ring();
                let slots = slots.cut(room);
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
        let mut pinned = Vec::new();
        let mut left = arena - ring;
        for piece in cyclic {
            if piece.len <= left {
                left -= piece.len;
                pinned.push(piece.id);
            }
        }
        ArenaSplit { pinned, pinned_bytes: arena - ring - left, ring, slots: Vec::new() }
    }
}

/// Slots for experts while tokens of a text of usual length are generated one at a time: those of all classes, and a
/// share of those in contexts.
pub(super) fn usual_slots(
    classes: [&[SlotClass]; 3],
    in_contexts: &[SlotClass],
    context: usize,
) -> usize {
    let in_contexts = SlotClass::count_of(in_contexts) as f64 * idle_share(context);
    classes.into_iter().map(SlotClass::count_of).sum::<usize>() + in_contexts as usize
}
