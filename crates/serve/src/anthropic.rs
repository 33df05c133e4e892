//! `/v1/messages` and `/v1/messages/count_tokens`.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use sws::{BatchRequest, Cancel, End};
use sws_text::{ChatOptions, Json, Position, ReplyPart};

use crate::app::App;
use crate::blocks::{self, MessageBlock};
use crate::failure::Failure;
use crate::fields::{Fields, Many, Nothing, OneOrMany, parse};
use crate::known::check_names;
use crate::messages::{PromptRequest, prompt};
use crate::names::names;
use crate::prepared::Prepared;
use crate::queue::Happened;
use crate::replies::Replies;
use crate::reply::AnswerWriter;
use crate::served::Served;
use crate::sse::named;
use crate::structured::{self, OutputFormat};
use crate::tally::{AnswerHead, TextTally};
use crate::tools::{self, OfferedTools, ToolChoice};
use crate::turn::ChatTurn;

/// Beginning of a line that one client changes with each request, and that is useless to a model.
const BILLING: &str = "x-anthropic-billing-header";

/// The fields of a request.
#[derive(Debug, Deserialize)]
struct MessagesRequest {
    messages: Many<blocks::BlocksMessage>,
    #[serde(default)]
    system: Option<OneOrMany<MessageBlock>>,
    #[serde(default)]
    thinking: Option<Thinking>,
    #[serde(default)]
    tools: Option<Vec<Json>>,
    #[serde(default)]
    tool_choice: Option<ToolChoice>,
    #[serde(default)]
    output_format: Option<Box<RawValue>>,
    #[serde(default)]
    output_config: Option<OutputConfig>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct OutputConfig {
    format: Option<Box<RawValue>>,
    #[serde(rename = "effort")]
    _effort: Nothing,
    #[serde(rename = "task_budget")]
    _task_budget: Nothing,
}

#[derive(Debug, Deserialize)]
struct Thinking {
    #[serde(rename = "type")]
    kind: String,
}

impl MessagesRequest {
    /// The requested structured output, from `output_config` or from the older field.
    fn requested_format(&mut self) -> Result<Option<OutputFormat>, Failure> {
        let config = self.output_config.take().and_then(|output| output.format);
        let (format, field) = match (config, self.output_format.take()) {
            (Some(_), Some(_)) => {
                let message =
                    "only one structure of the answer can be asked for; leave the other out";
                return Err(Failure::field("output_format", message));
            }
            (Some(format), None) => (format, "output_config"),
            (None, Some(format)) => (format, "output_format"),
            (None, None) => return Ok(None),
        };
        structured::format(&format, field, true)
    }

    /// The conversation in the form that the model gets.
    fn prompt_request(self, app: &App, served: &Served) -> Result<PromptRequest, Failure> {
        let choice = self.tool_choice.as_ref();
        let OfferedTools { tools, must, call } = tools::offered(app, served, self.tools, choice)?;
        let mut messages = Vec::new();
        if let Some(system) = self.system {
            let text = blocks::text(app, system.0)?;
            let lines = text.split('\n').filter(|line| !line.starts_with(BILLING));
            messages.push(ChatTurn::text("system", lines.collect::<Vec<_>>().join("\n")));
        }
        messages.extend(blocks::turns(app, self.messages)?);
        let thinking = self.thinking.map(|thinking| thinking.kind != "disabled");
        let variable = |on: bool| ("enable_thinking".to_owned(), Json::from(on));
        let options = ChatOptions {
            add_generation_prompt: true,
            tools,
            variables: thinking.map(variable).into_iter().collect(),
            ..ChatOptions::default()
        };
        let one_call = choice.is_some_and(ToolChoice::is_single);
        Ok(PromptRequest { one_call, call, ..prompt(app, served, &messages, options, must)? })
    }
}

/// The request fields of this interface, without those that all interfaces share.
pub(crate) fn fields() -> Vec<&'static [&'static str]> {
    vec![names::<MessagesRequest>()]
}

/// Prepares the answer to a request.
pub(crate) fn prepare(app: &App, served: &Arc<Served>, body: &[u8]) -> Result<Prepared, Failure> {
    check_names(app, body, &fields())?;
    let sampling = parse::<Fields>(body)?.of_a_conversation(app, served)?.of_one_text()?;
    let mut request: MessagesRequest = parse(body)?;
    let format = request.requested_format()?;
    let request = request.prompt_request(app, served)?;
    let constraint = structured::of_an_answer(app, served, &sampling.generation, &request, format)?;
    let stops = &sampling.generation.stop_strings;
    let answer = MessagesAnswer {
        head: AnswerHead::new(app, served, "msg_"),
        tally: TextTally::new(request.tokens.len(), 1, 1),
        replies: Replies::new(app, served, &request, 1),
        block: None,
        blocks: 0,
        // With several stop strings, the sampler does not report which of them was found.
        stop: stops.first().filter(|_| stops.len() == 1).cloned(),
        stream: sampling.stream,
        is_over: false,
    };
    let cancel = Cancel::new();
    let text = BatchRequest {
        tokens: request.tokens,
        generation: sampling.generation(0),
        position: Position::Start,
        bias: sampling.bias,
        constraint,
        ranks: None,
        prompt_ranks: false,
        pooling: None,
        witness: None,
        short_lived: false,
        owner: 0,
        cancel: cancel.clone(),
    };
    Ok(Prepared { texts: vec![text], cancel, answer: Box::new(answer), stream: sampling.stream })
}

