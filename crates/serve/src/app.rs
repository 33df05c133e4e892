//! The state that all connections share.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use sws::{
    Activations, BatchRequest, Cancel, Defaults, GenerationOptions, LoadedModel, Needs,
    StatePooling, TextCodec, Warning,
};
use sws_engine::{Gauge, Plan};
use sws_format::Clock;
use sws_model::KvPrecision;
use sws_text::{ChatTemplate, Detokenizer, Position, ReplyFormat, SettingOf, Tokenizer};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::channel;

use crate::ServerConfig;
use crate::bodies::Bodies;
use crate::cost::RequestCost;
use crate::counts::ServerCounts;
use crate::failure::Failure;
use crate::kept::KeptResponses;
use crate::listeners::Events;
use crate::queue::{QueuedText, TextQueue};
use crate::reply::ReplyTicket;
use crate::requests::{RequestEntry, RequestOrigin, Requests};
use crate::room::{Room, WaitingFor};
use crate::sizes::{CERTIFICATE_UNIT, certificate_bytes};

/// Maximum number of events of a request that its connection has not taken yet. Only a client that
/// does not read its response reaches it.
const EVENTS: usize = 4096;
/// Maximum number of ignored fields that the log names.
const IGNORED: usize = 64;

/// The state that all connections share.
pub(crate) struct App {
    pub(crate) config: ServerConfig,
    pub(crate) queue: TextQueue,
    pub(crate) counts: ServerCounts,
    pub(crate) clock: Clock,
    served: OnceLock<Arc<Served>>,
    draining: AtomicBool,
    cut: AtomicBool,
    pub(crate) bodies: Bodies,
    /// Semaphore for the memory of certificates.
    pub(crate) certificates: Arc<Semaphore>,
    pub(crate) requests: Requests,
    pub(crate) events: Events,
    pub(crate) kept: Arc<KeptResponses>,
    /// Number used for the next id.
    numbers: AtomicU64,
    ignored: Mutex<BTreeSet<String>>,
}

/// Facts about the loaded model, for all threads except the worker's.
pub(crate) struct Served {
    pub(crate) model: sws::Model,
    pub(crate) text: TextCodec,
    pub(crate) defaults: Defaults,
    /// Format of the answers in conversations.
    pub(crate) format: ReplyFormat,
    /// Special tokens that stay in the text of such answers.
    pub(crate) shown: Vec<u32>,
    /// Default settings of conversations, or of texts for a model without conversations.
    pub(crate) settings: [SettingOf; 7],
    /// Tokens that end a text.
    pub(crate) ends: Vec<u32>,
    /// Memory for structured output.
    pub(crate) room: Room,
    /// Maximum length of a text, and size of the vocabulary.
    pub(crate) limit: usize,
    pub(crate) vocab: usize,
    /// Maximum number of texts at a time.
    pub(crate) texts: usize,
    /// True if tokens of prompts can be ranked.
    pub(crate) prompt_ranks: bool,
    pub(crate) gauge: Option<Gauge>,
    /// The division of the memory budget, if there is one.
    pub(crate) plan: Option<Plan>,
    pub(crate) identity: ServedIdentity,
}

/// Identity of a served model, for responses.
pub(crate) struct ServedIdentity {
    pub(crate) created: i64,
    pub(crate) fingerprint: String,
    /// Precision of the KV cache.
    pub(crate) kv: KvPrecision,
    /// Kind of activations of products.
    pub(crate) activations: Activations,
    /// How texts become vectors, if the model was made for that.
    pub(crate) pooling: Option<StatePooling>,
    /// Reasons why the result differs from that of the published weights.
    pub(crate) lossy: Vec<String>,
}

