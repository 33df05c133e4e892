//! Messages in the form of the chat template.

pub(crate) mod generic;

use serde::Serialize;
use sws_text::Json;

/// A message in the form of the template.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct ChatTurn {
    pub(crate) role: String,
    pub(crate) content: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<TurnCall>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tool_call_id: Option<String>,
}

/// A tool call in the form of the template.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct TurnCall {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(rename = "type")]
    kind: &'static str,
    function: TurnFunction,
}

#[derive(Clone, Debug, Serialize)]
struct TurnFunction {
    name: String,
    arguments: Json,
    /// The arguments as text.
    #[serde(skip)]
    text: String,
}

/// Maximum bytes of arguments, as text and as values, for a byte of their text.
const VALUES: usize = 17;

impl ChatTurn {
    /// A message that consists of text only.
    pub(crate) fn text(role: &str, content: String) -> ChatTurn {
        ChatTurn { role: role.to_owned(), content, ..ChatTurn::default() }
    }

    /// The result of a tool call.
    pub(crate) fn result(id: Option<String>, content: String) -> ChatTurn {
        ChatTurn { tool_call_id: id, ..ChatTurn::text("tool", content) }
    }

    /// Bytes of the message's text.
    pub(crate) fn bytes(&self) -> usize {
        let calls = self.tool_calls.iter();
        let calls: usize =
            calls.map(|call| call.function.name.len() + VALUES * call.function.text.len()).sum();
        let reasoning = self.reasoning_content.as_ref().map_or(0, String::len);
        size_of::<ChatTurn>() + self.content.len() + reasoning + calls
    }

    /// Sets the text of the message.
    pub(crate) fn set_text(&mut self, text: String) {
        self.content = text;
    }

    /// The text of the message.
    pub(crate) fn into_text(self) -> String {
        self.content
    }

    /// True for an answer of which only the reasoning is known.
    pub(crate) fn is_begun(&self) -> bool {
        self.is_answer() && self.content.is_empty() && self.tool_calls.is_empty()
    }

    /// True for a system message.
    pub(crate) fn is_system(&self) -> bool {
        self.role == "system"
    }

    /// True for a message of the model.
    pub(crate) fn is_answer(&self) -> bool {
        self.role == "assistant"
    }

    /// Adds the reasoning that precedes a message of the model.
    pub(crate) fn add_reasoning(&mut self, reasoning: &str) {
        self.reasoning_content.get_or_insert_default().push_str(reasoning);
    }

    /// Adds a tool call. Its arguments are an object, or its text.
    pub(crate) fn add_call(&mut self, id: Option<String>, name: String, arguments: &Json) {
        let (arguments, text) = match arguments.as_str() {
            Some(text) => {
                let object = serde_json::from_str(text).unwrap_or_else(|_| Json::from(text));
                (object, text.to_owned())
            }
            None if arguments.is_undefined() || arguments.is_none() => {
                (serde_json::from_str("{}").unwrap_or_default(), "{}".to_owned())
            }
            None => (arguments.clone(), serde_json::to_string(arguments).unwrap_or_default()),
        };
        let function = TurnFunction { name, arguments, text };
        self.tool_calls.push(TurnCall { id, kind: "function", function });
    }

    /// The message with the arguments of tool calls as text, which some templates expect.
    pub(crate) fn with_text(mut self) -> ChatTurn {
        for TurnCall { function, .. } in &mut self.tool_calls {
            function.arguments = Json::from(function.text.as_str());
        }
        self
    }
}
