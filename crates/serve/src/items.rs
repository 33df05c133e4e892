//! The answer of `/v1/responses`: a list of items, each of which is reasoning, text or a tool call.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use sws::End;
use sws_text::ReplyPart;

use crate::app::App;
use crate::failure::Failure;
use crate::kept::{KeptResponse, KeptResponses};
use crate::messages::PromptRequest;
use crate::queue::Happened;
use crate::replies::Replies;
use crate::reply::AnswerWriter;
use crate::served::Served;
use crate::sse::named;
use crate::tally::{AnswerHead, TextTally};
use crate::turn::ChatTurn;

/// Fields of the request that its answer repeats, as far as their length is bounded.
pub(crate) struct Echoed {
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) temperature: Option<f64>,
    pub(crate) top_p: Option<f64>,
    pub(crate) max_output_tokens: Option<i64>,
    pub(crate) parallel_tool_calls: bool,
    /// Id of the response that this one continues.
    pub(crate) previous: Option<String>,
    /// True if the response can be continued later.
    pub(crate) is_kept: bool,
}

/// A response.
pub(crate) struct ResponsesAnswer {
    head: AnswerHead,
    echoed: Echoed,
    /// Prefix of the item ids, before kind and number.
    item: String,
    tally: TextTally,
    replies: Replies,
    /// The item that is being sent, with its text so far.
    open: Option<ReplyPart>,
    /// The id of the item that is being sent.
    open_id: String,
    /// Number of items that were sent.
    items: usize,
    stream: bool,
    /// Events of the stream so far.
    sent: usize,
    is_over: bool,
    /// Place that keeps the response, and its owner.
    keeper: Option<(Arc<KeptResponses>, u64)>,
}

impl ResponsesAnswer {
    pub(crate) fn new(
        app: &App,
        served: &Served,
        request: &PromptRequest,
        echoed: Echoed,
        stream: bool,
    ) -> ResponsesAnswer {
        ResponsesAnswer {
            head: AnswerHead::new(app, served, "resp_"),
            echoed,
            item: app.id(""),
            tally: TextTally::new(request.tokens.len(), 1, 1),
            replies: Replies::new(app, served, request, 1),
            open: None,
            open_id: String::new(),
            items: 0,
            stream,
            sent: 0,
            is_over: false,
            keeper: None,
        }
    }

    /// True if the response should be kept.
    pub(crate) fn is_kept(&self) -> bool {
        self.echoed.is_kept
    }

    /// The answer to these messages. It is kept for its owner once it is complete.
    pub(crate) fn kept_with(
        self,
        kept: &Arc<KeptResponses>,
        owner: u64,
        turns: Vec<ChatTurn>,
    ) -> ResponsesAnswer {
        let id = self.head.id.clone();
        kept.keep(KeptResponse { id, owner, turns, response: Value::Null });
        ResponsesAnswer { keeper: Some((Arc::clone(kept), owner)), ..self }
    }

    fn response(&self, status: &str, output: Vec<Value>) -> Value {
        let [input, new] = self.tally.tokens();
        let Echoed { metadata, temperature, top_p, max_output_tokens, .. } = &self.echoed;
        json!({
            "id": self.head.id,
            "object": "response",
            "created_at": self.head.created,
            "status": status,
            "error": null,
            "incomplete_details": null,
            "instructions": null,
            "max_output_tokens": max_output_tokens,
            "metadata": metadata,
            "model": self.head.model,
            "output": output,
            "parallel_tool_calls": self.echoed.parallel_tool_calls,
            "previous_response_id": self.echoed.previous,
            "store": self.echoed.is_kept,
            "temperature": temperature,
            "tool_choice": "auto",
            "tools": [],
            "top_p": top_p,
            "usage": {
                "input_tokens": input,
                "input_tokens_details": {"cached_tokens": self.tally.known()},
                "output_tokens": new,
                "output_tokens_details": {"reasoning_tokens": self.tally.reasoning},
                "total_tokens": input + new,
            },
        })
    }

    /// The item with this number.
    fn item(&self, number: usize, part: &ReplyPart, is_done: bool) -> Value {
        let status = if is_done { "completed" } else { "in_progress" };
        let mut item = match part {
            ReplyPart::Reasoning(_) => {
                json!({"type": "reasoning", "summary": [], "content": contents(part, is_done)})
            }
            ReplyPart::Text(_) => json!({
                "type": "message",
                "role": "assistant",
                "content": contents(part, is_done),
            }),
            ReplyPart::Call(call) => json!({
                "type": "function_call",
                "call_id": call.id,
                "name": call.name,
                "arguments": if is_done { &call.arguments } else { "" },
            }),
        };
        item["id"] = self.id(number, part).into();
        item["status"] = status.into();
        item
    }

    fn id(&self, number: usize, part: &ReplyPart) -> String {
        let kind = match part {
            ReplyPart::Reasoning(_) => "rs",
            ReplyPart::Text(_) => "msg",
            ReplyPart::Call(_) => "fc",
        };
        format!("{kind}_{}-{number}", self.item)
    }

    fn send(&mut self, name: &str, mut data: Value, out: &mut String) {
        data["sequence_number"] = self.sent.into();
        self.sent += 1;
        named(out, name, data);
    }