impl App {
    pub(crate) fn new(config: ServerConfig) -> App {
        let bodies = Bodies::new(config.limits.body);
        let kept = config.limits.kept_responses;
        let certificates = certificate_bytes(config.limits.body).div_ceil(CERTIFICATE_UNIT);
        App {
            config,
            queue: TextQueue::default(),
            counts: ServerCounts::default(),
            clock: Clock::real(),
            served: OnceLock::new(),
            draining: AtomicBool::new(false),
            cut: AtomicBool::new(false),
            bodies,
            certificates: Arc::new(Semaphore::new(certificates)),
            requests: Requests::default(),
            events: Events::default(),
            kept: Arc::new(KeptResponses::new(kept)),
            numbers: AtomicU64::new(0),
            ignored: Mutex::default(),
        }
    }

    /// Begins to serve a loaded model.
    pub(crate) fn serve(&self, model: &mut LoadedModel, needs: Needs) -> sws::Result<()> {
        let limit = model.limit();
        let vocab = model.causal_lm().vocab();
        let manifest = model.model().manifest();
        let arithmetic = manifest.arithmetic();
        let mut rounded = match model.activations() {
            Activations::F32 => String::new(),
            activations => format!("-{activations}"),
        };
        if model.kv() != KvPrecision::F32 {
            rounded += &format!("-kv-{}", model.kv().name());
        }
        let short: String = manifest.model.fingerprint.chars().take(16).collect();
        let lossy = model.warnings().iter().filter(|warning| matches!(warning, Warning::Lossy(_)));
        let text = model.text().clone();
        let format = text.template().map_or(ReplyFormat::default(), ReplyFormat::of);
        let defaults = model.model().defaults()?;
        let conversation = text.template().is_some();
        let thinks = text.template().is_some_and(ChatTemplate::thinks);
        let options = GenerationOptions { conversation, thinks, ..GenerationOptions::default() };
        let generation = defaults.generation(&options)?;
        generation.ignored.iter().for_each(|sentence| self.log(sentence));
        let served = Served {
            defaults,
            settings: generation.settings(),
            ends: generation.stop_tokens,
            room: Room::new(model.plan(), vocab, needs.texts),
            format,
            shown: text.markers(format),
            text,
            model: model.model().clone(),
            limit,
            vocab,
            texts: needs.texts,
            prompt_ranks: needs.all_logits,
            gauge: model.gauge(),
            plan: model.plan().cloned(),
            identity: ServedIdentity {
                created: self.clock.unix_seconds(),
                fingerprint: format!(
                    "sws-{}-{arithmetic}{rounded}-{short}",
                    env!("CARGO_PKG_VERSION")
                ),
                kv: model.kv(),
                activations: model.activations(),
                pooling: model.model().pooling()?,
                lossy: lossy.map(Warning::to_string).collect(),
            },
        };
        let _ = self.served.set(Arc::new(served));
        Ok(())
    }

    /// The model, from when it is loaded until the server ends.
    pub(crate) fn served(&self) -> Result<Arc<Served>, Failure> {
        if self.is_draining() {
            return Err(Failure::unavailable("the server is about to end; try another"));
        }
        let served = self.served.get().ok_or_else(|| Failure::unavailable("Loading model"))?;
        Ok(Arc::clone(served))
    }

    /// The memory for structured output, once the model is loaded.
    pub(crate) fn room(&self) -> Option<&Room> {
        self.served.get().map(|served| &served.room)
    }

