//! What computes the layers: the table from which `--backend` picks.

use std::path::PathBuf;
use std::sync::Arc;

use clap::builder::PossibleValue;
use sws_draft::{Draft, NoDraft};
use sws_engine::{Gauge, Options, SpeculativeWeightStreamer, Use};
use sws_kernels::Functionals;
use sws_model::{Model as Forward, ModelHandle, State};
use sws_store::Memory;

use crate::draft;
use crate::interrupt::{Interrupt, Interrupted};
use crate::model::Model;
use crate::terminal::note;
use crate::{args, process};

/// One way to compute. Everything a layer is made of, from linear to routing, comes with it.
#[derive(Debug)]
pub(crate) struct Backend {
    pub(crate) name: &'static str,
    about: &'static str,
    /// How far its results are from those of the default backend; none if not at all.
    pub(crate) lossy: Option<&'static str>,
    /// Loads a model that it can run; refuses others before anything is loaded.
    pub(crate) start: fn(&Model, &args::Model, Needs<'_>) -> anyhow::Result<Started>,
}

/// What a model is started for.
#[derive(Clone, Copy)]
pub(crate) struct Needs<'a> {
    /// By which loading can be ended.
    pub(crate) interrupt: &'a Interrupt,
    /// Positions that will be used, as far as is known.
    pub(crate) positions: usize,
    /// Whether logits of all positions are wanted.
    pub(crate) all_logits: bool,
    /// The part of the heap that the tokenizer takes.
    pub(crate) tokenizer: u64,
    /// Bytes for encoding texts while the model is there: so many, and more for each position.
    pub(crate) encoding: [u64; 2],
}

impl<'a> Needs<'a> {
    /// Nothing is known but by what it can be ended.
    pub(crate) fn new(interrupt: &'a Interrupt) -> Needs<'a> {
        Needs { interrupt, positions: 0, all_logits: false, tokenizer: 0, encoding: [0; 2] }
    }
}

/// A model in memory.
pub(crate) struct Started {
    pub(crate) handle: Box<dyn ModelHandle>,
    /// The functionals that compute it.
    pub(crate) tier: String,
    /// How its files were read.
    pub(crate) reader: &'static str,
    pub(crate) weight_bytes: u64,
    /// The budget; none if everything is in memory.
    pub(crate) ram_bytes: Option<u64>,
    /// What the budget has for encoding texts; none if everything is in memory.
    pub(crate) encoding_bytes: Option<u64>,
    /// What it costs to run, for those who measure it.
    pub(crate) gauge: Option<Gauge>,
}

/// The first is the default.
const BACKENDS: &[Backend] = &[
    Backend {
        name: "sws",
        about: "our kernels on weights as they are stored: every model, the same bits everywhere",
        lossy: None,
        start: own,
    },
    #[cfg(feature = "candle")]
    Backend {
        name: "candle",
        about: "an independent implementation on candle tensors, to compare with: all weights in f32, slower, not bit-identical",
        lossy: Some(
            "computed by candle: not bit-identical, off by at most 1e-4 of the largest logit on the test models",
        ),
        start: candle::start,
    },
];

/// The backends' names with a line on each, as clap lists them.
pub(crate) fn possible() -> impl Iterator<Item = PossibleValue> {
    BACKENDS.iter().map(|backend| PossibleValue::new(backend.name).help(backend.about))
}

/// The backend of a name that is [`possible`].
pub(crate) fn find(name: &str) -> Option<&'static Backend> {
    BACKENDS.iter().find(|backend| backend.name == name)
}

fn own(model: &Model, args: &args::Model, needs: Needs<'_>) -> anyhow::Result<Started> {
    let functionals = args.functionals().unwrap_or(Functionals::best());
    let forward = Forward::with_functionals(model.spec.clone(), functionals);
    let (mut weight_bytes, mut ram_bytes, mut encoding_bytes) = (0, None, None);
    let streamer = if args.resident {
        asked(model, args)?;
        let source = model.load(args.reader, needs.interrupt)?;
        weight_bytes = source.bytes();
        let limit = positions(model, args)?;
        SpeculativeWeightStreamer::resident(forward, source, limit, args.kv())
    } else {
        // Measured before there is a draft: that has a line of its own.
        let process = process::measure(model, needs.tokenizer);
        let forecast = match args.no_speculation || args.no_draft {
            true => None,
            false => draft::load(model, args.draft.as_deref(), draft::limit(args.ram))?,
        };
        let forecast: Box<dyn Draft> = match forecast {
            Some(forecast) => Box::new(forecast),
            None => Box::new(NoDraft),
        };
        let options = Options {
            ram_budget: args.ram,
            draft: forecast,
            process: Some(process),
            speculation: !args.no_speculation,
            stand_ins: args.stand_ins(),
            exactness: args.exactness(),
            run_ahead: !args.no_speculation,
            policy: args.policy,
            context: args.context.map(|n| n as usize),
            at_least: needs.positions,
            encoding: needs.encoding,
            kv: args.kv(),
            all_logits: needs.all_logits,
            warm_start: warm_start(model, args),
            ..Options::default()
        };
        let reader = needs.interrupt.while_opening(model.reader(args.reader)?);
        let store = Arc::new(model.store_with(reader.clone())?);
        let streamer = SpeculativeWeightStreamer::new(forward, store, options);
        let streamer = streamer.map_err(|e| match needs.interrupt.asked() {
            true => Interrupted("the model was still being loaded").into(),
            false => model.says(&e),
        })?;
        reader.is_over();
        if let Some(why) = streamer.passed_over() {
            note!("sws: {why}");
        }
        if let Some(plan) = streamer.plan() {
            weight_bytes = plan.arena_bytes() as u64;
            ram_bytes = Some(plan.ledger.budget());
            encoding_bytes = Some(plan.ledger.get(Use::Encoding));
            if let (Some(file), 0) = (&args.draft, plan.ledger.get(Use::Draft)) {
                note!(
                    "sws: `{}` is left out: beside it the budget has no slots for experts, to which it would tell what to read; raise --ram",
                    file.display()
                );
            }
        }
        streamer
    };
    Ok(Started {
        tier: functionals.to_string(),
        reader: args.reader.name(),
        weight_bytes,
        ram_bytes,
        encoding_bytes,
        gauge: Some(streamer.gauge()),
        handle: Box::new(streamer),
    })
}

