//! Two models under one budget, of which one is loaded at a time.

use anyhow::{Context, Result, ensure};
use sws::{Model, ModelSet, Needs, Options, SetEntry, Streaming, Threads};
use sws_engine::{memory, peak_memory};

use crate::crowd::{KEPT, Text, Told, together};
use crate::task::{Crowd, Done, Endured, Switch, Task};

/// Texts of a model each time that it is loaded.
const TEXTS: usize = 4;

impl Switch {
    /// Loads the models in turns in this process, and continues some texts with each.
    pub(crate) fn run(&self, task: &Task) -> Result<Done> {
        let streaming = Streaming { warm_start: false, ..Streaming::default() };
        let context = Some(task.context);
        let options =
            Options { ram: Crowd::budget(task.ram), context, streaming, ..Options::default() };
        let threads = Threads::one_per_core()?;
        let mut entries = Vec::new();
        for place in [&task.model, &self.other] {
            let model = Model::open(place)?;
            let text = model.with(options.clone()).read_text()?.while_loaded(None);
            let needs = Needs { texts: TEXTS, heap: KEPT, ..Needs::default() };
            entries.push(SetEntry { model, text, needs });
        }
        if task.only_plan {
            let mut budget = 0;
            for SetEntry { model, text, needs } in &entries {
                let loader = model.with(options.clone()).needs(*needs).text(text.clone());
                budget = loader.threads(&threads).planning()?.planner.smallest().max(budget);
            }
            return Ok(Done { budget, ..Done::default() });
        }
        let set = ModelSet::plan(entries, &options, &threads)?;
        let budget = set.models()[0].plan().ledger.budget();
        for model in set.models() {
            let lines: u64 = model.plan().ledger.lines().map(|(_, bytes)| bytes).sum();
            ensure!(lines == budget, "the ledger has {lines} of {budget} bytes");
        }
        let mut told = Vec::new();
        let mut closed = Vec::new();
        for load in 0..self.loads {
            let mut loaded = set.loader(load % 2).load()?;
            told.extend(self.texts(load, &mut loaded)?);
            drop(loaded);
            closed.push(memory().context("this system does not tell the memory of a process")?);
        }
        let told = told.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
        // The second model is the larger one, and is closed before every other load.
        let [early, late] = [closed.get(1), closed.last()].map(|bytes| bytes.map_or(0, |b| *b));
        Ok(Done {
            budget,
            peak_rss: peak_memory().unwrap_or(0),
            certificates: told,
            endured: Endured { early, late, ..Endured::default() },
            ..Done::default()
        })
    }

    fn texts(&self, load: usize, loaded: &mut sws::LoadedModel) -> Result<Vec<Told>> {
        let texts = (0..TEXTS).map(|n| Text::new(load * TEXTS + n, 12 + 5 * n)).collect();
        together(loaded, texts)
    }

    /// Number of the model that continued a text.
    pub(crate) fn model_of(text: &Text) -> usize {
        text.number / TEXTS % 2
    }

    /// Number of all texts.
    pub(crate) fn texts_in_all(&self) -> usize {
        self.loads * TEXTS
    }
}
