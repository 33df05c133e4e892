//! `/v1/responses`, without state: each request has the whole conversation.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde_json::value::RawValue;
use sws::{BatchRequest, Cancel};
use sws_text::{ChatOptions, Json, Position};

use crate::app::{App, Served};
use crate::failure::Failure;
use crate::fields::{Fields, Nothing, OneOrMany, entries, parse};
use crate::items::{Echoed, ResponsesAnswer};
use crate::known::check_names;
use crate::messages::{ChatTurn, ContentPart, PromptRequest, RequestMessage, joined, prompt};
use crate::names::names;
use crate::prepared::Prepared;
use crate::structured;
use crate::tools::{self, OfferedTools, ToolChoice};

/// Maximum number of entries of a request's metadata, and of characters of a name and a value.
const METADATA: [usize; 3] = [16, 64, 512];

/// The fields of a request.
#[derive(Debug, Deserialize)]
struct ResponsesRequest {
    input: InputItems,
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
    tools: Option<Vec<Json>>,
    #[serde(default)]
    tool_choice: Option<ToolChoice>,
    #[serde(default)]
    parallel_tool_calls: Option<bool>,
    #[serde(default)]
    include: Option<Vec<String>>,
    #[serde(default)]
    metadata: Option<BTreeMap<String, String>>,
    #[serde(default)]
    temperature: Option<f64>,
    #[serde(default)]
    top_p: Option<f64>,
}

#[derive(Debug, Deserialize)]
struct Reasoning {
    #[serde(default)]
    effort: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct TextOptions {
    format: Option<Box<RawValue>>,
    #[serde(rename = "verbosity")]
    _verbosity: Nothing,
}

/// The conversation.
#[derive(Debug)]
struct InputItems(Vec<Item>);

/// An entry of a conversation: a message, unless its type says otherwise.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Item {
    #[serde(rename = "type")]
    kind: Option<String>,
    role: Option<String>,
    content: Option<OneOrMany<ContentPart>>,
    /// Of calls and their results.
    call_id: Option<String>,
    name: Option<String>,
    arguments: Option<Json>,
    output: Option<OneOrMany<ContentPart>>,
    /// Of a tool call without a schema.
    input: Option<String>,
    /// Tools that are shown beside those of the request.
    tools: Option<Vec<Json>>,
}

impl<'de> Deserialize<'de> for InputItems {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<InputItems, D::Error> {
        struct InputVisitor;

        impl<'de> Visitor<'de> for InputVisitor {
            type Value = InputItems;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a list of items")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<InputItems, E> {
                let content = Some(OneOrMany(vec![text.to_owned().into()]));
                let role = Some("user".to_owned());
                Ok(InputItems(vec![Item { role, content, ..Item::default() }]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<InputItems, A::Error> {
                Ok(InputItems(entries(list)?))
            }
        }

        deserializer.deserialize_any(InputVisitor)
    }
}

impl ResponsesRequest {
    /// Refuses what is known and not supported.
    fn check(&self, app: &App) -> Result<(), Failure> {
        if self.previous_response_id.is_some() {
            let message = "responses are not kept; send the whole conversation as input";
            return Err(Failure::unsupported("previous_response_id", message));
        }
        if self.background == Some(true) {
            return Err(Failure::unsupported("background", "responses are not kept"));
        }
        let include = self.include.as_deref().unwrap_or_default();
        if include.iter().any(|what| what == "message.output_text.logprobs") {
            let message = "probabilities are not part of responses; ask /v1/chat/completions";
            return Err(Failure::unsupported("include", message));
        }
        // Nothing else that can be asked for is in an answer.
        if !include.is_empty() {
            app.ignored("include");
        }
        let [entries, name, value] = METADATA;
        let metadata = self.metadata.iter().flatten();
        let is_long = |(key, text): (&String, &String)| {
            key.chars().count() > name || text.chars().count() > value
        };
        if metadata.clone().count() > entries || metadata.clone().any(is_long) {
            let message = format!(
                "metadata has at most {entries} entries, with {name} characters in a name and {value} in a value"
            );
            return Err(Failure::field("metadata", message));
        }
        Ok(())
    }

    /// What the answer repeats.
    fn echoed(&self) -> Echoed {
        Echoed {
            metadata: self.metadata.clone().unwrap_or_default(),
            temperature: self.temperature,
            top_p: self.top_p,
            max_output_tokens: self.max_output_tokens,
            parallel_tool_calls: self.parallel_tool_calls.unwrap_or(true),
        }
    }

