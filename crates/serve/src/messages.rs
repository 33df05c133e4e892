//! The messages of a conversation, and their tokens.

use serde::Deserialize;
use sws_model::check_tokens;
use sws_text::grammar::Structure;
use sws_text::{
    ChatError, ChatOptions, ChatPrompt, ChatTemplate, Json, TokenizerError, ToolSchemas,
};

use crate::app::App;
use crate::failure::Failure;
use crate::fields::{Many, OneOrMany};
use crate::served::Served;
use crate::turn::ChatTurn;
use crate::turn::generic::{self, ToolsMessage};

/// A message of a request.
#[derive(Debug, Deserialize)]
pub(crate) struct RequestMessage {
    role: String,
    #[serde(default)]
    content: Option<OneOrMany<ContentPart>>,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    reasoning_content: Option<String>,
    #[serde(default)]
    tool_calls: Option<Many<Called>>,
    /// The only tool call, in the spelling of older clients.
    #[serde(default)]
    function_call: Option<Function>,
    #[serde(default)]
    tool_call_id: Option<String>,
}

/// A tool call of an earlier answer.
#[derive(Debug, Deserialize)]
struct Called {
    #[serde(default)]
    id: Option<String>,
    function: Function,
}

#[derive(Debug, Deserialize)]
struct Function {
    name: String,
    #[serde(default)]
    arguments: Json,
}

/// A part of a message.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ContentPart {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    text: Option<String>,
}

impl From<String> for ContentPart {
    fn from(text: String) -> ContentPart {
        ContentPart { kind: "text".to_owned(), text: Some(text) }
    }
}

impl RequestMessage {
    /// A message that consists of text only.
    pub(crate) fn new(role: String, content: Option<OneOrMany<ContentPart>>) -> RequestMessage {
        let name = None;
        let reasoning_content = None;
        let tool_calls = None;
        let function_call = None;
        let tool_call_id = None;
        RequestMessage {
            role,
            content,
            name,
            reasoning_content,
            tool_calls,
            function_call,
            tool_call_id,
        }
    }

    pub(crate) fn into_turn(self) -> Result<ChatTurn, Failure> {
        // Templates know these roles by other names.
        let role = match self.role.as_str() {
            "developer" => "system".to_owned(),
            "function" => "tool".to_owned(),
            _ => self.role,
        };
        if !matches!(role.as_str(), "system" | "user" | "assistant" | "tool") {
            let role: String = role.chars().take(40).collect();
            let message = format!(
                "`{role}` is not a role of a message; there are system, developer, user, assistant and tool"
            );
            return Err(Failure::field("messages", message));
        }
        let parts = self.content.map_or(Vec::new(), |parts| parts.0);
        let mut turn = ChatTurn {
            role,
            content: joined(parts)?,
            name: self.name,
            reasoning_content: self.reasoning_content,
            tool_calls: Vec::new(),
            tool_call_id: self.tool_call_id,
        };
        for Called { id, function } in self.tool_calls.into_iter().flat_map(|calls| calls.0) {
            turn.add_call(id, function.name, &function.arguments);
        }
        if let Some(Function { name, arguments }) = self.function_call {
            turn.add_call(None, name, &arguments);
        }
        Ok(turn)
    }
}