/// Counts the tokens of a conversation.
pub(crate) fn count(app: &App, served: &Arc<Served>, body: &[u8]) -> Result<Value, Failure> {
    let mut request: MessagesRequest = parse(body)?;
    request.requested_format()?;
    let request = request.prompt_request(app, served)?;
    Ok(json!({"input_tokens": request.tokens.len()}))
}

/// An answer.
struct MessagesAnswer {
    head: AnswerHead,
    tally: TextTally,
    replies: Replies,
    /// Kind of the block that is being sent.
    block: Option<&'static str>,
    /// Number of blocks sent before.
    blocks: usize,
    /// The stop string, if there is exactly one.
    stop: Option<String>,
    stream: bool,
    is_over: bool,
}

impl MessagesAnswer {
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
            _ if self.replies.calls(0) > 0 => "tool_use",
            End::StopString => "stop_sequence",
            _ => "end_turn",
        };
        let stop = self.stop.as_ref().filter(|_| reason == "stop_sequence");
        json!({"stop_reason": reason, "stop_sequence": stop})
    }

    /// Sends parts of the text.
    fn send(&mut self, parts: Vec<ReplyPart>, out: &mut String) {
        for part in parts {
            let (begin, delta) = match part {
                ReplyPart::Reasoning(text) => {
                    (thinking(""), json!({"type": "thinking_delta", "thinking": text}))
                }
                ReplyPart::Text(text) => (
                    json!({"type": "text", "text": ""}),
                    json!({"type": "text_delta", "text": text}),
                ),
                ReplyPart::Call(call) => (
                    json!({"type": "tool_use", "id": call.id, "name": call.name, "input": {}}),
                    json!({"type": "input_json_delta", "partial_json": call.arguments}),
                ),
            };
            let kind = match begin["type"].as_str() {
                Some("thinking") => "thinking",
                Some("text") => "text",
                _ => "tool_use",
            };
            if self.block != Some(kind) || kind == "tool_use" {
                self.end_block(out);
                self.block = Some(kind);
                let block = json!({"index": self.blocks, "content_block": begin});
                named(out, "content_block_start", block);
            }
            let delta = json!({"index": self.blocks, "delta": delta});
            named(out, "content_block_delta", delta);
        }
    }

    /// Ends the block that is being sent.
    fn end_block(&mut self, out: &mut String) {
        let Some(kind) = self.block.take() else {
            return;
        };
        if kind == "thinking" {
            let delta = json!({"type": "signature_delta", "signature": ""});
            named(out, "content_block_delta", json!({"index": self.blocks, "delta": delta}));
        }
        named(out, "content_block_stop", json!({"index": self.blocks}));
        self.blocks += 1;
    }
}

/// A block with reasoning, without a signature.
fn thinking(text: &str) -> Value {
    json!({"type": "thinking", "thinking": text, "signature": ""})
}

/// A block with a part of the text.
fn block(part: &ReplyPart) -> Value {
    match part {
        ReplyPart::Reasoning(text) => thinking(text),
        ReplyPart::Text(text) => json!({"type": "text", "text": text}),
        ReplyPart::Call(call) => {
            let input: Value = serde_json::from_str(&call.arguments).unwrap_or_default();
            json!({"type": "tool_use", "id": call.id, "name": call.name, "input": input})
        }
    }
}

impl AnswerWriter for MessagesAnswer {
    fn begin(&mut self, out: &mut String) {
        let message = self.message(Vec::new(), &Value::Null);
        named(out, "message_start", json!({"message": message}));
        self.alive(out);
    }

    fn take(&mut self, number: usize, happened: Happened, out: &mut String) -> Result<(), Failure> {
        match happened {
            Happened::Known(known) => self.tally.know(number, known),
            Happened::Piece(piece, _) => {
                let parts = self.replies.take(number, &piece);
                if self.stream {
                    self.send(parts, out);
                }
            }
            Happened::Ended(made) => {
                let end = self.tally.end(number, *made)?;
                let parts = self.replies.end(number, end);
                let ending = self.ending(end);
                self.is_over = true;
                if self.stream {
                    self.send(parts, out);
                    self.end_block(out);
                    let delta = json!({"delta": ending, "usage": self.usage()});
                    named(out, "message_delta", delta);
                    named(out, "message_stop", json!({}));
                } else {
                    let content = self.replies.parts(0).iter().map(block).collect();
                    out.push_str(&self.message(content, &ending).to_string());
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
        named(out, "ping", json!({}));
    }

    fn fail(&mut self, failure: &Failure, out: &mut String) {
        named(out, "error", failure.anthropic(None));
    }
}
