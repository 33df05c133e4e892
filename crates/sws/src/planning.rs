//! Memory plans of a model in the current process.

use std::collections::HashMap;
use std::path::PathBuf;

use sws_cache::correction::Corrections;
use sws_engine::{
    HitCurve, MAX_VERIFY_LEN, MemoryUse, Plan, PlanOptions, Planner, ProcessMemory, earlier_routes,
    routes_of,
};
use sws_format::{LEARNED_FILE, PieceId};
use sws_model::Inventory;
use sws_store::SystemMemory;

use crate::draft::DraftCandidate;
use crate::{DraftChoice, Loader, Model, Result, Streaming, TextCodec, Threads, eviction, process};

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
}

impl Model {
    /// Hit rates as in earlier runs of this model, for [`Planner::set_hits`]. `None` before the first one
    /// of some length.
    pub fn earlier_hits(&self) -> Option<HitCurve> {
        let file = Streaming::default().warm_start(self)?;
        let fingerprint = &self.manifest().model.fingerprint;
        HitCurve::replayed(&earlier_routes(&file, fingerprint, routes_of(self.spec()))?)
    }
}

impl Model {
    /// File of what runs on this machine learned of the use of experts. `None` without a home
    /// directory.
    pub fn learned_file(&self) -> Option<PathBuf> {
        Streaming::default().warm_start(self)
    }

    /// The experts that earlier runs of this model chose, here or else on the machine that put its shards
    /// where they come from, the most frequent first. Empty before the first one of some length.
    pub(crate) fn experts_by_use(&self) -> Vec<PieceId> {
        let routes = routes_of(self.spec());
        let fingerprint = &self.manifest().model.fingerprint;
        let files = self.learned_file().into_iter().chain([self.dir().join(LEARNED_FILE)]);
        let mut earlier = files.filter_map(|file| earlier_routes(&file, fingerprint, routes));
        let Some(earlier) = earlier.next() else { return Vec::new() };
        // Routes count layers with experts only.
        let layers = (0u32..).zip(&self.spec().layers);
        let layers: Vec<u32> =
            layers.filter(|(_, layer)| layer.moe().is_some()).map(|(index, _)| index).collect();
        let mut uses: HashMap<PieceId, u64> = HashMap::new();
        for token in 0..earlier.token_count() {
            for (at, &layer) in layers.iter().enumerate().take(earlier.shape().layers) {
                for &expert in earlier.experts(token, at) {
                    *uses.entry(PieceId::expert(layer, expert.into())).or_default() += 1;
                }
            }
        }
        let mut experts: Vec<(u64, PieceId)> =
            uses.into_iter().map(|(id, uses)| (uses, id)).collect();
        experts.sort_unstable_by_key(|&(uses, id)| (std::cmp::Reverse(uses), id));
        experts.into_iter().map(|(_, id)| id).collect()
    }
}

impl Planning {
    pub(crate) fn new(
        loader: &Loader<'_>,
        text: &TextCodec,
        threads: &Threads,
    ) -> Result<Planning> {
        // Measured before the draft is loaded, which has a line of its own in the ledger.
        let process = process::measure(loader.model, text.heap());
        Planning::of(loader, process, text.encoding(), threads.count())
    }

    /// Plans in a process that takes this memory, for texts whose encoding takes a constant and an amount
    /// per position.
    pub(crate) fn of(
        loader: &Loader<'_>,
        process: ProcessMemory,
        [encoding, each]: [u64; 2],
        threads: usize,
    ) -> Result<Planning> {
        let Loader { model, options, needs, .. } = loader;
        let streaming = &options.streaming;
        streaming.exactness().check(model.spec()).map_err(|e| model.error(e))?;
        let inventory =
            Inventory::new(model.spec(), model.manifest()).map_err(|e| model.error(e))?;
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
            stand_ins: streaming.stand_ins(),
            ..PlanOptions::default()
        };
        let mut planner =
            Planner::new(model.spec(), &inventory, model.manifest(), process, plan_options)
                .map_err(|e| model.error(e))?;
        let (total, available) = SystemMemory::now()
            .map_or((u64::MAX, u64::MAX), |memory| (memory.total, memory.available));
        // The minimum budget leaves nothing for a draft.
        let ram = options.ram.resolve(total, available, 0);
        let limit = Planner::most_draft(ram);
        let mut corrections = eviction::find(model, streaming)?;
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
        Ok(Planning { planner, ram, total, draft, corrections })
    }

    /// Returns the plan for the requested budget.
    pub(crate) fn plan(&self, loader: &Loader<'_>) -> Result<Plan> {
        self.planner.plan(self.ram).map_err(|e| loader.model.error(e))
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
