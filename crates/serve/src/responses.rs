//! `/v1/responses`: each request has the whole conversation, or continues a kept response.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use sws::{BatchRequest, Cancel};
use sws_text::{ChatOptions, Json, Position};

use crate::app::App;
use crate::failure::{Failure, shortened};
use crate::fields::{Fields, Nothing, OneOrMany, entries, parse};
use crate::items::{Echoed, ResponsesAnswer};
use crate::known::check_names;
use crate::messages::{ContentPart, PromptRequest, RequestMessage, joined, prompt};
use crate::names::names;
use crate::prepared::Prepared;
use crate::served::Served;
use crate::structured;
use crate::tools::{self, OfferedTools, ToolChoice};
use crate::turn::ChatTurn;

/// Maximum number of characters of an id in a message.
const NAME: usize = 64;
/// Maximum number of entries of a request's metadata, and of characters of a name and a value.
const METADATA: [usize; 3] = [16, 64, 512];

/// The fields of a request.
#[derive(Debug, Deserialize)]
struct ResponsesRequest {
    input: InputItems,
    #[serde(default)]
    instructions: Option<String>,
    #[serde(default)]
    max_output_tokens: Option<i64>,
    #[serde(default)]
    previous_response_id: Option<String>,
    #[serde(default)]
    store: Option<bool>,
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
    /// Id of an item of a kept response, for references to it.
    id: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
    role: Option<String>,
    content: Option<OneOrMany<ContentPart>>,
    /// Id of a tool call, for calls and their results.
    call_id: Option<String>,
    name: Option<String>,
    arguments: Option<Json>,
    output: Option<OneOrMany<ContentPart>>,
    /// Input of a tool call without a schema.
    input: Option<String>,
    /// Tools shown in addition to those of the request.
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
    /// Refuses fields that are known but not supported.
    fn check(&self, app: &App) -> Result<(), Failure> {
        if self.background == Some(true) {
            return Err(Failure::unsupported(
                "background",
                "requests in the background are not supported; stream the answer",
            ));
        }
        let include = self.include.as_deref().unwrap_or_default();
        if include.iter().any(|what| what == "message.output_text.logprobs") {
            let message = "probabilities are not part of responses; ask /v1/chat/completions";
            return Err(Failure::unsupported("include", message));
        }
        // The requested additions are never part of an answer.
        if !include.is_empty() {
            app.ignored("include");
        }
        let [entries, name, value] = METADATA;
        let mut count = 0;
        let mut is_long = false;
        for (key, text) in self.metadata.iter().flatten() {
            count += 1;
            is_long |= key.chars().count() > name || text.chars().count() > value;
        }
        if count > entries || is_long {
            let message = format!(
                "metadata has at most {entries} entries, with {name} characters in a name and {value} in a value"
            );
            return Err(Failure::field("metadata", message));
        }
        Ok(())
    }

    /// The fields that the answer repeats.
    fn echoed(&self, app: &App) -> Echoed {
        Echoed {
            metadata: self.metadata.clone().unwrap_or_default(),
            temperature: self.temperature,
            top_p: self.top_p,
            max_output_tokens: self.max_output_tokens,
            parallel_tool_calls: self.parallel_tool_calls.unwrap_or(true),
            previous: self.previous_response_id.clone(),
            is_kept: app.kept.is_on() && self.store != Some(false),
        }
    }

    /// The messages of the conversation.
    fn take_turns(&mut self, app: &App, owner: u64) -> Result<Vec<ChatTurn>, Failure> {
        let mut messages = match &self.previous_response_id {
            Some(id) => earlier(app, owner, id)?,
            None => Vec::new(),
        };
        if let Some(text) = self.instructions.take() {
            // System messages of earlier responses do not apply any more.
            messages.retain(|message| !message.is_system());
            messages.insert(0, ChatTurn::text("system", text));
        }
        for item in std::mem::take(&mut self.input.0) {
            match item.kind.as_deref() {
                Some("item_reference") => referred(app, owner, item)?.add_to(&mut messages)?,
                _ => item.add_to(&mut messages)?,
            }
        }
        Ok(messages)
    }

    /// The conversation in the form that the model gets.
    fn prompt_request(
        mut self,
        app: &App,
        served: &Served,
        owner: u64,
    ) -> Result<(PromptRequest, Vec<ChatTurn>), Failure> {
        let mut more: Vec<Json> = Vec::new();
        for item in &mut self.input.0 {
            more.extend(item.tools.take().into_iter().flatten());
        }
        if !more.is_empty() {
            self.tools.get_or_insert_default().extend(more);
        }
        let messages = self.take_turns(app, owner)?;
        let OfferedTools { tools, must, call } =
            tools::offered(app, served, self.tools, self.tool_choice.as_ref())?;
        let effort = self.reasoning.and_then(|reasoning| reasoning.effort);
        let variable = |effort: String| ("reasoning_effort".to_owned(), Json::from(effort));
        let options = ChatOptions {
            add_generation_prompt: true,
            tools,
            variables: effort.map(variable).into_iter().collect(),
            ..ChatOptions::default()
        };
        let one_call = self.parallel_tool_calls == Some(false);
        let prompt = prompt(app, served, &messages, options, must)?;
        Ok((PromptRequest { one_call, call, ..prompt }, messages))
    }
}