/// Where what was learned of the model is kept. None without a home.
fn warm_start(model: &Model, args: &args::Model) -> Option<PathBuf> {
    let cache =
        std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|dir| dir.is_absolute());
    let cache = cache.or_else(|| Some(std::env::home_dir()?.join(".cache")));
    // A fingerprint is a name for a file: hexadecimal digits, which the manifest's check sees to.
    let name = format!("{}.safetensors", model.manifest.model.fingerprint);
    cache.filter(|_| !args.no_warm_start).map(|dir| dir.join("sws").join("learned").join(name))
}

/// How long a sequence is to be at most; refused if the model was not made for it.
fn asked(model: &Model, args: &args::Model) -> anyhow::Result<usize> {
    let made_for = model.spec.context;
    match args.context.map_or(made_for, |n| n as usize) {
        asked if asked > made_for => Err(model.says(&format_args!(
            "the model was made for {made_for} positions and {asked} were asked for; lower --context"
        ))),
        asked => Ok(asked),
    }
}

/// How long a sequence can become: as was asked for, or as far as the memory that is left has room
/// for its keys and values, and then that is told.
fn positions(model: &Model, args: &args::Model) -> anyhow::Result<usize> {
    let wanted = asked(model, args)?;
    let Some(Memory { available, holder, .. }) = Memory::now() else { return Ok(wanted) };
    let (mut fits, mut too_many) = (0, wanted.saturating_add(1));
    while too_many - fits > 1 {
        let between = fits + (too_many - fits) / 2;
        match State::cache_bytes(&model.spec, between, args.kv()) <= available {
            true => fits = between,
            false => too_many = between,
        }
    }
    if fits < wanted {
        note!("the context has {wanted} positions, and {holder} has memory left for {fits}");
    }
    Ok(fits)
}

#[cfg(feature = "candle")]
mod candle {
    use anyhow::bail;
    use sws_candle::{CandleError, CandleLm};
    use sws_engine::Budget;
    use sws_model::{Inventory, KvPrecision};
    use sws_store::shard::Progress;

    use super::{Interrupted, Model, Needs, Started, args, asked, positions};
    use crate::progress::{Meter, Unit};

    pub(super) fn start(
        model: &Model,
        args: &args::Model,
        Needs { interrupt, .. }: Needs<'_>,
    ) -> anyhow::Result<Started> {
        if args.kv() != KvPrecision::F32 {
            bail!("the candle backend keeps keys and values in f32; leave out --kv");
        }
        if args.functionals().is_some() {
            bail!("the candle backend has functionals of its own; leave out --tier and SWS_TIER");
        }
        if args.ram != Budget::Auto {
            bail!("the candle backend keeps all weights in memory; leave out --ram");
        }
        if args.stand_ins.is_some() || args.tolerance > 0.0 {
            bail!("the candle backend has no stand-ins; leave out --stand-ins and --tolerance");
        }
        if args.draft.is_some() {
            bail!("the candle backend reads nothing ahead; leave out --draft");
        }
        sws_candle::supports(&model.spec).map_err(|e| model.says(&e))?;
        // What is missing or misshapen is refused in the words of the default backend.
        let inventory = Inventory::new(&model.spec, &model.manifest).map_err(|e| model.says(&e))?;
        let held = inventory.pieces().flat_map(|id| inventory.piece(id));
        let sizes = held.map(|held| 4 * held.rows as u64 * held.cols as u64);
        let (total, largest) =
            sizes.fold((0, 0), |(total, largest), size| (total + size, size.max(largest)));
        let otherwise = "use the default backend, which keeps weights as they are stored";
        model.check_memory(total + largest, otherwise)?;

        asked(model, args)?;
        let meter = Meter::quiet("loading", Unit::Bytes);
        let mut progress = |done| {
            meter.show(Progress { done, total });
            !interrupt.asked()
        };
        let spec = model.spec.clone();
        let (lm, reader) = if model.is_sharded() {
            let store = model.store(args.reader)?;
            (CandleLm::from_shards(spec, &store, &mut progress), args.reader.name())
        } else {
            (CandleLm::from_checkpoint(spec, &model.dir, &mut progress), "file")
        };
        let lm = lm.map_err(|e| match e {
            CandleError::Stopped => Interrupted("the model was still being loaded").into(),
            e => model.says(&e),
        })?;
        let lm = lm.limited(positions(model, args)?);
        meter.finish();
        Ok(Started {
            tier: "candle".to_owned(),
            reader,
            weight_bytes: lm.weight_bytes(),
            ram_bytes: None,
            encoding_bytes: None,
            gauge: None,
            handle: Box::new(lm),
        })
    }
}
