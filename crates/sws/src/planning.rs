//! Plans of a model for a memory budget, in this process as it is.

use sws_engine::{Plan, PlanOptions, Planner, Use};
use sws_kernels::Functionals;
use sws_model::Inventory;
use sws_store::Memory;

use crate::draft::Candidate;
use crate::{Drafting, Loader, Result, Text, Threads, process};

/// The memory budget of a model, and what can be planned within it and others.
#[derive(Debug)]
pub struct Planning {
    /// Plans for any budget. The draft keeps the share that it has of `ram`.
    pub planner: Planner,
    /// The budget that was asked for, in bytes.
    pub ram: u64,
    /// The memory that this process can have.
    pub total: u64,
    /// The draft that there could be, and the most bytes that it may take.
    draft: Option<(Candidate, u64)>,
}

impl Planning {
    pub(crate) fn new(
        loader: &Loader<'_>,
        text: &Text,
        threads: &Threads,
        batch: usize,
    ) -> Result<Planning> {
        let Loader { model, options, needs, .. } = loader;
        let streaming = &options.streaming;
        // Measured before there is a draft: that has a line of its own.
        let process = process::measure(model, text.heap());
        let inventory =
            Inventory::new(model.spec(), model.manifest()).map_err(|e| model.error(e))?;
        let candidate = match !streaming.speculation || streaming.draft == Drafting::Off {
            true => None,
            false => Candidate::find(model, streaming.draft_file())?,
        };
        let plan_options = PlanOptions {
            context: options.context,
            at_least: needs.positions,
            batch,
            kv: options.kv,
            all_logits: needs.all_logits,
            functionals: options.functionals.unwrap_or(Functionals::best()),
            threads: threads.count(),
            encoding: text.encoding(),
            stand_ins: streaming.stand_ins(),
            ..PlanOptions::default()
        };
        let mut planner =
            Planner::new(model.spec(), &inventory, model.manifest(), process, plan_options)
                .map_err(|e| model.error(e))?;
        let (total, available) =
            Memory::now().map_or((u64::MAX, u64::MAX), |memory| (memory.total, memory.available));
        // A budget of the least that works has nothing to share.
        let limit = Planner::most_draft(options.ram.resolve(total, available, 0));
        if let Some(candidate) = &candidate {
            planner.reserve_draft(candidate.bytes_within(limit));
        }
        let ram = options.ram.resolve(total, available, planner.least());
        let draft = candidate.map(|candidate| (candidate, limit));
        Ok(Planning { planner, ram, total, draft })
    }

    /// The plan for the budget that was asked for.
    pub(crate) fn plan(&self, loader: &Loader<'_>) -> Result<Plan> {
        self.planner.plan(self.ram).map_err(|e| loader.model.error(e))
    }

    /// Makes the draft within the share that a plan has for it.
    pub(crate) fn draft(
        self,
        loader: &mut Loader<'_>,
        plan: &Plan,
    ) -> Result<Box<dyn sws_draft::Draft>> {
        let share = plan.ledger.get(Use::Draft);
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
