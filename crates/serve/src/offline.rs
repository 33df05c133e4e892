//! A server without connections.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use axum::body::{Body, Bytes};
use axum::http::Request;
use axum::http::header::{CONTENT_LENGTH, HOST};
use http_body_util::BodyExt;
use sws::{LoadedModel, Needs};
use tokio::runtime::Runtime;

use crate::app::App;
use crate::http::{RouterService, handle, routes};
use crate::runtime::runtime;
use crate::served::ServedModel;
use crate::{ServeError, ServerConfig, worker};

/// A server without a network, for tests and fuzzing. Requests are passed to it one after another,
/// and are processed as usual.
pub struct Offline {
    app: Arc<App>,
    routes: RouterService,
    runtime: Mutex<Runtime>,
    worker: Option<JoinHandle<()>>,
}

/// A response.
#[derive(Clone, Debug)]
pub struct Answered {
    /// Status of the response.
    pub status: u16,
    /// Body of the response, to the end of the stream.
    pub body: Bytes,
}

impl Offline {
    /// Starts the worker's thread, with a model that was loaded with these needs.
    pub fn start(
        config: ServerConfig,
        mut model: LoadedModel,
        needs: Needs,
    ) -> Result<Offline, ServeError> {
        let app = Arc::new(App::new(config)?);
        app.serve(vec![ServedModel::loaded(&mut model, needs)])?;
        app.loaded(0, &model);
        let runtime = runtime().map_err(ServeError::Thread)?;
        let shared = Arc::clone(&app);
        let worker = Builder::new().name("sws-engine".to_owned()).spawn(move || {
            if let Some(served) = shared.model(0)
                && let Err(error) = worker::run(&shared, served, &mut model, &mut None)
            {
                shared.log(&error.to_string());
            }
            // If the worker fails, no request is left waiting.
            shared.drain();
        });
        let worker = Some(worker.map_err(ServeError::Thread)?);
        let routes = routes(Arc::clone(&app));
        Ok(Offline { app, routes, runtime: Mutex::new(runtime), worker })
    }

    /// Sends a request with a body, and waits for the whole response.
    pub fn post(&self, path: &str, body: &[u8]) -> Answered {
        let request = Request::post(path)
            .header(HOST, "localhost")
            .header(CONTENT_LENGTH, body.len())
            .body(Body::from(body.to_vec()))
            .expect("a path and its headers");
        let runtime = self.runtime.lock().unwrap_or_else(PoisonError::into_inner);
        runtime.block_on(async {
            let Ok(response) = handle(Arc::clone(&self.app), self.routes.clone(), request).await;
            let status = response.status().as_u16();
            let body = response.into_body().collect().await;
            // Bodies of this server never fail.
            let body = body.map_or_else(|_| Bytes::new(), |body| body.to_bytes());
            Answered { status, body }
        })
    }
}

impl Drop for Offline {
    fn drop(&mut self) {
        self.app.drain();
        self.app.cut();
        if let Some(worker) = self.worker.take() {
            let _ = worker.join();
        }
    }
}

impl fmt::Debug for Offline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Offline").finish_non_exhaustive()
    }
}
