//! Prepares the texts of a request, on the thread that tokenises.

use std::borrow::Cow;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use serde::Deserialize;
use serde_json::Value;
use sws::{BatchRequest, Cancel};

use crate::app::App;
use crate::engine::KeepTime;
use crate::failure::{Dialect, Failure};
use crate::reply::{AnswerWriter, ResponseKind, respond};
use crate::requests::RequestOrigin;
use crate::served::Served;

/// A request that is ready for the worker.
pub(crate) struct Prepared {
    pub(crate) texts: Vec<BatchRequest>,
    /// The handle that cancels all texts of the request.
    pub(crate) cancel: Cancel,
    pub(crate) answer: Box<dyn AnswerWriter>,
    pub(crate) stream: bool,
}

/// A function that converts a request's body.
pub(crate) trait Make<T>:
    Fn(&App, &Arc<Served>, &[u8]) -> Result<T, Failure> + Copy + Send + 'static
{
}

impl<T, F> Make<T> for F where
    F: Fn(&App, &Arc<Served>, &[u8]) -> Result<T, Failure> + Copy + Send + 'static
{
}

/// The kinds of answers to a request.
pub(crate) enum Answer {
    /// Texts, and how long the model is kept from then on, if the request says so.
    Texts(Prepared, Option<KeepTime>),
    Value(Value),
}

/// Answers a request for texts.
pub(crate) async fn texts(
    app: Arc<App>,
    request: Request<Body>,
    dialect: Dialect,
    prepare: impl Make<Prepared>,
) -> Response<Body> {
    let origin = origin(&request);
    match made(Arc::clone(&app), request, prepare).await {
        Ok((served, prepared)) => answered(&app, &served, prepared, origin, dialect, None).await,
        Err(failure) => failure.response(),
    }
}

/// Answers a request for texts, or for a value.
pub(crate) async fn texts_or_value(
    app: Arc<App>,
    request: Request<Body>,
    dialect: Dialect,
    prepare: impl Make<Answer>,
) -> Response<Body> {
    let origin = origin(&request);
    match made(Arc::clone(&app), request, prepare).await {
        Ok((served, Answer::Texts(prepared, keep))) => {
            answered(&app, &served, prepared, origin, dialect, keep).await
        }
        Ok((_, Answer::Value(value))) => crate::failure::respond(StatusCode::OK, &value),
        Err(failure) => failure.response(),
    }
}

/// Where a request came from.
pub(crate) fn origin(request: &Request<Body>) -> RequestOrigin {
    request.extensions().get::<RequestOrigin>().cloned().unwrap_or_default()
}

/// Queues texts, and makes a response of their events.
async fn answered(
    app: &App,
    served: &Served,
    prepared: Prepared,
    origin: RequestOrigin,
    dialect: Dialect,
    keep: Option<KeepTime>,
) -> Response<Body> {
    let Prepared { mut texts, cancel, answer, stream } = prepared;
    for text in &mut texts {
        // Computed prefixes are never shared between keys: the time saved would reveal other texts.
        text.owner = origin.owner;
        // Requests that are not streamed are mostly titles, tags and the like, which a program
        // generates beside a conversation.
        text.short_lived = !stream;
    }
    match app.submit(served, texts, cancel, origin, keep) {
        Ok(ticket) => {
            respond(ticket, answer, ResponseKind { stream, dialect }, &app.config.limits).await
        }
        Err(failure) => failure.response(),
    }
}

/// Answers a request with a value.
pub(crate) async fn value(
    app: Arc<App>,
    request: Request<Body>,
    make: impl Make<Value>,
) -> Response<Body> {
    match made(app, request, make).await {
        Ok((_, value)) => crate::failure::respond(StatusCode::OK, &value),
        Err(failure) => failure.response(),
    }
}

/// Reads a request and converts it, for the model that it names. Requests are converted one at a
/// time, as the plan has memory for encoding one text; one that has to wait for memory lets others go
/// first.
async fn made<T: Send + 'static>(
    app: Arc<App>,
    request: Request<Body>,
    make: impl Make<T>,
) -> Result<(Arc<Served>, T), Failure> {
    let room = Arc::clone(&app.served()?.room);
    let mut received = app.bodies.receive(request, &app.config.limits).await?;
    let end = app.clock.now() + app.config.limits.queue_time;
    loop {
        let shared = Arc::clone(&app);
        let job = move || {
            let made = asked(&shared, &received.bytes).and_then(|served| {
                let made = make(&shared, &served, &received.bytes)?;
                Ok((served, made))
            });
            (made, received)
        };
        let panicked = || Failure::server("the request could not be prepared");
        let (made, again) = app.preparing.run(job).await.ok_or_else(panicked)?;
        match made {
            Err(failure) if failure.is_until_taken_back() => room.taken_back(&app, end).await?,
            made => return made,
        }
        received = again;
    }
}

/// The fields that name a model, the second in the spelling of older clients of Ollama.
#[derive(Default, Deserialize)]
struct Asked<'b> {
    #[serde(borrow, default)]
    model: Option<Cow<'b, str>>,
    #[serde(borrow, default)]
    name: Option<Cow<'b, str>>,
}

/// The model that a request names. A request that cannot be read is refused by its own parser.
fn asked(app: &App, body: &[u8]) -> Result<Arc<Served>, Failure> {
    if !app.is_several() {
        return app.served();
    }
    let Asked { model, name } = serde_json::from_slice(body).unwrap_or_default();
    app.named(model.or(name).as_deref())
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;
    use crate::app::tests::without_worker;
    use crate::{completions, info, runtime};

    #[test]
    fn a_request_that_waits_for_lent_memory_stops_no_other() {
        let app = without_worker();
        let room = Arc::clone(&app.served().unwrap().room);
        room.lend();
        let long = Duration::from_secs(60);
        runtime::runtime().unwrap().block_on(async {
            let structured = r#"{"prompt": "a", "guided_regex": "[0-9]{2}"}"#;
            let structured = Request::new(Body::from(structured));
            let prepare = completions::prepare;
            let mut structured = pin!(made(Arc::clone(&app), structured, prepare));
            let waits = timeout(Duration::from_millis(300), &mut structured).await;
            assert!(waits.is_err(), "the memory is lent");
            let other = Request::new(Body::from(r#"{"content": "a"}"#));
            let other = timeout(long, made(Arc::clone(&app), other, info::tokenize)).await;
            assert_eq!(other.expect("nothing is in its way").unwrap().1["count"], 1);
            // As the worker does between two passes.
            room.settle(app.clock.now(), |is_idle| assert!(!is_idle));
            let made = timeout(long, structured).await.expect("the memory is back");
            assert!(made.unwrap().1.texts[0].constraint.is_some());
        });
    }
}
