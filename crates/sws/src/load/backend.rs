//! Backends: implementations of the layers.

#[cfg(feature = "candle")]
mod candle;

use std::sync::Arc;

use sws_engine::{Gauge, MemoryUse, Plan, SpeculativeWeightStreamer, Waiter};
use sws_kernels::Tier;
use sws_model::ForwardState;
use sws_store::SystemMemory;
use tracing::{debug, info};

use crate::load::resident;
use crate::run::cancel::Opening;
use crate::run::sequence::AnyLm;
use crate::{Error, Loader, Planning, Result, Size, TextCodec, Threads, Warning};

/// An implementation of all the layers of a model, from linear layers to routing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backend {
    /// The kernels of this project.
    #[default]
    Sws,
    /// An independent implementation on candle tensors. Only builds with the feature `candle` load it.
    Candle,
}

/// A model loaded by a backend.
pub(crate) struct LoadedBackend {
    pub(crate) lm: AnyLm,
    /// Tiers of the kernels that compute it.
    pub(crate) tier: String,
    /// Name of the reader of its files.
    pub(crate) reader: &'static str,
    pub(crate) weight_bytes: u64,
    /// Division of the memory budget. `None` if all weights are in memory.
    pub(crate) plan: Option<Plan>,
    /// Counters of its cost, if that is measured.
    pub(crate) gauge: Option<Gauge>,
    /// Waiter of its passes, if they can wait for reads.
    pub(crate) waiter: Option<Waiter>,
}

impl Backend {
    /// All backends. The first is the default.
    pub const ALL: &[Backend] = &[Backend::Sws, Backend::Candle];

    /// Name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Backend::Sws => "sws",
            Backend::Candle => "candle",
        }
    }

    /// Description in one line.
    pub const fn about(self) -> &'static str {
        match self {
            Backend::Sws => {
                "our kernels on weights as they are stored: every model, the same bits everywhere"
            }
            Backend::Candle => {
                "an independent implementation on candle tensors, to compare with: all weights in f32, slower, not bit-identical; in builds with the feature candle"
            }
        }
    }

    /// Difference of its results from those of the default backend. `None` if there is none.
    pub const fn lossy(self) -> Option<&'static str> {
        match self {
            Backend::Sws => None,
            Backend::Candle => Some(
                "computed by candle: not bit-identical, off by at most 1e-4 of the largest logit on the test models",
            ),
        }
    }

    /// True if it reads weights as they are needed, within a budget.
    pub(crate) const fn streams(self) -> bool {
        match self {
            Backend::Sws => true,
            Backend::Candle => false,
        }
    }

    /// True if it continues several texts at once.
    pub const fn continues_several(self) -> bool {
        match self {
            Backend::Sws => true,
            Backend::Candle => false,
        }
    }

    /// Loads a model. Models that the backend does not support are refused before anything is
    /// loaded.
    pub(crate) fn load(
        self,
        loader: &mut Loader<'_>,
        text: &TextCodec,
        threads: &Threads,
    ) -> Result<LoadedBackend> {
        if loader.needs.texts > 1 && !self.continues_several() {
            return Err(Error::OneText);
        }
        match self {
            Backend::Sws if loader.options.resident => in_memory(loader),
            Backend::Sws => streamed(loader, text, threads),
            #[cfg(feature = "candle")]
            Backend::Candle => candle::load(loader),
            #[cfg(not(feature = "candle"))]
            Backend::Candle => Err(Error::WithoutCandle),
        }
    }
}

fn in_memory(loader: &mut Loader<'_>) -> Result<LoadedBackend> {
    requested_context(loader)?;
    let source = resident::load(loader)?;
    let weight_bytes = source.bytes();
    let limit = affordable_context(loader)?;
    let kv = loader.options.kv;
    let spec = loader.model.spec().clone();
    let forward = sws_model::ForwardPass::with_tier(spec, tier(loader));
    let streamer = SpeculativeWeightStreamer::resident(forward, source, limit, kv);
    Ok(into_loaded(loader, streamer, weight_bytes))
}