    /// Closes the queue. Texts that have begun continue.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
        self.queue.close();
    }

    /// True once no new text begins.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Ends the texts that have begun.
    pub(crate) fn cut(&self) {
        self.cut.store(true, Ordering::Relaxed);
    }

    /// True if all texts should end.
    pub(crate) fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Relaxed)
    }

    /// Cancels a request of an owner by its id.
    pub(crate) fn cancel(&self, owner: u64, id: &str) -> Result<(), Failure> {
        if !self.requests.cancel(owner, id) {
            return Err(Failure::no_request());
        }
        self.queue.drop_cancelled();
        Ok(())
    }

    /// A new id with this prefix, for a response or a part of it.
    pub(crate) fn id(&self, prefix: &str) -> String {
        self.numbered(prefix).1
    }

    /// A new id with this prefix, and its number.
    pub(crate) fn numbered(&self, prefix: &str) -> (u64, String) {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        // The time makes ids differ from those of an earlier server process.
        (number, format!("{prefix}{:x}-{number:x}", self.clock.unix_seconds()))
    }

    /// The number of the first tool call in a request's answers.
    pub(crate) fn first_call(&self) -> u64 {
        const CALLS: u64 = 50_000;
        let request = self.numbers.load(Ordering::Relaxed);
        self.clock.unix_seconds().unsigned_abs() * CALLS + (61 * request) % CALLS
    }

    /// Writes a line to the log.
    pub(crate) fn log(&self, line: &str) {
        (self.config.log)(line);
    }

    /// Logs the name of an ignored field, once.
    pub(crate) fn ignored(&self, field: &str) {
        let mut ignored = self.ignored.lock().unwrap_or_else(PoisonError::into_inner);
        let known = field.len() <= 64 && field.bytes().all(|b| b.is_ascii_graphic());
        if known && ignored.len() < IGNORED && ignored.insert(field.to_owned()) {
            self.log(&format!("the field `{field}` of requests is ignored"));
        }
    }

    /// Queues the texts of a request, which share one handle to cancel them.
    pub(crate) fn submit(
        &self,
        texts: Vec<BatchRequest>,
        cancel: Cancel,
        origin: RequestOrigin,
    ) -> Result<ReplyTicket, Failure> {
        let limits = &self.config.limits;
        let (events, received) = channel(EVENTS);
        let queued = self.clock.now();
        let cost = RequestCost::new(self.served()?.gauge.clone());
        let prompts: Vec<usize> = texts.iter().map(|text| text.tokens.len()).collect();
        let entry = RequestEntry::new(origin, cancel.clone(), cost, queued, &prompts);
        let listed = self.requests.add(entry);
        let job = |(number, text)| {
            let events = events.clone();
            let entry = Arc::clone(&listed.entry);
            QueuedText { text, number, events, queued, entry }
        };
        let jobs = texts.into_iter().enumerate().map(job).collect();
        self.queue.push(jobs, limits.queue)?;
        Ok(ReplyTicket::new(received, cancel, limits.queue_time, listed))
    }
}

impl WaitingFor for App {
    fn now(&self) -> Duration {
        self.clock.now()
    }

    fn queue_time(&self) -> Duration {
        self.config.limits.queue_time
    }

    fn wake(&self) {
        self.queue.wake();
    }

    fn is_draining(&self) -> bool {
        App::is_draining(self)
    }
}

impl Served {
    /// The model's format of tool calls; `None` if it has no chat template.
    pub(crate) fn tools(&self) -> Option<&'static str> {
        self.text.template()?;
        Some(if self.format.has_generic_calls() { "generic" } else { "template" })
    }

    /// The memory budget in bytes, if there is one.
    pub(crate) fn budget(&self) -> Option<u64> {
        self.plan.as_ref().map(|plan| plan.ledger.budget())
    }

    /// The tokenizer.
    pub(crate) fn tokenizer(&self) -> Result<&Tokenizer, Failure> {
        self.text.tokenizer().ok_or_else(Failure::no_tokenizer)
    }

    /// The text of a single token. If it is not a whole number of characters, its name in the
    /// vocabulary.
    pub(crate) fn name(&self, token: u32) -> String {
        let Some(tokenizer) = self.text.tokenizer() else {
            return token.to_string();
        };
        let mut text = String::new();
        let mut detokenizer = Detokenizer::new(tokenizer, Position::Middle, false);
        detokenizer.push(token, &mut text);
        detokenizer.finish(&mut text);
        match text.contains('\u{fffd}') {
            true => tokenizer.token(token).unwrap_or_default(),
            false => text,
        }
    }
}
