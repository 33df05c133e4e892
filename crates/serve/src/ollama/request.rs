//! Converts requests from Ollama's form to OpenAI's.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::failure::Failure;
use crate::fields::{Many, Nothing};
use crate::served::Served;

/// Options that have the same name and meaning in OpenAI's form or that of llama.cpp.
const SAME: &[&str] = &[
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "stop",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
    "tfs_z",
    "typical_p",
    "mirostat",
];

/// The fields of `/api/chat`.
#[derive(Debug, Deserialize)]
pub(crate) struct ChatFields {
    model: String,
    #[serde(default)]
    messages: Option<Many<Message>>,
    #[serde(default)]
    tools: Option<Value>,
    #[serde(default)]
    format: Option<Value>,
    #[serde(default)]
    options: Option<BTreeMap<String, Value>>,
    #[serde(default)]
    stream: Option<bool>,
    #[serde(default)]
    think: Option<Value>,
    #[serde(default)]
    keep_alive: Option<Value>,
}

/// The model that a request names, and the time for which it shall stay loaded.
#[derive(Clone, Copy, Debug)]
pub(super) struct AskedModel<'r> {
    pub(super) model: &'r str,
    pub(super) keep_alive: Option<&'r Value>,
}

#[derive(Debug, Deserialize)]
struct Message {
    role: String,
    #[serde(default)]
    content: Option<String>,
    #[serde(default)]
    thinking: Option<String>,
    #[serde(default)]
    images: Option<Vec<Nothing>>,
    #[serde(default)]
    tool_calls: Option<Vec<Value>>,
    #[serde(default)]
    tool_name: Option<String>,
    #[serde(default)]
    tool_call_id: Option<String>,
}

/// The fields of `/api/generate`.
#[derive(Debug, Deserialize)]
pub(crate) struct GenerateFields {
    model: String,
    #[serde(default)]
    prompt: Option<String>,
    #[serde(default)]
    suffix: Option<String>,
    #[serde(default)]
    system: Option<String>,
    #[serde(default)]
    template: Option<String>,
    #[serde(default)]
    raw: Option<bool>,
    #[serde(default)]
    images: Option<Vec<Nothing>>,
    #[serde(default)]
    format: Option<Value>,
    #[serde(default)]
    options: Option<BTreeMap<String, Value>>,
    #[serde(default)]
    stream: Option<bool>,
    #[serde(default)]
    think: Option<Value>,
    /// Tokens of an earlier answer, which Ollama itself no longer supports.
    #[serde(default, rename = "context")]
    _context: Option<Nothing>,
    #[serde(default)]
    keep_alive: Option<Value>,
}

impl ChatFields {
    /// The model that was asked for.
    pub(super) fn asked(&self) -> AskedModel<'_> {
        AskedModel { model: &self.model, keep_alive: self.keep_alive.as_ref() }
    }

    /// True if there is nothing to answer.
    pub(super) fn is_empty(&self) -> bool {
        self.messages.as_ref().is_none_or(|messages| messages.0.is_empty())
    }

    /// The request in OpenAI's form.
    pub(super) fn in_openai(self, app: &App, served: &Served) -> Result<String, Failure> {
        let messages = self.messages.map_or(Vec::new(), |messages| messages.0);
        let messages: Result<Vec<Value>, Failure> =
            messages.into_iter().map(Message::in_openai).collect();
        let mut body = common(app, served, self.model, self.stream, self.options)?;
        body.insert("messages".to_owned(), messages?.into());
        if let Some(tools) = self.tools
            && !tools.is_null()
        {
            body.insert("tools".to_owned(), tools);
        }
        add_format(&mut body, self.format)?;
        add_thinking(&mut body, served, self.think)?;
        Ok(Value::from(body).to_string())
    }
}

impl Message {
    fn in_openai(self) -> Result<Value, Failure> {
        if self.images.is_some_and(|images| !images.is_empty()) {
            return Err(no_images());
        }
        let mut message = json!({"role": self.role, "content": self.content});
        if let Some(thinking) = self.thinking {
            message["reasoning_content"] = thinking.into();
        }
        if let Some(calls) = self.tool_calls {
            message["tool_calls"] = calls.into();
        }
        if let Some(name) = self.tool_name {
            message["name"] = name.into();
        }
        if let Some(id) = self.tool_call_id {
            message["tool_call_id"] = id.into();
        }
        Ok(message)
    }
}