    /// The conversation as the model gets it.
    fn prompt_request(mut self, app: &App, served: &Served) -> Result<PromptRequest, Failure> {
        let more = self.input.0.iter_mut().filter_map(|item| item.tools.take());
        let more: Vec<Json> = more.flatten().collect();
        if !more.is_empty() {
            self.tools.get_or_insert_default().extend(more);
        }
        let OfferedTools { tools, must, call } =
            tools::offered(app, served, self.tools, self.tool_choice.as_ref())?;
        let mut messages = Vec::new();
        messages.extend(self.instructions.map(|text| ChatTurn::text("system", text)));
        for item in self.input.0 {
            item.add_to(&mut messages)?;
        }
        let effort = self.reasoning.and_then(|reasoning| reasoning.effort);
        let variable = |effort: String| ("reasoning_effort".to_owned(), Json::from(effort));
        let options = ChatOptions {
            add_generation_prompt: true,
            tools,
            variables: effort.map(variable).into_iter().collect(),
            ..ChatOptions::default()
        };
        let one_call = self.parallel_tool_calls == Some(false);
        Ok(PromptRequest { one_call, call, ..prompt(app, served, &messages, options, must)? })
    }
}

impl Item {
    /// Adds the item to the messages. The calls and the reasoning of an answer are items of their own.
    fn add_to(self, messages: &mut Vec<ChatTurn>) -> Result<(), Failure> {
        let parts =
            |parts: Option<OneOrMany<ContentPart>>| joined(parts.map_or(Vec::new(), |p| p.0));
        match (self.kind.as_deref().unwrap_or("message"), self.role) {
            ("message", Some(role)) => {
                let turn = RequestMessage::new(role, self.content).into_turn()?;
                match messages.last_mut().filter(|last| last.is_begun() && turn.is_answer()) {
                    Some(last) => last.set_text(turn.into_text()),
                    None => messages.push(turn),
                }
            }
            ("reasoning", _) => {
                let reasoning = parts(self.content)?;
                if !reasoning.is_empty() {
                    answer(messages).add_reasoning(&reasoning);
                }
            }
            ("function_call", _) => {
                let arguments = self.arguments.unwrap_or_default();
                answer(messages).add_call(self.call_id, self.name.unwrap_or_default(), &arguments);
            }
            ("custom_tool_call", _) => {
                let arguments = Json::from_iter([("input", self.input.unwrap_or_default())]);
                answer(messages).add_call(self.call_id, self.name.unwrap_or_default(), &arguments);
            }
            ("additional_tools", _) => {}
            ("function_call_output" | "custom_tool_call_output", _) => {
                messages.push(ChatTurn::result(self.call_id, parts(self.output)?));
            }
            (kind, _) => {
                let kind: String = kind.chars().take(40).collect();
                let message = format!("an item of the type `{kind}` is not supported");
                return Err(Failure::unsupported("input", message));
            }
        }
        Ok(())
    }
}

/// The answer that the messages end with, or a new one.
fn answer(messages: &mut Vec<ChatTurn>) -> &mut ChatTurn {
    if !messages.last().is_some_and(ChatTurn::is_answer) {
        messages.push(ChatTurn::text("assistant", String::new()));
    }
    let last = messages.len() - 1;
    &mut messages[last]
}

/// The fields of a request, beside those of all interfaces.
pub(crate) fn fields() -> [&'static [&'static str]; 1] {
    [names::<ResponsesRequest>()]
}

/// Prepares a response.
pub(crate) fn prepare(app: &App, served: &Arc<Served>, body: &[u8]) -> Result<Prepared, Failure> {
    check_names(app, body, &fields())?;
    let sampling = parse::<Fields>(body)?.of_a_conversation(app, served)?;
    let mut sampling = sampling.of_one_text()?;
    let request: ResponsesRequest = parse(body)?;
    request.check(app)?;
    let echoed = request.echoed();
    let limits = [sampling.generation.max_new_tokens, request.max_output_tokens];
    sampling.generation.max_new_tokens = limits.into_iter().flatten().min();
    let format = request.text.as_ref().and_then(|text| text.format.as_deref());
    let format =
        format.map(|format| structured::format(format, "text", false)).transpose()?.flatten();
    let request = request.prompt_request(app, served)?;
    let constraint = structured::of_an_answer(app, served, &sampling.generation, &request, format)?;
    let answer = ResponsesAnswer::new(app, served, &request, echoed, sampling.stream);
    let cancel = Cancel::new();
    let text = BatchRequest {
        tokens: request.tokens,
        generation: sampling.generation(0),
        position: Position::Start,
        bias: sampling.bias,
        constraint,
        ranks: None,
        prompt_ranks: false,
        witness: None,
        short_lived: false,
        owner: 0,
        cancel: cancel.clone(),
    };
    Ok(Prepared { texts: vec![text], cancel, answer: Box::new(answer), stream: sampling.stream })
}