/// The messages of a kept response, including its answer.
fn earlier(app: &App, owner: u64, id: &str) -> Result<Vec<ChatTurn>, Failure> {
    let field = "previous_response_id";
    let Some(kept) = app.kept.get(owner, id) else { return Err(not_kept(app, field, id)) };
    let mut messages = kept.turns;
    for item in kept.response["output"].as_array().into_iter().flatten() {
        item_of(item)?.add_to(&mut messages)?;
    }
    Ok(messages)
}

/// The item of a kept response that a reference points to.
fn referred(app: &App, owner: u64, item: Item) -> Result<Item, Failure> {
    let id = item.id.unwrap_or_default();
    match app.kept.item(owner, &id) {
        Some(kept) => item_of(&kept),
        None => Err(not_kept(app, "input", &id)),
    }
}

/// Converts an item of a response to one of a conversation.
fn item_of(kept: &Value) -> Result<Item, Failure> {
    Item::deserialize(kept).map_err(|error| Failure::server(error.to_string()))
}

/// Refuses the id of something that is not kept.
fn not_kept(app: &App, field: &str, id: &str) -> Failure {
    let id = shortened(id, NAME);
    let message = match app.kept.is_on() {
        true => format!("`{id}` is not kept, or no longer; send the whole conversation as input"),
        false => format!(
            "`{id}` is not kept; send the whole conversation as input, or start the server with --keep-responses SIZE"
        ),
    };
    Failure::unsupported(field, message)
}

impl Item {
    /// Adds the item to the messages. Tool calls and reasoning of an answer are items of their own.
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

/// The answer at the end of the messages, or a new one.
fn answer(messages: &mut Vec<ChatTurn>) -> &mut ChatTurn {
    if !messages.last().is_some_and(ChatTurn::is_answer) {
        messages.push(ChatTurn::text("assistant", String::new()));
    }
    let last = messages.len() - 1;
    &mut messages[last]
}

/// Counts the tokens of a request's conversation.
pub(crate) fn count(
    app: &App,
    served: &Arc<Served>,
    owner: u64,
    body: &[u8],
) -> Result<Value, Failure> {
    let request: ResponsesRequest = parse(body)?;
    let (request, _) = request.prompt_request(app, served, owner)?;
    Ok(json!({"object": "response.input_tokens", "input_tokens": request.tokens.len()}))
}

/// Returns a kept response.
pub(crate) fn kept(app: &App, owner: u64, id: &str) -> Result<Value, Failure> {
    let kept = app.kept.get(owner, id);
    match kept {
        Some(kept) => Ok(kept.response),
        None => Err(no_response(app, id)),
    }
}

/// Deletes a kept response.
pub(crate) fn delete(app: &App, owner: u64, id: &str) -> Result<Value, Failure> {
    match app.kept.remove(owner, id) {
        true => Ok(json!({"id": id, "object": "response", "deleted": true})),
        false => Err(no_response(app, id)),
    }
}

fn no_response(app: &App, id: &str) -> Failure {
    let Failure { message, .. } = not_kept(app, "id", id);
    Failure::not_found(message)
}

/// The request fields of this interface, without those that all interfaces share.
pub(crate) fn fields() -> Vec<&'static [&'static str]> {
    vec![names::<ResponsesRequest>()]
}

/// Prepares a response.
pub(crate) fn prepare(
    app: &App,
    served: &Arc<Served>,
    owner: u64,
    body: &[u8],
) -> Result<Prepared, Failure> {
    check_names(app, body, &fields())?;
    let request: ResponsesRequest = parse(body)?;
    let fields = parse::<Fields>(body)?.limited("max_output_tokens", request.max_output_tokens);
    let sampling = fields.of_a_conversation(app, served)?.of_one_text()?;
    request.check(app)?;
    let echoed = request.echoed(app);
    let format = request.text.as_ref().and_then(|text| text.format.as_deref());
    let format =
        format.map(|format| structured::format(format, "text", false)).transpose()?.flatten();
    let (request, turns) = request.prompt_request(app, served, owner)?;
    let constraint = structured::of_an_answer(app, served, &sampling.generation, &request, format)?;
    let answer = ResponsesAnswer::new(app, served, &request, echoed, sampling.stream);
    let answer = if answer.is_kept() { answer.kept_with(&app.kept, owner, turns) } else { answer };
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
