//! The acceptance of connections, and routes.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::header::HeaderValue;
use axum::http::{Request, Response, StatusCode};
use axum::routing::{delete, get, post};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use sws_watch::page::live;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};

use crate::app::App;
use crate::connection::{Signals, connection};
use crate::failure::{Dialect, Failure, respond};
use crate::query::model_in;
use crate::requests::RequestOrigin;
use crate::route::{Route, RouteFields};
use crate::served::Served;
use crate::sizes::TOLD;
use crate::{
    access, anthropic, chat, completions, cors, embeddings, events, infill, info, metrics, ollama,
    openapi, prepared, responses,
};

/// Time between two checks for the end of the server.
const LOOK: Duration = Duration::from_millis(100);
/// Time for the last bytes of responses to reach clients, once all texts have ended.
const FLUSH: Duration = Duration::from_secs(2);

/// Accepts connections until the server should end, then lets them finish.
pub(crate) async fn serve(app: Arc<App>, listener: TcpListener) {
    let (end, ended) = watch::channel(false);
    let (crowd, crowded) = watch::channel(());
    let most = app.config.limits.connections.clamp(1, 1 << 16);
    let connections = Arc::new(Semaphore::new(most));
    let routes = routes(Arc::clone(&app));
    while !(app.config.stop)() {
        let Ok(Ok(permit)) = timeout(LOOK, Arc::clone(&connections).acquire_owned()).await else {
            let _ = crowd.send(());
            continue;
        };
        match timeout(LOOK, listener.accept()).await {
            Ok(Ok((stream, _))) => {
                let signals = Signals { ended: ended.clone(), crowded: crowded.clone() };
                let connection =
                    connection(Arc::clone(&app), stream, routes.clone(), Some(signals));
                tokio::spawn(async move {
                    connection.await;
                    drop(permit);
                });
            }
            // The system is out of files or memory for now.
            Ok(Err(_)) => sleep(LOOK).await,
            Err(_) => {}
        }
    }
    app.drain();
    let _ = end.send(true);
    let all = u32::try_from(most).unwrap_or(u32::MAX);
    let mut over = pin!(timeout(app.config.limits.drain, connections.acquire_many(all)));
    let mut told = pin!(tell(&app, &listener, &routes));
    let is_over = poll_fn(|cx| {
        let _ = told.as_mut().poll(cx);
        over.as_mut().poll(cx).map(|over| over.is_ok())
    });
    if !is_over.await {
        app.cut();
        let _ = timeout(FLUSH, connections.acquire_many(all)).await;
    }
    // Without connections the remaining texts are useless.
    app.cut();
}

/// Answers clients that connect while the server ends, such as probes, one request each.
async fn tell(app: &Arc<App>, listener: &TcpListener, routes: &RouterService) {
    let all = Arc::new(Semaphore::new(TOLD));
    while let Ok(permit) = Arc::clone(&all).acquire_owned().await {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(LOOK).await;
            continue;
        };
        let connection = connection(Arc::clone(app), stream, routes.clone(), None);
        tokio::spawn(async move {
            let _ = timeout(FLUSH, connection).await;
            drop(permit);
        });
    }
}

/// Checks a request, and answers it.
pub(crate) async fn handle(
    app: Arc<App>,
    routes: RouterService,
    mut request: In,
) -> Result<Response<Body>, Infallible> {
    let (number, id) = app.numbered("req-");
    let path = request.uri().path().to_owned();
    let page = cors::allowed(&app.config, request.headers());
    let preflight = page.as_ref().and_then(|_| cors::preflight(&request));
    let checked = access::check(&app.config, request.uri(), request.headers());
    let mut response = match (preflight, checked) {
        (Some(response), _) => response,
        (None, Ok(access::Owner(owner))) => {
            let endpoint = endpoint(&path);
            let client = request.extensions_mut().remove();
            let origin = RequestOrigin { number, id: id.clone(), endpoint, owner, client };
            request.extensions_mut().insert(origin);
            routes.call(request).await?
        }
        (None, Err(failure)) => failure.response(),
    };
    Failure::shape(&mut response, &path, &id);
    if let Some(page) = page {
        cors::share(&mut response, page);
    }
    let status = response.status().as_u16();
    app.counts.responded(endpoint(&path), status);
    // Probes, which arrive every few seconds, are not logged.
    if !matches!(endpoint(&path), "/health" | "/v1/health") {
        app.log(&format!("{id} {} {status}", endpoint(&path)));
    }
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert("x-request-id", id);
    }
    Ok(response)
}

