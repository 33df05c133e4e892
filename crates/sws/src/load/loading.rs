//! Loading a model: resolves the options that the caller did not set, and lets a backend read the
//! weights.

use sws_engine::RamBudget;
use sws_format::Clock;
use sws_store::SystemMemory;

use super::engine;
use crate::run::loaded::LoadedFacts;
use crate::run::sequence::Sequence;
use crate::{LoadedModel, Loader, Model, Options, Result, TextCodec, Warning};

impl Model {
    /// Loads the model with the defaults of the command line: within the memory that is free.
    pub fn load(&self) -> Result<LoadedModel> {
        self.with(Options::default()).load()
    }
}

impl Loader<'_> {
    /// Loads the model.
    pub fn load(mut self) -> Result<LoadedModel> {
        let (threads, mut text) = self.resolve()?;
        let lossy = self.options.lossy(self.model);
        let proposes = self.proposes();
        // These warnings are built before memory is filled up to the budget.
        let unused = Warning::unused(self.model.spec(), self.model.manifest());
        let clock = Clock::real();
        let started = clock.now();
        let loaded = engine::load(&mut self, &text, &threads)?;
        let load = clock.now() - started;
        self.warnings.extend(lossy.iter().cloned().map(Warning::Lossy));
        self.warnings.extend(unused);
        self.warnings.extend(beyond_machine(self.options.ram));
        let streams = loaded.plan.is_some();
        let about = LoadedFacts {
            backend: self.options.backend.name(),
            tier: loaded.tier,
            activations: self.options.activations,
            reader: loaded.reader,
            kv: self.options.kv,
            lossy,
            weight_bytes: loaded.weight_bytes,
            policy: streams.then(|| self.options.streaming.policy.name()),
            texts: self.needs.texts,
            load,
            tokenizer: text.time(),
        };
        let mut model = LoadedModel {
            model: self.model.clone(),
            sequence: Sequence::new(loaded.lm, threads).with_speculative(proposes),
            text: TextCodec::default(),
            about,
            plan: loaded.plan,
            gauge: loaded.gauge,
            waiter: loaded.waiter,
            warnings: self.warnings,
        };
        if text.is_for_later() {
            let working = model.working_bytes().saturating_sub(self.needs.heap);
            text.bound(model.limit(), working);
        }
        model.text = text;
        Ok(model)
    }
}

/// The warning about a budget that is larger than the machine's memory.
fn beyond_machine(ram: RamBudget) -> Option<Warning> {
    let RamBudget::Bytes(asked) = ram else { return None };
    let total = SystemMemory::now()?.total;
    (asked > total).then_some(Warning::BeyondMachine { asked, total })
}
