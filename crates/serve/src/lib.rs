//! A loaded model behind HTTP, for programs that speak the interfaces of OpenAI, Anthropic or Ollama.
//!
//! - [`Server::start`] listens, and answers that a model is being loaded. [`Server::run`] then serves
//!   the model, on the calling thread, until [`ServerConfig::stop`] says so.
//! - One thread takes connections, checks them (`access.rs`), and writes responses. Another makes
//!   texts of requests: it parses them, applies the chat template, and makes tokens.
//! - The calling thread is the worker's. It takes texts from a bounded queue as sequences become free,
//!   and steps all of them together ([`sws::Batch`]). Each has the output that it has alone.
//! - [`Server::run_set`] serves several models, of which one is loaded at a time (`switch.rs`).
//! - Memory for structured output is lent to experts until a request asks for one (`room.rs`).
//! - What happens to a text goes through a channel to its response. A response that is dropped, as its
//!   client has left, cancels its texts.
//!
//! - [`Offline`] is a server without connections, to which tests and fuzzers hand requests.
//! - `/events` tells what the engine does to those who listen, from its [`sws_engine::RunWatch`].
//!
//! Nothing here prints: lines for a log go to [`ServerConfig::log`], without the text of prompts or answers.
#![deny(missing_docs)]

mod access;
mod anthropic;
mod app;
mod blocks;
mod bodies;
mod certified;
mod chat;
mod checks;
mod completions;
mod config;
mod connection;
mod cors;
mod cost;
mod counts;
mod embeddings;
mod engine;
mod events;
mod explained;
mod failure;
mod fields;
mod http;
mod infill;
mod info;
mod items;
mod kept;
mod known;
mod listeners;
mod messages;
mod metrics;
mod names;
mod offline;
mod ollama;
mod openapi;
mod prepared;
mod query;
mod queue;
mod replies;
mod reply;
mod requests;
mod responses;
mod room;
mod route;
mod runtime;
mod served;
mod sizes;
mod sse;
mod structured;
mod suffix;
mod switch;
mod tally;
mod tools;
mod turn;
mod worker;

use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use sws::{LoadedModel, ModelSet, Needs, PlannedModel, PrefixDisk};

use app::App;
pub use config::{ModelNames, ServeError, ServerConfig, ServerLimits};
pub use events::listening;
pub use offline::{Answered, Offline};
pub use room::structured;
use runtime::runtime;
use served::ServedModel;

/// A server that listens.
pub struct Server {
    app: Arc<App>,
    address: SocketAddr,
    connections: JoinHandle<()>,
    disks: Vec<Option<PrefixDisk>>,
}

impl Server {
    /// Listens, and answers that a model is being loaded. All threads of the server are started, so a
    /// plan made afterwards counts them.
    pub fn start(config: ServerConfig) -> Result<Server, ServeError> {
        config.check()?;
        let asked = config.address;
        let refused = |cause| ServeError::Listen { address: asked, cause };
        let listener = TcpListener::bind(asked).map_err(refused)?;
        listener.set_nonblocking(true).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let runtime = runtime().map_err(ServeError::Thread)?;
        let entered = runtime.enter();
        let listener = tokio::net::TcpListener::from_std(listener).map_err(refused)?;
        drop(entered);
        let app = Arc::new(App::new(config)?);
        let shared = Arc::clone(&app);
        let connections = Builder::new().name("sws-http".to_owned()).spawn(move || {
            // If this thread ends for any reason, the worker's thread ends too.
            let ending = QueueEnd(Arc::clone(&shared));
            runtime.block_on(http::serve(shared, listener));
            drop(ending);
        });
        let connections = connections.map_err(ServeError::Thread)?;
        Ok(Server { app, address, connections, disks: Vec::new() })
    }

    /// Lets prefixes be stored on disk while no text runs, and found again.
    pub fn with_disk(self, disk: PrefixDisk) -> Server {
        self.with_disks(vec![Some(disk)])
    }

    /// The same for several models, in their order.
    pub fn with_disks(self, disks: Vec<Option<PrefixDisk>>) -> Server {
        Server { disks, ..self }
    }

    /// The address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves a model that was loaded with these needs, until the server should end and its texts are
    /// over. Calls `ready` once requests are accepted.
    pub fn run(
        self,
        model: &mut LoadedModel,
        needs: Needs,
        ready: impl FnOnce(),
    ) -> Result<(), ServeError> {
        self.app.serve(vec![ServedModel::loaded(model, needs)])?;
        self.app.loaded(0, model);
        self.work(ready, |app, disks| {
            let mut disk = disks.into_iter().next().flatten();
            let Some(served) = app.model(0) else { return Ok(()) };
            worker::run(app, served, model, &mut disk)?;
            Ok(())
        })
    }

    /// Serves the models of a set, of which one is loaded at a time: at first this one, which is
    /// the first of the set. The settings of the server have their names, in the same order. Calls
    /// `ready` once requests are accepted.
    pub fn run_set(
        self,
        set: &ModelSet,
        first: LoadedModel,
        ready: impl FnOnce(),
    ) -> Result<(), ServeError> {
        let planned = |model: &PlannedModel| ServedModel::planned(model);
        self.app.serve(set.models().iter().map(planned).collect())?;
        self.app.loaded(0, &first);
        self.work(ready, |app, disks| switch::run(app, set, first, disks))
    }

    /// Serves until `work` is over and the server should end.
    fn work(
        self,
        ready: impl FnOnce(),
        work: impl FnOnce(&App, Vec<Option<PrefixDisk>>) -> Result<(), ServeError>,
    ) -> Result<(), ServeError> {
        let Server { app, connections, disks, .. } = self;
        ready();
        let done = work(&app, disks);
        // If the worker fails, no request is left waiting.
        app.drain();
        done?;
        let stopped = (app.config.stop)();
        match connections.join() {
            Ok(()) if stopped => Ok(()),
            _ => Err(ServeError::Ended),
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Ends the queue when it is dropped.
struct QueueEnd(Arc<App>);

impl Drop for QueueEnd {
    fn drop(&mut self) {
        self.0.drain();
        self.0.cut();
    }
}
