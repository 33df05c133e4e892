//! `/v1/messages` and `/v1/messages/count_tokens`.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use sws::{Cancel, Continuation, End};
use sws_model::text::{ChatOptions, Json, Position};

use crate::app::{App, Served};
use crate::failure::Failure;
use crate::fields::{Fields, Many, Nothing, OneOrMany, parse};
use crate::known::check_names;
use crate::messages::{Message, Part, Told, joined, prompt, told};
use crate::prepared::Prepared;
use crate::queue::Happened;
use crate::reply::Answer;
use crate::tally::{Head, Tally, named};

/// Beginning of a line that one client changes with each request, which a model has no use for.
const BILLING: &str = "x-anthropic-billing-header";

/// The fields of a request.
#[derive(Debug, Deserialize)]
struct Request {
    messages: Many<Message>,
    #[serde(default)]
    system: Option<OneOrMany<Part>>,
    #[serde(default)]
    thinking: Option<Thinking>,
    #[serde(default)]
    tools: Option<Vec<Nothing>>,
    #[serde(default)]
    tool_choice: Option<Choice>,
}

const KNOWN: &[&str] = &["messages", "system", "thinking", "tools", "tool_choice"];

#[derive(Debug, Deserialize)]
struct Thinking {
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Debug, Deserialize)]
struct Choice {
    #[serde(rename = "type")]
    kind: String,
}

impl Request {
    /// The tokens of the conversation.
    fn tokens(self, app: &App, served: &Served) -> Result<Vec<u32>, Failure> {
        let none = self.tool_choice.is_some_and(|choice| choice.kind == "none");
        if self.tools.is_some_and(|tools| !tools.is_empty()) && !none {
            return Err(Failure::unsupported("tools", "calls of tools are not supported yet"));
        }
        let mut messages = Vec::new();
        if let Some(system) = self.system {
            let text = joined(system.0)?;
            let lines = text.split('\n').filter(|line| !line.starts_with(BILLING));
            messages.push(Told::text("system", lines.collect::<Vec<_>>().join("\n")));
        }
        messages.extend(told(self.messages.0)?);
        let thinking = self.thinking.map(|thinking| thinking.kind != "disabled");
        let variable = |on: bool| ("enable_thinking".to_owned(), Json::from(on));
        let options = ChatOptions {
            add_generation_prompt: true,
            variables: thinking.map(variable).into_iter().collect(),
            ..ChatOptions::default()
        };
        prompt(app, served, &messages, options)
    }
}

/// Prepares an answer.
pub(crate) fn prepare(app: &App, served: &Arc<Served>, body: &[u8]) -> Result<Prepared, Failure> {
    check_names(app, body, KNOWN)?;
    let ways = parse::<Fields>(body)?.ways(app, served, None)?;
    let tokens = parse::<Request>(body)?.tokens(app, served)?;
    let stops = &ways.generation.stop_strings;
    let answer = Written {
        head: Head::new(app, served, "msg"),
        tally: Tally::new(tokens.len(), 1, 1),
        // With several the sampler does not say which it was.
        stop: stops.first().filter(|_| stops.len() == 1).cloned(),
        stream: ways.stream,
        is_over: false,
    };
    let cancel = Cancel::new();
    let text = Continuation {
        tokens,
        generation: ways.generation(0),
        position: Position::Start,
        bias: ways.bias,
        ranks: None,
        prompt_ranks: false,
        owner: 0,
        cancel: cancel.clone(),
    };
    Ok(Prepared { texts: vec![text], cancel, answer: Box::new(answer), stream: ways.stream })
}

/// Counts the tokens of a conversation.
pub(crate) fn count(app: &App, served: &Arc<Served>, body: &[u8]) -> Result<Value, Failure> {
    let tokens = parse::<Request>(body)?.tokens(app, served)?;
    Ok(json!({"input_tokens": tokens.len()}))
}

/// An answer.
struct Written {
    head: Head,
    tally: Tally,
    /// The only stop string, if there is one.
    stop: Option<String>,
    stream: bool,
    is_over: bool,
}

impl Written {
    fn usage(&self) -> Value {
        let [input, output] = self.tally.tokens();
        json!({
            "input_tokens": input - self.tally.known(),
            "output_tokens": output,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": self.tally.known(),
        })
    }

    fn message(&self, content: Vec<Value>, ending: &Value) -> Value {
        json!({
            "id": self.head.id,
            "type": "message",
            "role": "assistant",
            "model": self.head.model,
            "content": content,
            "stop_reason": ending["stop_reason"],
            "stop_sequence": ending["stop_sequence"],
            "usage": self.usage(),
        })
    }

    /// The reason why the text ended.
    fn ending(&self, end: End) -> Value {
        let reason = match end {
            End::Length | End::Context => "max_tokens",
            End::StopString => "stop_sequence",
            _ => "end_turn",
        };
        let stop = self.stop.as_ref().filter(|_| end == End::StopString);
        json!({"stop_reason": reason, "stop_sequence": stop})
    }
}

impl Answer for Written {
    fn begin(&mut self, out: &mut String) {
        let message = self.message(Vec::new(), &Value::Null);
        named(out, "message_start", json!({"message": message}));
        let block = json!({"index": 0, "content_block": {"type": "text", "text": ""}});
        named(out, "content_block_start", block);
        self.alive(out);
    }

    fn take(&mut self, number: usize, happened: Happened, out: &mut String) -> Result<(), Failure> {
        match happened {
            Happened::Began(known) => self.tally.begin(number, known),
            Happened::Piece(piece, _) if self.stream && !piece.text.is_empty() => {
                let delta = json!({"type": "text_delta", "text": piece.text});
                named(out, "content_block_delta", json!({"index": 0, "delta": delta}));
            }
            Happened::Ended(made) => {
                let end = self.tally.end(number, made)?;
                let ending = self.ending(end);
                self.is_over = true;
                if self.stream {
                    named(out, "content_block_stop", json!({"index": 0}));
                    let delta = json!({"delta": ending, "usage": self.usage()});
                    named(out, "message_delta", delta);
                    named(out, "message_stop", json!({}));
                } else {
                    let text = self.tally.made().map(|made| made.made.text.as_str());
                    let content = text.map(|text| json!({"type": "text", "text": text}));
                    out.push_str(&self.message(content.collect(), &ending).to_string());
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.is_over
    }

    fn alive(&mut self, out: &mut String) {
        if self.stream { named(out, "ping", json!({})) } else { out.push('\n') }
    }

    fn fail(&mut self, failure: &Failure, out: &mut String) {
        match self.stream {
            true => named(out, "error", failure.anthropic()),
            false => out.push_str(&failure.anthropic().to_string()),
        }
    }
}
