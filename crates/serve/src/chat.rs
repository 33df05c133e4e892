//! `/v1/chat/completions`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use sws::{BatchRequest, Cancel, End};
use sws_text::{ChatOptions, Json, Position, ReplyPart, ToolCall};

use crate::app::App;
use crate::certified::certified;
use crate::failure::Failure;
use crate::fields::{Fields, Many, RANKS, SamplingFields, parse};
use crate::known::check_names;
use crate::messages::{RequestMessage, prompt, render, turns};
use crate::names::names;
use crate::prepared::Prepared;
use crate::queue::{Happened, check_bytes, text_bytes};
use crate::replies::Replies;
use crate::reply::AnswerWriter;
use crate::served::Served;
use crate::sse::{comment, event};
use crate::structured::{self, StructuredFields};
use crate::tally::{AnswerHead, TextTally, chat_logprob, finish_reason};
use crate::tools::{self, OfferedTools, ToolChoice};

/// The fields of a chat.
#[derive(Debug, Deserialize)]
struct ChatRequest {
    messages: Many<RequestMessage>,
    #[serde(default)]
    logprobs: Option<bool>,
    #[serde(default)]
    top_logprobs: Option<u64>,
    #[serde(default)]
    tools: Option<Vec<Json>>,
    /// Tools and tool choice in the spelling of older clients.
    #[serde(default)]
    functions: Option<Vec<Json>>,
    #[serde(default)]
    function_call: Option<ToolChoice>,
    #[serde(default)]
    tool_choice: Option<ToolChoice>,
    #[serde(default)]
    parallel_tool_calls: Option<bool>,
    #[serde(default)]
    modalities: Option<Vec<String>>,
    #[serde(default)]
    reasoning_effort: Option<String>,
    #[serde(default)]
    chat_template_kwargs: Option<BTreeMap<String, Json>>,
    #[serde(default)]
    add_generation_prompt: Option<bool>,
    #[serde(default)]
    continue_final_message: Option<bool>,
    #[serde(default)]
    return_progress: Option<bool>,
}

impl ChatRequest {
    /// Refuses fields that are known but not supported.
    fn check(&self) -> Result<(), Failure> {
        if self.has_functions() && self.tools.is_some() {
            let message = "functions and tools are the same; leave out functions";
            return Err(Failure::field("functions", message));
        }
        let mut modalities = self.modalities.iter().flatten();
        if modalities.any(|modality| modality != "text") {
            return Err(Failure::unsupported("modalities", "only text is supported"));
        }
        if self.continue_final_message == Some(true) {
            let message = "continuing the last message is not supported";
            return Err(Failure::unsupported("continue_final_message", message));
        }
        Ok(())
    }

    /// True if the request uses the older functions instead of tools. The answer does the same.
    fn has_functions(&self) -> bool {
        self.functions.as_ref().is_some_and(|functions| !functions.is_empty())
    }

    /// The tools that are shown to the model.
    fn offered(&mut self, app: &App, served: &Served) -> Result<OfferedTools, Failure> {
        if !self.has_functions() {
            return tools::offered(app, served, self.tools.take(), self.tool_choice.as_ref());
        }
        let functions = self.functions.take().unwrap_or_default();
        let tools = functions.into_iter().map(tools::of_function).collect();
        tools::offered(app, served, Some(tools), self.function_call.as_ref())
    }

    /// Options of the chat template.
    fn options(&mut self, tools: Option<Json>) -> Result<ChatOptions, Failure> {
        let mut variables: Vec<(String, Json)> = Vec::new();
        for (name, value) in self.chat_template_kwargs.take().unwrap_or_default() {
            if matches!(name.as_str(), "messages" | "tools" | "documents" | "add_generation_prompt")
            {
                let message = format!("`{name}` cannot be set in chat_template_kwargs");
                return Err(Failure::field("chat_template_kwargs", message));
            }
            variables.push((name, value));
        }
        if let Some(effort) = self.reasoning_effort.take() {
            variables.push(("reasoning_effort".to_owned(), Json::from(effort)));
        }
        let add_generation_prompt = self.add_generation_prompt.unwrap_or(true);
        Ok(ChatOptions { add_generation_prompt, tools, variables, ..ChatOptions::default() })
    }
}

