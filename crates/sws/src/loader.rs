//! Loading a model: options are collected first, and resolved when it is loaded.

use std::fmt;
use std::sync::Arc;
use std::thread::available_parallelism;

use sws_engine::{Plan, ProcessMemory, RamBudget, UnknownBudget};
use sws_format::{Clock, Progress, ShardReader};
use sws_store::SystemMemory;
use sws_text::Tokenizer;
use tracing::info;

use crate::loaded::LoadedFacts;
use crate::open::TokenizerReading;
use crate::sequence::Sequence;
use crate::{
    Cancel, Error, LoadedModel, Model, Options, Planning, ReadingRoom, Result, TextCodec, Threads,
    Warning, process,
};

/// A model to be loaded, made by [`Model::ram`] and [`Model::with`].
///
/// ```no_run
/// use sws::{Model, Threads};
///
/// let opened = Model::open("shards/tales-moe")?;
/// let model = opened.ram("64MiB").threads(&Threads::start(2)?).load()?;
/// # Ok::<(), sws::Error>(())
/// ```
pub struct Loader<'m> {
    pub(crate) model: &'m Model,
    pub(crate) options: Options,
    pub(crate) needs: Needs,
    pub(crate) cancel: Cancel,
    pub(crate) reader: Option<Arc<dyn ShardReader>>,
    pub(crate) warnings: Vec<Warning>,
    unknown: Option<UnknownBudget>,
    threads: Option<Threads>,
    text: Option<TextCodec>,
    progress: Option<Box<dyn FnMut(Progress) + 'm>>,
}

/// Known requirements of the use of a model.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    /// Positions that will be used.
    pub positions: usize,
    /// True if the logits of all positions are needed, not only of the last.
    pub all_logits: bool,
    /// Number of texts that are continued [together](LoadedModel::generate_all).
    pub texts: usize,
    /// Bytes on the heap for the caller's own work while the model is loaded.
    pub heap: u64,
    /// Maximum number of bytes on the heap for structured output. A budget that has none is not refused;
    /// [`Plan::ledger`] has the number planned. Experts get them meanwhile if the caller
    /// [says](crate::Batch::lend_structured) so.
    pub structured: u64,
}

impl Default for Needs {
    fn default() -> Needs {
        Needs { positions: 0, all_logits: false, texts: 1, heap: 0, structured: 0 }
    }
}

impl<'m> Loader<'m> {
    pub(crate) fn new(model: &'m Model, options: Options) -> Loader<'m> {
        Loader {
            model,
            options,
            needs: Needs::default(),
            cancel: Cancel::new(),
            reader: None,
            warnings: Vec::new(),
            unknown: None,
            threads: None,
            text: None,
            progress: None,
        }
    }

    /// Sets the budget, as in [`Model::ram`]. Invalid text is an error when the model is loaded.
    pub fn ram(mut self, size: &str) -> Self {
        match size.parse() {
            Ok(ram) => (self.options.ram, self.unknown) = (ram, None),
            Err(unknown) => self.unknown = Some(unknown),
        }
        self
    }

    /// Sets the threads [default: a new pool, one thread per core].
    pub fn threads(mut self, threads: &Threads) -> Self {
        self.threads = Some(threads.clone());
        self
    }

    /// Sets a custom reader, which knows the files of the [manifest](Model::manifest) by index
    /// [default: that of the options]. Every byte is verified, whatever the reader.
    pub fn reader(mut self, reader: Arc<dyn ShardReader>) -> Self {
        self.reader = Some(reader);
        self
    }

    /// Sets the tokenizer and chat template [default: all that the model has]. They are then
    /// counted apart in the budget.
    pub fn text(mut self, text: TextCodec) -> Self {
        self.text = Some(text);
        self
    }

    /// Sets known requirements.
    pub fn needs(mut self, needs: Needs) -> Self {
        self.needs = Needs { texts: needs.texts.max(1), ..needs };
        self
    }

    /// Sets a handle that cancels loading, which then fails with [`Error::Cancelled`].
    pub fn cancelled_by(mut self, cancel: Cancel) -> Self {
        self.cancel = cancel;
        self
    }

    /// Sets a progress callback for weights that are loaded in advance.
    pub fn reporting(mut self, progress: impl FnMut(Progress) + 'm) -> Self {
        self.progress = Some(Box::new(progress));
        self
    }

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
        Planning::of(self, process, Tokenizer::WORKING, threads)?.plan(self).map(drop)
    }

    /// Returns a planner for any budget, without loading anything.
    pub fn planning(mut self) -> Result<Planning> {
        let (threads, text) = self.resolve()?;
        Planning::new(&self, &text, &threads)
    }

    /// Returns the plan for the budget, without loading anything.
    pub fn plan(mut self) -> Result<Plan> {
        let (threads, text) = self.resolve()?;
        Planning::new(&self, &text, &threads)?.plan(&self)
    }

    /// Loads the model.
    pub fn load(mut self) -> Result<LoadedModel> {
        let (threads, mut text) = self.resolve()?;
        let lossy = self.options.lossy(self.model);
        let proposes = self.proposes();
        // Before the memory of the budget is filled.
        let unused = Warning::unused(self.model.spec(), self.model.manifest());
        let clock = Clock::real();
        let started = clock.now();
        let loaded = self.options.backend.load(&mut self, &text, &threads)?;
        let load = clock.now() - started;
        self.warnings.extend(lossy.iter().cloned().map(Warning::Lossy));
        self.warnings.extend(unused);
        self.warnings.extend(beyond_machine(self.options.ram));
        let streams = loaded.plan.is_some();
        let about = LoadedFacts {
            backend: self.options.backend,
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

    /// True if texts are decoded speculatively: with several texts a pass has several tokens anyway, and
    /// with a tolerance its results depend on their number.
    pub(crate) fn proposes(&self) -> bool {
        let exact = self.options.streaming.tolerance == 0.0;
        self.options.speculative && exact && self.needs.texts == 1
    }

    /// Opens a reader of the model's files.
    pub(crate) fn open_reader(&self) -> Result<Arc<dyn ShardReader>> {
        match &self.reader {
            Some(reader) => {
                info!("files are read by `{}`, which the caller has chosen", reader.name());
                Ok(Arc::clone(reader))
            }
            None => {
                let reader = self.model.reader(self.options.reader)?;
                info!("files are read by `{}`, as --reader says", reader.name());
                Ok(reader)
            }
        }
    }

    pub(crate) fn report(&mut self, progress: Progress) {
        if let Some(report) = &mut self.progress {
            report(progress);
        }
    }

    /// Resolves threads and text that were not given. Threads are started before anything is
    /// measured.
    fn resolve(&mut self) -> Result<(Threads, TextCodec)> {
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

/// The warning about a budget that is larger than the machine's memory.
fn beyond_machine(ram: RamBudget) -> Option<Warning> {
    let RamBudget::Bytes(asked) = ram else { return None };
    let total = SystemMemory::now()?.total;
    (asked > total).then_some(Warning::BeyondMachine { asked, total })
}

impl fmt::Debug for Loader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Loader { model, options, needs, .. } = self;
        let mut debug = f.debug_struct("Loader");
        debug.field("model", model).field("options", options).field("needs", needs);
        debug.finish_non_exhaustive()
    }
}
