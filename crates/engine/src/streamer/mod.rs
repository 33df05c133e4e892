//! The streamer: runs a model within a memory budget, and measures the run.

mod gauge;
mod lending;
mod meter;
mod metrics;
mod options;
mod several;
mod slots;
mod source;
mod speculative;
mod start;
mod streamed;

use std::sync::Arc;
use std::time::Duration;

use sws_cache::SavedTensors;
use sws_model::{
    CausalLm, Chunk, ForwardError, ForwardPass, ForwardState, Observer, Sequences, StepOutcome,
};
use sws_store::{Arena, NVMeWeightStore};
use sws_text::{Sampler, Sampling};

use crate::budget::Plan;
use crate::experts::ExpertTier;
use crate::speculation::WarmStart;
use crate::wait::Waiter;
pub use gauge::Gauge;
use gauge::Totals;
pub use lending::Lending;
use lending::{ContextLending, StructuredLending};
pub use meter::ComputeCosts;
pub use metrics::{
    Clocks, Counters, Disk, DriveMetrics, ExpertMetrics, LayerMetrics, Metrics, StallMetrics,
    StandInMetrics, TimeSplit, memory, peak_memory,
};
pub use options::{Options, StreamerError};
pub use source::StreamingSource;
use speculative::SpeculativeState;
pub use speculative::{MAX_VERIFY_LEN, SpeculativeCounts};

/// A model that runs within a memory budget: its weights come from a store as they are needed.
///
/// Tokens and logits are bit for bit those of the resident model, whatever the budget, the policy
/// or the draft.
///
/// ```no_run
/// use std::path::Path;
/// use std::sync::Arc;
/// use sws_engine::{Options, SpeculativeWeightStreamer};
/// use sws_model::{ForwardPass, ModelSpec};
/// use sws_format::Manifest;
/// use sws_store::{NVMeWeightStore, StoreOptions};
///
/// let dir = Path::new("shards/tales-moe");
/// let manifest = Arc::new(Manifest::load(dir)?);
/// let config = manifest.read_small(dir, "config.json", None)?.ok_or("no config.json")?;
/// let spec = ModelSpec::parse(&config)?;
/// let store = NVMeWeightStore::open(manifest, dir, StoreOptions::default())?;
/// let options = Options { ram_budget: "64MiB".parse()?, ..Options::default() };
/// let mut streamer = SpeculativeWeightStreamer::new(ForwardPass::new(spec), Arc::new(store), options)?;
/// let tokens = streamer.generate(&[1, 2, 3], 16)?;
/// let metrics = streamer.aggregate_metrics();
/// assert!(metrics.tokens >= tokens.len() as u64);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SpeculativeWeightStreamer {
    /// The model with its sequences; that of [`CausalLm`] has the number 0.
    sequences: Sequences<StreamingSource>,
    store: Option<Arc<NVMeWeightStore>>,
    arena: Option<Arena>,
    sampling: Sampling,
    plan: Option<Plan>,
    lending: Lending,
    contexts: ContextLending,
    structured: StructuredLending,
    /// True while the caller keeps prefixes, and reports how much memory is unused.
    caller_keeps: bool,
    totals: Totals,
    speculative: SpeculativeState,
    /// True if stand-ins of all experts are in memory.
    drafts: bool,
    warm_start: Option<WarmStart>,
    passed_over: Option<String>,
}

