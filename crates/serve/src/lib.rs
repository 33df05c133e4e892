//! A loaded model behind HTTP, for programs that speak the interfaces of OpenAI, Anthropic or Ollama.
//!
//! - [`Server::start`] listens, and answers that a model is being loaded. [`Server::run`] then serves
//!   the model, on the calling thread, until [`ServerConfig::stop`] says so.
//! - One thread takes connections, checks them (`access.rs`), and writes responses. Another makes
//!   texts of requests: it parses them, applies the chat template, and makes tokens.
//! - The calling thread is the worker's. It takes texts from a bounded queue as sequences become free,
//!   and steps all of them together ([`sws::Batch`]). Each has the output that it has alone.
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
mod cors;
mod cost;
mod counts;
mod embeddings;
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
mod names;
mod offline;
mod ollama;
mod openapi;
mod prepared;
mod queue;
mod replies;
mod reply;
mod requests;
mod responses;
mod room;
mod route;
mod runtime;
mod sizes;
mod sse;
mod structured;
mod tally;
mod tools;
mod turn;
mod worker;

use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use sws::{LoadedModel, Needs, PrefixDisk};

use app::App;
pub use config::{ServeError, ServerConfig, ServerLimits};
pub use events::listening;
pub use offline::{Answered, Offline};
pub use room::structured;
use runtime::runtime;

/// Time for that thread when the server ends.
const LAST: Duration = Duration::from_secs(1);

/// A server that listens.
pub struct Server {
    app: Arc<App>,
    address: SocketAddr,
    connections: JoinHandle<()>,
    disk: Option<PrefixDisk>,
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
        drop(runtime.spawn_blocking(|| ()));
        drop(entered);
        let app = Arc::new(App::new(config));
        let shared = Arc::clone(&app);
        let connections = Builder::new().name("sws-http".to_owned()).spawn(move || {
            // If this thread ends for any reason, the worker's thread ends too.
            let ending = QueueEnd(Arc::clone(&shared));
            runtime.block_on(http::serve(shared, listener));
            drop(ending);
            runtime.shutdown_timeout(LAST);
        });
        let connections = connections.map_err(ServeError::Thread)?;
        Ok(Server { app, address, connections, disk: None })
    }

    /// Lets prefixes be stored on disk while no text runs, and found again.
    pub fn with_disk(self, disk: PrefixDisk) -> Server {
        Server { disk: Some(disk), ..self }
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
        let Server { app, connections, disk, .. } = self;
        app.serve(model, needs)?;
        ready();
        let done = worker::run(&app, model, disk);
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