/// The text of the parts of a message.
pub(crate) fn joined(parts: Vec<ContentPart>) -> Result<String, Failure> {
    let mut text = String::new();
    for (number, ContentPart { kind, text: part }) in parts.into_iter().enumerate() {
        match (kind.as_str(), part) {
            ("text" | "input_text" | "output_text" | "reasoning_text", Some(part)) => {
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

/// The messages in the form of the template.
pub(crate) fn turns(messages: Vec<RequestMessage>) -> Result<Vec<ChatTurn>, Failure> {
    messages.into_iter().map(RequestMessage::into_turn).collect()
}

/// A conversation in the form that the model gets.
pub(crate) struct PromptRequest {
    pub(crate) tokens: Vec<u32>,
    /// The last characters of the rendered text.
    pub(crate) end: String,
    /// Schemas of the tools that were shown to the model.
    pub(crate) schemas: Option<ToolSchemas>,
    /// The beginning of the answer, which the model continues.
    pub(crate) begun: String,
    /// The structure of the tool call that the answer begins with.
    pub(crate) call: Option<Structure>,
    /// True if an answer may have only one tool call.
    pub(crate) one_call: bool,
}

/// Number of last characters in which the beginning of the model's reasoning is searched.
const END: usize = 64;

/// Renders messages with the chat template, and tokenises them.
pub(crate) fn prompt(
    app: &App,
    served: &Served,
    messages: &[ChatTurn],
    options: ChatOptions,
    must: Option<Option<String>>,
) -> Result<PromptRequest, Failure> {
    let schemas = options.tools.as_ref().map(ToolSchemas::of);
    let mut prompt = render(app, served, messages, options)?;
    let text = prompt.text().to_owned();
    let begun = match must {
        // Only models with a format of tool calls are shown tools.
        Some(name) => served.format.call_begins(&text, name.as_deref()).unwrap_or_default(),
        None => String::new(),
    };
    prompt.push(&begun);
    let tokens = served.tokenizer()?.encode_prompt(&prompt).map_err(not_encoded)?;
    check_tokens(&tokens, 0, served.limit, served.vocab).map_err(|e| Failure::of(&e.into()))?;
    let from = text.char_indices().rev().take(END).last().map_or(0, |(at, _)| at);
    Ok(PromptRequest {
        tokens,
        end: text[from..].to_owned(),
        schemas,
        begun,
        call: None,
        one_call: false,
    })
}

/// Renders messages with the model's template.
pub(crate) fn render(
    app: &App,
    served: &Served,
    messages: &[ChatTurn],
    options: ChatOptions,
) -> Result<ChatPrompt, Failure> {
    if messages.is_empty() {
        return Err(Failure::field("messages", "there are no messages"));
    }
    if messages.len() > app.config.limits.messages {
        let most = app.config.limits.messages;
        let message =
            format!("there are {} messages, and at most {most} are allowed", messages.len());
        return Err(Failure::field("messages", message));
    }
    let Some(template) = served.text.template() else {
        return Err(Failure::not_offered(
            "this model has no chat template, so it was not made for conversation; use /v1/completions",
        ));
    };
    let mut options = ChatOptions { now: app.clock.unix_seconds(), ..options };
    let rendered = match options.tools.take_if(|_| served.format.has_generic_calls()) {
        Some(tools) => with_generic_tools(template, &tools, messages, &options),
        None => with_calls(template, messages, &options),
    };
    rendered.map_err(|error| match error {
        ChatError::Thread(_) => Failure::server(error.to_string()),
        _ => Failure::field("messages", error.to_string()),
    })
}

/// Renders messages with tool calls, whose arguments the template expects as an object or as text.
fn with_calls(
    template: &ChatTemplate,
    messages: &[ChatTurn],
    options: &ChatOptions,
) -> Result<ChatPrompt, ChatError> {
    let rendered = template.prompt(messages, options);
    let has_calls = messages.iter().any(|message| !message.tool_calls.is_empty());
    if !has_calls || !matches!(rendered, Err(ChatError::Failed(_))) {
        return rendered;
    }
    let messages: Vec<ChatTurn> = messages.iter().cloned().map(ChatTurn::with_text).collect();
    template.prompt(&messages, options)
}

/// Renders messages for a template without tools: one of them lists the tools.
fn with_generic_tools(
    template: &ChatTemplate,
    tools: &Json,
    messages: &[ChatTurn],
    options: &ChatOptions,
) -> Result<ChatPrompt, ChatError> {
    let turns = generic::turns(tools, messages, ToolsMessage::System);
    match template.prompt(&turns, options) {
        Err(ChatError::Raised(_) | ChatError::Failed(_)) => {
            template.prompt(&generic::turns(tools, messages, ToolsMessage::User), options)
        }
        rendered => rendered,
    }
}

/// The tokens of a text.
pub(crate) fn encoded(served: &Served, text: &str, special: bool) -> Result<Vec<u32>, Failure> {
    served.tokenizer()?.encode(text, special).map_err(not_encoded)
}

pub(crate) fn not_encoded(error: TokenizerError) -> Failure {
    match error {
        TokenizerError::Thread(_) | TokenizerError::Encode(_) => Failure::server(error.to_string()),
        _ => Failure::invalid(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_may_be_text_parts_or_null() {
        let message = |content: &str| {
            let json = format!("{{\"role\": \"user\", \"content\": {content}}}");
            let message = serde_json::from_str::<RequestMessage>(&json).ok()?;
            message.into_turn().ok().map(|turn| turn.content)
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
            serde_json::from_str::<RequestMessage>(&json)
                .unwrap()
                .into_turn()
                .ok()
                .map(|turn| turn.role)
        };
        assert_eq!(role("developer").as_deref(), Some("system"));
        assert_eq!(role("tool").as_deref(), Some("tool"));
        assert_eq!(role("narrator"), None);
    }
}
