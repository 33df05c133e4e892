//! `/v1/responses`, without state: each request has the whole conversation.

use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde_json::{Value, json};
use sws::{Cancel, Continuation, End};
use sws_model::text::{ChatOptions, Json, Position};

use crate::app::{App, Served};
use crate::failure::Failure;
use crate::fields::{Fields, Nothing, OneOrMany, entries, parse};
use crate::known::check_names;
use crate::messages::{Message, Part, Told, prompt, told};
use crate::prepared::Prepared;
use crate::queue::Happened;
use crate::reply::Answer;
use crate::tally::{Head, Tally, named};

/// The fields of a request.
#[derive(Debug, Deserialize)]
struct Request {
    input: Input,
    #[serde(default)]
    instructions: Option<String>,
    #[serde(default)]
    max_output_tokens: Option<usize>,
    #[serde(default)]
    previous_response_id: Option<String>,
    #[serde(default)]
    background: Option<bool>,
    #[serde(default)]
    reasoning: Option<Reasoning>,
    #[serde(default)]
    text: Option<TextOptions>,
    #[serde(default)]
    tools: Option<Vec<Nothing>>,
    #[serde(default)]
    tool_choice: Option<Value>,
}

const KNOWN: &[&str] = &[
    "input",
    "instructions",
    "max_output_tokens",
    "previous_response_id",
    "background",
    "reasoning",
    "text",
    "tools",
    "tool_choice",
];

#[derive(Debug, Deserialize)]
struct Reasoning {
    #[serde(default)]
    effort: Option<String>,
}

#[derive(Debug, Deserialize)]
struct TextOptions {
    #[serde(default)]
    format: Option<Kind>,
}

#[derive(Debug, Deserialize)]
struct Kind {
    #[serde(rename = "type")]
    kind: String,
}

/// The conversation.
#[derive(Debug)]
struct Input(Vec<Item>);

/// An entry of a conversation: a message, unless its type says otherwise.
#[derive(Debug, Deserialize)]
struct Item {
    #[serde(rename = "type", default)]
    kind: Option<String>,
    #[serde(default)]
    role: Option<String>,
    #[serde(default)]
    content: Option<OneOrMany<Part>>,
}

impl<'de> Deserialize<'de> for Input {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Input, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = Input;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a list of items")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Input, E> {
                let content = Some(OneOrMany(vec![text.to_owned().into()]));
                Ok(Input(vec![Item { kind: None, role: Some("user".to_owned()), content }]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Input, A::Error> {
                Ok(Input(entries(list)?))
            }
        }

        deserializer.deserialize_any(Any)
    }
}

impl Request {
    /// Refuses what is known and not supported.
    fn check(&self) -> Result<(), Failure> {
        if self.previous_response_id.is_some() {
            let message = "responses are not kept; send the whole conversation as input";
            return Err(Failure::unsupported("previous_response_id", message));
        }
        if self.background == Some(true) {
            return Err(Failure::unsupported("background", "responses are not kept"));
        }
        let none = self.tool_choice.as_ref().is_some_and(|choice| choice == "none");
        if self.tools.as_ref().is_some_and(|tools| !tools.is_empty()) && !none {
            return Err(Failure::unsupported("tools", "calls of tools are not supported yet"));
        }
        let format = self.text.as_ref().and_then(|text| text.format.as_ref());
        if format.is_some_and(|format| format.kind != "text") {
            return Err(Failure::unsupported("text", "only the format `text` is supported yet"));
        }
        Ok(())
    }

    /// The tokens of the conversation.
    fn tokens(self, app: &App, served: &Served) -> Result<Vec<u32>, Failure> {
        let mut messages = Vec::new();
        for Item { kind, role, content } in self.input.0 {
            match (kind.as_deref().unwrap_or("message"), role) {
                ("message", Some(role)) => messages.push(Message::new(role, content)),
                // What the model thought before is no part of what it sees.
                ("reasoning", _) => {}
                (kind, _) => {
                    let kind: String = kind.chars().take(40).collect();
                    let message = format!("an item of the type `{kind}` is not supported");
                    return Err(Failure::unsupported("input", message));
                }
            }
        }
        let system = self.instructions.map(|text| Told::text("system", text));
        let messages: Vec<Told> = system.into_iter().chain(told(messages)?).collect();
        let effort = self.reasoning.and_then(|reasoning| reasoning.effort);
        let variable = |effort: String| ("reasoning_effort".to_owned(), Json::from(effort));
        let options = ChatOptions {
            add_generation_prompt: true,
            variables: effort.map(variable).into_iter().collect(),
            ..ChatOptions::default()
        };
        prompt(app, served, &messages, options)
    }
}

