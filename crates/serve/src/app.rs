//! The state that all connections share.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use sws::{BatchRequest, Cancel, LoadedModel};
use sws_format::Clock;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::channel;

use crate::bodies::Bodies;
use crate::cost::RequestCost;
use crate::counts::ServerCounts;
use crate::engine::KeepTime;
use crate::failure::Failure;
use crate::kept::KeptResponses;
use crate::listeners::Events;
use crate::queue::{QueuedText, TextQueue};
use crate::reply::ReplyTicket;
use crate::requests::{RequestEntry, RequestOrigin, Requests};
use crate::runtime::Preparing;
use crate::served::{Served, ServedModel};
use crate::sizes::{CERTIFICATE_UNIT, certificate_bytes};
use crate::{ServeError, ServerConfig};

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
    served: OnceLock<Vec<Arc<Served>>>,
    /// Handle that ends the loading of models when the server ends.
    pub(crate) loading: Cancel,
    draining: AtomicBool,
    cut: AtomicBool,
    pub(crate) bodies: Bodies,
    pub(crate) preparing: Preparing,
    /// Semaphore for the memory of certificates.
    pub(crate) certificates: Arc<Semaphore>,
    pub(crate) requests: Requests,
    pub(crate) events: Events,
    pub(crate) kept: Arc<KeptResponses>,
    /// Number used for the next id.
    numbers: AtomicU64,
    ignored: Mutex<BTreeSet<String>>,
}

impl App {
    pub(crate) fn new(config: ServerConfig) -> Result<App, ServeError> {
        let bodies = Bodies::new(config.limits.body);
        let kept = config.limits.kept_responses;
        let certificates = certificate_bytes(config.limits.body).div_ceil(CERTIFICATE_UNIT);
        Ok(App {
            config,
            preparing: Preparing::start().map_err(ServeError::Thread)?,
            queue: TextQueue::default(),
            counts: ServerCounts::default(),
            clock: Clock::real(),
            served: OnceLock::new(),
            loading: Cancel::new(),
            draining: AtomicBool::new(false),
            cut: AtomicBool::new(false),
            bodies,
            certificates: Arc::new(Semaphore::new(certificates)),
            requests: Requests::default(),
            events: Events::default(),
            kept: Arc::new(KeptResponses::new(kept)),
            numbers: AtomicU64::new(0),
            ignored: Mutex::default(),
        })
    }

    /// Begins to serve models, to which the names of the settings belong.
    pub(crate) fn serve(&self, models: Vec<ServedModel>) -> Result<(), ServeError> {
        let names = &self.config.models;
        if names.len() != models.len() {
            return Err(ServeError::Names { models: models.len(), names: names.len() });
        }
        let room = Arc::new(ServedModel::room_of_all(&models));
        let created = self.clock.unix_seconds();
        let mut all = Vec::with_capacity(models.len());
        for (model, named) in models.into_iter().zip(names.iter().cloned().enumerate()) {
            let log = |line: &str| self.log(line);
            all.push(Arc::new(Served::new(model, named, Arc::clone(&room), created, &log)?));
        }
        let _ = self.served.set(all);
        Ok(())
    }

    /// The models, from when requests are accepted until the server ends.
    pub(crate) fn all(&self) -> Result<&[Arc<Served>], Failure> {
        if self.is_draining() {
            return Err(Failure::unavailable("the server is about to end; try another"));
        }
        match self.served.get() {
            Some(all) => Ok(all),
            None => Err(Failure::unavailable("Loading model")),
        }
    }

    /// Records that a model is loaded.
    pub(crate) fn loaded(&self, number: usize, model: &LoadedModel) {
        if let Some(served) = self.model(number) {
            served.engine.begin(model.gauge(), self.clock.now());
            self.counts.loads.add(1);
        }
    }

    /// The model with this number.
    pub(crate) fn model(&self, number: usize) -> Option<&Arc<Served>> {
        self.served.get()?.get(number)
    }

    /// The model that answers requests that name none: the first.
    pub(crate) fn served(&self) -> Result<Arc<Served>, Failure> {
        match self.all()?.first() {
            Some(first) => Ok(Arc::clone(first)),
            None => Err(Failure::unavailable("Loading model")),
        }
    }

    /// The model with this name, or the first if there is no name.
    pub(crate) fn named(&self, asked: Option<&str>) -> Result<Arc<Served>, Failure> {
        let Some(asked) = asked else { return self.served() };
        let all = self.all()?;
        let exact = all.iter().find(|served| served.identity.names.has(asked));
        match exact.or_else(|| all.iter().find(|served| served.is_named(asked))) {
            Some(found) => Ok(Arc::clone(found)),
            None => Err(self.no_model(asked)),
        }
    }

    /// The refusal of a request for another model.
    pub(crate) fn no_model(&self, asked: &str) -> Failure {
        let names: Vec<&str> = self.config.models.iter().map(|names| &*names.id).collect();
        Failure::no_model(asked, &names)
    }

    /// True if there are several models.
    pub(crate) fn is_several(&self) -> bool {
        self.config.models.len() > 1
    }

    /// The model that is loaded, or else the first.
    pub(crate) fn current(&self) -> Result<Arc<Served>, Failure> {
        match self.all()?.iter().find(|served| served.engine.is_loaded()) {
            Some(loaded) => Ok(Arc::clone(loaded)),
            None => self.served(),
        }
    }

    /// Closes the queue. Texts that have begun continue.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
        self.loading.cancel();
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

    /// Queues the texts of a request for a model, which share one handle to cancel them.
    pub(crate) fn submit(
        &self,
        served: &Served,
        texts: Vec<BatchRequest>,
        cancel: Cancel,
        origin: RequestOrigin,
        keep: Option<KeepTime>,
    ) -> Result<ReplyTicket, Failure> {
        let limits = &self.config.limits;
        let (events, received) = channel(EVENTS);
        let queued = self.clock.now();
        let cost = RequestCost::default();
        cost.count(&served.engine);
        let prompts: Vec<usize> = texts.iter().map(|text| text.tokens.len()).collect();
        let entry = RequestEntry::new(origin, cancel.clone(), cost, queued, &prompts);
        let listed = self.requests.add(entry);
        let model = served.identity.number;
        let mut jobs = Vec::with_capacity(texts.len());
        for (number, text) in texts.into_iter().enumerate() {
            let events = events.clone();
            let entry = Arc::clone(&listed.entry);
            jobs.push(QueuedText { model, text, number, events, queued, entry, keep });
        }
        self.queue.push(jobs, limits)?;
        Ok(ReplyTicket::new(received, cancel, limits.queue_time, listed))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use sws::{Model, Needs, Options, Streaming};

    use super::*;
    use crate::{ModelNames, ServerLimits};

    /// A server of tales-moe that has no worker.
    pub(crate) fn without_worker() -> Arc<App> {
        let config = ServerConfig {
            address: ([127, 0, 0, 1], 0).into(),
            models: vec![ModelNames::default()],
            keys: Vec::new(),
            hosts: Vec::new(),
            origins: Vec::new(),
            open: false,
            open_metrics: false,
            limits: ServerLimits::default(),
            stop: Arc::new(|| false),
            log: Arc::new(|_| ()),
        };
        let streaming = Streaming { warm_start: false, ..Streaming::default() };
        let options = Options { resident: true, streaming, ..Options::default() };
        let shards = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shards/tales-moe");
        let mut model = Model::open(shards).unwrap().with(options).load().unwrap();
        let app = Arc::new(App::new(config).unwrap());
        app.serve(vec![ServedModel::loaded(&mut model, Needs::default())]).unwrap();
        app
    }
}
