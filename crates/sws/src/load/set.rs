//! Several models under one budget, of which one is loaded at a time.

use sws_engine::{MemoryUse, Plan, RamBudget};
use sws_kernels::Activations;
use sws_model::KvPrecision;

use crate::{Loader, Model, Needs, Options, Planning, Result, TextCodec, Threads};

/// Several models under one budget, of which one is loaded at a time.
///
/// All are planned before the first is loaded, each with the whole budget, so that each has the same
/// plan whenever it is loaded. The tokenizers of all stay in memory, and every plan has room for them.
#[derive(Debug)]
pub struct ModelSet {
    models: Vec<PlannedModel>,
    threads: Threads,
}

/// A model and its tokenizer, to be planned beside others.
#[derive(Debug)]
pub struct SetEntry {
    /// The model on disk.
    pub model: Model,
    /// Its tokenizer and template.
    pub text: TextCodec,
    /// Requirements of its use.
    pub needs: Needs,
}

/// A model with its plan, which can be loaded more than once.
#[derive(Debug)]
pub struct PlannedModel {
    entry: SetEntry,
    options: Options,
    plan: Plan,
}

impl ModelSet {
    /// Plans the models, each with the whole budget of the options.
    ///
    /// With [`RamBudget::Min`] the budget is the smallest in which each of them works.
    pub fn plan(entries: Vec<SetEntry>, options: &Options, threads: &Threads) -> Result<ModelSet> {
        let planned = |entry: &SetEntry, options: &Options, more: u64| {
            let needs = Needs { heap: entry.needs.heap + more, ..entry.needs };
            let loader = entry.model.with(options.clone()).needs(needs);
            loader.text(entry.text.clone()).threads(threads).planning()
        };
        let plannings: Result<Vec<Planning>> =
            entries.iter().map(|entry| planned(entry, options, 0)).collect();
        let plannings = plannings?;
        let ram = plannings.iter().map(|planning| planning.ram).max().unwrap_or(0);
        let options = Options { ram: RamBudget::Bytes(ram), ..options.clone() };
        let plan = |(entry, planning): (&SetEntry, Planning)| {
            planning.planner.plan(ram).map_err(|error| entry.model.error(error))
        };
        let plans: Result<Vec<Plan>> = entries.iter().zip(plannings).map(plan).collect();
        let mut plans = plans?;
        // A text of any model may be encoded while another one is loaded.
        let encoding = |entry: &SetEntry, plan: &Plan| {
            plan.ledger.get(MemoryUse::Encoding).saturating_sub(entry.needs.heap)
        };
        let all = entries.iter().zip(&plans).map(|(entry, plan)| encoding(entry, plan));
        let most = all.max().unwrap_or(0);
        let mut least = most;
        for (entry, plan) in entries.iter().zip(&mut plans) {
            let more = most - encoding(entry, plan);
            // In a small budget, long texts of the others are refused instead.
            if more > 0
                && let Ok(roomier) = planned(entry, &options, more)?.planner.plan(ram)
            {
                *plan = roomier;
            }
            least = least.min(encoding(entry, plan));
        }
        let models = entries.into_iter().zip(plans).map(|(mut entry, plan)| {
            entry.text.bound(plan.context, least);
            PlannedModel { entry, options: options.clone(), plan }
        });
        Ok(ModelSet { models: models.collect(), threads: threads.clone() })
    }

    /// The models, in the order in which they were given.
    pub fn models(&self) -> &[PlannedModel] {
        &self.models
    }

    /// Prepares to load a model by its number, with its plan. The one that was loaded before must
    /// have been dropped.
    pub fn loader(&self, number: usize) -> Loader<'_> {
        let PlannedModel { entry, options, plan } = &self.models[number];
        let loader = entry.model.with(options.clone()).needs(entry.needs);
        loader.text(entry.text.clone()).threads(&self.threads).planned(plan.clone())
    }
}

impl PlannedModel {
    /// The model on disk.
    pub fn model(&self) -> &Model {
        &self.entry.model
    }

    /// The tokenizer and chat template.
    pub fn text(&self) -> &TextCodec {
        &self.entry.text
    }

    /// The division of the budget while this model is loaded.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Requirements of its use.
    pub fn needs(&self) -> Needs {
        self.entry.needs
    }

    /// Kind of activations of products.
    pub fn activations(&self) -> Activations {
        self.options.activations
    }

    /// Precision of the KV cache.
    pub fn kv(&self) -> KvPrecision {
        self.options.kv
    }

    /// Reasons why the result differs from that of the published weights.
    pub fn lossy(&self) -> Vec<String> {
        self.options.lossy(&self.entry.model)
    }
}