/// The request fields of this interface, without those that all interfaces share.
pub(crate) fn fields() -> Vec<&'static [&'static str]> {
    vec![names::<ChatRequest>(), names::<StructuredFields>()]
}

/// The fields of a chat that is only rendered.
pub(crate) fn rendered_fields() -> Vec<&'static [&'static str]> {
    vec![names::<ChatRequest>()]
}

/// The texts that answer a chat, and the parts of the answer.
pub(crate) struct ChatTexts {
    pub(crate) texts: Vec<BatchRequest>,
    pub(crate) cancel: Cancel,
    pub(crate) tally: TextTally,
    pub(crate) replies: Replies,
    pub(crate) sampling: SamplingFields,
    has_ranks: bool,
    progress: bool,
    calls: CallKey,
}

impl ChatTexts {
    /// The texts for a request in OpenAI's form.
    pub(crate) fn of(app: &App, served: &Arc<Served>, body: &[u8]) -> Result<ChatTexts, Failure> {
        check_names(app, body, &fields())?;
        let sampling = parse::<Fields>(body)?.of_a_conversation(app, served)?;
        let mut chat: ChatRequest = parse(body)?;
        chat.check()?;
        let ranks = ranks(chat.logprobs, chat.top_logprobs)?;
        let has_functions = chat.has_functions();
        let OfferedTools { tools, must, call } = chat.offered(app, served)?;
        let options = chat.options(tools)?;
        let turns = turns(std::mem::take(&mut chat.messages.0))?;
        let mut request = prompt(app, served, &turns, options, must)?;
        request.one_call = has_functions || chat.parallel_tool_calls == Some(false);
        request.call = call;
        let format = parse::<StructuredFields>(body)?.output_format()?;
        let constraint =
            structured::of_an_answer(app, served, &sampling.generation, &request, format)?;
        let replies = Replies::new(app, served, &request, sampling.n);
        let tally = TextTally::new(request.tokens.len(), 1, sampling.n);
        let cancel = Cancel::new();
        let text = BatchRequest {
            tokens: request.tokens.clone(),
            generation: sampling.generation(0),
            position: Position::Start,
            bias: sampling.bias.clone(),
            constraint: constraint.clone(),
            ranks,
            prompt_ranks: false,
            pooling: None,
            witness: None,
            short_lived: false,
            owner: 0,
            cancel: cancel.clone(),
        };
        if sampling.n > 1 {
            check_bytes((sampling.n + 1) * text_bytes(&text), &app.config.limits)?;
        }
        let mut texts = Vec::with_capacity(sampling.n);
        for number in 0..sampling.n {
            texts.push(BatchRequest { generation: sampling.generation(number), ..text.clone() });
        }
        let certified = certified(app, served, &sampling, &mut texts)?;
        let tally = tally.with(certified);
        let has_ranks = ranks.is_some();
        let progress = chat.return_progress.unwrap_or(false);
        let calls = if has_functions { CallKey::Function } else { CallKey::Tools };
        Ok(ChatTexts { texts, cancel, tally, replies, sampling, has_ranks, progress, calls })
    }
}

/// Prepares a chat.
pub(crate) fn prepare(app: &App, served: &Arc<Served>, body: &[u8]) -> Result<Prepared, Failure> {
    let ChatTexts { texts, cancel, tally, replies, sampling, has_ranks, progress, calls } =
        ChatTexts::of(app, served, body)?;
    let answer = ChatAnswer {
        head: AnswerHead::new(app, served, "chatcmpl-"),
        served: Arc::clone(served),
        tally,
        replies,
        logprobs: vec![Vec::new(); sampling.n],
        has_ranks,
        stream: sampling.stream,
        usage: sampling.usage,
        progress,
        calls,
        is_over: false,
    };
    Ok(Prepared { texts, cancel, answer: Box::new(answer), stream: sampling.stream })
}

