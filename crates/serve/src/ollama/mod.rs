//! `/api/..`: the interface of Ollama.
//!
//! A request becomes one in OpenAI's form (`request.rs`), which is prepared like those of other clients;
//! its answer is lines of JSON (`answer.rs`). Facts about the model are in `models.rs`.

mod answer;
mod keep_alive;
mod models;
mod request;

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::app::App;
use crate::chat::ChatTexts;
use crate::completions;
use crate::engine::KeepTime;
use crate::failure::Failure;
use crate::fields::parse;
use crate::names::names;
use crate::prepared::{Answer, Prepared};
use crate::queue::WantedModel;
use crate::served::Served;
use answer::{AnswerText, LinesAnswer};
use keep_alive::keep_alive;
pub(crate) use models::{running, show, tags, version};
use request::{AskedModel, ChatFields, GenerateFields};

/// The fields of `/api/chat`.
pub(crate) fn chat_fields() -> Vec<&'static [&'static str]> {
    vec![names::<ChatFields>()]
}

/// The fields of `/api/generate`.
pub(crate) fn generate_fields() -> Vec<&'static [&'static str]> {
    vec![names::<GenerateFields>()]
}

/// The fields of `/api/show`.
pub(crate) fn show_fields() -> Vec<&'static [&'static str]> {
    vec![names::<models::ShowFields>()]
}

/// Prepares a chat. A request without messages asks if the model is loaded.
pub(crate) fn chat(app: &App, served: &Arc<Served>, body: &[u8]) -> Result<Answer, Failure> {
    let request: ChatFields = parse(body)?;
    let texts = AnswerText::Message;
    if request.is_empty() {
        return loaded(app, served, request.asked(), texts);
    }
    let keep = asked_time(app, request.asked())?;
    let body = request.in_openai(app, served)?;
    of_chat(app, served, &body, texts, keep)
}

/// Prepares a text. A request without a prompt asks if the model is loaded.
pub(crate) fn generate(app: &App, served: &Arc<Served>, body: &[u8]) -> Result<Answer, Failure> {
    let request: GenerateFields = parse(body)?;
    let texts = AnswerText::Response;
    if request.is_empty() {
        return loaded(app, served, request.asked(), texts);
    }
    let keep = asked_time(app, request.asked())?;
    let is_chat = request.is_chat(served);
    let body = request.in_openai(app, served)?;
    if is_chat {
        return of_chat(app, served, &body, texts, keep);
    }
    let prepared = completions::completion_texts(app, served, body.as_bytes())?;
    let answer =
        LinesAnswer::new(app, served, texts, prepared.tally, None, prepared.sampling.stream);
    let prepared = Prepared {
        texts: prepared.texts,
        cancel: prepared.cancel,
        answer: Box::new(answer),
        stream: prepared.sampling.stream,
    };
    Ok(Answer::Texts(prepared, keep))
}

fn of_chat(
    app: &App,
    served: &Arc<Served>,
    body: &str,
    texts: AnswerText,
    keep: Option<KeepTime>,
) -> Result<Answer, Failure> {
    let chat = ChatTexts::of(app, served, body.as_bytes())?;
    let stream = chat.sampling.stream;
    let answer = LinesAnswer::new(app, served, texts, chat.tally, Some(chat.replies), stream);
    let prepared =
        Prepared { texts: chat.texts, cancel: chat.cancel, answer: Box::new(answer), stream };
    Ok(Answer::Texts(prepared, keep))
}

/// The answer to a request without a text. One of several models will be loaded, or closed, once no
/// other request is in the way.
fn loaded(
    app: &App,
    served: &Served,
    asked: AskedModel<'_>,
    texts: AnswerText,
) -> Result<Answer, Failure> {
    if !served.is_named(asked.model) {
        return Err(app.no_model(asked.model));
    }
    let keep = asked_time(app, asked)?;
    let ends = keep == Some(Some(Duration::ZERO));
    let model = served.identity.number;
    if ends {
        served.engine.close_when_idle();
        app.queue.unload(model);
    } else if app.is_several() {
        if let Some(time) = keep {
            served.engine.keep(time);
        }
        // A model that is being closed forgets its time, and gets this one when it is loaded again.
        app.queue.preload(WantedModel { model, keep });
    }
    let mut line = json!({
        "model": served.id(),
        "created_at": models::time(app.clock.unix_seconds()),
        "done": true,
        "done_reason": if ends { "unload" } else { "load" },
    });
    texts.put(&mut line, String::new());
    Ok(Answer::Value(line))
}

/// How long one of several models is to be kept loaded, if a request says so.
fn asked_time(app: &App, asked: AskedModel<'_>) -> Result<Option<KeepTime>, Failure> {
    let Some(value) = asked.keep_alive.filter(|value| !value.is_null() && app.is_several()) else {
        return Ok(None);
    };
    let time = keep_alive(value).ok_or_else(|| {
        Failure::field("keep_alive", "keep_alive is neither seconds nor a time such as 5m")
    })?;
    Ok(Some(time))
}
