//! Loading a model into the engine or another backend.

use std::sync::Arc;

use sws_engine::{MemoryUse, SlotClass, SpeculativeWeightStreamer};
use sws_kernels::Tier;
use sws_store::Mirror;
use tracing::{debug, info};

use super::backend::LoadedBackend;
#[cfg(feature = "candle")]
use super::candle;
use super::context::{affordable_context, requested_context};
use super::resident;
use super::vram::Vram;
use crate::run::cancel::Opening;
use crate::run::sequence::AnyLm;
use crate::{
    Backend, Error, Loader, Planning, Result, Size, TextCodec, Threads, VramChoice, Warning,
};

/// Loads a model. Models that the backend does not support are refused before anything is
/// loaded.
pub(super) fn load(
    loader: &mut Loader<'_>,
    text: &TextCodec,
    threads: &Threads,
) -> Result<LoadedBackend> {
    if loader.needs.texts > 1 && !loader.options.backend.continues_several() {
        return Err(Error::OneText);
    }
    match loader.options.backend {
        Backend::Sws if loader.options.resident => in_memory(loader),
        Backend::Sws => streamed(loader, text, threads),
        #[cfg(feature = "candle")]
        Backend::Candle => candle::load(loader),
        #[cfg(not(feature = "candle"))]
        Backend::Candle => Err(Error::WithoutCandle),
    }
}

/// The reason why a model in memory has no use for a graphics card.
const IN_MEMORY: &str =
    "a model that is loaded as a whole is computed on the CPU; leave out --vram, or --resident";

/// The same, of a budget without slots.
const NO_SLOTS: &str = "the budget has no slots for experts, which alone can move to a graphics card; raise --ram, or leave out --vram";

/// The same, of a plan that was made while no device could be opened.
const UNPLANNED: &str = "the memory of the device could not be planned for; leave out --vram, or let no other program use the device";

fn in_memory(loader: &mut Loader<'_>) -> Result<LoadedBackend> {
    match loader.options.vram {
        VramChoice::Off => {}
        VramChoice::Auto => loader.warnings.push(Warning::NoVram(IN_MEMORY.to_owned())),
        VramChoice::Bytes(_) => return Err(Error::Vram(IN_MEMORY.to_owned())),
    }
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
    let vram = Vram::open(loader)?;
    let mut planning = Planning::new(loader, text, threads, vram)?;
    let mut vram = std::mem::take(&mut planning.vram);
    let plan = match loader.plan.take() {
        Some(plan) => plan,
        None => planning.plan(loader)?,
    };
    info!(
        "a budget of {}: {} of {} bytes of weights stay in memory, {} slots for experts, a context of {}, {} tokens of a prompt at once",
        Size(plan.ledger.budget()),
        plan.ledger.get(MemoryUse::Pinned),
        planning.planner.weights(),
        SlotClass::count_of(&plan.slots),
        plan.context,
        plan.chunk,
    );
    for (what, bytes) in plan.ledger.lines() {
        debug!("{}: {bytes} bytes", what.words());
    }
    if plan.slots.is_empty() && matches!(vram, Vram::Open(_)) {
        vram = Vram::unusable(loader.options.vram, NO_SLOTS.to_owned())?;
    }
    if vram.host_bytes() > plan.ledger.get(MemoryUse::Device) {
        vram = Vram::unusable(loader.options.vram, UNPLANNED.to_owned())?;
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
    let opening = Opening::new(loader.cancel.clone());
    let reader = opening.reader(loader.open_reader()?);
    let mirrors = loader.open_mirrors()?.into_iter();
    let mirrors = mirrors.map(|it| Mirror { reader: opening.reader(it.reader), ..it }).collect();
    let store = Arc::new(model.store_with(reader, mirrors)?);
    let forward = sws_model::ForwardPass::with_tier(model.spec().clone(), tier(loader));
    let bytes = plan.arena_bytes() as u64;
    let without_draft = plan.ledger.get(MemoryUse::Draft) == 0;
    let mut report = |progress| loader.report(progress);
    let streamer = SpeculativeWeightStreamer::reporting(forward, store, plan, options, &mut report);
    let mut streamer = match streamer {
        Err(_) if loader.cancel.is_cancelled() => return Err(Error::Cancelled),
        streamer => model.named(streamer)?,
    };
    opening.set_open();
    match vram.into_tier() {
        Ok(None) => {}
        Ok(Some(tier)) => {
            streamer.set_tier(tier);
        }
        Err(why) => loader.warnings.push(Warning::NoVram(why)),
    }
    if let Some(why) = streamer.passed_over() {
        loader.warnings.push(Warning::Forgotten(why.to_owned()));
    }
    if without_draft && let Some(file) = loader.options.streaming.draft_file() {
        loader.warnings.push(Warning::DraftLeftOut(file.to_owned()));
    }
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
        reader: match &loader.reader {
            Some(reader) => reader.name(),
            None => loader.options.reader.name(),
        },
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