/// Renders a chat without answering it.
pub(crate) fn rendered(app: &App, served: &Arc<Served>, body: &[u8]) -> Result<Value, Failure> {
    let mut chat: ChatRequest = parse(body)?;
    chat.check()?;
    let tools = chat.offered(app, served)?.tools;
    let options = chat.options(tools)?;
    let turns = turns(std::mem::take(&mut chat.messages.0))?;
    Ok(json!({"prompt": render(app, served, &turns, options)?.text()}))
}

/// Number of most likely tokens reported beside each token.
fn ranks(logprobs: Option<bool>, top: Option<u64>) -> Result<Option<usize>, Failure> {
    match (logprobs.unwrap_or(false), top) {
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => {
            Err(Failure::field("top_logprobs", "top_logprobs needs logprobs to be true"))
        }
        (true, top) => match top.unwrap_or(0) {
            top @ 0..=RANKS => Ok(Some(top as usize)),
            top => {
                let message = format!("top_logprobs is {top}, and must be at most {RANKS}");
                Err(Failure::field("top_logprobs", message))
            }
        },
    }
}

/// The answer to a chat.
struct ChatAnswer {
    head: AnswerHead,
    served: Arc<Served>,
    tally: TextTally,
    replies: Replies,
    /// Log probabilities of each text that were not sent yet.
    logprobs: Vec<Vec<Value>>,
    has_ranks: bool,
    stream: bool,
    usage: bool,
    progress: bool,
    calls: CallKey,
    is_over: bool,
}

/// The names for tool calls in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallKey {
    /// `tool_calls`, a list.
    Tools,
    /// `function_call`, a single call, for older clients.
    Function,
}

impl ChatAnswer {
    fn chunk(&self, choices: Vec<Value>) -> Value {
        let mut chunk = self.head.object("chat.completion.chunk", choices);
        if self.usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    /// Takes the log probabilities that were not sent yet.
    fn logprobs(&mut self, number: usize) -> Value {
        match self.has_ranks {
            true => json!({"content": std::mem::take(&mut self.logprobs[number])}),
            false => Value::Null,
        }
    }

    fn whole(&mut self) -> Value {
        let ends: Vec<_> = self.tally.made().map(|made| made.made.end).collect();
        let mut choices = Vec::with_capacity(ends.len());
        for (number, end) in ends.into_iter().enumerate() {
            choices.push(json!({
                "index": number,
                "message": message(self.replies.parts(number), self.calls),
                "logprobs": self.logprobs(number),
                "finish_reason": self.reason(number, end),
            }));
        }
        let mut whole = self.head.object("chat.completion", choices);
        whole["usage"] = self.tally.usage();
        self.tally.add_costs(&mut whole);
        whole
    }

    /// The reason why a text ended.
    fn reason(&self, number: usize, end: End) -> &'static str {
        match finish_reason(end) {
            "stop" if self.replies.calls(number) > 0 => match self.calls {
                CallKey::Tools => "tool_calls",
                CallKey::Function => "function_call",
            },
            reason => reason,
        }
    }

    /// Sends parts of a text.
    fn send(&mut self, number: usize, parts: Vec<ReplyPart>, out: &mut String) {
        let mut calls = self.replies.calls(number);
        calls -= parts.iter().filter(|part| matches!(part, ReplyPart::Call(_))).count();
        for part in parts {
            let part = match part {
                ReplyPart::Reasoning(text) => json!({"reasoning_content": text}),
                ReplyPart::Text(text) => json!({"content": text}),
                ReplyPart::Call(call) if self.calls == CallKey::Function => {
                    json!({"function_call": function(&call)["function"]})
                }
                ReplyPart::Call(call) => {
                    let mut call = function(&call);
                    call["index"] = calls.into();
                    calls += 1;
                    json!({"tool_calls": [call]})
                }
            };
            let logprobs = self.logprobs(number);
            event(out, &self.chunk(vec![delta(number, part, logprobs, None)]));
        }
    }