/// Prepares a response.
pub(crate) fn prepare(app: &App, served: &Arc<Served>, body: &[u8]) -> Result<Prepared, Failure> {
    check_names(app, body, KNOWN)?;
    let mut ways = parse::<Fields>(body)?.ways(app, served, None)?;
    let request: Request = parse(body)?;
    request.check()?;
    let limits = [ways.generation.max_new_tokens, request.max_output_tokens];
    ways.generation.max_new_tokens = limits.into_iter().flatten().min();
    let tokens = request.tokens(app, served)?;
    let answer = Written {
        item: app.id("msg"),
        head: Head::new(app, served, "resp"),
        tally: Tally::new(tokens.len(), 1, 1),
        stream: ways.stream,
        sent: 0,
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

/// A response.
struct Written {
    head: Head,
    /// Id of its message.
    item: String,
    tally: Tally,
    stream: bool,
    /// Events of the stream so far.
    sent: usize,
    is_over: bool,
}

impl Written {
    fn response(&self, status: &str, output: Vec<Value>) -> Value {
        let [input, new] = self.tally.tokens();
        json!({
            "id": self.head.id,
            "object": "response",
            "created_at": self.head.created,
            "status": status,
            "error": null,
            "incomplete_details": null,
            "instructions": null,
            "metadata": {},
            "model": self.head.model,
            "output": output,
            "parallel_tool_calls": false,
            "previous_response_id": null,
            "store": false,
            "temperature": null,
            "tool_choice": "none",
            "tools": [],
            "top_p": null,
            "usage": {
                "input_tokens": input,
                "input_tokens_details": {"cached_tokens": self.tally.known()},
                "output_tokens": new,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": input + new,
            },
        })
    }

    fn item(&self, status: &str, content: Vec<Value>) -> Value {
        json!({
            "id": self.item,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        })
    }

    fn send(&mut self, name: &str, mut data: Value, out: &mut String) {
        data["sequence_number"] = self.sent.into();
        self.sent += 1;
        named(out, name, data);
    }

    /// Sends an event about the only part of the message.
    fn send_part(&mut self, name: &str, key: &str, value: Value, out: &mut String) {
        let mut data = json!({"item_id": self.item, "output_index": 0, "content_index": 0});
        data[key] = value;
        if name.contains("output_text") {
            data["logprobs"] = json!([]);
        }
        self.send(name, data, out);
    }

    /// The complete response.
    fn whole(&self, end: End) -> Value {
        let output = self.item("completed", vec![part(&self.text())]);
        if !matches!(end, End::Length | End::Context) {
            return self.response("completed", vec![output]);
        }
        let mut whole = self.response("incomplete", vec![output]);
        whole["incomplete_details"] = json!({"reason": "max_output_tokens"});
        whole
    }

    fn text(&self) -> String {
        self.tally.made().map(|made| made.made.text.as_str()).collect()
    }
}

fn part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

impl Answer for Written {
    fn begin(&mut self, out: &mut String) {
        let response = self.response("in_progress", Vec::new());
        self.send("response.created", json!({"response": response}), out);
        self.alive(out);
        let item = self.item("in_progress", Vec::new());
        let added = json!({"output_index": 0, "item": item});
        self.send("response.output_item.added", added, out);
        self.send_part("response.content_part.added", "part", part(""), out);
    }

    fn take(&mut self, number: usize, happened: Happened, out: &mut String) -> Result<(), Failure> {
        match happened {
            Happened::Began(known) => self.tally.begin(number, known),
            Happened::Piece(piece, _) if self.stream && !piece.text.is_empty() => {
                self.send_part("response.output_text.delta", "delta", piece.text.into(), out);
            }
            Happened::Ended(made) => {
                let end = self.tally.end(number, made)?;
                self.is_over = true;
                let whole = self.whole(end);
                if !self.stream {
                    out.push_str(&whole.to_string());
                    return Ok(());
                }
                let text = self.text();
                let done = part(&text);
                self.send_part("response.output_text.done", "text", text.into(), out);
                self.send_part("response.content_part.done", "part", done, out);
                let item = json!({"output_index": 0, "item": whole["output"][0]});
                self.send("response.output_item.done", item, out);
                let name = match whole["status"] == "completed" {
                    true => "response.completed",
                    false => "response.incomplete",
                };
                self.send(name, json!({"response": whole}), out);
            }
            _ => {}
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.is_over
    }

    /// An event with data: some clients count nothing else as a sign of life.
    fn alive(&mut self, out: &mut String) {
        if !self.stream {
            return out.push('\n');
        }
        let response = self.response("in_progress", Vec::new());
        self.send("response.in_progress", json!({"response": response}), out);
    }

    fn fail(&mut self, failure: &Failure, out: &mut String) {
        if !self.stream {
            return out.push_str(&failure.json().to_string());
        }
        let mut response = self.response("failed", Vec::new());
        response["error"] = json!({"code": "server_error", "message": failure.message});
        self.send("response.failed", json!({"response": response}), out);
    }
}
