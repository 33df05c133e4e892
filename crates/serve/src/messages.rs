//! The messages of a conversation, and their tokens.

use serde::{Deserialize, Serialize};
use sws_model::check_tokens;
use sws_model::text::{ChatError, ChatOptions, Json, TokenizerError};

use crate::app::{App, Served};
use crate::failure::Failure;
use crate::fields::OneOrMany;

/// A message of a request.
#[derive(Debug, Deserialize)]
pub(crate) struct Message {
    role: String,
    #[serde(default)]
    content: Option<OneOrMany<Part>>,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    reasoning_content: Option<String>,
    #[serde(default)]
    tool_calls: Option<Json>,
    #[serde(default)]
    tool_call_id: Option<String>,
}

/// A part of a message.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Part {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    text: Option<String>,
}

impl From<String> for Part {
    fn from(text: String) -> Part {
        Part { kind: "text".to_owned(), text: Some(text) }
    }
}

/// A message for the template.
#[derive(Debug, Serialize)]
pub(crate) struct Told {
    role: String,
    content: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<Json>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<String>,
}

impl Told {
    /// A message of text alone.
    pub(crate) fn text(role: &str, content: String) -> Told {
        Told {
            role: role.to_owned(),
            content,
            name: None,
            reasoning_content: None,
            tool_calls: None,
            tool_call_id: None,
        }
    }
}

impl Message {
    /// A message of text alone.
    pub(crate) fn new(role: String, content: Option<OneOrMany<Part>>) -> Message {
        Message {
            role,
            content,
            name: None,
            reasoning_content: None,
            tool_calls: None,
            tool_call_id: None,
        }
    }

    fn told(self) -> Result<Told, Failure> {
        // Templates know the role by its older name.
        let role = if self.role == "developer" { "system".to_owned() } else { self.role };
        if !matches!(role.as_str(), "system" | "user" | "assistant" | "tool") {
            let role: String = role.chars().take(40).collect();
            let message = format!(
                "`{role}` is no role of a message; there are system, developer, user, assistant and tool"
            );
            return Err(Failure::field("messages", message));
        }
        let parts = self.content.map_or(Vec::new(), |parts| parts.0);
        Ok(Told {
            role,
            content: joined(parts)?,
            name: self.name,
            reasoning_content: self.reasoning_content,
            tool_calls: self.tool_calls,
            tool_call_id: self.tool_call_id,
        })
    }
}

/// The text of the parts of a message.
pub(crate) fn joined(parts: Vec<Part>) -> Result<String, Failure> {
    let mut text = String::new();
    for (number, Part { kind, text: part }) in parts.into_iter().enumerate() {
        match (kind.as_str(), part) {
            ("text" | "input_text" | "output_text", Some(part)) => {
                if number > 0 {
                    text.push('\n');
                }
                text.push_str(&part);
            }
            _ => {
                let kind: String = kind.chars().take(40).collect();
                let message = format!(
                    "part {} of a message is `{kind}`, and only text is supported",
                    number + 1
                );
                return Err(Failure::unsupported("messages", message));
            }
        }
    }
    Ok(text)
}

/// Messages for the template.
pub(crate) fn told(messages: Vec<Message>) -> Result<Vec<Told>, Failure> {
    messages.into_iter().map(Message::told).collect()
}

/// Renders messages with the model's template, and returns the tokens.
pub(crate) fn prompt(
    app: &App,
    served: &Served,
    messages: &[Told],
    options: ChatOptions,
) -> Result<Vec<u32>, Failure> {
    let tokens = encoded(served, &render(app, served, messages, options)?, false)?;
    check_tokens(&tokens, 0, served.limit, served.vocab).map_err(|e| Failure::of(&e.into()))?;
    Ok(tokens)
}

/// Renders messages with the model's template.
pub(crate) fn render(
    app: &App,
    served: &Served,
    messages: &[Told],
    options: ChatOptions,
) -> Result<String, Failure> {
    if messages.is_empty() {
        return Err(Failure::field("messages", "there are no messages"));
    }
    if messages.len() > app.config.limits.messages {
        let most = app.config.limits.messages;
        let message =
            format!("there are {} messages, and at most {most} are allowed", messages.len());
        return Err(Failure::field("messages", message));
    }
    let template = served.text.template().ok_or_else(|| {
        Failure::not_offered(
            "this model has no chat template, so it was not made for conversation; use /v1/completions",
        )
    })?;
    let options = ChatOptions { now: app.clock.unix_seconds(), ..options };
    template.render(messages, &options).map_err(|error| match error {
        ChatError::Thread(_) => Failure::server(error.to_string()),
        _ => Failure::field("messages", error.to_string()),
    })
}

/// The tokens of a text.
pub(crate) fn encoded(served: &Served, text: &str, special: bool) -> Result<Vec<u32>, Failure> {
    served.tokenizer()?.encode(text, special).map_err(|error| match error {
        TokenizerError::Thread(_) | TokenizerError::Encode(_) => Failure::server(error.to_string()),
        _ => Failure::invalid(error.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_may_be_text_parts_or_null() {
        let message = |content: &str| {
            let json = format!("{{\"role\": \"user\", \"content\": {content}}}");
            let message = serde_json::from_str::<Message>(&json).ok()?;
            message.told().ok().map(|told| told.content)
        };
        assert_eq!(message("\"a\"").as_deref(), Some("a"));
        assert_eq!(message("null").as_deref(), Some(""));
        let parts =
            "[{\"type\": \"text\", \"text\": \"a\"}, {\"type\": \"text\", \"text\": \"b\"}]";
        assert_eq!(message(parts).as_deref(), Some("a\nb"));
        for bad in ["3", "[{\"type\": \"image_url\", \"image_url\": {}}]", "[3]"] {
            assert_eq!(message(bad), None, "{bad}");
        }
    }

    #[test]
    fn roles_are_those_of_templates() {
        let role = |role: &str| {
            let json = format!("{{\"role\": \"{role}\", \"content\": \"a\"}}");
            serde_json::from_str::<Message>(&json).unwrap().told().ok().map(|told| told.role)
        };
        assert_eq!(role("developer").as_deref(), Some("system"));
        assert_eq!(role("tool").as_deref(), Some("tool"));
        assert_eq!(role("narrator"), None);
    }
}
