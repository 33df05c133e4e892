//! Bytes of the parts of a plan, as functions of positions, tokens and slots.

use super::shares::*;
use super::*;

impl Planner {
    /// Reservations that do not depend on the budget.
    pub(super) fn fixed(&self) -> impl Iterator<Item = (MemoryUse, u64)> {
        let work = self.work(self.chunks()[1]).max(self.least_work());
        let grown = self.kv(self.context[1]) + work + self.tables();
        let lines = [
            (MemoryUse::Slack, MIB + grown / SLACK_SHARE),
            (MemoryUse::Tables, self.tables()),
            (MemoryUse::Device, self.options.device),
            (MemoryUse::Vectors, self.pieces.vectors),
        ];
        self.process.lines().into_iter().chain(lines)
    }

    /// Bytes of everything but the arena, at the smallest budget.
    pub(super) fn base(&self) -> u64 {
        let context = self.context[0];
        sum_of(self.fixed()) + self.kv(context) + self.encoding(context) + self.least_work()
    }

    /// Bytes of the tables: piece locations, expert use over time, per token and per sequence,
    /// state shared by sequences, the last routes, and candidates of the sampler.
    pub(super) fn tables(&self) -> u64 {
        let mut used = 0;
        for moe in self.spec.moes() {
            let experts = moe.experts as u64;
            used += experts * experts * size_of::<f32>() as u64 + experts * 300;
        }
        let sampling = (self.options.batch * self.spec.vocab * 32) as u64 + self.shared_logits();
        let shape = routes_of(&self.spec);
        let tokens = (History::bytes_of_tokens(shape) + ExpectedUse::bytes_of_routes(shape)) as u64;
        let others = self.options.batch.saturating_sub(1) as u64;
        let sharing = if others > 0 { ExpectedUse::bytes_of_sharing(shape) as u64 } else { 0 };
        let sequences = others * History::bytes_of_sequence(shape) as u64 + sharing;
        self.pieces.tables + used + tokens + sequences + sampling
    }

    /// Bytes of the logits that a step of several sequences collects.
    pub(super) fn shared_logits(&self) -> u64 {
        let batch = self.options.batch;
        if batch > 1 { (batch * self.spec.vocab * size_of::<f32>()) as u64 } else { 0 }
    }

    pub(super) fn kv(&self, context: usize) -> u64 {
        let batch = self.options.batch;
        let kv = self.options.kv;
        ForwardState::paged_bytes(&self.spec, context, kv, page(batch, context)) * batch as u64
    }

    pub(super) fn encoding(&self, context: usize) -> u64 {
        let [once, each] = self.options.encoding;
        once + each * context as u64
    }

    /// Bytes that depend on the number of positions: keys, values, encoding, and additional working
    /// memory.
    pub(super) fn of_positions(&self, context: usize) -> u64 {
        self.kv(context) + self.encoding(context) + sum_of(self.beyond(context))
    }

    /// Additional working memory and slack for more positions than every plan accounts for. They
    /// belong to the share of the positions, so that the smallest budget does not grow.
    pub(super) fn beyond(&self, context: usize) -> [(MemoryUse, u64); 2] {
        let [_, counted, _] = self.context;
        if context <= counted {
            return [(MemoryUse::Activations, 0), (MemoryUse::Slack, 0)];
        }
        let shortest = self.work_beyond(self.chunks()[0], context);
        let work = shortest.max(self.work_beyond(self.longest_chunk(), context));
        let grown = work + self.kv(context).saturating_sub(self.kv(counted));
        [(MemoryUse::Activations, work), (MemoryUse::Slack, grown.div_ceil(SLACK_SHARE))]
    }

    /// Additional working memory of a pass of `tokens` tokens.
    fn work_beyond(&self, tokens: usize, context: usize) -> u64 {
        self.work_at(tokens, context).saturating_sub(self.work(tokens))
    }

    /// Maximum number of positions that `bytes` suffice for.
    pub(super) fn context_within(&self, bytes: u64) -> usize {
        let [least, _, most] = self.context;
        largest(least..=most, |context| self.of_positions(context) <= bytes)
    }

    /// Minimum and maximum number of tokens that go through the layers together in any plan.
    pub(super) fn chunks(&self) -> [usize; 2] {
        let batch = self.options.batch.max(1);
        [batch, batch.max(self.options.chunk.min(self.context[1]).min(PassSize::STRIP))]
    }

    /// Maximum number of tokens that go through the layers together if experts have slots. Longer
    /// chunks save reads of experts. Infrastructure is resident in that case, so strips can reuse
    /// it.
    pub(super) fn longest_chunk(&self) -> usize {
        let [_, most] = self.chunks();
        if self.options.all_logits {
            most
        } else {
            most.max(self.options.chunk.min(self.context[1]))
        }
    }

    /// Bytes by which the working memory of a pass may exceed `work` in a plan with slots. They are
    /// taken from an arena, page tables included.
    pub(super) fn room_for_longer(&self, arena: u64, work: u64) -> u64 {
        if self.pieces.slots.experts() == 0 {
            return 0;
        }
        let slots = self.least_slots_arena() + whole_pages(self.mandatory_stand_ins());
        let beyond = arena.saturating_sub(with_tables(whole_pages(slots)));
        (beyond / SLOTS_SHARE).min(self.work(self.longest_chunk()).saturating_sub(work))
    }

    pub(super) fn work(&self, tokens: usize) -> u64 {
        self.work_at(tokens, self.context[1])
    }