fn streamed(loader: &mut Loader<'_>, text: &TextCodec, threads: &Threads) -> Result<LoadedBackend> {
    let model = loader.model;
    let planning = Planning::new(loader, text, threads)?;
    let plan = planning.plan(loader)?;
    info!(
        "a budget of {}: {} of {} bytes of weights stay in memory, {} slots for experts, a context of {}, {} tokens of a prompt at once",
        Size(plan.ledger.budget()),
        plan.ledger.get(MemoryUse::Pinned),
        planning.planner.weights(),
        plan.slots.iter().map(|class| class.count).sum::<usize>(),
        plan.context,
        plan.chunk,
    );
    for (what, bytes) in plan.ledger.lines() {
        debug!("{}: {bytes} bytes", what.words());
    }
    let corrections = planning.corrections.clone();
    let draft = planning.draft(loader, &plan)?;
    let streaming = &loader.options.streaming;
    let options = sws_engine::Options {
        draft,
        speculation: streaming.speculation,
        exactness: streaming.exactness(),
        policy: streaming.policy,
        corrections,
        kv: loader.options.kv,
        warm_start: streaming.warm_start(model),
        ..sws_engine::Options::default()
    };
    let reader = Opening::new(loader.open_reader()?, loader.cancel.clone());
    let store = Arc::new(model.store_with(reader.clone())?);
    let forward = sws_model::ForwardPass::with_tier(model.spec().clone(), tier(loader));
    let bytes = plan.arena_bytes() as u64;
    let without_draft = plan.ledger.get(MemoryUse::Draft) == 0;
    let mut report = |progress| loader.report(progress);
    let streamer = SpeculativeWeightStreamer::reporting(forward, store, plan, options, &mut report);
    let streamer = streamer.map_err(|e| match loader.cancel.is_cancelled() {
        true => Error::Cancelled,
        false => model.error(e),
    })?;
    reader.set_open();
    loader.warnings.extend(streamer.passed_over().map(|why| Warning::Forgotten(why.to_owned())));
    let left_out = loader.options.streaming.draft_file().filter(|_| without_draft);
    loader.warnings.extend(left_out.map(|file| Warning::DraftLeftOut(file.to_owned())));
    Ok(into_loaded(loader, streamer, bytes))
}

fn into_loaded(
    loader: &Loader<'_>,
    mut streamer: SpeculativeWeightStreamer,
    weight_bytes: u64,
) -> LoadedBackend {
    info!("kernels of the tier {}", tier(loader));
    LoadedBackend {
        tier: tier(loader).to_string(),
        reader: loader.reader.as_ref().map_or(loader.options.reader.name(), |r| r.name()),
        weight_bytes,
        plan: streamer.plan().cloned(),
        gauge: Some(streamer.gauge()),
        waiter: Some(streamer.waiter()),
        lm: AnyLm::Streamer(Box::new(streamer)),
    }
}

fn tier(loader: &Loader<'_>) -> Tier {
    loader.options.kernels()
}

/// Maximum sequence length requested. Fails if it exceeds the context of the model.
fn requested_context(loader: &Loader<'_>) -> Result<usize> {
    let made_for = loader.model.spec().context;
    match loader.options.context.unwrap_or(made_for) {
        asked if asked > made_for => Err(loader.model.error(format!(
            "the model was made for {made_for} positions and {asked} were asked for; lower --context"
        ))),
        asked => Ok(asked),
    }
}

/// Maximum sequence length: the requested one, or, with a warning, as many positions as remaining
/// memory can hold a KV cache for.
fn affordable_context(loader: &mut Loader<'_>) -> Result<usize> {
    let wanted = requested_context(loader)?;
    let Some(SystemMemory { available, holder, .. }) = SystemMemory::now() else {
        return Ok(wanted);
    };
    let texts = loader.needs.texts as u64;
    let cached =
        |limit| texts * ForwardState::cache_bytes(loader.model.spec(), limit, loader.options.kv);
    let mut fits = 0;
    let mut too_many = wanted.saturating_add(1);
    while too_many - fits > 1 {
        let between = fits + (too_many - fits) / 2;
        match cached(between) <= available {
            true => fits = between,
            false => too_many = between,
        }
    }
    if fits < wanted {
        loader.warnings.push(Warning::Context { wanted, fits, holder });
    }
    Ok(fits)
}