/// The endpoint of a path, for logs and metrics, which never repeat text of a client.
fn endpoint(path: &str) -> &'static str {
    ROUTES.iter().map(|route| route.path).find(|known| *known == path).unwrap_or("other")
}

type AppState = State<Arc<App>>;
/// The name in a path, if it is readable.
type Name = Result<Path<String>, PathRejection>;
type In = Request<Body>;
type Out = Response<Body>;

const GET: &str = "get";
const POST: &str = "post";
const DELETE: &str = "delete";

const CHAT: RouteFields = RouteFields::All(chat::fields);
const RENDERED: RouteFields = RouteFields::Own(chat::rendered_fields);
const COMPLETION: RouteFields = RouteFields::All(completions::fields);
const INFILL: RouteFields = RouteFields::All(infill::fields);
const MESSAGE: RouteFields = RouteFields::All(anthropic::fields);
const COUNTED: RouteFields = RouteFields::Own(anthropic::fields);
const RESPONSE: RouteFields = RouteFields::All(responses::fields);
const OLLAMA_CHAT: RouteFields = RouteFields::Own(ollama::chat_fields);
const GENERATE: RouteFields = RouteFields::Own(ollama::generate_fields);
const EMBEDDINGS: RouteFields = RouteFields::Own(embeddings::fields);
const EMBED: RouteFields = RouteFields::Own(embeddings::ollama_fields);
const SHOW: RouteFields = RouteFields::Own(ollama::show_fields);
const COUNTED_RESPONSE: RouteFields = RouteFields::Own(responses::fields);
const TOKENIZE: RouteFields = RouteFields::Own(info::tokenize_fields);
const DETOKENIZE: RouteFields = RouteFields::Own(info::detokenize_fields);

/// All endpoints, from which the router, logs and `/openapi.json` are derived.
pub(crate) static ROUTES: LazyLock<[Route; 42]> = LazyLock::new(table);

