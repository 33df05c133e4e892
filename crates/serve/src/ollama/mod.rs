//! `/api/..`: the interface of Ollama.
//!
//! A request becomes one in OpenAI's form (`request.rs`), which is prepared like those of other clients;
//! its answer is lines of JSON (`answer.rs`). Facts about the model are in `models.rs`.

mod answer;
mod models;
mod request;

use std::sync::Arc;

use serde_json::json;

use crate::app::{App, Served};
use crate::chat::ChatTexts;
use crate::completions;
use crate::failure::Failure;
use crate::fields::parse;
use crate::names::names;
use crate::prepared::{Answer, Prepared};
use answer::{AnswerText, LinesAnswer};
pub(crate) use models::{running, show, tags, version};
use request::{ChatFields, GenerateFields};

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
        return loaded(app, request.model(), texts);
    }
    let body = request.in_openai(app, served)?;
    of_chat(app, served, &body, texts)
}

/// Prepares a text. A request without a prompt asks if the model is loaded.
pub(crate) fn generate(app: &App, served: &Arc<Served>, body: &[u8]) -> Result<Answer, Failure> {
    let request: GenerateFields = parse(body)?;
    let texts = AnswerText::Response;
    if request.is_empty() {
        return loaded(app, request.model(), texts);
    }
    let is_chat = request.is_chat(served);
    let body = request.in_openai(app, served)?;
    if is_chat {
        return of_chat(app, served, &body, texts);
    }
    let prepared = completions::completion_texts(app, served, body.as_bytes())?;
    let answer = LinesAnswer::new(app, texts, prepared.tally, None, prepared.sampling.stream);
    Ok(Answer::Texts(Prepared {
        texts: prepared.texts,
        cancel: prepared.cancel,
        answer: Box::new(answer),
        stream: prepared.sampling.stream,
    }))
}

fn of_chat(
    app: &App,
    served: &Arc<Served>,
    body: &str,
    texts: AnswerText,
) -> Result<Answer, Failure> {
    let chat = ChatTexts::of(app, served, body.as_bytes())?;
    let stream = chat.sampling.stream;
    let answer = LinesAnswer::new(app, texts, chat.tally, Some(chat.replies), stream);
    Ok(Answer::Texts(Prepared {
        texts: chat.texts,
        cancel: chat.cancel,
        answer: Box::new(answer),
        stream,
    }))
}

/// The answer to a request without a text, which reports that the model is loaded.
fn loaded(app: &App, model: &str, texts: AnswerText) -> Result<Answer, Failure> {
    if !app.config.is_named(model) {
        return Err(Failure::no_model(model, std::slice::from_ref(&app.config.name)));
    }
    let mut line = json!({
        "model": app.config.name,
        "created_at": models::time(app.clock.unix_seconds()),
        "done": true,
        "done_reason": "load",
    });
    texts.put(&mut line, String::new());
    Ok(Answer::Value(line))
}