    /// Working memory of a pass of `tokens` tokens, in contexts of this many positions.
    pub(super) fn work_at(&self, tokens: usize, positions: usize) -> u64 {
        let PlanOptions { all_logits, threads, tier, .. } = self.options;
        let logits = if all_logits { tokens } else { self.options.batch.max(1) };
        let strip = PassSize::STRIP;
        let packings = self.packings;
        let size = PassSize { tokens, logits, positions, threads, strip, packings };
        // Passes over several sequences can be undone, and so can tokens computed on stand-ins.
        let passes = match (self.options.batch, self.options.stand_ins) {
            (0..=1, StandInUse::Off) => (0, 0),
            (0..=1, _) => (1, 1),
            (batch, _) => (batch, tokens),
        };
        let journal = ForwardState::journal_bytes(&self.spec, passes, self.options.kv);
        let bytes = self.spec.work_bytes(tier, size);
        // Every plan already accounts for the slack of a strip.
        let of_strip = match tokens > strip {
            true => self.spec.work_bytes(tier, PassSize { tokens: strip, ..size }),
            false => bytes,
        };
        bytes + bytes.saturating_sub(of_strip) / SLACK_SHARE + journal
    }

    /// Working memory for verifying this many tokens, including the pending choices of experts.
    pub(super) fn verifying(&self, tokens: usize) -> u64 {
        let PlanOptions { threads, tier, .. } = self.options;
        let positions = self.context[1];
        let strip = PassSize::STRIP;
        let packings = self.packings;
        let size = PassSize { tokens, logits: tokens, positions, threads, strip, packings };
        let choices = self.spec.routings().map(|moe| tokens * moe.top_k * size_of::<u32>());
        self.spec.work_bytes(tier, size) + choices.sum::<usize>() as u64
    }

    /// The minimum working memory of any plan. Drafting on stand-ins pays only if many tokens are
    /// verified together, so a plan with all stand-ins always has memory for that.
    pub(super) fn least_work(&self) -> u64 {
        let least = self.work(self.chunks()[0]);
        match self.mandatory_stand_ins() {
            0 => least,
            _ => least.max(self.verifying(self.max_verify_len())),
        }
    }

    /// Maximum number of draft tokens that are verified together in any plan; below 2 if none are.
    pub(super) fn max_verify_len(&self) -> usize {
        self.options.verify_len.min(self.context[0])
    }

    /// The maximum number of draft tokens that a share of `work` bytes can verify, and the bytes
    /// that cannot be lent. These bytes grow with `work`, and never by more.
    pub(super) fn verify_len_within(&self, work: u64, least_work: u64) -> (usize, u64) {
        let most = self.max_verify_len();
        if most < 2 {
            return (0, least_work);
        }
        let kept = (least_work + (work - least_work) / VERIFIED_SHARE)
            .min(self.verifying(most))
            .max(least_work);
        let fits = |tokens| tokens < 2 || self.verifying(tokens) <= kept;
        let verify_len = largest(0..=most, fits);
        (if verify_len > 1 { verify_len } else { 0 }, kept)
    }

    /// The longest chunk whose working memory fits into `work` bytes.
    pub(super) fn chunk_within(&self, work: u64) -> usize {
        let [least, _] = self.chunks();
        largest(least..=self.longest_chunk(), |tokens| self.work(tokens) <= work)
    }

    /// Bytes of the arena with nothing pinned and no slots. If all stand-ins are mandatory, they
    /// are included with the slots that make them useful.
    pub(super) fn least_arena(&self) -> u64 {
        whole_pages(match self.mandatory_stand_ins() {
            0 => self.least_ring(),
            bytes => self.least_ring().max(self.least_slots_arena() + bytes),
        })
    }

    /// Bytes of the smallest arena with slots for experts.
    pub(super) fn least_slots_arena(&self) -> u64 {
        self.pieces.cyclic_bytes() + self.lookup_ring() + self.pieces.slots.least_bytes()
    }

    /// Bytes of the shortest ring for all weights that may have to stream.
    pub(super) fn least_ring(&self) -> u64 {
        let PieceSizes { cyclic_unit, expert_unit, .. } = self.pieces;
        UNITS * cyclic_unit.max(expert_unit) + self.lookup_ring()
    }

    /// Bytes of the shortest ring for rows of tables alone.
    pub(super) fn lookup_ring(&self) -> u64 {
        self.pieces.embedding.unwrap_or_default().ring() + self.table_ring()
    }

    /// Bytes of the shortest ring for rows of the tables of layers.
    pub(super) fn table_ring(&self) -> u64 {
        self.pieces.layer_tables.iter().map(|table| table.sizes.ring()).sum()
    }

    /// Bytes of an arena for stand-ins, in whole pages. They grow with the arena, and never by
    /// more. Stand-ins are useful only if experts have slots.
    pub(super) fn stand_ins(&self, arena: u64) -> Result<u64, PlanError> {
        let PieceSizes { slots, stand_ins, .. } = &self.pieces;
        if self.options.stand_ins != StandInUse::Off && stand_ins.is_empty() {
            return Err(PlanError::NoStandIns);
        }
        let bytes = self.pieces.stand_in_bytes();
        let room = arena.saturating_sub(self.least_slots_arena());
        Ok(match self.options.stand_ins {
            StandInUse::Off => 0,
            // If every expert has a slot, stand-ins are not needed.
            StandInUse::Auto if room >= slots.bytes() => 0,
            StandInUse::Auto => (room / STAND_IN_SHARE / PAGE * PAGE).min(bytes),
            StandInUse::All => bytes,
        })
    }
}
