//! Conversion of a conversation to the prompt format that a model was trained on.
//!
//! Templates are Jinja, written for transformers: they use Python's methods and ways of printing,
//! its `tojson`, `raise_exception` and `strftime_now`. They are untrusted, so a rendering has a
//! limit of steps and one of memory (`bounds.rs`).

mod bounds;
mod formats;
mod prompt;
mod python;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};

use super::guard::caught_on_thread;
use bounds::Budget;
pub use prompt::ChatPrompt;

/// A JSON value that keeps the order of its keys, which templates print.
pub use minijinja::Value as Json;

/// Maximum size of a template; published ones have some 20 thousand bytes at most.
pub const MAX_TEMPLATE_BYTES: usize = 256 << 10;

/// Maximum size of `tokenizer_config.json`; some list every added token.
const MAX_CONFIG_BYTES: usize = 16 << 20;

/// Maximum number of steps in a rendering. A conversation takes a few hundred per message.
const STEPS: u64 = 1_000_000;

/// Template variables that switch reasoning on or off.
const SWITCHES: [&str; 2] = ["enable_thinking", "thinking"];

/// Template variable for the effort of reasoning.
const EFFORT: &str = "reasoning_effort";

/// Stack size of the rendering thread. Within `STEPS` and `MAX_TEMPLATE_BYTES`, values and
/// expressions can be nested too deeply for a usual stack, and dropping them is recursive. Only
/// pages that are touched are ever allocated.
const STACK: usize = 512 << 20;

/// The chat template of a model, with the special tokens that it may refer to.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    template: String,
    /// The template used when there are tools, if the model has a separate one.
    with_tools: Option<String>,
    /// Names such as `bos_token`, with their text.
    special: Vec<(String, Json)>,
    /// True for one of this project's own formats, which may mark literal parts.
    is_format: bool,
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// The text of the message.
    pub content: String,
    /// The model's reasoning before an answer. Most templates omit it in later turns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
}

impl Message {
    /// A message that consists of text only.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Message {
        Message { role: role.into(), content: content.into(), reasoning_content: None }
    }
}

/// Options for rendering.
#[derive(Clone, Debug, Default)]
pub struct ChatOptions {
    /// True to end the prompt with the beginning of an answer.
    pub add_generation_prompt: bool,
    /// The tools that the model may call.
    pub tools: Option<Json>,
    /// Additional template variables, such as `enable_thinking`.
    pub variables: Vec<(String, Json)>,
    /// The current time for `strftime_now`: seconds since 1970, in the intended time zone.
    pub now: i64,
}

/// Reasons why a prompt could not be rendered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum ChatError {
    /// `tokenizer_config.json` cannot be read.
    #[error("tokenizer_config.json is damaged ({0}); download it again")]
    Config(String),
    /// A template larger than any known one.
    #[error(
        "the chat template has {bytes} bytes, and none has more than {MAX_TEMPLATE_BYTES}; take the one that was published with the model"
    )]
    TooLarge { bytes: usize },
    /// Not a valid template.
    #[error("the chat template is damaged ({0}); download it again")]
    Syntax(String),
    /// The template itself refused these messages.
    #[error("the chat template refuses these messages: {0}")]
    Raised(String),
    /// The rendering took too many steps.
    #[error(
        "the chat template does not end: it was stopped after {STEPS} steps; take the one that was published with the model"
    )]
    Endless,
    /// The rendering took too much memory.
    #[error(
        "the chat template makes too much text: it was stopped after {} MiB; take the one that was published with the model",
        Budget::BYTES >> 20
    )]
    TooMuch,
    /// The template failed while running.
    #[error("the chat template fails ({0}); take the one that was published with the model")]
    Failed(String),
    /// The rendering thread could not be started.
    #[error("no thread could be started to render the chat template ({0}); close other programs")]
    Thread(#[source] std::io::Error),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Templates {
    One(String),
    Named(Vec<NamedTemplate>),
}

#[derive(Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum TokenSpelling {
    Text(String),
    Added { content: String },
}

