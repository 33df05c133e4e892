//! A loaded model, ready to be given tokens.

use std::time::Duration;

use anyhow::anyhow;
use sws_engine::{Gauge, peak_memory};
use sws_model::{CausalLm, ForwardError, KvPrecision, ModelHandle, ModelSpec, check_tokens};
use sws_store::Clock;

use crate::args;
use crate::backend::{Needs, Started};
use crate::generate::Generated;
use crate::metrics::{Metrics, Pace};
use crate::model::Model;
use crate::terminal::note;

/// A model in memory with one sequence.
pub(crate) struct Running {
    handle: Box<dyn ModelHandle>,
    model: String,
    backend: &'static str,
    tier: String,
    reader: &'static str,
    kv: &'static str,
    lossy: Vec<String>,
    weight_bytes: u64,
    ram_bytes: Option<u64>,
    encoding_bytes: Option<u64>,
    policy: &'static str,
    gauge: Option<Gauge>,
    load: Duration,
}

impl Running {
    /// Loads a model as `args` say. What is lossy about it is told.
    pub(crate) fn start(
        model: &Model,
        args: &args::Model,
        needs: Needs<'_>,
    ) -> anyhow::Result<Running> {
        let backend = args.backend;
        let mut lossy: Vec<String> = model.lossy().into_iter().collect();
        lossy.extend(backend.lossy.map(str::to_owned));
        let kv = match args.kv() {
            KvPrecision::F32 => "f32",
            KvPrecision::Bf16 => {
                lossy.push("keys and values rounded to bf16, error not bounded".to_owned());
                "bf16"
            }
        };
        if args.tolerance > 0.0 {
            lossy.push(format!(
                "not exact: a stand-in counts where it changes a layer's state by at most {} of its norm, the effect on logits not bounded; not reproducible: which ones count depends on what is in memory",
                args.tolerance
            ));
        }
        let clock = Clock::real();
        let started = clock.now();
        let Started { handle, tier, reader, weight_bytes, ram_bytes, encoding_bytes, gauge } =
            (backend.start)(model, args, needs)?;
        let load = clock.now() - started;
        for what in &lossy {
            note!("sws: lossy: {what}");
        }
        Ok(Running {
            handle,
            model: model.dir.display().to_string(),
            backend: backend.name,
            tier,
            reader,
            kv,
            lossy,
            weight_bytes,
            ram_bytes,
            encoding_bytes,
            policy: args.policy.name(),
            gauge,
            load,
        })
    }

    /// What there is for encoding texts beside the model; none if that is what is free.
    pub(crate) fn encoding_bytes(&self) -> Option<u64> {
        self.encoding_bytes
    }

    /// The model as one that continues a text, if it does.
    pub(crate) fn causal_lm(&mut self) -> anyhow::Result<&mut dyn CausalLm> {
        self.handle.as_causal_lm().ok_or_else(|| {
            anyhow!("`{}` does not continue texts; give a model that was made for it", self.model)
        })
    }

    /// What it costs to run, if that is measured.
    pub(crate) fn gauge(&self) -> Option<Gauge> {
        self.gauge.clone()
    }

    pub(crate) fn metrics(&self, generated: &Generated) -> Metrics {
        Metrics {
            model: self.model.clone(),
            backend: self.backend,
            tier: self.tier.clone(),
            threads: rayon::current_num_threads(),
            reader: self.reader,
            kv: self.kv,
            lossy: self.lossy.clone(),
            weight_bytes: self.weight_bytes,
            ram_bytes: self.ram_bytes,
            policy: self.ram_bytes.map(|_| self.policy),
            load_seconds: self.load.as_secs_f64(),
            first_token_seconds: generated.first_token.map(|time| time.as_secs_f64()),
            prompt: generated.prompt,
            generation: generated.generation,
            cost: generated.cost.clone(),
            peak_rss_bytes: peak_memory(),
        }
    }
}

/// Refuses tokens that the model cannot take, before it is loaded for them.
pub(crate) fn check(spec: &ModelSpec, tokens: &[u32]) -> Result<(), ForwardError> {
    check_tokens(tokens, 0, spec.context, spec.vocab)
}

/// `12 tokens at 34.5 tok/s`.
pub(crate) fn pace(Pace { tokens, tokens_per_second, .. }: Pace, what: &str) -> String {
    format!("{tokens} {what} at {tokens_per_second:.1} tok/s")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model that can do nothing.
    struct Mute(ModelSpec);

    impl ModelHandle for Mute {
        fn spec(&self) -> &ModelSpec {
            &self.0
        }
    }

    #[test]
    fn a_capability_that_a_model_lacks_is_missed_in_a_sentence() {
        let config = include_bytes!("../../../tests/goldens/qwen3_moe/config.json");
        let mut running = Running {
            handle: Box::new(Mute(ModelSpec::parse(config).unwrap())),
            model: "models/mute".to_owned(),
            backend: "sws",
            tier: String::new(),
            reader: "direct",
            kv: "f32",
            lossy: Vec::new(),
            weight_bytes: 0,
            ram_bytes: None,
            encoding_bytes: None,
            policy: "lru",
            gauge: None,
            load: Duration::ZERO,
        };
        let Err(error) = running.causal_lm() else { panic!("it cannot") };
        let sentence = "`models/mute` does not continue texts; give a model that was made for it";
        assert_eq!(error.to_string(), sentence);
    }
}
