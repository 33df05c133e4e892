//! Messages in Anthropic's form: lists of blocks.

use serde::Deserialize;
use sws_text::Json;

use crate::app::App;
use crate::failure::Failure;
use crate::fields::{Many, OneOrMany};
use crate::turn::ChatTurn;

/// A message.
#[derive(Debug, Deserialize)]
pub(crate) struct BlocksMessage {
    role: String,
    content: OneOrMany<MessageBlock>,
}

/// A part of a message.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct MessageBlock {
    #[serde(rename = "type")]
    kind: String,
    text: String,
    thinking: String,
    /// Id of a tool call or of a tool result.
    id: Option<String>,
    tool_use_id: Option<String>,
    name: String,
    input: Json,
    content: Option<OneOrMany<MessageBlock>>,
}

impl From<String> for MessageBlock {
    fn from(text: String) -> MessageBlock {
        MessageBlock { kind: "text".to_owned(), text, ..MessageBlock::default() }
    }
}

/// The joined text of blocks, each on lines of its own.
pub(crate) fn text(app: &App, blocks: Vec<MessageBlock>) -> Result<String, Failure> {
    let mut texts = Vec::new();
    for MessageBlock { kind, text, .. } in blocks {
        match kind.as_str() {
            "text" => texts.push(text),
            _ => skipped(app, &kind)?,
        }
    }
    Ok(texts.join("\n"))
}

/// The messages in the form of the template.
pub(crate) fn turns(app: &App, messages: Many<BlocksMessage>) -> Result<Vec<ChatTurn>, Failure> {
    let mut all = Vec::new();
    for BlocksMessage { role, content } in messages.0 {
        if !matches!(role.as_str(), "user" | "assistant" | "system") {
            let role: String = role.chars().take(40).collect();
            let message = format!(
                "`{role}` is not a role of a message; there are user, assistant and system"
            );
            return Err(Failure::field("messages", message));
        }
        let mut message = ChatTurn::text(&role, String::new());
        let mut texts = Vec::new();
        let mut results = Vec::new();
        for block in content.0 {
            match block.kind.as_str() {
                "text" => texts.push(block.text),
                "thinking" => message.add_reasoning(&block.thinking),
                "tool_use" => message.add_call(block.id, block.name, &block.input),
                "tool_result" => {
                    let content = block.content.map_or(Vec::new(), |content| content.0);
                    results.push(ChatTurn::result(block.tool_use_id, text(app, content)?));
                }
                kind => skipped(app, kind)?,
            }
        }
        let has_results = !results.is_empty();
        all.extend(results);
        // Tool results become messages of their own.
        if !has_results || !texts.is_empty() {
            message.set_text(texts.join("\n"));
            all.push(message);
        }
    }
    Ok(all)
}

/// Skips a block that has no meaning here. Refuses one whose meaning is not supported.
fn skipped(app: &App, kind: &str) -> Result<(), Failure> {
    if matches!(kind, "image" | "document") {
        let message = format!("a message has a block `{kind}`, and only text is supported");
        return Err(Failure::unsupported("messages", message));
    }
    app.ignored(kind);
    Ok(())
}
