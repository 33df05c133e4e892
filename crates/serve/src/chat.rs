//! `/v1/chat/completions`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use sws::{Cancel, Continuation};
use sws_model::text::{ChatOptions, Json, Position};

use crate::app::{App, Served};
use crate::failure::Failure;
use crate::fields::{Fields, Many, Nothing, RANKS, parse};
use crate::known::check_names;
use crate::messages::{Message, prompt, render, told};
use crate::prepared::Prepared;
use crate::queue::Happened;
use crate::reply::Answer;
use crate::tally::{Head, Tally, chat_logprob, comment, event, finish_reason};

/// The fields of a chat.
#[derive(Debug, Deserialize)]
struct Chat {
    messages: Many<Message>,
    #[serde(default)]
    logprobs: Option<bool>,
    #[serde(default)]
    top_logprobs: Option<u64>,
    #[serde(default)]
    tools: Option<Vec<Nothing>>,
    #[serde(default)]
    functions: Option<Vec<Nothing>>,
    #[serde(default)]
    tool_choice: Option<Value>,
    #[serde(default)]
    response_format: Option<Format>,
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

/// Fields of [`Chat`].
const KNOWN: &[&str] = &[
    "messages",
    "logprobs",
    "top_logprobs",
    "tools",
    "functions",
    "tool_choice",
    "response_format",
    "modalities",
    "reasoning_effort",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
    "return_progress",
];

#[derive(Debug, Deserialize)]
struct Format {
    #[serde(rename = "type")]
    kind: String,
}

impl Chat {
    /// Refuses what is known and not supported.
    fn check(&self) -> Result<(), Failure> {
        let none = self.tool_choice.as_ref().is_some_and(|choice| choice == "none");
        let tools = self.tools.iter().chain(&self.functions).any(|tools| !tools.is_empty());
        if tools && !none {
            return Err(Failure::unsupported("tools", "calls of tools are not supported yet"));
        }
        if let Some(format) = self.response_format.as_ref().filter(|format| format.kind != "text") {
            let kind: String = format.kind.chars().take(40).collect();
            let message = format!("the format `{kind}` is not supported yet; only text is");
            return Err(Failure::unsupported("response_format", message));
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

    /// Variables of the template.
    fn options(&mut self) -> Result<ChatOptions, Failure> {
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
        Ok(ChatOptions { add_generation_prompt, variables, ..ChatOptions::default() })
    }
}

/// Prepares a chat.
pub(crate) fn prepare(app: &App, served: &Arc<Served>, body: &[u8]) -> Result<Prepared, Failure> {
    check_names(app, body, KNOWN)?;
    let ways = parse::<Fields>(body)?.ways(app, served, None)?;
    let mut chat: Chat = parse(body)?;
    chat.check()?;
    let ranks = ranks(chat.logprobs, chat.top_logprobs)?;
    let options = chat.options()?;
    let told = told(std::mem::take(&mut chat.messages.0))?;
    let tokens = prompt(app, served, &told, options)?;
    let progress = chat.return_progress.unwrap_or(false);
    let answer = ChatAnswer {
        head: Head::new(app, served, "chatcmpl"),
        served: Arc::clone(served),
        tally: Tally::new(tokens.len(), 1, ways.n),
        logprobs: vec![Vec::new(); ways.n],
        has_ranks: ranks.is_some(),
        stream: ways.stream,
        usage: ways.usage,
        progress,
        is_over: false,
    };
    let cancel = Cancel::new();
    let text = |number| Continuation {
        tokens: tokens.clone(),
        generation: ways.generation(number),
        position: Position::Start,
        bias: ways.bias.clone(),
        ranks,
        prompt_ranks: false,
        owner: 0,
        cancel: cancel.clone(),
    };
    let texts = (0..ways.n).map(text).collect();
    Ok(Prepared { texts, cancel, answer: Box::new(answer), stream: ways.stream })
}

/// Renders a chat without answering it.
pub(crate) fn rendered(app: &App, served: &Arc<Served>, body: &[u8]) -> Result<Value, Failure> {
    let mut chat: Chat = parse(body)?;
    chat.check()?;
    let options = chat.options()?;
    let told = told(std::mem::take(&mut chat.messages.0))?;
    Ok(json!({"prompt": render(app, served, &told, options)?}))
}

/// Number of likeliest tokens beside each token.
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
    head: Head,
    served: Arc<Served>,
    tally: Tally,
    /// Of the tokens of each text that are not sent yet.
    logprobs: Vec<Vec<Value>>,
    has_ranks: bool,
    stream: bool,
    usage: bool,
    progress: bool,
    is_over: bool,
}

impl ChatAnswer {
    fn chunk(&self, choices: Vec<Value>) -> Value {
        let mut chunk = self.head.object("chat.completion.chunk", choices);
        if self.usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    /// The probabilities of tokens that are not sent yet.
    fn logprobs(&mut self, number: usize) -> Value {
        match self.has_ranks {
            true => json!({"content": std::mem::take(&mut self.logprobs[number])}),
            false => Value::Null,
        }
    }

    fn whole(&mut self) -> Value {
        let ends: Vec<_> =
            self.tally.made().map(|made| (made.made.text.clone(), made.made.end)).collect();
        let choices = ends.into_iter().enumerate().map(|(number, (text, end))| {
            json!({
                "index": number,
                "message": {"role": "assistant", "content": text, "refusal": null},
                "logprobs": self.logprobs(number),
                "finish_reason": finish_reason(end),
            })
        });
        let choices = choices.collect();
        let mut whole = self.head.object("chat.completion", choices);
        whole["usage"] = self.tally.usage();
        whole["timings"] = self.tally.timings();
        whole
    }

    /// The last events of a stream.
    fn last(&self, out: &mut String) {
        if self.usage {
            let mut last = self.head.object("chat.completion.chunk", Vec::new());
            last["usage"] = self.tally.usage();
            last["timings"] = self.tally.timings();
            event(out, &last);
        }
        out.push_str("data: [DONE]\n\n");
    }
}

/// A part of a text in a stream.
fn delta(number: usize, delta: Value, logprobs: Value, reason: Option<&str>) -> Value {
    json!({"index": number, "delta": delta, "logprobs": logprobs, "finish_reason": reason})
}

impl Answer for ChatAnswer {
    fn begin(&mut self, out: &mut String) {
        for number in 0..self.logprobs.len() {
            let role = json!({"role": "assistant", "content": ""});
            event(out, &self.chunk(vec![delta(number, role, Value::Null, None)]));
        }
    }

    fn take(&mut self, number: usize, happened: Happened, out: &mut String) -> Result<(), Failure> {
        match happened {
            Happened::Began(known) => self.tally.begin(number, known),
            Happened::Prompt(progress) if self.stream => {
                let (done, total) = (progress.done, progress.total);
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
                if self.stream && !(piece.text.is_empty() && self.logprobs[number].is_empty()) {
                    let logprobs = self.logprobs(number);
                    let part = delta(number, json!({"content": piece.text}), logprobs, None);
                    event(out, &self.chunk(vec![part]));
                }
            }
            Happened::Ended(made) => {
                let end = self.tally.end(number, made)?;
                if self.stream {
                    let reason = Some(finish_reason(end));
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

    fn alive(&mut self, out: &mut String) {
        if self.stream { comment(out, "keep-alive") } else { out.push('\n') }
    }

    fn fail(&mut self, failure: &Failure, out: &mut String) {
        match self.stream {
            true => event(out, &failure.json()),
            false => out.push_str(&failure.json().to_string()),
        }
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