impl GenerateFields {
    /// The model that was asked for.
    pub(super) fn asked(&self) -> AskedModel<'_> {
        AskedModel { model: &self.model, keep_alive: self.keep_alive.as_ref() }
    }

    /// True if there is nothing to answer.
    pub(super) fn is_empty(&self) -> bool {
        self.prompt.as_ref().is_none_or(String::is_empty) && !self.has_suffix()
    }

    /// True if the prompt is the message of a user, false if it is continued as it is.
    pub(super) fn is_chat(&self, served: &Served) -> bool {
        self.raw != Some(true) && !self.has_suffix() && served.text.template().is_some()
    }

    /// True if the answer is the text between the prompt and a suffix.
    fn has_suffix(&self) -> bool {
        self.suffix.as_ref().is_some_and(|suffix| !suffix.is_empty())
    }

    /// The request in OpenAI's form, as a chat or as a completion.
    pub(super) fn in_openai(self, app: &App, served: &Served) -> Result<String, Failure> {
        let is_chat = self.is_chat(served);
        if self.images.is_some_and(|images| !images.is_empty()) {
            return Err(no_images());
        }
        if self.template.is_some_and(|template| !template.is_empty()) {
            let message =
                "a template in a request is not supported; send `raw` and the whole prompt";
            return Err(Failure::unsupported("template", message));
        }
        let mut body = common(app, served, self.model, self.stream, self.options)?;
        if let Some(suffix) = self.suffix
            && !suffix.is_empty()
        {
            body.insert("suffix".to_owned(), suffix.into());
        }
        let prompt = self.prompt.unwrap_or_default();
        let system = self.system.filter(|system| !system.is_empty());
        if is_chat {
            let mut messages = Vec::new();
            if let Some(text) = system {
                messages.push(json!({"role": "system", "content": text}));
            }
            messages.push(json!({"role": "user", "content": prompt}));
            body.insert("messages".to_owned(), messages.into());
            add_thinking(&mut body, served, self.think)?;
        } else {
            if system.is_some() {
                let message =
                    "a system message needs the model's chat template, and no suffix; leave it out";
                return Err(Failure::unsupported("system", message));
            }
            body.insert("prompt".to_owned(), prompt.into());
            // Without a limit the context is the limit, unlike the default of completions.
            body.entry("max_tokens").or_insert(served.limit.into());
        }
        add_format(&mut body, self.format)?;
        Ok(Value::from(body).to_string())
    }
}

fn no_images() -> Failure {
    Failure::unsupported("images", "images are not supported, only text")
}

/// The fields that both requests share.
fn common(
    app: &App,
    served: &Served,
    model: String,
    stream: Option<bool>,
    options: Option<BTreeMap<String, Value>>,
) -> Result<Map<String, Value>, Failure> {
    let mut body = Map::new();
    body.insert("model".to_owned(), model.into());
    body.insert("stream".to_owned(), stream.unwrap_or(true).into());
    for (name, value) in options.unwrap_or_default() {
        match (name.as_str(), value.as_i64()) {
            (_, None) if value.is_null() => {}
            ("num_predict", Some(tokens)) if tokens >= 0 => {
                body.insert("max_tokens".to_owned(), tokens.into());
            }
            // A negative number means no limit except the context.
            ("num_predict", Some(_)) => {}
            ("num_predict", None) => {
                return Err(Failure::field("num_predict", "num_predict is not a whole number"));
            }
            ("num_ctx", Some(context)) if context <= served.limit as i64 => {}
            ("num_ctx", Some(_)) => app.ignored("num_ctx"),
            // Ollama's default is a random seed, too.
            ("seed", Some(0) | Some(-1)) => {}
            (name, _) if SAME.contains(&name) => {
                body.insert(name.to_owned(), value);
            }
            (name, _) => app.ignored(name),
        }
    }
    Ok(body)
}

/// Adds the structure of the answer: JSON, or JSON by a schema.
fn add_format(body: &mut Map<String, Value>, format: Option<Value>) -> Result<(), Failure> {
    let format = match format {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::String(word)) if word.is_empty() => return Ok(()),
        Some(Value::String(word)) if word == "json" => json!({"type": "json_object"}),
        Some(Value::Object(schema)) => {
            json!({"type": "json_schema", "json_schema": {"name": "format", "schema": schema}})
        }
        Some(_) => {
            let message = "format is neither `json` nor a schema";
            return Err(Failure::field("format", message));
        }
    };
    body.insert("response_format".to_owned(), format);
    Ok(())
}

/// Adds the setting for reasoning: on, off, or an effort.
fn add_thinking(
    body: &mut Map<String, Value>,
    served: &Served,
    think: Option<Value>,
) -> Result<(), Failure> {
    let think = match think {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::Bool(think)) => think,
        Some(Value::String(effort)) => {
            body.insert("reasoning_effort".to_owned(), effort.into());
            return Ok(());
        }
        Some(_) => return Err(Failure::field("think", "think is neither true, false nor a word")),
    };
    let template = served.text.template();
    let variables = template.and_then(|template| template.thinking(think)).unwrap_or_default();
    let mut fields = Map::new();
    for (name, value) in variables {
        fields.insert(name, serde_json::to_value(&value).unwrap_or_default());
    }
    if fields.is_empty() && think {
        let message = "this model cannot be told to think; leave `think` out";
        return Err(Failure::unsupported("think", message));
    }
    body.insert("chat_template_kwargs".to_owned(), fields.into());
    Ok(())
}