#[rustfmt::skip]
fn table() -> [Route; 42] {
    [
        Route::new(GET, "/", "a page about the server", get(page)),
        Route::new(GET, "/page.css", "styles of the page", get(styles)),
        Route::new(GET, "/page.js", "program of the page", get(program)),
        Route::new(GET, "/openapi.json", "this description", get(description)),
        Route::new(GET, "/health", "whether the model is loaded", get(health)),
        Route::new(GET, "/v1/health", "the same", get(health)),
        Route::new(GET, "/v1/models", "the models", get(models)),
        Route::new(GET, "/models", "the same", get(models)),
        Route::new(GET, "/v1/models/{*id}", "a model by its id", get(one_model)),
        Route::new(GET, "/props", "context, budget, fingerprint; of the model `?model=ID`", get(props)),
        Route::new(GET, "/metrics", "counters for Prometheus", get(metrics)),
        Route::new(GET, "/events", "a stream of what the engine does", get(events)),
        Route::new(GET, "/v1/requests", "requests that wait and run", get(requests)),
        Route::new(DELETE, "/v1/requests/{id}", "cancel a request", delete(cancel)),
        Route::new(POST, "/v1/requests/{id}/cancel", "cancel a request", post(cancel)),
        Route::new(GET, "/tokenizer_info", "special tokens and the chat template", get(tokenizer_info)),
        Route::new(POST, "/tokenize", "text to token ids", post(tokenize)).with(TOKENIZE),
        Route::new(POST, "/detokenize", "token ids to text", post(detokenize)).with(DETOKENIZE),
        Route::new(POST, "/apply-template", "a chat as the text that the model gets", post(apply_template)).with(RENDERED),
        Route::new(POST, "/v1/completions", "continue texts", post(completion)).with(COMPLETION),
        Route::new(POST, "/completion", "continue a text, in the form of llama.cpp", post(continued)).with(COMPLETION),
        Route::new(POST, "/infill", "fill in a text before a suffix, in the form of llama.cpp", post(fill)).with(INFILL),
        Route::new(POST, "/v1/chat/completions", "answer a chat", post(chat)).with(CHAT),
        Route::new(POST, "/chat/completions", "the same", post(chat)).with(CHAT),
        Route::new(POST, "/v1/responses", "answer a chat in the form of OpenAI's Responses", post(response)).with(RESPONSE),
        Route::new(POST, "/v1/responses/input_tokens", "count the tokens of a response's input", post(count_response)).with(COUNTED_RESPONSE),
        Route::new(GET, "/v1/responses/{id}", "a response that was kept", get(kept_response)),
        Route::new(DELETE, "/v1/responses/{id}", "forget a response", delete(delete_response)),
        Route::new(POST, "/v1/messages", "answer a chat in Anthropic's form", post(message)).with(MESSAGE),
        Route::new(POST, "/v1/messages/count_tokens", "count the tokens of a chat", post(count)).with(COUNTED),
        Route::new(POST, "/v1/embeddings", "texts as vectors, with a model made for that", post(embeddings)).with(EMBEDDINGS),
        Route::new(GET, "/api/version", "the version, in the form of Ollama", get(ollama_version)),
        Route::new(GET, "/api/tags", "the models", get(ollama_tags)),
        Route::new(GET, "/api/ps", "the loaded model and its memory", get(ollama_running)),
        Route::new(POST, "/api/show", "facts about the model", post(ollama_show)).with(SHOW),
        Route::new(POST, "/api/chat", "answer a chat in Ollama's form", post(ollama_chat)).with(OLLAMA_CHAT),
        Route::new(POST, "/api/generate", "answer a prompt in Ollama's form", post(ollama_generate)).with(GENERATE),
        Route::new(POST, "/api/embed", "texts as vectors, in Ollama's form", post(embed)).with(EMBED),
        Route::new(POST, "/api/embeddings", "the same for one prompt", post(embed)).with(EMBED),
        Route::new(POST, "/api/pull", "refused: `sws pull` downloads models", post(ollama_models)),
        Route::new(POST, "/api/create", "refused: `sws shard` makes models", post(ollama_models)),
        Route::new(DELETE, "/api/delete", "refused: `sws rm` removes models", delete(ollama_models)),
    ]
}

/// The router, which can be cloned for each connection.
pub(crate) type RouterService = TowerToHyperService<Router>;

