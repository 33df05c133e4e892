//! Connections and routes.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header::HeaderValue;
use axum::http::{Request, Response, StatusCode};
use axum::routing::{delete, get, post};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use sws_watch::page::live;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};

use crate::app::App;
use crate::failure::{Dialect, Failure, respond};
use crate::requests::Origin;
use crate::{access, anthropic, chat, completions, events, info, prepared, responses};

/// Time between two looks at whether the server should end.
const LOOK: Duration = Duration::from_millis(100);
/// Time for responses to reach their clients once all texts are over.
const FLUSH: Duration = Duration::from_secs(2);
/// Maximum number of bytes and of lines in the header of a request. The last read may double the
/// bytes.
const HEADER: usize = 32 << 10;
const HEADERS: usize = 100;

/// Accepts connections until the server should end, then lets them finish.
pub(crate) async fn serve(app: Arc<App>, listener: TcpListener) {
    let (end, ended) = watch::channel(false);
    let most = app.config.limits.connections.clamp(1, 1 << 16);
    let connections = Arc::new(Semaphore::new(most));
    let routes = TowerToHyperService::new(routes(Arc::clone(&app)));
    while !(app.config.stop)() {
        let Ok(Ok(permit)) = timeout(LOOK, Arc::clone(&connections).acquire_owned()).await else {
            continue;
        };
        match timeout(LOOK, listener.accept()).await {
            Ok(Ok((stream, _))) => {
                let connection =
                    connection(Arc::clone(&app), stream, routes.clone(), ended.clone());
                tokio::spawn(async move {
                    connection.await;
                    drop(permit);
                });
            }
            // The system has no more files or memory for now.
            Ok(Err(_)) => sleep(LOOK).await,
            Err(_) => {}
        }
    }
    drop(listener);
    app.drain();
    let _ = end.send(true);
    let all = u32::try_from(most).unwrap_or(u32::MAX);
    if timeout(app.config.limits.drain, connections.acquire_many(all)).await.is_err() {
        app.cut();
        let _ = timeout(FLUSH, connections.acquire_many(all)).await;
    }
    // Without connections nobody needs the texts that are left.
    app.cut();
}

/// Serves a connection.
async fn connection(
    app: Arc<App>,
    stream: TcpStream,
    routes: TowerToHyperService<Router>,
    mut ended: watch::Receiver<bool>,
) {
    // Events are small, and each should leave at once.
    let _ = stream.set_nodelay(true);
    let header_time = app.config.limits.header_time;
    let service = service_fn(move |request| handle(Arc::clone(&app), routes.clone(), request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(header_time)
        .max_headers(HEADERS)
        .max_buf_size(HEADER)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let mut end = pin!(async move {
        let _ = ended.wait_for(|ended| *ended).await;
    });
    let mut ending = false;
    // An error is the client's: it has left, or does not speak the protocol.
    let _ = poll_fn(|cx| {
        if !ending && end.as_mut().poll(cx).is_ready() {
            ending = true;
            connection.as_mut().graceful_shutdown();
        }
        connection.as_mut().poll(cx)
    })
    .await;
}

/// Checks a request, and answers it.
async fn handle(
    app: Arc<App>,
    routes: TowerToHyperService<Router>,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let (number, id) = app.numbered("req");
    let path = request.uri().path().to_owned();
    let dialect = dialect(&path);
    let mut response = match access::check(&app.config, &path, request.headers()) {
        Ok(access::Owner(owner)) => {
            let origin = Origin { number, id: id.clone(), endpoint: endpoint(&path), owner };
            request.extensions_mut().insert(origin);
            routes.call(request).await?
        }
        Err(failure) => failure.response(dialect),
    };
    let status = response.status().as_u16();
    app.counts.responded(endpoint(&path), status);
    app.log(&format!("{id} {} {status}", endpoint(&path)));
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert("x-request-id", id);
    }
    Ok(response)
}

fn dialect(path: &str) -> Dialect {
    if path.starts_with("/v1/messages") { Dialect::Anthropic } else { Dialect::OpenAi }
}

/// All endpoints with a path of their own.
const ENDPOINTS: [&str; 22] = [
    "/",
    "/page.css",
    "/page.js",
    "/health",
    "/v1/health",
    "/v1/models",
    "/models",
    "/props",
    "/metrics",
    "/tokenize",
    "/detokenize",
    "/apply-template",
    "/tokenizer_info",
    "/v1/requests",
    "/events",
    "/v1/completions",
    "/v1/chat/completions",
    "/chat/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
];

/// The endpoint of a path, for logs and metrics, which never have what a client wrote.
fn endpoint(path: &str) -> &'static str {
    ENDPOINTS.into_iter().find(|endpoint| *endpoint == path).unwrap_or("other")
}