    /// The last events of a stream.
    fn last(&self, out: &mut String) {
        if self.usage || self.tally.is_certified() {
            let mut last = self.head.object("chat.completion.chunk", Vec::new());
            last["usage"] = self.tally.usage();
            self.tally.add_costs(&mut last);
            event(out, &last);
        }
        out.push_str("data: [DONE]\n\n");
    }
}

/// A message with all parts of a text.
fn message(parts: &[ReplyPart], key: CallKey) -> Value {
    let mut text = String::new();
    let mut reasoning = String::new();
    let mut calls = Vec::new();
    for part in parts {
        match part {
            ReplyPart::Reasoning(more) => reasoning.push_str(more),
            ReplyPart::Text(more) => text.push_str(more),
            ReplyPart::Call(call) => calls.push(function(call)),
        }
    }
    let mut message = json!({"role": "assistant", "content": text, "refusal": null});
    if !reasoning.is_empty() {
        message["reasoning_content"] = reasoning.into();
    }
    if !calls.is_empty() {
        if text.is_empty() {
            message["content"] = Value::Null;
        }
        match key {
            CallKey::Tools => message["tool_calls"] = calls.into(),
            CallKey::Function => message["function_call"] = calls[0]["function"].take(),
        }
    }
    message
}

fn function(call: &ToolCall) -> Value {
    let function = json!({"name": call.name, "arguments": call.arguments});
    json!({"id": call.id, "type": "function", "function": function})
}

/// A part of a text in a stream.
fn delta(number: usize, delta: Value, logprobs: Value, reason: Option<&str>) -> Value {
    json!({"index": number, "delta": delta, "logprobs": logprobs, "finish_reason": reason})
}

impl AnswerWriter for ChatAnswer {
    fn begin(&mut self, out: &mut String) {
        for number in 0..self.logprobs.len() {
            let role = json!({"role": "assistant", "content": ""});
            event(out, &self.chunk(vec![delta(number, role, Value::Null, None)]));
        }
    }

    fn take(&mut self, number: usize, happened: Happened, out: &mut String) -> Result<(), Failure> {
        match happened {
            Happened::Known(known) => self.tally.know(number, known),
            Happened::Prompt(progress) if self.stream => {
                let done = progress.done;
                let total = progress.total;
                if self.progress {
                    let mut chunk = self.chunk(vec![delta(number, json!({}), Value::Null, None)]);
                    chunk["prompt_progress"] =
                        json!({"total": total, "cache": self.tally.known(), "processed": done});
                    event(out, &chunk);
                } else if done < total {
                    comment(out, &format!("prompt {done}/{total}"));
                }
            }
            Happened::Piece(piece, rank) => {
                if let Some(rank) = rank {
                    self.logprobs[number].push(chat_logprob(&self.served, &rank));
                }
                let mut parts = self.replies.take(number, &piece);
                if self.stream {
                    if parts.is_empty() && !self.logprobs[number].is_empty() {
                        parts.push(ReplyPart::Text(String::new()));
                    }
                    self.send(number, parts, out);
                }
            }
            Happened::Ended(made) => {
                let end = self.tally.end(number, *made)?;
                let parts = self.replies.end(number, end);
                self.tally.reasoning = self.replies.reasoning();
                if self.stream {
                    self.send(number, parts, out);
                    let reason = Some(self.reason(number, end));
                    event(out, &self.chunk(vec![delta(number, json!({}), Value::Null, reason)]));
                }
                if self.tally.is_complete() {
                    self.is_over = true;
                    match self.stream {
                        true => self.last(out),
                        false => out.push_str(&self.whole().to_string()),
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_asked_for_in_both_fields() {
        assert_eq!(ranks(None, None).unwrap(), None);
        assert_eq!(ranks(Some(true), None).unwrap(), Some(0));
        assert_eq!(ranks(Some(true), Some(20)).unwrap(), Some(20));
        assert!(ranks(Some(true), Some(21)).is_err());
        assert!(ranks(None, Some(1)).is_err());
    }
}
