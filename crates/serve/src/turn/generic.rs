//! Tools for models whose chat template supports no known format of tools. A system text lists the
//! tools. Tool calls and results in the conversation become text.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sws_text::Json;

use super::{ChatTurn, TurnCall};

/// The message that lists the tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ToolsMessage {
    System,
    /// The user's first message, for templates without system messages.
    User,
}

/// Messages without tool calls and results, one of which lists the tools.
pub(crate) fn turns(tools: &Json, messages: &[ChatTurn], place: ToolsMessage) -> Vec<ChatTurn> {
    let mut turns: Vec<ChatTurn> = Vec::with_capacity(messages.len() + 1);
    let mut names: BTreeMap<&str, &str> = BTreeMap::new();
    for call in messages.iter().flat_map(|message| &message.tool_calls) {
        if let Some(id) = call.id.as_deref() {
            names.insert(id, &call.function.name);
        }
    }
    for message in messages {
        let turn = as_text(message, &names);
        match turns.last_mut() {
            // Results of several tool calls become one message, as some templates require
            // alternating roles.
            Some(last) if last.role == "user" && turn.role == "user" => {
                last.content.push_str("\n\n");
                last.content.push_str(&turn.content);
            }
            _ => turns.push(turn),
        }
    }
    let shown = shown(tools);
    let role = if place == ToolsMessage::System { "system" } else { "user" };
    match turns.iter_mut().find(|turn| turn.role == role) {
        Some(turn) => turn.content = format!("{}\n\n{shown}", turn.content),
        None => turns.insert(0, ChatTurn::text(role, shown)),
    }
    turns
}

/// The text that lists tools in OpenAI's form.
fn shown(tools: &Json) -> String {
    let mut text = "You can use these tools:\n\n".to_owned();
    for tool in tools.try_iter().into_iter().flatten() {
        let function = tool.get_attr("function").unwrap_or_default();
        text += &serde_json::to_string(&function).unwrap_or_default();
        text.push('\n');
    }
    text += "\nTo use one, answer with nothing but a JSON object of this form: ";
    text += "{\"name\": \"TOOL\", \"arguments\": {\"PARAMETER\": \"VALUE\"}}. ";
    text += "Its result comes in the next message. If no tool is needed, answer as usual.";
    text
}

/// A message with its tool calls as text. A result becomes a message of the user.
/// `names` are those of the called tools, by the ids of the calls.
fn as_text(message: &ChatTurn, names: &BTreeMap<&str, &str>) -> ChatTurn {
    if message.role == "tool" {
        let called = message.tool_call_id.as_deref().and_then(|id| names.get(id).copied());
        let name = called.or(message.name.as_deref());
        let name = name.map_or(String::new(), |name| format!(" of {name}"));
        return ChatTurn::text("user", format!("Result{name}: {}", message.content));
    }
    let mut turn = ChatTurn { tool_calls: Vec::new(), ..message.clone() };
    for call in &message.tool_calls {
        if !turn.content.is_empty() {
            turn.content.push('\n');
        }
        turn.content += &written(call);
    }
    turn
}

/// A tool call in the form that the model is asked for.
fn written(call: &TurnCall) -> String {
    let text = call.function.text.as_str();
    let arguments: Value = serde_json::from_str(text).unwrap_or_else(|_| json!(text));
    format!("{{\"name\": {}, \"arguments\": {arguments}}}", json!(call.function.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools() -> Json {
        let tool = json!([{"type": "function", "function": {"name": "sum", "parameters": {"type": "object"}}}]);
        serde_json::from_value(tool).unwrap()
    }

    fn talk() -> Vec<ChatTurn> {
        let mut call = ChatTurn::text("assistant", String::new());
        call.add_call(Some("1".to_owned()), "sum".to_owned(), &Json::from("{\"a\": 1}"));
        vec![
            ChatTurn::text("user", "Add.".to_owned()),
            call,
            ChatTurn::result(Some("1".to_owned()), "2".to_owned()),
            ChatTurn::text("user", "And?".to_owned()),
        ]
    }

    #[test]
    fn calls_and_results_become_text() {
        let turns = turns(&tools(), &talk(), ToolsMessage::System);
        let roles: Vec<&str> = turns.iter().map(|turn| turn.role.as_str()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "user"]);
        assert!(turns[0].content.contains("{\"name\":\"sum\""), "{}", turns[0].content);
        assert_eq!(turns[2].content, "{\"name\": \"sum\", \"arguments\": {\"a\":1}}");
        assert_eq!(turns[3].content, "Result of sum: 2\n\nAnd?");
        assert!(turns.iter().all(|turn| turn.tool_calls.is_empty()));
    }

    #[test]
    fn tools_are_shown_in_the_message_there_is() {
        let mut messages = talk();
        messages.insert(0, ChatTurn::text("system", "Be short.".to_owned()));
        let in_system = turns(&tools(), &messages, ToolsMessage::System);
        assert!(in_system[0].content.starts_with("Be short.\n\nYou can use these tools:"));
        let by_user = turns(&tools(), &talk(), ToolsMessage::User);
        assert!(by_user[0].content.starts_with("Add.\n\nYou can use these tools:"));
        assert_eq!(by_user.len(), 3);
    }
}
