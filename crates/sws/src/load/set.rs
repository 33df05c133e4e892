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
        let mut plannings = Vec::with_capacity(entries.len());
        let mut ram = 0;
        for entry in &entries {
            let planning = entry.planning(options, threads, 0)?;
            ram = planning.ram.max(ram);
            plannings.push(planning);
        }
        let options = Options { ram: RamBudget::Bytes(ram), ..options.clone() };
        let mut plans = Vec::with_capacity(entries.len());
        // A text of any model may be encoded while another one is loaded.
        let mut most = 0;
        for (entry, planning) in entries.iter().zip(plannings) {
            let plan = entry.model.named(planning.planner.plan(ram))?;
            most = entry.encoding(&plan).max(most);
            plans.push(plan);
        }
        let mut least = most;
        for (entry, plan) in entries.iter().zip(&mut plans) {
            let more = most - entry.encoding(plan);
            // In a small budget, long texts of the others are refused instead.
            if more > 0
                && let Ok(roomier) = entry.planning(&options, threads, more)?.planner.plan(ram)
            {
                *plan = roomier;
            }
            least = least.min(entry.encoding(plan));
        }
        let mut models = Vec::with_capacity(entries.len());
        for (mut entry, plan) in entries.into_iter().zip(plans) {
            entry.text.bound(plan.context, least);
            models.push(PlannedModel { entry, options: options.clone(), plan });
        }
        Ok(ModelSet { models, threads: threads.clone() })
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

impl SetEntry {
    /// Plans the model, with `more` bytes on the heap besides those that its use needs.
    fn planning(&self, options: &Options, threads: &Threads, more: u64) -> Result<Planning> {
        let needs = Needs { heap: self.needs.heap + more, ..self.needs };
        let loader = self.model.with(options.clone()).needs(needs);
        loader.text(self.text.clone()).threads(threads).planning()
    }

    /// Bytes of a plan for encoding texts.
    fn encoding(&self, plan: &Plan) -> u64 {
        plan.ledger.get(MemoryUse::Encoding).saturating_sub(self.needs.heap)
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
