//! Endpoints about the server and the model, and those that only convert text.

use std::fmt::Write;
use std::sync::Arc;

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::http::{Response, StatusCode};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sws_engine::{WeightKind, memory};
use sws_text::SettingOf;

use crate::app::{App, Served};
use crate::counts::number;
use crate::failure::{Failure, respond};
use crate::fields::parse;
use crate::messages::encoded;
use crate::names::names;

/// `/health`.
pub(crate) fn health(app: &App) -> Response<Body> {
    match app.served() {
        Ok(_) => respond(StatusCode::OK, &json!({"status": "ok"})),
        Err(failure) => failure.response(),
    }
}

/// `/v1/models`, in the formats of OpenAI and of Codex.
pub(crate) fn models(app: &App) -> Result<Value, Failure> {
    let served = app.served()?;
    let model = model(app, &served);
    let name = &app.config.name;
    Ok(json!({
        "object": "list",
        "data": [model],
        "models": [{"slug": name, "display_name": name, "id": name}],
    }))
}

/// `/v1/models/ID`.
pub(crate) fn one_model(app: &App, id: &str) -> Result<Value, Failure> {
    let served = app.served()?;
    match app.config.is_named(id) {
        true => Ok(model(app, &served)),
        false => Err(Failure::no_model(id, std::slice::from_ref(&app.config.name))),
    }
}

fn model(app: &App, served: &Served) -> Value {
    let spec = served.model.spec();
    json!({
        "id": app.config.name,
        "object": "model",
        "created": served.identity.created,
        "owned_by": "sws",
        "capabilities": capabilities(served),
        "max_model_len": served.limit,
        "meta": {
            "n_vocab": served.vocab,
            "n_ctx": served.limit,
            "n_ctx_train": spec.context,
            "n_layers": spec.layers.len(),
            "fingerprint": served.identity.fingerprint,
        },
    })
}

/// Interfaces that the model supports.
fn capabilities(served: &Served) -> Vec<&'static str> {
    let has_template = served.text.template().is_some();
    let all = [("completion", true), ("chat", has_template), ("tools", served.tools().is_some())];
    all.into_iter().filter_map(|(name, is)| is.then_some(name)).collect()
}

/// `/props`.
pub(crate) fn props(app: &App) -> Result<Value, Failure> {
    let served = app.served()?;
    Ok(json!({
        "model": app.config.name,
        "aliases": app.config.aliases,
        "system_fingerprint": served.identity.fingerprint,
        "n_ctx": served.limit,
        "total_slots": served.texts,
        "ram_budget_bytes": served.budget(),
        "ram_bytes": memory(),
        "has_tokenizer": served.text.tokenizer().is_some(),
        "has_chat_template": served.text.template().is_some(),
        "has_tools": served.tools().is_some(),
        "tools": served.tools(),
        "default_generation_settings": settings(&served),
        "prompt_logprobs": served.prompt_ranks,
        "activations": served.identity.activations.name(),
        "kv": served.identity.kv.name(),
        "lossy": served.identity.lossy,
        "build_info": env!("CARGO_PKG_VERSION"),
    }))
}

/// The default settings, in the spelling of llama.cpp, with their origins.
fn settings(served: &Served) -> Value {
    let mut values = Map::new();
    let mut origins = Map::new();
    for SettingOf { name, value, from } in served.settings {
        let name = if name == "repetition_penalty" { "repeat_penalty" } else { name };
        let value = if name == "top_k" { json!(value as u64) } else { json!(value) };
        values.insert(name.to_owned(), value);
        origins.insert(name.to_owned(), json!(from));
    }
    json!({"n_ctx": served.limit, "params": values, "origins": origins})
}