/// The endpoints of a server.
pub(crate) fn routes(app: Arc<App>) -> RouterService {
    let mut router = Router::new();
    for route in ROUTES.iter() {
        router = router.route(route.path, route.handler.clone());
    }
    let router = router.fallback(no_route).method_not_allowed_fallback(no_method).with_state(app);
    TowerToHyperService::new(router)
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

/// A static file of the web page. It contains no data of this server.
fn file(kind: &'static str, text: &'static str) -> Out {
    let mut response = Response::new(Body::from(text));
    let headers = response.headers_mut();
    for (name, value) in [
        ("content-type", kind),
        ("content-security-policy", live::POLICY),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        // Another version of the server may have another page.
        ("cache-control", "no-cache"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

async fn description(State(app): AppState) -> Out {
    respond(StatusCode::OK, &openapi::description(app.config.first(), ROUTES.as_slice()))
}

async fn health(State(app): AppState) -> Out {
    info::health(&app)
}

async fn models(State(app): AppState) -> Out {
    render(info::models(&app))
}

async fn one_model(State(app): AppState, name: Name) -> Out {
    render(read(name).and_then(|id| info::one_model(&app, &id)))
}

async fn props(State(app): AppState, request: In) -> Out {
    render(info::props(&app, model_in(request.uri().query()).as_deref()))
}

async fn metrics(State(app): AppState) -> Out {
    metrics::metrics(&app)
}

async fn tokenizer_info(State(app): AppState, request: In) -> Out {
    render(info::tokenizer(&app, model_in(request.uri().query()).as_deref()))
}

async fn requests(State(app): AppState, request: In) -> Out {
    render(Ok(app.requests.list(owner(&request), app.clock.now())))
}

async fn events(State(app): AppState, request: In) -> Out {
    let listened = events::listen(&app, prepared::origin(&request));
    listened.unwrap_or_else(|failure| failure.response())
}

async fn cancel(State(app): AppState, name: Name, request: In) -> Out {
    let cancelled = read(name).and_then(|id| {
        app.cancel(owner(&request), &id)?;
        Ok(json!({"id": id, "cancelled": true}))
    });
    render(cancelled)
}

fn read(name: Name) -> Result<String, Failure> {
    let Path(name) = name.map_err(|_| Failure::invalid("the address is not valid UTF-8"))?;
    Ok(name)
}

/// The number of the request's API key.
fn owner(request: &In) -> u64 {
    request.extensions().get().map_or(0, |origin: &RequestOrigin| origin.owner)
}

async fn tokenize(State(app): AppState, request: In) -> Out {
    prepared::value(app, request, info::tokenize).await
}

async fn detokenize(State(app): AppState, request: In) -> Out {
    prepared::value(app, request, info::detokenize).await
}

async fn apply_template(State(app): AppState, request: In) -> Out {
    prepared::value(app, request, chat::rendered).await
}

async fn completion(State(app): AppState, request: In) -> Out {
    prepared::texts(app, request, Dialect::OpenAi, completions::prepare).await
}

async fn continued(State(app): AppState, request: In) -> Out {
    prepared::texts(app, request, Dialect::OpenAi, infill::continued).await
}

async fn fill(State(app): AppState, request: In) -> Out {
    prepared::texts(app, request, Dialect::OpenAi, infill::prepare).await
}

async fn chat(State(app): AppState, request: In) -> Out {
    prepared::texts(app, request, Dialect::OpenAi, chat::prepare).await
}

async fn response(State(app): AppState, request: In) -> Out {
    let owner = owner(&request);
    let prepare = move |app: &App, served: &Arc<Served>, body: &[u8]| {
        responses::prepare(app, served, owner, body)
    };
    prepared::texts(app, request, Dialect::OpenAi, prepare).await
}

async fn count_response(State(app): AppState, request: In) -> Out {
    let owner = owner(&request);
    let count = move |app: &App, served: &Arc<Served>, body: &[u8]| {
        responses::count(app, served, owner, body)
    };
    prepared::value(app, request, count).await
}

async fn kept_response(State(app): AppState, name: Name, request: In) -> Out {
    render(read(name).and_then(|id| responses::kept(&app, owner(&request), &id)))
}

async fn delete_response(State(app): AppState, name: Name, request: In) -> Out {
    render(read(name).and_then(|id| responses::delete(&app, owner(&request), &id)))
}

async fn message(State(app): AppState, request: In) -> Out {
    prepared::texts(app, request, Dialect::Anthropic, anthropic::prepare).await
}

async fn count(State(app): AppState, request: In) -> Out {
    prepared::value(app, request, anthropic::count).await
}

async fn ollama_version() -> Out {
    respond(StatusCode::OK, &ollama::version())
}

async fn ollama_tags(State(app): AppState) -> Out {
    render(ollama::tags(&app))
}

async fn ollama_running(State(app): AppState) -> Out {
    render(ollama::running(&app))
}

async fn ollama_show(State(app): AppState, request: In) -> Out {
    prepared::value(app, request, ollama::show).await
}

async fn ollama_chat(State(app): AppState, request: In) -> Out {
    prepared::texts_or_value(app, request, Dialect::Ollama, ollama::chat).await
}

async fn ollama_generate(State(app): AppState, request: In) -> Out {
    prepared::texts_or_value(app, request, Dialect::Ollama, ollama::generate).await
}

async fn ollama_models() -> Out {
    let message = "this server changes no models; use `sws pull`, `sws shard` and `sws rm`";
    Failure::not_offered(message).response()
}

async fn embeddings(State(app): AppState, request: In) -> Out {
    prepared::texts(app, request, Dialect::OpenAi, embeddings::prepare).await
}

async fn embed(State(app): AppState, request: In) -> Out {
    prepared::texts(app, request, Dialect::Ollama, embeddings::embed).await
}

async fn no_route() -> Out {
    Failure::no_route().response()
}

async fn no_method() -> Out {
    Failure::no_method().response()
}

fn render(value: Result<Value, Failure>) -> Out {
    match value {
        Ok(value) => respond(StatusCode::OK, &value),
        Err(failure) => failure.response(),
    }
}
