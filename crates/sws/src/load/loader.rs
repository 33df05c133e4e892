//! A model to be loaded, with the caller's settings.

use std::fmt;
use std::sync::Arc;

use sws_engine::{Plan, UnknownBudget};
use sws_format::{Clock, Progress, ShardReader};
use sws_store::{LimitedReader, Mirror};
use tracing::info;

use crate::{Cancel, Model, Options, Result, Size, TextCodec, Threads, Warning};

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
    pub(super) unknown: Option<UnknownBudget>,
    pub(super) threads: Option<Threads>,
    pub(super) text: Option<TextCodec>,
    /// The plan, if it was made before.
    pub(super) plan: Option<Plan>,
    /// Bytes of the machine's memory for a graphics card that is planned for, and not opened.
    pub(super) beside_vram: Option<u64>,
    /// True to keep the graphics card that a plan opens.
    pub(super) keeps_vram: bool,
    progress: Option<Box<dyn FnMut(Progress) + 'm>>,
}

/// Known requirements of the use of a model.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    /// Positions that will be used.
    pub positions: usize,
    /// True if the logits of all positions are needed, not only of the last.
    pub all_logits: bool,
    /// Number of texts that are continued [together](crate::LoadedModel::generate_all).
    pub texts: usize,
    /// Bytes on the heap for the caller's own work while the model is loaded.
    pub heap: u64,
    /// Maximum number of bytes on the heap for structured output. A budget that has none is not
    /// refused; [`Plan::ledger`](crate::Plan::ledger) has the number planned. Experts use them
    /// while they are [lent](crate::Batch::lend_structured).
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
            plan: None,
            beside_vram: None,
            keeps_vram: false,
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

    /// Sets the tokenizer and chat template [default: all that the model has]. The budget then
    /// lists their memory separately.
    pub fn text(mut self, text: TextCodec) -> Self {
        self.text = Some(text);
        self
    }

    /// Sets the plan that was made for this model and these options.
    pub(super) fn planned(mut self, plan: Plan) -> Self {
        self.plan = Some(plan);
        self
    }

    /// Sets known requirements.
    pub fn needs(mut self, needs: Needs) -> Self {
        self.needs = Needs { texts: needs.texts.max(1), ..needs };
        self
    }

    /// Sets a handle that cancels loading, which then fails with [`Error::Cancelled`](crate::Error::Cancelled).
    pub fn cancelled_by(mut self, cancel: Cancel) -> Self {
        self.cancel = cancel;
        self
    }

    /// Sets a progress callback for weights that are loaded in advance.
    pub fn reporting(mut self, progress: impl FnMut(Progress) + 'm) -> Self {
        self.progress = Some(Box::new(progress));
        self
    }

    /// True if texts are decoded speculatively. With several texts a pass has several tokens
    /// anyway, and with a tolerance its results depend on their number.
    pub(crate) fn proposes(&self) -> bool {
        let exact = self.options.streaming.tolerance == 0.0;
        self.options.speculative && exact && self.needs.texts == 1
    }

    /// Opens a reader of the model's files.
    pub(crate) fn open_reader(&self) -> Result<Arc<dyn ShardReader>> {
        let reader = match &self.reader {
            Some(reader) => {
                info!("files are read by `{}`, which the caller has chosen", reader.name());
                Arc::clone(reader)
            }
            None => {
                let reader = self.model.reader(self.options.reader)?;
                info!("files are read by `{}`, as --reader says", reader.name());
                reader
            }
        };
        if let Some(rate) = self.options.max_disk_rate {
            info!(
                "at most {} of a drive are read in a second, as --max-disk-rate says",
                Size(rate)
            );
        }
        Ok(self.limited(reader))
    }

    /// Opens readers of the model's copies on other drives.
    pub(crate) fn open_mirrors(&self) -> Result<Vec<Mirror>> {
        let mut mirrors = self.model.open_mirrors(self.options.reader)?;
        for mirror in &mut mirrors {
            mirror.reader = self.limited(Arc::clone(&mirror.reader));
        }
        Ok(mirrors)
    }

    /// The reader of a drive, within the rate that the options allow each.
    fn limited(&self, reader: Arc<dyn ShardReader>) -> Arc<dyn ShardReader> {
        match self.options.max_disk_rate {
            Some(rate) => Arc::new(LimitedReader::new(reader, rate, Clock::real())),
            None => reader,
        }
    }

    pub(crate) fn report(&mut self, progress: Progress) {
        if let Some(report) = &mut self.progress {
            report(progress);
        }
    }
}

impl Model {
    /// Prepares to load the model within a budget for the whole process: `8GiB`, `80%` of the
    /// machine's memory, `min` for the least that works, or `auto` for the memory that is free.
    pub fn ram(&self, size: &str) -> Loader<'_> {
        self.with(Options::default()).ram(size)
    }

    /// Prepares to load the model with options.
    pub fn with(&self, options: Options) -> Loader<'_> {
        Loader::new(self, options)
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