/// `/metrics`, in the format of Prometheus.
pub(crate) fn metrics(app: &App) -> Response<Body> {
    let mut out = String::new();
    app.counts.write(&mut out);
    let waiting = app.queue.len() as f64;
    number(&mut out, "sws_requests_waiting", "gauge", "Texts that wait for a sequence.", waiting);
    let positions = app.counts.positions.get() as f64;
    let room = app.served().map_or(f64::INFINITY, |served| (served.texts * served.limit) as f64);
    let help = "Share of the positions of all texts at a time that running texts hold.";
    number(&mut out, "sws_kv_used_ratio", "gauge", help, positions / room);
    if let Some(bytes) = memory() {
        number(&mut out, "sws_resident_bytes", "gauge", "Memory of the process.", bytes as f64);
    }
    if let Ok(served) = app.served() {
        write_model(&served, &mut out);
    }
    let mut response = Response::new(Body::from(out));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

fn write_model(served: &Served, out: &mut String) {
    let name = "sws_info";
    let version = env!("CARGO_PKG_VERSION");
    let fingerprint = &served.identity.fingerprint;
    let _ = writeln!(out, "# HELP {name} The model and the program.\n# TYPE {name} gauge");
    let _ = writeln!(out, "{name}{{version=\"{version}\",fingerprint=\"{fingerprint}\"}} 1");
    if let Some(budget) = served.budget() {
        number(out, "sws_budget_bytes", "gauge", "The memory budget.", budget as f64);
    }
    if let Some(plan) = &served.plan {
        let name = "sws_expert_slots";
        let help = "Slots for experts, and further ones that are lent while no prompt is computed.";
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} gauge");
        for (kind, classes) in [("own", &plan.slots), ("lent", &plan.lent)] {
            let slots: usize = classes.iter().map(|class| class.count).sum();
            let _ = writeln!(out, "{name}{{kind=\"{kind}\"}} {slots}");
        }
    }
    let Some(gauge) = &served.gauge else { return };
    let counters = gauge.read();
    let help = "Bytes of contexts that texts do not need, which hold experts.";
    number(out, "sws_context_lent_bytes", "gauge", help, counters.context_lent as f64);
    let help = "Bytes for structured output that no request needs, which hold experts.";
    number(out, "sws_forms_lent_bytes", "gauge", help, counters.structured_lent as f64);
    let name = "sws_read_bytes_total";
    let _ =
        writeln!(out, "# HELP {name} Bytes of weights that have arrived.\n# TYPE {name} counter");
    for (kind, bytes) in WeightKind::ALL.iter().zip(counters.bytes) {
        let _ = writeln!(out, "{name}{{kind=\"{}\"}} {bytes}", kind.name());
    }
    let name = "sws_expert_requests_total";
    let help = "Experts that routers chose: in memory, on their way, or neither.";
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} counter");
    let layers = counters.layers.values();
    let [hits, late, misses] = layers.fold([0, 0, 0], |[hits, late, misses], layer| {
        [hits + layer.hits, late + layer.late, misses + layer.misses]
    });
    for (outcome, count) in [("hit", hits), ("late", late), ("miss", misses)] {
        let _ = writeln!(out, "{name}{{outcome=\"{outcome}\"}} {count}");
    }
    let device = counters.device_bytes as f64;
    number(out, "sws_device_bytes_total", "counter", "Bytes read from the device.", device);
    let stalls = counters.clocks.stalls.time.as_secs_f64();
    number(out, "sws_stall_seconds_total", "counter", "Waits of the computation.", stalls);
    let passes = counters.passes.as_secs_f64();
    number(out, "sws_pass_seconds_total", "counter", "Time in passes.", passes);
    let tokens = counters.tokens as f64;
    number(out, "sws_tokens_total", "counter", "Tokens that went through passes.", tokens);
}

/// `/tokenizer_info`: the names that lm-evaluation-harness requests.
pub(crate) fn tokenizer(app: &App) -> Result<Value, Failure> {
    let served = app.served()?;
    let tokenizer = served.tokenizer()?;
    let template = served.text.template();
    let special = |name: &str| template.and_then(|template| template.special(name));
    let end = served.ends.first().and_then(|&id| tokenizer.token(id));
    Ok(json!({
        "bos_token": special("bos_token"),
        "eos_token": special("eos_token").map(str::to_owned).or(end),
        "pad_token": special("pad_token"),
        "unk_token": special("unk_token"),
        "chat_template": template.map(|template| template.source()),
        "vocab_size": served.vocab,
        "model_max_length": served.limit,
    }))
}

/// The fields of `/tokenize`, of llama.cpp (`content`) and of vLLM (`prompt`).
#[derive(Deserialize)]
struct Tokenize {
    #[serde(alias = "prompt")]
    content: String,
    #[serde(default)]
    add_special: Option<bool>,
    #[serde(default)]
    add_special_tokens: Option<bool>,
    #[serde(default)]
    with_pieces: Option<bool>,
}

/// `/tokenize`.
pub(crate) fn tokenize(_: &App, served: &Arc<Served>, body: &[u8]) -> Result<Value, Failure> {
    let Tokenize { content, add_special, add_special_tokens, with_pieces } = parse(body)?;
    let special = add_special.or(add_special_tokens).unwrap_or(false);
    let ids = encoded(served, &content, special)?;
    let tokens: Value = match with_pieces.unwrap_or(false) {
        true => ids.iter().map(|&id| json!({"id": id, "piece": served.name(id)})).collect(),
        false => ids.iter().copied().collect(),
    };
    Ok(json!({"tokens": tokens, "count": ids.len(), "max_model_len": served.limit}))
}

/// The names of the fields of `/tokenize`.
pub(crate) fn tokenize_fields() -> &'static [&'static str] {
    names::<Tokenize>()
}

#[derive(Deserialize)]
struct Detokenize {
    tokens: Vec<u32>,
}

/// The names of the fields of `/detokenize`.
pub(crate) fn detokenize_fields() -> &'static [&'static str] {
    names::<Detokenize>()
}

/// `/detokenize`.
pub(crate) fn detokenize(_: &App, served: &Arc<Served>, body: &[u8]) -> Result<Value, Failure> {
    let Detokenize { tokens } = parse(body)?;
    if let Some(token) = tokens.iter().find(|&&token| token as usize >= served.vocab) {
        let message = format!("token {token} is not below {}", served.vocab);
        return Err(Failure::field("tokens", message));
    }
    let text = served.tokenizer()?.decode(&tokens, false);
    Ok(json!({"content": text, "prompt": text}))
}
