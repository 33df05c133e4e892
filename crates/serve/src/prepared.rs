//! From a request to its texts, on the thread that makes tokens.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, Response};
use serde_json::Value;
use sws::{BatchRequest, Cancel};

use crate::app::{App, Served};
use crate::failure::{Dialect, Failure};
use crate::reply::{AnswerWriter, ResponseKind, respond};
use crate::requests::RequestOrigin;

/// A request that the worker can begin.
pub(crate) struct Prepared {
    pub(crate) texts: Vec<BatchRequest>,
    /// The handle that all its texts have.
    pub(crate) cancel: Cancel,
    pub(crate) answer: Box<dyn AnswerWriter>,
    pub(crate) stream: bool,
}

/// Makes something of a request's body.
type Make<T> = fn(&App, &Arc<Served>, &[u8]) -> Result<T, Failure>;

/// Answers a request for texts.
pub(crate) async fn texts(
    app: Arc<App>,
    request: Request<Body>,
    dialect: Dialect,
    prepare: Make<Prepared>,
) -> Response<Body> {
    let origin = request.extensions().get::<RequestOrigin>().cloned().unwrap_or_default();
    let ready = async {
        let Prepared { mut texts, cancel, answer, stream } =
            made(Arc::clone(&app), request, prepare).await?;
        // Nothing computed for one key is used for another: the time saved would tell its texts.
        for text in &mut texts {
            // Titles, tags and the like that a program asks for beside a conversation.
            (text.owner, text.short_lived) = (origin.owner, !stream);
        }
        let ticket = app.submit(texts, cancel, origin)?;
        Ok::<_, Failure>((ticket, answer, ResponseKind { stream, dialect }))
    };
    match ready.await {
        Ok((ticket, answer, kind)) => respond(ticket, answer, kind, &app.config.limits).await,
        Err(failure) => failure.response(),
    }
}

/// Answers a request with a value.
pub(crate) async fn value(
    app: Arc<App>,
    request: Request<Body>,
    make: Make<Value>,
) -> Response<Body> {
    match made(app, request, make).await {
        Ok(value) => crate::failure::respond(axum::http::StatusCode::OK, &value),
        Err(failure) => failure.response(),
    }
}

/// Reads a request and makes something of it. One is made at a time, as encoding a text takes the
/// memory that the plan has for it.
async fn made<T: Send + 'static>(
    app: Arc<App>,
    request: Request<Body>,
    make: Make<T>,
) -> Result<T, Failure> {
    let served = app.served()?;
    let received = app.bodies.receive(request, &app.config.limits).await?;
    let made = tokio::task::spawn_blocking(move || make(&app, &served, &received.bytes));
    // It ends early only if it panics.
    made.await.unwrap_or_else(|_| Err(Failure::server("the request could not be prepared")))
}
