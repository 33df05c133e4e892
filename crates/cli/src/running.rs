//! A loaded model, ready to be given tokens.

use std::time::Duration;

use anyhow::anyhow;
use sws_kernels::Tier;
use sws_model::{ForwardError, KvPrecision, ModelSpec, ResidentSource, Session, State};
use sws_store::{Clock, Memory};

use crate::args;
use crate::generate::Generated;
use crate::interrupt::Interrupt;
use crate::metrics::{Metrics, Pace, peak_rss};
use crate::model::Model;

/// A model in memory with one sequence.
pub(crate) struct Running {
    pub(crate) session: Session<ResidentSource>,
    model: String,
    reader: &'static str,
    kv: &'static str,
    lossy: Vec<String>,
    weight_bytes: u64,
    load: Duration,
}

impl Running {
    /// Loads a model as `args` say. What is lossy about it is told.
    pub(crate) fn start(
        model: &Model,
        args: &args::Model,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Running> {
        let tier = Tier::from_env()?;
        if let Some(threads) = args.threads {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads.into());
            let started = pool.build_global();
            started
                .map_err(|e| anyhow!("{threads} threads cannot be started: {e}; ask for fewer"))?;
        }
        let mut lossy: Vec<String> = model.lossy().into_iter().collect();
        let kv = match args.kv {
            KvPrecision::F32 => "f32",
            KvPrecision::Bf16 => {
                lossy.push("keys and values rounded to bf16, error not bounded".to_owned());
                "bf16"
            }
        };
        for what in &lossy {
            eprintln!("sws: lossy: {what}");
        }
        let clock = Clock::real();
        let started = clock.now();
        let source = model.load(args.reader, interrupt)?;
        let load = clock.now() - started;
        let weight_bytes = source.bytes();
        let positions = positions(&model.spec, args.kv);
        let forward = sws_model::Model::with_tier(model.spec.clone(), tier);
        Ok(Running {
            session: Session::new(forward, source, positions, args.kv),
            model: model.dir.display().to_string(),
            reader: args.reader.name(),
            kv,
            lossy,
            weight_bytes,
            load,
        })
    }

    pub(crate) fn metrics(&self, generated: &Generated) -> Metrics {
        Metrics {
            model: self.model.clone(),
            tier: self.session.model().tier().to_string(),
            threads: rayon::current_num_threads(),
            reader: self.reader,
            kv: self.kv,
            lossy: self.lossy.clone(),
            weight_bytes: self.weight_bytes,
            load_seconds: self.load.as_secs_f64(),
            prompt: generated.prompt,
            generation: generated.generation,
            peak_rss_bytes: peak_rss(),
        }
    }
}

/// How long a sequence can become: as the model has it, or as far as the memory that is left has room
/// for its keys and values, and then that is told.
fn positions(spec: &ModelSpec, kv: KvPrecision) -> usize {
    let Some(Memory { available, holder, .. }) = Memory::now() else { return spec.context };
    let (mut fits, mut too_many) = (0, spec.context.saturating_add(1));
    while too_many - fits > 1 {
        let between = fits + (too_many - fits) / 2;
        match State::cache_bytes(spec, between, kv) <= available {
            true => fits = between,
            false => too_many = between,
        }
    }
    if fits < spec.context {
        eprintln!(
            "the model's context has {} positions, and {holder} has memory left for {fits}",
            spec.context
        );
    }
    fits
}

/// Refuses tokens that the model cannot take, before it is loaded for them.
pub(crate) fn check(spec: &ModelSpec, tokens: &[u32]) -> Result<(), ForwardError> {
    if tokens.is_empty() {
        return Err(ForwardError::NoTokens);
    }
    if tokens.len() > spec.context {
        let (asked, limit) = (tokens.len(), spec.context);
        return Err(ForwardError::ContextFull { used: 0, asked, limit });
    }
    match tokens.iter().find(|&&token| token as usize >= spec.vocab) {
        Some(&token) => Err(ForwardError::UnknownToken { token, last: spec.vocab - 1 }),
        None => Ok(()),
    }
}

/// `12 tokens at 34.5 tok/s`.
pub(crate) fn pace(Pace { tokens, tokens_per_second, .. }: Pace, what: &str) -> String {
    format!("{tokens} {what} at {tokens_per_second:.1} tok/s")
}
