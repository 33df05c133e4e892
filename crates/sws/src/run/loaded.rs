//! A loaded model, which generates texts.

use std::time::Duration;

use sws_engine::{Gauge, MemoryUse, Plan, Waiter, peak_memory};
use sws_kernels::Activations;
use sws_model::{CausalLm, KvPrecision};
use sws_store::SystemMemory;
use sws_text::{Generation, Position};

use crate::run::generate::GenerateStart;
use crate::run::sequence::Sequence;
use crate::{
    BytesRead, Cost, Generate, Generated, Lacking, Model, Prompt, Request, Result, RunMetrics,
    TextCodec, Threads, Warning,
};

/// Limit of new tokens, unless the caller or the model sets one.
pub const NEW_TOKENS: usize = 256;

/// A loaded model, with one sequence, or [several](crate::Needs::texts). Its passes run on its
/// [threads](Threads), whichever thread calls.
///
/// Dropping it saves its statistics of the use of experts.
#[derive(Debug)]
pub struct LoadedModel {
    pub(crate) model: Model,
    pub(crate) sequence: Sequence,
    pub(crate) text: TextCodec,
    pub(crate) about: LoadedFacts,
    pub(crate) plan: Option<Plan>,
    pub(crate) gauge: Option<Gauge>,
    pub(crate) waiter: Option<Waiter>,
    pub(crate) warnings: Vec<Warning>,
}

/// Facts about the loaded model, for its metrics.
#[derive(Debug)]
pub(crate) struct LoadedFacts {
    pub(crate) backend: &'static str,
    pub(crate) tier: String,
    pub(crate) activations: Activations,
    pub(crate) reader: &'static str,
    pub(crate) kv: KvPrecision,
    pub(crate) lossy: Vec<String>,
    pub(crate) weight_bytes: u64,
    pub(crate) policy: Option<&'static str>,
    /// Maximum number of texts at a time.
    pub(crate) texts: usize,
    pub(crate) load: Duration,
    pub(crate) tokenizer: Duration,
}

impl LoadedModel {
    /// Continues a text, in a new sequence. The defaults are those of `sws run`: the model's
    /// `generation_config.json`, up to 256 new tokens, and a new seed each time.
    ///
    /// The prompt is computed on the first call of `next`.
    pub fn generate(&mut self, request: impl Into<Request>) -> Result<Generate<'_>> {
        let (tokens, generation) = prepared(&self.model, &self.text, request.into())?;
        self.sequence.clear();
        self.continued(tokens, &generation)
    }

    /// Continues tokens with [resolved](Model::generation) options; without a limit of new tokens,
    /// as far as the context allows. If the sequence is a prefix of the tokens, that part is not
    /// computed again. Pieces have no text if there is no tokenizer.
    pub fn continued(&mut self, tokens: Vec<u32>, generation: &Generation) -> Result<Generate<'_>> {
        self.start(tokens, generation, Position::Middle)
    }

    pub(crate) fn start(
        &mut self,
        tokens: Vec<u32>,
        generation: &Generation,
        position: Position,
    ) -> Result<Generate<'_>> {
        let tokenizer = self.text.tokenizer().map(|tokenizer| (tokenizer, position));
        let gauge = self.gauge.clone();
        let waiter = self.waiter.clone();
        let layers = self.model.spec().visits();
        let start = GenerateStart { layers, tokens, generation, tokenizer, gauge, waiter };
        Generate::new(&mut self.sequence, start)
    }

    /// Gives access to the logits: tokens in, one pass at a time, on the pool.
    pub fn causal_lm(&mut self) -> &mut dyn CausalLm {
        &mut self.sequence
    }

    /// The model on disk.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Threads that compute the passes.
    pub fn threads(&self) -> &Threads {
        self.sequence.threads()
    }

    /// Kind of activations of products.
    pub fn activations(&self) -> Activations {
        self.about.activations
    }

    /// Precision of the KV cache.
    pub fn kv(&self) -> KvPrecision {
        self.about.kv
    }

    /// Maximum sequence length.
    pub fn limit(&self) -> usize {
        self.sequence.limit()
    }

    /// Warnings about loading, one sentence each.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// The tokenizer and chat template.
    pub fn text(&self) -> &TextCodec {
        &self.text
    }

    /// The division of the budget; `None` if all weights are in memory.
    pub fn plan(&self) -> Option<&Plan> {
        self.plan.as_ref()
    }

    /// The counters of a run's cost, as of the last pass; `None` from a backend that does not
    /// measure it.
    pub fn gauge(&self) -> Option<Gauge> {
        self.gauge.clone()
    }

    /// The cost of a text, and facts about the loaded model.
    pub fn metrics(&self, generated: &Generated) -> RunMetrics {
        let about = &self.about;
        RunMetrics {
            model: self.model.name(),
            backend: about.backend,
            tier: about.tier.clone(),
            activations: about.activations.name(),
            threads: self.threads().count(),
            reader: about.reader,
            kv: about.kv.name(),
            lossy: about.lossy.clone(),
            weight_bytes: about.weight_bytes,
            ram_bytes: self.plan.as_ref().map(|plan| plan.ledger.budget()),
            policy: about.policy,
            load_seconds: (about.load + about.tokenizer).as_secs_f64(),
            tokenizer_seconds: about.tokenizer.as_secs_f64(),
            first_token_seconds: generated.first_token.as_ref().map(Duration::as_secs_f64),
            prompt: generated.prompt,
            generation: generated.generation,
            cost: generated.cost.clone(),
            disk: self.bytes_read(generated),
            peak_rss_bytes: peak_memory(),
        }
    }

    fn bytes_read(&self, generated: &Generated) -> Option<BytesRead> {
        let Cost { prompt, generation } = generated.cost.as_ref()?;
        let text_bytes = prompt.disk.bytes + generation.disk.bytes;
        Some(BytesRead { text_bytes, all_bytes: self.gauge.as_ref()?.read().device_bytes })
    }

    /// Memory for encoding texts: the bytes reserved by the plan, or free memory without one.
    pub(crate) fn working_bytes(&self) -> u64 {
        match &self.plan {
            Some(plan) => plan.ledger.get(MemoryUse::Encoding),
            None => SystemMemory::now().map_or(u64::MAX, |memory| memory.available),
        }
    }
}

/// Returns the tokens of a request's prompt, and its options.
pub(crate) fn prepared(
    model: &Model,
    text: &TextCodec,
    request: Request,
) -> Result<(Vec<u32>, Generation)> {
    let Request { prompt, options } = request;
    let mut generation = model.generation(&options)?;
    generation.max_new_tokens.get_or_insert(NEW_TOKENS);
    let tokens = match prompt {
        Prompt::Tokens(tokens) => tokens,
        Prompt::Text(text_of) => text.encode(model, &text_of, true)?,
    };
    if text.tokenizer().is_none() && !generation.stop_strings.is_empty() {
        return Err(model.error(Lacking::Tokenizer));
    }
    Ok((tokens, generation))
}