impl ChatTemplate {
    /// The template of a checkpoint. `chat_template.jinja` takes precedence over the template in
    /// `tokenizer_config.json`, which also defines `bos_token` and similar names. Returns None if
    /// there is no template.
    pub fn from_files(
        tokenizer_config: Option<&[u8]>,
        chat_template: Option<&[u8]>,
    ) -> Result<Option<ChatTemplate>, ChatError> {
        let mut config = serde_json::Map::new();
        if let Some(json) = tokenizer_config {
            if json.len() > MAX_CONFIG_BYTES {
                return Err(ChatError::Config(format!("{} bytes", json.len())));
            }
            config = serde_json::from_slice(json).map_err(damaged_config)?;
        }
        let mut with_tools = None;
        let template = match (chat_template, config.remove("chat_template")) {
            (Some(file), _) => {
                check_len(file.len())?;
                let text = str::from_utf8(file).map_err(|e| ChatError::Syntax(e.to_string()))?;
                text.to_owned()
            }
            (None, None | Some(serde_json::Value::Null)) => return Ok(None),
            (None, Some(value)) => match serde_json::from_value(value).map_err(damaged_config)? {
                Templates::One(template) => template,
                Templates::Named(templates) => {
                    with_tools = named(&templates, "tool_use");
                    match named(&templates, "default") {
                        Some(template) => template,
                        None => {
                            let reason = "chat_template names no `default`".to_owned();
                            return Err(ChatError::Config(reason));
                        }
                    }
                }
            },
        };
        let mut special = Vec::new();
        for (name, value) in config {
            if !name.ends_with("_token") {
                continue;
            }
            if let Ok(TokenSpelling::Text(text) | TokenSpelling::Added { content: text }) =
                serde_json::from_value(value)
            {
                special.push((name, Json::from(text)));
            }
        }
        let found = ChatTemplate { template, with_tools, special, is_format: false };
        for template in [Some(&found.template), found.with_tools.as_ref()].into_iter().flatten() {
            check_len(template.len())?;
            on_large_stack(|| bounds::check(template))?.map_err(syntax)?;
        }
        Ok(Some(found))
    }

    /// The template of a model type whose format is published as a program, not as a template.
    pub fn of_model_type(model_type: &str) -> Option<ChatTemplate> {
        let template = formats::of(model_type)?.to_owned();
        Some(ChatTemplate { template, with_tools: None, special: Vec::new(), is_format: true })
    }

    /// True if a template contains `words`.
    pub(super) fn contains(&self, words: &str) -> bool {
        let with_tools = self.with_tools.as_ref();
        self.template.contains(words) || with_tools.is_some_and(|source| source.contains(words))
    }

    /// The text of the template.
    pub fn source(&self) -> &str {
        &self.template
    }

    /// The text of a special token by its name in the template, such as `bos_token`.
    pub fn special(&self, name: &str) -> Option<&str> {
        self.special.iter().find(|(known, _)| known == name)?.1.as_str()
    }

    /// True if the model may think before it answers, unless thinking is switched off.
    pub fn thinks(&self) -> bool {
        self.contains("</think>")
    }

    /// True if the template shows tools to the model.
    pub fn has_tools(&self) -> bool {
        self.contains("tools")
    }

    /// Variables that switch thinking on or off. `None` if the template has no such switch. With
    /// some models the switch only changes how much they think.
    pub fn thinking(&self, think: bool) -> Option<Vec<(String, Json)>> {
        let on = Json::from(think);
        let off = Json::from(!think);
        for name in SWITCHES {
            if self.depends_on(name, &on, &off) {
                return Some(vec![(name.to_owned(), on)]);
            }
        }
        // Models without the effort `none` would only be confused by this word.
        let has_none = ["\"none\"", "'none'"].iter().any(|word| self.template.contains(word));
        let much = Json::from("high");
        let little = Json::from(if has_none { "none" } else { "low" });
        let (effort, other) = if think { (much, little) } else { (little, much) };
        if self.depends_on(EFFORT, &effort, &other) {
            return Some(vec![(EFFORT.to_owned(), effort)]);
        }
        None
    }

