//! The independent implementation of the layers, on candle tensors.

use sws_candle::{CandleError, CandleLm};
use sws_engine::RamBudget;
use sws_format::Progress;
use sws_kernels::Activations;
use sws_model::{Inventory, KvPrecision};

use super::backend::LoadedBackend;
use super::context::{affordable_context, requested_context};
use crate::run::sequence::AnyLm;
use crate::{DraftChoice, Error, Loader, Options, Result, VramChoice, Warning};

pub(super) fn load(loader: &mut Loader<'_>) -> Result<LoadedBackend> {
    refuse(&loader.options)?;
    if loader.options.vram == VramChoice::Auto {
        let why = "candle computes on the CPU; leave out --vram, or --backend";
        loader.warnings.push(Warning::NoVram(why.to_owned()));
    }
    let model = loader.model;
    let spec = model.spec();
    model.named(sws_candle::supports(spec))?;
    // Missing or misshapen tensors give the error of the default backend.
    let inventory = model.named(Inventory::new(spec, model.manifest()))?;
    let mut total = 0;
    let mut largest = 0;
    for held in inventory.pieces().flat_map(|id| inventory.piece(id)) {
        let size = 4 * held.rows as u64 * held.cols as u64;
        total += size;
        largest = size.max(largest);
    }
    let otherwise = "use the default backend, which keeps weights as they are stored";
    model.check_memory(total + largest, otherwise)?;

    requested_context(loader)?;
    let reader = loader.options.reader;
    let cancel = loader.cancel.clone();
    let mut progress = |done| {
        loader.report(Progress { done, total });
        !cancel.is_cancelled()
    };
    // Only safetensors have the names that candle looks for in a checkpoint.
    let (lm, reader) = if model.is_sharded() || model.is_gguf() {
        let store = model.store(reader)?;
        (CandleLm::from_shards(spec.clone(), &store, &mut progress), reader.name())
    } else {
        (CandleLm::from_checkpoint(spec.clone(), model.dir(), &mut progress), "file")
    };
    let lm = match lm {
        Err(CandleError::Stopped) => return Err(Error::Cancelled),
        lm => model.named(lm)?,
    };
    let lm = lm.limited(affordable_context(loader)?);
    Ok(LoadedBackend {
        tier: "candle".to_owned(),
        reader,
        weight_bytes: lm.weight_bytes(),
        plan: None,
        gauge: None,
        waiter: None,
        lm: AnyLm::Other(Box::new(lm)),
    })
}

/// Refuses options that this backend does not support.
fn refuse(options: &Options) -> Result<()> {
    let streaming = &options.streaming;
    let refused = [
        (options.kv != KvPrecision::F32, "keeps keys and values in f32; leave out --kv"),
        (options.tier.is_some(), "has kernels of its own; leave out --tier and SWS_TIER"),
        (
            options.activations != Activations::F32,
            "takes activations as they are; leave out --activations",
        ),
        (options.ram != RamBudget::Auto, "keeps all weights in memory; leave out --ram"),
        (
            streaming.stand_ins.is_some() || streaming.tolerance > 0.0,
            "has no stand-ins; leave out --stand-ins and --tolerance",
        ),
        (matches!(options.vram, VramChoice::Bytes(_)), "computes on the CPU; leave out --vram"),
        (matches!(streaming.draft, DraftChoice::File(_)), "does not prefetch; leave out --draft"),
    ];
    for (is_set, words) in refused {
        if is_set {
            return Err(Error::Candle(words));
        }
    }
    Ok(())
}
