//! Loading a model: options as they are given, resolved when it is loaded.

use std::fmt;
use std::sync::Arc;

use sws_engine::{Plan, UnknownBudget};
use sws_model::KvPrecision;
use sws_store::shard::Progress;
use sws_store::{Clock, ShardReader};

use crate::loaded::About;
use crate::sequence::Sequence;
use crate::{Cancel, Error, LoadedModel, Model, Options, Planning, Result, Text, Threads, Warning};

/// A model about to be loaded: [`Model::ram`] and [`Model::with`] make one.
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
    text: Option<Text>,
    progress: Option<Box<dyn FnMut(Progress) + 'm>>,
}

/// The use that a model is loaded for, as far as it is known.
#[derive(Clone, Copy, Debug, Default)]
pub struct Needs {
    /// Positions that will be used.
    pub positions: usize,
    /// True if logits of all positions are wanted, rather than of the last.
    pub all_logits: bool,
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

    /// Within a budget, as [`Model::ram`] has it. Other words are an error when the model is loaded.
    pub fn ram(mut self, size: &str) -> Self {
        match size.parse() {
            Ok(ram) => (self.options.ram, self.unknown) = (ram, None),
            Err(unknown) => self.unknown = Some(unknown),
        }
        self
    }

    /// On these threads [default: one a core, of its own].
    pub fn threads(mut self, threads: &Threads) -> Self {
        self.threads = Some(threads.clone());
        self
    }

    /// From a reader of the caller's own, which knows the files of the [manifest](Model::manifest) by
    /// their index [default: that of the options]. Every byte is verified, whatever reads it.
    pub fn reader(mut self, reader: Arc<dyn ShardReader>) -> Self {
        self.reader = Some(reader);
        self
    }

    /// With what turns texts into tokens and back [default: all that the model has]. What is opened
    /// before is counted apart.
    pub fn text(mut self, text: Text) -> Self {
        self.text = Some(text);
        self
    }

    /// For what is known to be needed.
    pub fn needs(mut self, needs: Needs) -> Self {
        self.needs = needs;
        self
    }

    /// Until it is cancelled: loading is then [`Error::Cancelled`].
    pub fn cancelled_by(mut self, cancel: Cancel) -> Self {
        self.cancel = cancel;
        self
    }

    /// Says how far it is, where weights are loaded before anything is computed.
    pub fn reporting(mut self, progress: impl FnMut(Progress) + 'm) -> Self {
        self.progress = Some(Box::new(progress));
        self
    }

    /// Plans for `batch` sequences, of any budget, without loading anything.
    pub fn planning(mut self, batch: usize) -> Result<Planning> {
        let (threads, text) = self.resolve()?;
        Planning::new(&self, &text, &threads, batch)
    }

    /// The plan for the budget, without loading anything.
    pub fn plan(mut self) -> Result<Plan> {
        let (threads, text) = self.resolve()?;
        Planning::new(&self, &text, &threads, 1)?.plan(&self)
    }

    /// Loads it.
    pub fn load(mut self) -> Result<LoadedModel> {
        let (threads, mut text) = self.resolve()?;
        let lossy = self.options.lossy(self.model);
        let clock = Clock::real();
        let started = clock.now();
        let loaded = self.options.backend.load(&mut self, &text, &threads)?;
        let load = clock.now() - started;
        self.warnings.extend(lossy.iter().cloned().map(Warning::Lossy));
        let streams = loaded.plan.is_some();
        let about = About {
            backend: self.options.backend,
            tier: loaded.tier,
            reader: loaded.reader,
            kv: match self.options.kv {
                KvPrecision::F32 => "f32",
                KvPrecision::Bf16 => "bf16",
            },
            lossy,
            weight_bytes: loaded.weight_bytes,
            policy: streams.then(|| self.options.streaming.policy.name()),
            load,
        };
        let mut model = LoadedModel {
            model: self.model.clone(),
            sequence: Sequence::new(loaded.lm, threads),
            text: Text::default(),
            about,
            plan: loaded.plan,
            gauge: loaded.gauge,
            waiter: loaded.waiter,
            warnings: self.warnings,
        };
        if text.is_for_later() {
            text.bound(model.limit(), model.working_bytes());
        }
        model.text = text;
        Ok(model)
    }

    /// A reader of the model's files.
    pub(crate) fn open_reader(&self) -> Result<Arc<dyn ShardReader>> {
        match &self.reader {
            Some(reader) => Ok(Arc::clone(reader)),
            None => self.model.reader(self.options.reader),
        }
    }

    pub(crate) fn report(&mut self, progress: Progress) {
        if let Some(report) = &mut self.progress {
            report(progress);
        }
    }

    /// Fills in what was not given. Threads are started before anything is measured.
    fn resolve(&mut self) -> Result<(Threads, Text)> {
        if let Some(unknown) = self.unknown.take() {
            return Err(Error::Ram(unknown));
        }
        let threads = self.threads.take().map_or_else(Threads::one_per_core, Ok)?;
        let text = match self.text.take() {
            Some(text) => text,
            // A template that is damaged is told when somebody chats.
            None => Text::open(self.model)?.while_loaded(self.model.chat_template().ok()),
        };
        Ok((threads, text))
    }
}

impl fmt::Debug for Loader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Loader { model, options, needs, .. } = self;
        let mut debug = f.debug_struct("Loader");
        debug.field("model", model).field("options", options).field("needs", needs);
        debug.finish_non_exhaustive()
    }
}
