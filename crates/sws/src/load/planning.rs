//! Memory plans of a model in the current process.

use std::thread::available_parallelism;

use sws_cache::correction::Corrections;
use sws_engine::{MAX_VERIFY_LEN, MemoryUse, Plan, PlanOptions, Planner, ProcessMemory, routes_of};
use sws_model::Inventory;
use sws_store::SystemMemory;
use sws_text::Tokenizer;

use crate::learned::draft::DraftCandidate;
use crate::learned::eviction;
use crate::load::vram::Vram;
use crate::open::process;
use crate::open::reading::{ReadingRoom, TokenizerReading};
use crate::{DraftChoice, Error, Loader, Result, TextCodec, Threads};

/// Memory budget of a model, with a planner for this and other budgets.
#[derive(Debug)]
pub struct Planning {
    /// Planner for any budget. The share of the draft stays that of `ram`.
    pub planner: Planner,
    /// Requested budget in bytes.
    pub ram: u64,
    /// Memory that this process can have, in bytes.
    pub total: u64,
    /// Possible draft, and its limit in bytes.
    draft: Option<(DraftCandidate, u64)>,
    /// Corrections of the eviction policy.
    pub(crate) corrections: Corrections,
    /// The tier on a graphics card, whose driver was loaded before the process was measured.
    pub(crate) vram: Vram,
}

impl Planning {
    pub(crate) fn new(
        loader: &Loader<'_>,
        text: &TextCodec,
        threads: &Threads,
        vram: Vram,
    ) -> Result<Planning> {
        // Measured before the draft is loaded, which has a line of its own in the ledger.
        let process = process::measure(loader.model, text.heap());
        Planning::of(loader, process, vram, text.encoding(), threads.count())
    }

    /// Plans in a process that takes this memory, for texts whose encoding takes a constant and an amount
    /// per position.
    pub(crate) fn of(
        loader: &Loader<'_>,
        process: ProcessMemory,
        vram: Vram,
        [encoding, each]: [u64; 2],
        threads: usize,
    ) -> Result<Planning> {
        let Loader { model, options, needs, .. } = loader;
        let streaming = &options.streaming;
        model.named(streaming.exactness().check(model.spec()))?;
        let inventory = inventory(loader)?;
        let candidate = match !streaming.speculation || streaming.draft == DraftChoice::Off {
            true => None,
            false => DraftCandidate::find(model, streaming.draft_file(), needs.texts)?,
        };
        let plan_options = PlanOptions {
            context: options.context,
            min_context: needs.positions,
            batch: needs.texts,
            kv: options.kv,
            all_logits: needs.all_logits,
            verify_len: if loader.proposes() { MAX_VERIFY_LEN } else { 0 },
            tier: options.kernels(),
            threads,
            encoding: [encoding.saturating_add(needs.heap + model.supply_heap()), each],
            structured: needs.structured,
            device: vram.host_bytes(),
            stand_ins: streaming.stand_ins(),
            ..PlanOptions::default()
        };
        let planner =
            Planner::new(model.spec(), &inventory, model.manifest(), process, plan_options);
        let mut planner = model.named(planner)?;
        let (total, available) = match SystemMemory::now() {
            Some(memory) => (memory.total, memory.available),
            None => (u64::MAX, u64::MAX),
        };
        // The minimum budget leaves nothing for a draft.
        let ram = options.ram.resolve(total, available, 0);
        let limit = Planner::most_draft(ram);
        let mut corrections = eviction::find(model, streaming.policy, streaming.warm_start)?;
        let most = match corrections {
            Corrections::Learned { .. } => Planner::most_learned(ram),
            _ => limit,
        };
        let shape = routes_of(model.spec());
        let mut bytes = streaming.policy.bytes_of(&corrections, shape, needs.texts) as u64;
        if bytes > most {
            (corrections, bytes) = (Corrections::None, 0);
        }
        planner.reserve_correction(bytes);
        let limit = limit - bytes;
        if let Some(candidate) = &candidate {
            planner.reserve_draft(candidate.bytes_within(limit));
        }
        let ram = options.ram.resolve(total, available, planner.minimum());
        let draft = candidate.map(|candidate| (candidate, limit));
        Ok(Planning { planner, ram, total, draft, corrections, vram })
    }

    /// True if the draft that a run would have is a trained one; `None` if it would have none.
    pub fn is_draft_trained(&self) -> Option<bool> {
        Some(self.draft.as_ref()?.0.is_trained())
    }

    /// Returns the plan for the requested budget.
    pub(crate) fn plan(&self, loader: &Loader<'_>) -> Result<Plan> {
        loader.model.named(self.planner.plan(self.ram))
    }

    /// Makes the draft within its share of a plan.
    pub(crate) fn draft(
        self,
        loader: &mut Loader<'_>,
        plan: &Plan,
    ) -> Result<Box<dyn sws_draft::Draft>> {
        let share = plan.ledger.get(MemoryUse::Draft);
        let mut made = None;
        if let Some((candidate, limit)) = self.draft {
            loader.warnings.extend(candidate.too_large(limit));
            if share > 0 {
                made = candidate.make(loader.model, share)?;
            }
        }
        Ok(match made {
            Some(draft) => Box::new(draft),
            None => Box::new(sws_draft::NoDraft),
        })
    }
}

pub(super) fn inventory(loader: &Loader<'_>) -> Result<Inventory> {
    let model = loader.model;
    model.named(Inventory::new(model.spec(), model.manifest()))
}

impl Loader<'_> {
    /// Reads the tokenizer, if there is one, for texts encoded before the model is loaded. A budget in
    /// which it cannot be read is refused before it is, with the smallest that works.
    pub fn read_text(&self) -> Result<TextCodec> {
        TextCodec::open_if(self.model, &|reading| self.check_reading(reading))
    }

    fn check_reading(&self, TokenizerReading { least, memory }: TokenizerReading) -> Result<()> {
        match self.options.budget().and_then(ReadingRoom::of) {
            Some(room) if least > room.left => {}
            _ => return Ok(()),
        }
        let now = process::measure(self.model, 0);
        let resident = sws_engine::memory().unwrap_or(0);
        let process = ProcessMemory {
            tokenizer: memory.held,
            peak: now.peak.max(resident + memory.peak),
            ..now
        };
        let threads = match &self.threads {
            Some(threads) => threads.count(),
            None => available_parallelism().map_or(1, usize::from),
        };
        Planning::of(self, process, Vram::Off, Tokenizer::WORKING, threads)?.plan(self).map(drop)
    }

    /// Returns a planner for any budget, without loading anything.
    pub fn planning(mut self) -> Result<Planning> {
        let (threads, text) = self.resolve()?;
        let vram = Vram::planned(&self)?;
        Planning::new(&self, &text, &threads, vram)
    }

    /// Returns the plan for the budget, without loading anything.
    pub fn plan(mut self) -> Result<Plan> {
        let (threads, text) = self.resolve()?;
        let vram = Vram::planned(&self)?;
        Planning::new(&self, &text, &threads, vram)?.plan(&self)
    }

    /// Resolves threads and text that were not given. Threads are started before anything is
    /// measured.
    pub(super) fn resolve(&mut self) -> Result<(Threads, TextCodec)> {
        if let Some(unknown) = self.unknown.take() {
            return Err(Error::Ram(unknown));
        }
        let threads = self.threads.take().map_or_else(Threads::one_per_core, Ok)?;
        let text = match self.text.take() {
            Some(text) => text,
            // A damaged template is reported when a conversation begins.
            None => self.read_text()?.while_loaded(self.model.chat_template().ok()),
        };
        Ok((threads, text))
    }
}