impl SpeculativeWeightStreamer {
    /// Continues several sequences in shared passes, in which each expert is read once for all of
    /// them; see [`Sequences::step`].
    pub fn step(
        &mut self,
        chunks: &[Chunk<'_>],
        observer: &mut dyn Observer,
        step: &mut StepOutcome,
    ) {
        let started = self.begin_pass(chunks.iter().map(|chunk| chunk.tokens.len()).sum());
        self.sequences.step(chunks, observer, step);
        let mut done = 0;
        for (number, chunk) in chunks.iter().enumerate() {
            if step.logits(number).is_ok() {
                done += chunk.tokens.len();
            }
        }
        self.end_pass(started, done);
    }

    /// Appends `prompt` to the sequence, then up to `new_tokens` tokens that the model chooses, as
    /// far as there is room. Without [`clear`](CausalLm::clear) the sequence continues from earlier
    /// calls.
    pub fn generate(
        &mut self,
        prompt: &[u32],
        new_tokens: usize,
    ) -> Result<Vec<u32>, StreamerError> {
        let mut sampler = Sampler::new(self.sampling.clone(), self.vocab());
        sampler.prompt(prompt)?;
        let mut logits = self.prefill(prompt)?.to_vec();
        let mut tokens = Vec::with_capacity(new_tokens);
        while tokens.len() < new_tokens {
            let token = sampler.sample(&mut logits, self.len())?;
            tokens.push(token);
            if self.len() == self.limit() {
                break;
            }
            logits.copy_from_slice(self.decode(token)?);
        }
        Ok(tokens)
    }

    /// Reason in one sentence why the warm-start file was ignored; `None` if it was not.
    pub fn passed_over(&self) -> Option<&str> {
        self.passed_over.as_deref()
    }

    /// Adds a tier of experts outside memory; false if no experts are in slots.
    pub fn set_tier(&mut self, tier: Box<dyn ExpertTier>) -> bool {
        let Some(assembler) = self.sequences.source().assembler() else { return false };
        assembler.set_tier(tier);
        true
    }

    /// The tier of experts outside memory.
    pub fn tier(&mut self) -> Option<&dyn ExpertTier> {
        self.sequences.source().assembler()?.tier()
    }

    /// The waiter, by which a run can be cancelled.
    pub fn waiter(&mut self) -> Waiter {
        self.sequences.source().meter().waiter().clone()
    }

    /// The division of the budget; `None` if everything is in memory.
    pub fn plan(&self) -> Option<&Plan> {
        self.plan.as_ref()
    }

    /// The model.
    pub fn model(&self) -> &ForwardPass {
        self.sequences.model()
    }

    /// The positions of the sequences, and the state of the pass.
    pub fn state(&self) -> &ForwardState {
        self.sequences.state()
    }

    /// Begins passes over `tokens` tokens. Lends memory that they do not use to slots, or takes it
    /// back. Returns the time.
    fn begin_pass(&mut self, tokens: usize) -> Duration {
        let sequences = self.plan.as_ref().map_or(1, |plan| plan.sequences);
        self.lend_structured_memory();
        self.lend_contexts();
        match tokens <= sequences {
            true => self.lend(),
            false => self.take_back(),
        }
        self.start_clock()
    }

    /// Like [`begin_pass`](Self::begin_pass), without lending or taking back memory.
    fn start_clock(&mut self) -> Duration {
        let started = self.sequences.source().meter().waiter().clock().now();
        self.totals.gauge.watch().passes_begin(started);
        started
    }

    /// Ends passes in which `done` tokens were processed, and updates the counters.
    fn end_pass(&mut self, started: Duration, done: usize) {
        let meter = self.sequences.source().meter();
        let ended = meter.waiter().clock().now();
        self.totals.gauge.watch().passes_end(ended, meter.clocks().source);
        self.totals.passes += ended.saturating_sub(started);
        self.totals.tokens += done as u64;
        self.publish_counters();
    }
}

impl CausalLm for SpeculativeWeightStreamer {
    fn vocab(&self) -> usize {
        self.model().spec().vocab
    }

    fn limit(&self) -> usize {
        self.state().limit()
    }

    fn len(&self) -> usize {
        self.state().len(0)
    }

    fn clear(&mut self) {
        match self.contexts.lends() {
            true => self.sequences.release(0),
            false => self.sequences.state_mut().clear(0),
        }
    }

    fn observed(
        &mut self,
        tokens: &[u32],
        observer: &mut dyn Observer,
    ) -> Result<&[f32], ForwardError> {
        self.settle_context(tokens.len());
        let started = self.begin_pass(tokens.len());
        let ran = self.sequences.continue_one(0, tokens, observer);
        self.end_pass(started, if ran.is_ok() { tokens.len() } else { 0 });
        ran?;
        Ok(self.sequences.logits(0))
    }

    fn score(&mut self, tokens: &[u32], observer: &mut dyn Observer) -> Result<(), ForwardError> {
        self.settle_context(tokens.len());
        let started = self.begin_pass(tokens.len());
        let ran = self.sequences.score(0, tokens, observer);
        self.end_pass(started, if ran.is_ok() { tokens.len() } else { 0 });
        ran
    }
}

impl Drop for SpeculativeWeightStreamer {
    /// Saves the learned state. On failure it is lost, and later runs learn it again.
    fn drop(&mut self) {
        let Some(file) = self.warm_start.take() else { return };
        if self.totals.tokens == 0 {
            return;
        }
        let mut saved = SavedTensors::default();
        if let Some(assembler) = self.sequences.source().assembler() {
            // Releasing the slots makes room for the saved state.
            assembler.trim_to_budget(0);
            assembler.save(&mut saved);
        }
        self.give_back();
        if !saved.is_empty() {
            // A run that does not learn keeps the state of earlier runs.
            if self.passed_over.is_none()
                && !saved.has_correction()
                && let Ok(Some(before)) = file.read()
            {
                saved.keep_correction(before);
            }
            let _ = file.write(&saved);
        }
    }
}
