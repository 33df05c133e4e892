//! A loaded model, which generates texts.

use std::time::Duration;

use sws_engine::{Gauge, MemoryUse, Plan, Waiter, peak_memory};
use sws_kernels::Activations;
use sws_model::{CausalLm, KvPrecision};
use sws_store::SystemMemory;
use sws_text::{Generation, Position};

use crate::generate::GenerateStart;
use crate::sequence::Sequence;
use crate::{
    Backend, Batch, Generate, Generated, Lacking, Model, Prompt, Request, Result, RunMetrics,
    TextCodec, Texts, Threads, Warning,
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
    pub(crate) backend: Backend,
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

    /// Continuous batching: several texts share passes, in which each expert is read once for all of them:
    /// as many at a time as was [declared](crate::Needs::texts) when the model was loaded. Each has the
    /// output that it has alone. Their costs are those of all together, and not measured by text.
    ///
    /// A request is taken when the text before it has ended, or the one before that, and so on.
    pub fn generate_all<'m, R>(&'m mut self, requests: R) -> Result<Texts<'m>>
    where
        R: IntoIterator<Item = Request>,
        R::IntoIter: 'm,
    {
        let LoadedModel { model, sequence, text, about, waiter, .. } = self;
        let model = &*model;
        let text = &*text;
        let batch = Batch::new(sequence, text.tokenizer(), waiter.clone(), about.texts)?;
        let prompts = requests.into_iter().map(|request| prepared(model, text, request));
        Ok(Texts::new(batch, prompts))
    }

    /// As [`generate_all`](Self::generate_all), with tokens and [resolved](Model::generation) options
    /// for all of them.
    pub fn continued_all<'m>(
        &'m mut self,
        prompts: impl IntoIterator<Item = Vec<u32>, IntoIter: 'm>,
        generation: &'m Generation,
    ) -> Result<Texts<'m>> {
        let prompts = prompts.into_iter().map(|tokens| Ok((tokens, generation.clone())));
        Ok(Texts::new(self.batch()?, prompts))
    }

    /// Begins an empty batch, of as many texts as were [declared](crate::Needs::texts) when the model
    /// was loaded.
    pub fn batch(&mut self) -> Result<Batch<'_>> {
        let LoadedModel { sequence, text, about, waiter, .. } = self;
        Batch::new(sequence, text.tokenizer(), waiter.clone(), about.texts)
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
        let layers = self.model.spec().layers.len();
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

    /// Things to know about how it was loaded, one sentence each.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// The tokenizer and chat template.
    pub fn text(&self) -> &TextCodec {
        &self.text
    }

    /// The division of the budget; none if everything is in memory.
    pub fn plan(&self) -> Option<&Plan> {
        self.plan.as_ref()
    }

    /// The counters of what it costs to run, as of the last pass; none from a backend that does not
    /// measure it.
    pub fn gauge(&self) -> Option<Gauge> {
        self.gauge.clone()
    }

    /// The cost of a text, and how the model was loaded.
    pub fn metrics(&self, generated: &Generated) -> RunMetrics {
        let about = &self.about;
        RunMetrics {
            model: self.model.name(),
            backend: about.backend.name(),
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
            first_token_seconds: generated.first_token.map(|time| time.as_secs_f64()),
            prompt: generated.prompt,
            generation: generated.generation,
            cost: generated.cost.clone(),
            peak_rss_bytes: peak_memory(),
        }
    }

    /// Memory for encoding texts: what the budget has for it, or what is free.
    pub(crate) fn working_bytes(&self) -> u64 {
        let planned = self.plan.as_ref().map(|plan| plan.ledger.get(MemoryUse::Encoding));
        let free = || SystemMemory::now().map(|memory| memory.available);
        planned.or_else(free).unwrap_or(u64::MAX)
    }
}

/// Returns the tokens of a request's prompt, and its options.
fn prepared(model: &Model, text: &TextCodec, request: Request) -> Result<(Vec<u32>, Generation)> {
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
