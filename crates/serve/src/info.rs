//! Endpoints about the server and the model, and those that only convert text.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Response, StatusCode};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sws_engine::memory;
use sws_text::SettingOf;

use crate::app::App;
use crate::failure::{Failure, respond};
use crate::fields::{Nothing, parse};
use crate::messages::encoded;
use crate::names::names;
use crate::served::Served;

/// `/health`.
pub(crate) fn health(app: &App) -> Response<Body> {
    match app.served() {
        Ok(_) => respond(StatusCode::OK, &json!({"status": "ok"})),
        Err(failure) => failure.response(),
    }
}

/// `/v1/models`, in the formats of OpenAI and of Codex.
pub(crate) fn models(app: &App) -> Result<Value, Failure> {
    let all = app.all()?;
    let data: Vec<Value> = all.iter().map(|served| model(served)).collect();
    let mut models = Vec::with_capacity(all.len());
    for served in all {
        let id = served.id();
        models.push(json!({"slug": id, "display_name": id, "id": id}));
    }
    Ok(json!({"object": "list", "data": data, "models": models}))
}

/// `/v1/models/ID`.
pub(crate) fn one_model(app: &App, id: &str) -> Result<Value, Failure> {
    Ok(model(&*app.named(Some(id))?))
}

fn model(served: &Served) -> Value {
    let spec = served.model.spec();
    json!({
        "id": served.id(),
        "object": "model",
        "created": served.identity.created,
        "owned_by": "sws",
        "capabilities": capabilities(served),
        // In the form of llama.cpp's router.
        "status": {"value": served.engine.state().name()},
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
    let mut capabilities = vec!["completion"];
    if has_template {
        capabilities.push("chat");
    }
    if served.tools().is_some() {
        capabilities.push("tools");
    }
    capabilities
}

/// `/props` of the model with this name, or of the first.
pub(crate) fn props(app: &App, name: Option<&str>) -> Result<Value, Failure> {
    let served = app.named(name)?;
    let models: Vec<&str> = app.all()?.iter().map(|served| served.id()).collect();
    Ok(json!({
        "model": served.id(),
        "aliases": served.identity.names.aliases,
        "models": models,
        "is_loaded": served.engine.is_loaded(),
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

/// `/tokenizer_info` of the model with this name, or of the first: the names that
/// lm-evaluation-harness requests.
pub(crate) fn tokenizer(app: &App, name: Option<&str>) -> Result<Value, Failure> {
    let served = app.named(name)?;
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
    /// Id of one of several models.
    #[serde(default, rename = "model")]
    _model: Option<Nothing>,
}

/// `/tokenize`.
pub(crate) fn tokenize(_: &App, served: &Arc<Served>, body: &[u8]) -> Result<Value, Failure> {
    let Tokenize { content, add_special, add_special_tokens, with_pieces, .. } = parse(body)?;
    let special = add_special.or(add_special_tokens).unwrap_or(false);
    let ids = encoded(served, &content, special)?;
    let tokens: Value = match with_pieces.unwrap_or(false) {
        true => ids.iter().map(|&id| json!({"id": id, "piece": served.name(id)})).collect(),
        false => ids.iter().copied().collect(),
    };
    Ok(json!({"tokens": tokens, "count": ids.len(), "max_model_len": served.limit}))
}

/// The names of the fields of `/tokenize`.
pub(crate) fn tokenize_fields() -> Vec<&'static [&'static str]> {
    vec![names::<Tokenize>()]
}

#[derive(Deserialize)]
struct Detokenize {
    tokens: Vec<u32>,
    /// Id of one of several models.
    #[serde(default, rename = "model")]
    _model: Option<Nothing>,
}

/// The names of the fields of `/detokenize`.
pub(crate) fn detokenize_fields() -> Vec<&'static [&'static str]> {
    vec![names::<Detokenize>()]
}

/// `/detokenize`.
pub(crate) fn detokenize(_: &App, served: &Arc<Served>, body: &[u8]) -> Result<Value, Failure> {
    let Detokenize { tokens, .. } = parse(body)?;
    if let Some(token) = tokens.iter().find(|&&token| token as usize >= served.vocab) {
        let message = format!("token {token} is not below {}", served.vocab);
        return Err(Failure::field("tokens", message));
    }
    let text = served.tokenizer()?.decode(&tokens, false);
    Ok(json!({"content": text, "prompt": text}))
}
