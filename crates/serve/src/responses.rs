//! `/v1/responses`, without state: each request has the whole conversation.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde_json::value::RawValue;
use sws::{Cancel, Continuation};
use sws_model::text::{ChatOptions, Json, Position};

use crate::app::{App, Served};
use crate::failure::Failure;
use crate::fields::{Fields, Nothing, OneOrMany, entries, parse};
use crate::forms;
use crate::items::{Echoed, Written};
use crate::known::check_names;
use crate::messages::{Asked, Message, Part, Told, joined, prompt};
use crate::names::names;
use crate::prepared::Prepared;
use crate::tools::{self, Choice, Shown};

/// Maximum number of entries of a request's metadata, and of characters of a name and a value.
const METADATA: [usize; 3] = [16, 64, 512];

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
    tools: Option<Vec<Json>>,
    #[serde(default)]
    tool_choice: Option<Choice>,
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
struct Input(Vec<Item>);

/// An entry of a conversation: a message, unless its type says otherwise.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Item {
    #[serde(rename = "type")]
    kind: Option<String>,
    role: Option<String>,
    content: Option<OneOrMany<Part>>,
    /// Of calls and their results.
    call_id: Option<String>,
    name: Option<String>,
    arguments: Option<Json>,
    output: Option<OneOrMany<Part>>,
    /// Of a call of a tool without a schema.
    input: Option<String>,
    /// Tools that are shown beside those of the request.
    tools: Option<Vec<Json>>,
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
                let role = Some("user".to_owned());
                Ok(Input(vec![Item { role, content, ..Item::default() }]))
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
    fn asked(mut self, app: &App, served: &Served) -> Result<Asked, Failure> {
        let more = self.input.0.iter_mut().filter_map(|item| item.tools.take());
        let more: Vec<Json> = more.flatten().collect();
        if !more.is_empty() {
            self.tools.get_or_insert_default().extend(more);
        }
        let Shown { tools, must, call } =
            tools::shown(app, served, self.tools, self.tool_choice.as_ref())?;
        let mut messages = Vec::new();
        messages.extend(self.instructions.map(|text| Told::text("system", text)));
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
        Ok(Asked { one_call, call, ..prompt(app, served, &messages, options, must)? })
    }
}

impl Item {
    /// Adds the item to the messages. The calls and the thoughts of an answer are items of their own.
    fn add_to(self, messages: &mut Vec<Told>) -> Result<(), Failure> {
        let parts = |parts: Option<OneOrMany<Part>>| joined(parts.map_or(Vec::new(), |p| p.0));
        match (self.kind.as_deref().unwrap_or("message"), self.role) {
            ("message", Some(role)) => {
                let told = Message::new(role, self.content).told()?;
                match messages.last_mut().filter(|last| last.is_begun() && told.is_answer()) {
                    Some(last) => last.set_text(told.into_text()),
                    None => messages.push(told),
                }
            }
            ("reasoning", _) => {
                let thoughts = parts(self.content)?;
                if !thoughts.is_empty() {
                    answer(messages).add_thoughts(&thoughts);
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
                messages.push(Told::result(self.call_id, parts(self.output)?));
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
fn answer(messages: &mut Vec<Told>) -> &mut Told {
    if !messages.last().is_some_and(Told::is_answer) {
        messages.push(Told::text("assistant", String::new()));
    }
    let last = messages.len() - 1;
    &mut messages[last]
}

/// The fields of a request, beside those of all interfaces.
pub(crate) fn fields() -> [&'static [&'static str]; 1] {
    [names::<Request>()]
}

/// Prepares a response.
pub(crate) fn prepare(app: &App, served: &Arc<Served>, body: &[u8]) -> Result<Prepared, Failure> {
    check_names(app, body, &fields())?;
    let ways = parse::<Fields>(body)?.of_a_conversation(app, served)?;
    let mut ways = ways.of_one_text()?;
    let request: Request = parse(body)?;
    request.check(app)?;
    let echoed = request.echoed();
    let limits = [ways.generation.max_new_tokens, request.max_output_tokens];
    ways.generation.max_new_tokens = limits.into_iter().flatten().min();
    let format = request.text.as_ref().and_then(|text| text.format.as_deref());
    let wanted = format.map(|format| forms::format(format, "text", false)).transpose()?.flatten();
    let asked = request.asked(app, served)?;
    let constraint = forms::of_an_answer(app, served, &ways.generation, &asked, wanted)?;
    let answer = Written::new(app, served, &asked, echoed, ways.stream);
    let cancel = Cancel::new();
    let text = Continuation {
        tokens: asked.tokens,
        generation: ways.generation(0),
        position: Position::Start,
        bias: ways.bias,
        constraint,
        ranks: None,
        prompt_ranks: false,
        witness: None,
        passing: false,
        owner: 0,
        cancel: cancel.clone(),
    };
    Ok(Prepared { texts: vec![text], cancel, answer: Box::new(answer), stream: ways.stream })
}