type Shared = State<Arc<App>>;
type In = Request<Body>;
type Out = Response<Body>;

fn routes(app: Arc<App>) -> Router {
    Router::new()
        .route("/", get(page))
        .route("/page.css", get(styles))
        .route("/page.js", get(program))
        .route("/health", get(health))
        .route("/v1/health", get(health))
        .route("/v1/models", get(models))
        .route("/models", get(models))
        .route("/v1/models/{*id}", get(one_model))
        .route("/props", get(props))
        .route("/metrics", get(metrics))
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/apply-template", post(apply_template))
        .route("/tokenizer_info", get(tokenizer_info))
        .route("/v1/requests", get(requests))
        .route("/events", get(events))
        .route("/v1/requests/{id}", delete(cancel))
        .route("/v1/requests/{id}/cancel", post(cancel))
        .route("/v1/completions", post(completion))
        .route("/v1/chat/completions", post(chat))
        .route("/chat/completions", post(chat))
        .route("/v1/responses", post(response))
        .route("/v1/messages", post(message))
        .route("/v1/messages/count_tokens", post(count))
        .route("/v1/embeddings", post(embeddings))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .with_state(app)
}

async fn page() -> Out {
    file("text/html; charset=utf-8", live::HTML)
}

async fn styles() -> Out {
    file("text/css; charset=utf-8", live::CSS)
}

async fn program() -> Out {
    file("text/javascript; charset=utf-8", live::JS)
}

/// A file of the page. It holds nothing of this server.
fn file(kind: &'static str, text: &'static str) -> Out {
    let mut response = Response::new(Body::from(text));
    let headers = response.headers_mut();
    for (name, value) in [
        ("content-type", kind),
        ("content-security-policy", live::POLICY),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        // Another version may have another one.
        ("cache-control", "no-cache"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

async fn health(State(app): Shared) -> Out {
    info::health(&app)
}

async fn models(State(app): Shared) -> Out {
    shown(info::models(&app))
}

async fn one_model(State(app): Shared, Path(id): Path<String>) -> Out {
    shown(info::one_model(&app, &id))
}

async fn props(State(app): Shared) -> Out {
    shown(info::props(&app))
}

async fn metrics(State(app): Shared) -> Out {
    info::metrics(&app)
}

async fn tokenizer_info(State(app): Shared) -> Out {
    shown(info::tokenizer(&app))
}

async fn requests(State(app): Shared, request: In) -> Out {
    shown(Ok(app.requests.list(owner(&request), app.clock.now())))
}

async fn events(State(app): Shared, request: In) -> Out {
    let listened = events::listen(&app, owner(&request));
    listened.unwrap_or_else(|failure| failure.response(Dialect::OpenAi))
}

async fn cancel(State(app): Shared, Path(id): Path<String>, request: In) -> Out {
    let cancelled = app.cancel(owner(&request), &id);
    shown(cancelled.map(|()| json!({"id": id, "cancelled": true})))
}

/// The number of a request's key.
fn owner(request: &In) -> u64 {
    request.extensions().get().map_or(0, |origin: &Origin| origin.owner)
}

async fn tokenize(State(app): Shared, request: In) -> Out {
    prepared::value(app, request, Dialect::OpenAi, info::tokenize).await
}

async fn detokenize(State(app): Shared, request: In) -> Out {
    prepared::value(app, request, Dialect::OpenAi, info::detokenize).await
}

async fn apply_template(State(app): Shared, request: In) -> Out {
    prepared::value(app, request, Dialect::OpenAi, chat::rendered).await
}

async fn completion(State(app): Shared, request: In) -> Out {
    prepared::texts(app, request, Dialect::OpenAi, completions::prepare).await
}

async fn chat(State(app): Shared, request: In) -> Out {
    prepared::texts(app, request, Dialect::OpenAi, chat::prepare).await
}

async fn response(State(app): Shared, request: In) -> Out {
    prepared::texts(app, request, Dialect::OpenAi, responses::prepare).await
}

async fn message(State(app): Shared, request: In) -> Out {
    prepared::texts(app, request, Dialect::Anthropic, anthropic::prepare).await
}

async fn count(State(app): Shared, request: In) -> Out {
    prepared::value(app, request, Dialect::Anthropic, anthropic::count).await
}

async fn embeddings() -> Out {
    Failure::not_offered("this server makes no embeddings").response(Dialect::OpenAi)
}

async fn no_route() -> Out {
    Failure::no_route().response(Dialect::OpenAi)
}

async fn no_method() -> Out {
    Failure::no_method().response(Dialect::OpenAi)
}

fn shown(value: Result<Value, Failure>) -> Out {
    match value {
        Ok(value) => respond(StatusCode::OK, &value),
        Err(failure) => failure.response(Dialect::OpenAi),
    }
}