    /// True if the prompt depends on the value of a variable, which requires its name in the
    /// template.
    fn depends_on(&self, name: &str, value: &Json, other: &Json) -> bool {
        if !self.template.contains(name) {
            return false;
        }
        let Some(prompt) = self.prompt_with(name, value) else { return false };
        let Some(other) = self.prompt_with(name, other) else { return false };
        prompt != other
    }

    /// The prompt for a short message, with this value of a variable.
    fn prompt_with(&self, name: &str, value: &Json) -> Option<String> {
        let variables = vec![(name.to_owned(), value.clone())];
        let options =
            ChatOptions { add_generation_prompt: true, variables, ..ChatOptions::default() };
        self.render(&[Message::new("user", "a")], &options).ok()
    }

    /// The text of the [`prompt`](Self::prompt) for these messages.
    pub fn render<M: Serialize>(
        &self,
        messages: &[M],
        options: &ChatOptions,
    ) -> Result<String, ChatError> {
        self.prompt(messages, options).map(ChatPrompt::into_text)
    }

    /// The prompt for these messages: [`Message`]s, or [`Json`] if they hold more. The template
    /// writes the special tokens itself, so encode the prompt without adding any.
    pub fn prompt<M: Serialize>(
        &self,
        messages: &[M],
        options: &ChatOptions,
    ) -> Result<ChatPrompt, ChatError> {
        let template = match (&self.with_tools, &options.tools) {
            (Some(template), Some(_)) => template,
            _ => &self.template,
        };
        let given = [
            ("messages", Json::from(minijinja::value::Serde(messages))),
            ("tools", options.tools.clone().unwrap_or(Json::from(()))),
            ("documents", Json::from(())),
            ("add_generation_prompt", Json::from(options.add_generation_prompt)),
        ];
        let given = given.into_iter().map(|(name, value)| (name.to_owned(), value));
        let variables =
            self.special.iter().cloned().chain(given).chain(options.variables.iter().cloned());
        let variables = Json::from_pairs(variables);

        let budget = Arc::new(Budget::default());
        let result = on_large_stack(|| {
            let mut environment = python::environment(&budget, options.now);
            if self.is_format {
                python::add_literal(&mut environment, &budget);
            }
            environment.set_fuel(Some(STEPS));
            bounds::render(&environment, template, variables)
        })?;
        let rendered = match result {
            Ok(rendered) => rendered,
            Err(error) => return Err(unrendered(error, &budget)),
        };
        Ok(if self.is_format {
            ChatPrompt::of_marked(&rendered)
        } else {
            ChatPrompt::from(rendered)
        })
    }
}

fn check_len(bytes: usize) -> Result<(), ChatError> {
    if bytes > MAX_TEMPLATE_BYTES { Err(ChatError::TooLarge { bytes }) } else { Ok(()) }
}

fn damaged_config(error: serde_json::Error) -> ChatError {
    ChatError::Config(error.to_string())
}

/// The template of that name.
fn named(templates: &[NamedTemplate], name: &str) -> Option<String> {
    let found = templates.iter().find(|template| template.name == name)?;
    Some(found.template.clone())
}

fn syntax(error: minijinja::Error) -> ChatError {
    ChatError::Syntax(one_line(&error.to_string()))
}

/// The reason why a rendering failed.
fn unrendered(error: minijinja::Error, budget: &Budget) -> ChatError {
    if budget.spent.load(Ordering::Relaxed) {
        return ChatError::TooMuch;
    }
    match error.kind() {
        minijinja::ErrorKind::OutOfFuel => ChatError::Endless,
        minijinja::ErrorKind::SyntaxError => syntax(error),
        _ => match python::raised(&error) {
            Some(message) => ChatError::Raised(one_line(message)),
            None => ChatError::Failed(one_line(&error.to_string())),
        },
    }
}

/// An error message from the template, on one line and shortened.
fn one_line(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").chars().take(400).collect()
}

fn on_large_stack<T: Send>(run: impl FnOnce() -> T + Send) -> Result<T, ChatError> {
    let run = caught_on_thread(STACK, run).map_err(ChatError::Thread)?;
    run.ok_or_else(|| ChatError::Failed("its steps contradict each other".to_owned()))
}
