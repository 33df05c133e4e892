//! Answers as lines of JSON.

use serde_json::{Value, json};
use sws::End;
use sws_format::Clock;
use sws_text::{ReplyPart, ToolCall};

use super::models::time;
use crate::app::App;
use crate::failure::Failure;
use crate::queue::{Happened, TextTimes};
use crate::replies::Replies;
use crate::reply::AnswerWriter;
use crate::served::Served;
use crate::tally::TextTally;

/// The place of the text in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerText {
    /// A message, of `/api/chat`.
    Message,
    /// The response, of `/api/generate`.
    Response,
}

impl AnswerText {
    /// Puts text into a line.
    pub(super) fn put(self, line: &mut Value, text: String) {
        match self {
            AnswerText::Message => line["message"] = json!({"role": "assistant", "content": text}),
            AnswerText::Response => line["response"] = text.into(),
        }
    }

    /// Puts reasoning into a line that has its text.
    fn put_thinking(self, line: &mut Value, thinking: String) {
        match self {
            AnswerText::Message => line["message"]["thinking"] = thinking.into(),
            AnswerText::Response => line["thinking"] = thinking.into(),
        }
    }
}

/// An answer: one line for each piece of the text, or a single line.
pub(super) struct LinesAnswer {
    texts: AnswerText,
    model: String,
    clock: Clock,
    tally: TextTally,
    /// `None` for a text that is not a reply in a conversation.
    replies: Option<Replies>,
    /// Text outside a conversation that was not sent yet.
    plain: String,
    stream: bool,
    is_over: bool,
}

impl LinesAnswer {
    pub(super) fn new(
        app: &App,
        served: &Served,
        texts: AnswerText,
        tally: TextTally,
        replies: Option<Replies>,
        stream: bool,
    ) -> LinesAnswer {
        LinesAnswer {
            texts,
            model: served.id().to_owned(),
            clock: app.clock.clone(),
            tally,
            replies,
            plain: String::new(),
            stream,
            is_over: false,
        }
    }

    /// A line with this text.
    fn line(&self, text: String) -> Value {
        let created = time(self.clock.unix_seconds());
        let mut line = json!({"model": self.model, "created_at": created, "done": false});
        self.texts.put(&mut line, text);
        line
    }

    /// Sends parts of a reply.
    fn send(&self, parts: Vec<ReplyPart>, out: &mut String) {
        for part in parts {
            let mut line = self.line(String::new());
            match part {
                ReplyPart::Reasoning(thinking) => self.texts.put_thinking(&mut line, thinking),
                ReplyPart::Text(text) => self.texts.put(&mut line, text),
                ReplyPart::Call(call) => line["message"]["tool_calls"] = json!([called(&call)]),
            }
            push(out, &line);
        }
    }

    /// The last line of a stream, or the only one with the whole text.
    fn last(&mut self, end: End) -> Value {
        let mut line = self.line(String::new());
        if !self.stream {
            self.put_all(&mut line);
        }
        line["done"] = true.into();
        line["done_reason"] = match end {
            End::Length | End::Context => "length".into(),
            _ => "stop".into(),
        };
        let [_, new] = self.tally.tokens();
        if let Some(made) = self.tally.made().next() {
            let TextTimes { queue, prompt, generation } = made.times;
            let total = queue + prompt + generation;
            line["total_duration"] = json!(total.as_nanos() as u64);
            line["load_duration"] = json!(queue.as_nanos() as u64);
            line["prompt_eval_count"] = json!(self.tally.tokens()[0]);
            line["prompt_eval_duration"] = json!(prompt.as_nanos() as u64);
            line["eval_count"] = json!(new);
            line["eval_duration"] = json!(generation.as_nanos() as u64);
        }
        line
    }

    /// Puts the whole text into a line.
    fn put_all(&mut self, line: &mut Value) {
        let mut text = std::mem::take(&mut self.plain);
        let mut thinking = String::new();
        let mut calls = Vec::new();
        for part in self.replies.iter().flat_map(|replies| replies.parts(0)) {
            match part {
                ReplyPart::Reasoning(more) => thinking.push_str(more),
                ReplyPart::Text(more) => text.push_str(more),
                ReplyPart::Call(call) => calls.push(called(call)),
            }
        }
        self.texts.put(line, text);
        if !thinking.is_empty() {
            self.texts.put_thinking(line, thinking);
        }
        if !calls.is_empty() {
            line["message"]["tool_calls"] = calls.into();
        }
    }
}

/// A tool call, with its arguments as an object.
fn called(call: &ToolCall) -> Value {
    let arguments: Value = serde_json::from_str(&call.arguments).unwrap_or_default();
    json!({"id": call.id, "function": {"name": call.name, "arguments": arguments}})
}

fn push(out: &mut String, line: &Value) {
    out.push_str(&line.to_string());
    out.push('\n');
}

impl AnswerWriter for LinesAnswer {
    fn take(&mut self, number: usize, happened: Happened, out: &mut String) -> Result<(), Failure> {
        match happened {
            Happened::Known(known) => self.tally.know(number, known),
            Happened::Piece(piece, _) => match &mut self.replies {
                Some(replies) => {
                    let parts = replies.take(number, &piece);
                    if self.stream {
                        self.send(parts, out);
                    }
                }
                None if self.stream && !piece.text.is_empty() => {
                    push(out, &self.line(piece.text.clone()));
                }
                None => self.plain.push_str(&piece.text),
            },
            Happened::Ended(made) => {
                let end = self.tally.end(number, *made)?;
                let parts = self.replies.as_mut().map(|replies| replies.end(number, end));
                if self.stream {
                    self.send(parts.unwrap_or_default(), out);
                }
                self.is_over = true;
                let last = self.last(end);
                push(out, &last);
            }
            _ => {}
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.is_over
    }

    /// A keep-alive line: an empty piece, as clients parse every line as JSON.
    fn alive(&mut self, out: &mut String) {
        push(out, &self.line(String::new()));
    }

    fn fail(&mut self, failure: &Failure, out: &mut String) {
        push(out, &failure.ollama());
    }
}
