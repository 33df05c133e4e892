//! A conversation to the text that a model was trained to continue.
//!
//! Templates are Jinja, written against transformers: Python's methods and ways of printing, its
//! `tojson`, `raise_exception`, `strftime_now`. They come from strangers, so a rendering has a limit
//! of steps and one of memory (`bounds.rs`).

mod bounds;
mod python;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};

use super::guard::caught_on_thread;
use bounds::Budget;

/// A JSON value that keeps the order of its keys, which templates print.
pub use minijinja::Value as Json;

/// The longest template that is read; published ones have some 20 thousand bytes at most.
pub const MAX_TEMPLATE_BYTES: usize = 256 << 10;

/// The largest `tokenizer_config.json` that is read: some list every added token.
const MAX_CONFIG_BYTES: usize = 16 << 20;

/// How many steps a rendering may take. A conversation takes some hundred for each message.
const STEPS: u64 = 1_000_000;

/// The stack of the thread that renders. Within `STEPS` and `MAX_TEMPLATE_BYTES` values and
/// expressions can be nested deeper than a usual stack allows, and they are dropped recursively. Only
/// pages that are touched are ever allocated.
const STACK: usize = 512 << 20;

/// The chat template of a model, with the special tokens that it may name.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    template: String,
    /// Used instead when there are tools, if the model has one.
    with_tools: Option<String>,
    /// Names like `bos_token`, and what they stand for.
    special: Vec<(String, Json)>,
}

/// What one side said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// What was said.
    pub content: String,
}

/// How to render.
#[derive(Clone, Debug, Default)]
pub struct ChatOptions {
    /// End with what begins an answer.
    pub add_generation_prompt: bool,
    /// The tools that the model may call.
    pub tools: Option<Json>,
    /// Further variables of the template, such as `enable_thinking`.
    pub variables: Vec<(String, Json)>,
    /// What `strftime_now` takes for the present: seconds since 1970, in the time zone that is meant.
    pub now: i64,
}

/// Why there is no prompt.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChatError {
    /// `tokenizer_config.json` cannot be read.
    #[error("tokenizer_config.json is damaged ({0}); download it again")]
    Config(String),
    /// More bytes than any template has.
    #[error(
        "the chat template has {bytes} bytes, and none has more than {MAX_TEMPLATE_BYTES}; download the model's tokenizer_config.json and chat_template.jinja again"
    )]
    TooLarge {
        /// How many.
        bytes: usize,
    },
    /// Not a template.
    #[error("the chat template is damaged ({0}); download it again")]
    Syntax(String),
    /// The template itself refuses these messages.
    #[error("the chat template refuses these messages: {0}")]
    Raised(String),
    /// It takes too many steps.
    #[error(
        "the chat template does not end: it was stopped after {STEPS} steps; take the one that was published with the model"
    )]
    Endless,
    /// It takes too much memory.
    #[error(
        "the chat template makes too much text: it was stopped after {} MiB; take the one that was published with the model",
        Budget::BYTES >> 20
    )]
    TooMuch,
    /// It does something that fails.
    #[error("the chat template fails ({0}); take the one that was published with the model")]
    Failed(String),
    /// No thread to render on.
    #[error("no thread could be started to render the chat template ({0}); close other programs")]
    Thread(#[source] std::io::Error),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Templates {
    One(String),
    Named(Vec<Named>),
}

#[derive(Deserialize)]
struct Named {
    name: String,
    template: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Token {
    Text(String),
    Added { content: String },
}

impl ChatTemplate {
    /// The template of a checkpoint: that of `chat_template.jinja` before that in
    /// `tokenizer_config.json`, which also says what `bos_token` and its like stand for. None if there
    /// is no template.
    pub fn from_files(
        tokenizer_config: Option<&[u8]>,
        chat_template: Option<&[u8]>,
    ) -> Result<Option<ChatTemplate>, ChatError> {
        let damaged = |e: serde_json::Error| ChatError::Config(e.to_string());
        let mut config = serde_json::Map::new();
        if let Some(json) = tokenizer_config {
            if json.len() > MAX_CONFIG_BYTES {
                return Err(ChatError::Config(format!("{} bytes", json.len())));
            }
            config = serde_json::from_slice(json).map_err(damaged)?;
        }
        let mut with_tools = None;
        let template = match (chat_template, config.remove("chat_template")) {
            (Some(file), _) => {
                check_len(file.len())?;
                let text = str::from_utf8(file).map_err(|e| ChatError::Syntax(e.to_string()))?;
                text.to_owned()
            }
            (None, None | Some(serde_json::Value::Null)) => return Ok(None),
            (None, Some(value)) => match serde_json::from_value(value).map_err(damaged)? {
                Templates::One(template) => template,
                Templates::Named(templates) => {
                    let named = |name| {
                        let found = templates.iter().find(|t| t.name == name);
                        found.map(|t| t.template.clone())
                    };
                    with_tools = named("tool_use");
                    match named("default") {
                        Some(template) => template,
                        None => {
                            let reason = "chat_template names no `default`".to_owned();
                            return Err(ChatError::Config(reason));
                        }
                    }
                }
            },
        };
        let special = config.into_iter().filter(|(name, _)| name.ends_with("_token"));
        let special = special.filter_map(|(name, value)| {
            let text = match serde_json::from_value(value).ok()? {
                Token::Text(text) | Token::Added { content: text } => text,
            };
            Some((name, Json::from(text)))
        });
        let found = ChatTemplate { template, with_tools, special: special.collect() };
        for template in [Some(&found.template), found.with_tools.as_ref()].into_iter().flatten() {
            check_len(template.len())?;
            on_large_stack(|| bounds::check(template))?.map_err(|e| syntax(&e))?;
        }
        Ok(Some(found))
    }

    /// The prompt for these messages: [`Message`]s, or [`Json`] where they hold more. It names its
    /// special tokens itself: encode it without adding any.
    pub fn render<M: Serialize>(
        &self,
        messages: &[M],
        options: &ChatOptions,
    ) -> Result<String, ChatError> {
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
            environment.set_fuel(Some(STEPS));
            bounds::render(&environment, template, variables)
        })?;
        result.map_err(|e| {
            if budget.spent.load(Ordering::Relaxed) {
                return ChatError::TooMuch;
            }
            match e.kind() {
                minijinja::ErrorKind::OutOfFuel => ChatError::Endless,
                minijinja::ErrorKind::SyntaxError => syntax(&e),
                _ => match python::raised(&e) {
                    Some(message) => ChatError::Raised(one_line(message)),
                    None => ChatError::Failed(one_line(&e.to_string())),
                },
            }
        })
    }
}

fn check_len(bytes: usize) -> Result<(), ChatError> {
    if bytes > MAX_TEMPLATE_BYTES { Err(ChatError::TooLarge { bytes }) } else { Ok(()) }
}

fn syntax(error: &minijinja::Error) -> ChatError {
    ChatError::Syntax(one_line(&error.to_string()))
}

/// A message of the template's making, fit for a sentence.
fn one_line(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").chars().take(400).collect()
}

fn on_large_stack<T: Send>(run: impl FnOnce() -> T + Send) -> Result<T, ChatError> {
    let run = caught_on_thread(STACK, run).map_err(ChatError::Thread)?;
    run.ok_or_else(|| ChatError::Failed("its steps contradict each other".to_owned()))
}