    /// Sends an event about the item that is being sent.
    fn send_part(&mut self, name: &str, key: &str, value: Value, out: &mut String) {
        let mut data = json!({"item_id": self.open_id, "output_index": self.items});
        data[key] = value;
        if !name.contains("function_call") {
            data["content_index"] = 0.into();
        }
        if name.contains("output_text") {
            data["logprobs"] = json!([]);
        }
        self.send(name, data, out);
    }

    /// Sends more of the answer.
    fn send_parts(&mut self, parts: Vec<ReplyPart>, out: &mut String) {
        for part in parts {
            match (&mut self.open, &part) {
                (Some(ReplyPart::Text(text)), ReplyPart::Text(more))
                | (Some(ReplyPart::Reasoning(text)), ReplyPart::Reasoning(more)) => {
                    text.push_str(more)
                }
                _ => self.begin_item(part.clone(), out),
            }
            match part {
                ReplyPart::Reasoning(text) => {
                    self.send_part("response.reasoning_text.delta", "delta", text.into(), out);
                }
                ReplyPart::Text(text) => {
                    self.send_part("response.output_text.delta", "delta", text.into(), out);
                }
                ReplyPart::Call(call) => {
                    let name = "response.function_call_arguments.delta";
                    self.send_part(name, "delta", call.arguments.into(), out);
                }
            }
        }
    }

    /// Ends the item that is being sent, and begins another.
    fn begin_item(&mut self, part: ReplyPart, out: &mut String) {
        self.end_item(out);
        self.open_id = self.id(self.items, &part);
        let item = self.item(self.items, &part, false);
        let added = json!({"output_index": self.items, "item": item});
        self.send("response.output_item.added", added, out);
        if let Some(content) = content(&part, "") {
            self.send_part("response.content_part.added", "part", content, out);
        }
        self.open = Some(part);
    }

    /// Ends the item that is being sent.
    fn end_item(&mut self, out: &mut String) {
        let Some(part) = self.open.take() else { return };
        let (name, key, text) = match &part {
            ReplyPart::Reasoning(text) => ("response.reasoning_text.done", "text", text),
            ReplyPart::Text(text) => ("response.output_text.done", "text", text),
            ReplyPart::Call(call) => {
                ("response.function_call_arguments.done", "arguments", &call.arguments)
            }
        };
        self.send_part(name, key, text.as_str().into(), out);
        if let Some(content) = content(&part, text) {
            self.send_part("response.content_part.done", "part", content, out);
        }
        let item = self.item(self.items, &part, true);
        let done = json!({"output_index": self.items, "item": item});
        self.send("response.output_item.done", done, out);
        self.items += 1;
    }

    /// The complete response.
    fn whole(&self, end: End) -> Value {
        let parts = self.replies.parts(0).iter().enumerate();
        let output = parts.map(|(number, part)| self.item(number, part, true)).collect();
        if !matches!(end, End::Length | End::Context) {
            return self.response("completed", output);
        }
        let mut whole = self.response("incomplete", output);
        whole["incomplete_details"] = json!({"reason": "max_output_tokens"});
        whole
    }
}

/// The content of an item with this text; `None` for a tool call.
fn content(part: &ReplyPart, text: &str) -> Option<Value> {
    match part {
        ReplyPart::Reasoning(_) => Some(json!({"type": "reasoning_text", "text": text})),
        ReplyPart::Text(_) => {
            Some(json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []}))
        }
        ReplyPart::Call(_) => None,
    }
}

/// The contents of a finished item. An unfinished item has none.
fn contents(part: &ReplyPart, is_done: bool) -> Vec<Value> {
    match part {
        ReplyPart::Reasoning(text) | ReplyPart::Text(text) if is_done => {
            content(part, text).into_iter().collect()
        }
        _ => Vec::new(),
    }
}

impl AnswerWriter for ResponsesAnswer {
    fn begin(&mut self, out: &mut String) {
        let response = self.response("in_progress", Vec::new());
        self.send("response.created", json!({"response": response}), out);
        self.alive(out);
    }

    fn take(&mut self, number: usize, happened: Happened, out: &mut String) -> Result<(), Failure> {
        match happened {
            Happened::Known(known) => self.tally.know(number, known),
            Happened::Piece(piece, _) => {
                let parts = self.replies.take(number, &piece);
                if self.stream {
                    self.send_parts(parts, out);
                }
            }
            Happened::Ended(made) => {
                let end = self.tally.end(number, *made)?;
                let parts = self.replies.end(number, end);
                self.tally.reasoning = self.replies.reasoning();
                self.is_over = true;
                let whole = self.whole(end);
                if let Some((kept, owner)) = &self.keeper {
                    kept.complete(*owner, &self.head.id, &whole);
                }
                if !self.stream {
                    out.push_str(&whole.to_string());
                    return Ok(());
                }
                self.send_parts(parts, out);
                self.end_item(out);
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

    /// A keep-alive event with data, as some clients ignore comments.
    fn alive(&mut self, out: &mut String) {
        let response = self.response("in_progress", Vec::new());
        self.send("response.in_progress", json!({"response": response}), out);
    }

    fn fail(&mut self, failure: &Failure, out: &mut String) {
        let mut response = self.response("failed", Vec::new());
        response["error"] = json!({"code": "server_error", "message": failure.message});
        self.send("response.failed", json!({"response": response}), out);
    }
}
