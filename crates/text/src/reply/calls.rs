//! Formats of tool calls.

use super::json::{arguments, array, call, leading, separated};
use super::xml::{arg_keys, functions, invokes};
use super::{ArgumentForm, ArgumentTags, ChatTemplate, NoCall, ToolCall, ToolSchemas};

/// A format of tool calls between markers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallFormat {
    /// `<tool_call>{"name": .., "arguments": {..}}</tool_call>`: Hermes, Qwen.
    Json,
    /// `<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`: Qwen3-Coder.
    Functions,
    /// `<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>`: GLM.
    ArgKeys,
    /// `<invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>`: MiniMax.
    Invokes,
    /// The format of MiniMax with tags that begin with `｜DSML｜`, between `function_calls` (DeepSeek
    /// V3.2) or `tool_calls` (later).
    Dsml { has_functions: bool },
    /// `NAME`, a separator and arguments, between markers: DeepSeek up to V3.1. In versions before
    /// V3.1, arguments are fenced.
    DeepSeek { is_fenced: bool },
    /// The format of DeepSeek V3.1 with other markers and numbered names: Kimi.
    Kimi,
    /// `[TOOL_CALLS]` followed by a list of calls, or by a name, this marker and arguments:
    /// Mistral.
    Mistral { after_name: Option<&'static str> },
    /// An object in place of text: Llama.
    Bare,
    /// An object, possibly fenced: the format that this project's system text requests from models
    /// trained on no format.
    Generic,
}

const DSML: &str = "｜DSML｜";
const DEEPSEEK: [&str; 4] = [
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
];
const DEEPSEEK_SEPARATOR: &str = "<｜tool▁sep｜>";
const KIMI: [&str; 4] = [
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_end|>",
];
const KIMI_SEPARATOR: &str = "<|tool_call_argument_begin|>";
const PYTHON: &str = "<|python_tag|>";
const FENCE: &str = "```json";

impl CallFormat {
    /// The format of a template.
    pub(super) fn of(template: &ChatTemplate) -> Option<CallFormat> {
        let after_name =
            ["[CALL_ID]", "[ARGS]"].into_iter().find(|marker| template.contains(marker));
        let has_functions = template.contains("function_calls");
        let is_fenced = template.contains("```json");
        // The first match counts, because later markers also occur in earlier formats.
        let formats = [
            (DSML, CallFormat::Dsml { has_functions }),
            ("<minimax:tool_call>", CallFormat::Invokes),
            (DEEPSEEK[2], CallFormat::DeepSeek { is_fenced }),
            (KIMI[2], CallFormat::Kimi),
            ("<arg_key>", CallFormat::ArgKeys),
            ("<function=", CallFormat::Functions),
            ("[TOOL_CALLS]", CallFormat::Mistral { after_name }),
            ("<tool_call>", CallFormat::Json),
            (PYTHON, CallFormat::Bare),
        ];
        let (_, format) = formats.into_iter().find(|(words, _)| template.contains(words))?;
        Some(format)
    }

    /// Markers that begin tool calls.
    pub(super) fn opens(self) -> &'static [&'static str] {
        match self {
            CallFormat::Json | CallFormat::Functions | CallFormat::ArgKeys => &["<tool_call>"],
            CallFormat::Invokes => &["<minimax:tool_call>"],
            CallFormat::Dsml { .. } => &["<｜DSML｜function_calls>", "<｜DSML｜tool_calls>"],
            CallFormat::DeepSeek { .. } => &DEEPSEEK[..1],
            CallFormat::Kimi => &KIMI[..1],
            CallFormat::Mistral { .. } => &["[TOOL_CALLS]"],
            CallFormat::Bare => &[PYTHON],
            CallFormat::Generic => &[FENCE],
        }
    }

    /// Markers that end tool calls. Without any, they end with the answer.
    pub(super) fn closes(self) -> &'static [&'static str] {
        match self {
            CallFormat::Json | CallFormat::Functions | CallFormat::ArgKeys => &["</tool_call>"],
            CallFormat::Invokes => &["</minimax:tool_call>"],
            CallFormat::Dsml { .. } => &["</｜DSML｜function_calls>", "</｜DSML｜tool_calls>"],
            CallFormat::DeepSeek { .. } => &[DEEPSEEK[1]],
            CallFormat::Kimi => &[KIMI[1]],
            CallFormat::Generic => &["```"],
            CallFormat::Mistral { .. } | CallFormat::Bare => &[],
        }
    }

    /// The beginning of a tool call, up to the tool's name or its arguments.
    pub(super) fn begins(self, name: Option<&str>) -> String {
        let (before, after) = match self {
            CallFormat::Json => ("<tool_call>\n{\"name\": \"", "\", \"arguments\": "),
            CallFormat::Functions => ("<tool_call>\n<function=", ">\n"),
            CallFormat::ArgKeys => ("<tool_call>", "\n"),
            CallFormat::Invokes => ("<minimax:tool_call>\n<invoke name=\"", "\">\n"),
            CallFormat::Dsml { has_functions: true } => {
                ("\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"", "\">\n")
            }
            CallFormat::Dsml { has_functions: false } => {
                ("\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"", "\">\n")
            }
            CallFormat::DeepSeek { is_fenced: true } => {
                ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n")
            }
            CallFormat::DeepSeek { is_fenced: false } => {
                ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", DEEPSEEK_SEPARATOR)
            }
            CallFormat::Kimi => (
                "<|tool_calls_section_begin|><|tool_call_begin|>functions.",
                ":0<|tool_call_argument_begin|>",
            ),
            CallFormat::Mistral { after_name: None } => {
                ("[TOOL_CALLS] [{\"name\": \"", "\", \"arguments\": ")
            }
            CallFormat::Mistral { after_name: Some(marker) } => ("[TOOL_CALLS]", marker),
            CallFormat::Bare => ("{\"name\": \"", "\", \"parameters\": "),
            CallFormat::Generic => ("{\"name\": \"", "\", \"arguments\": "),
        };
        match name {
            Some(name) => format!("{before}{name}{after}"),
            None => before.to_owned(),
        }
    }

    /// The text of a tool call from the tool's name to its arguments.
    pub(super) fn middle(self, name: &str) -> String {
        let all = self.begins(Some(name));
        let before = self.begins(None);
        all[before.len()..].to_owned()
    }

    /// How arguments are written, and the text after those of a tool call that ends an answer.
    pub(super) fn arguments(self) -> (ArgumentForm, &'static str) {
        let tags = ArgumentForm::Tags;
        match self {
            CallFormat::Json | CallFormat::Bare | CallFormat::Generic => (ArgumentForm::Json, "}"),
            CallFormat::Mistral { after_name: None } => (ArgumentForm::Json, "}]"),
            CallFormat::DeepSeek { is_fenced: true } => (ArgumentForm::Json, "\n```"),
            CallFormat::Mistral { after_name: Some(_) }
            | CallFormat::DeepSeek { is_fenced: false }
            | CallFormat::Kimi => (ArgumentForm::Json, ""),
            CallFormat::Functions => (tags(ArgumentTags::FUNCTIONS), "</function>"),
            CallFormat::ArgKeys => (tags(ArgumentTags::ARG_KEYS), ""),
            CallFormat::Invokes => (tags(ArgumentTags::INVOKES), "</invoke>"),
            CallFormat::Dsml { .. } => (tags(ArgumentTags::DSML), "</｜DSML｜invoke>"),
        }
    }

    /// The beginning of an answer that consists of a tool call only.
    pub(super) fn begins_with(self) -> Option<&'static str> {
        matches!(self, CallFormat::Bare | CallFormat::Generic).then_some("{")
    }

    /// Markers whose tokens may have no text.
    pub(super) fn markers(self) -> &'static [&'static str] {
        match self {
            CallFormat::Json | CallFormat::Functions => &["<tool_call>", "</tool_call>"],
            CallFormat::ArgKeys => &[
                "<tool_call>",
                "</tool_call>",
                "<arg_key>",
                "</arg_key>",
                "<arg_value>",
                "</arg_value>",
            ],
            CallFormat::Invokes => &["<minimax:tool_call>", "</minimax:tool_call>"],
            CallFormat::Dsml { .. } => &[DSML],
            CallFormat::DeepSeek { .. } => {
                &[DEEPSEEK[0], DEEPSEEK[1], DEEPSEEK[2], DEEPSEEK[3], DEEPSEEK_SEPARATOR]
            }
            CallFormat::Kimi => &[KIMI[0], KIMI[1], KIMI[2], KIMI[3], KIMI_SEPARATOR],
            CallFormat::Mistral { .. } => &["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"],
            CallFormat::Bare => &[PYTHON],
            CallFormat::Generic => &[],
        }
    }

    /// Reads tool calls from the text between the markers. The end of the answer may take the place
    /// of the last marker.
    pub(super) fn read(
        self,
        block: &str,
        schemas: &ToolSchemas,
        is_last: bool,
    ) -> Result<Vec<ToolCall>, NoCall> {
        match self {
            CallFormat::Json => call(block).map(|call| vec![call]),
            CallFormat::Functions => functions(block, schemas),
            CallFormat::ArgKeys => arg_keys(block, schemas),
            CallFormat::Invokes => invokes(block, "", schemas),
            CallFormat::Dsml { .. } => invokes(block, DSML, schemas),
            CallFormat::DeepSeek { .. } => {
                let [_, _, open, close] = DEEPSEEK;
                sections(block, open, close, is_last, deepseek)
            }
            CallFormat::Kimi => {
                let [_, _, open, close] = KIMI;
                sections(block, open, close, is_last, kimi)
            }
            CallFormat::Mistral { .. } => mistral(block),
            CallFormat::Bare => known(separated(block.trim().trim_start_matches(PYTHON))?, schemas),
            CallFormat::Generic => known(leading(block)?, schemas),
        }
    }
}

/// Refuses objects that may be an answer instead of tool calls.
fn known(calls: Vec<ToolCall>, schemas: &ToolSchemas) -> Result<Vec<ToolCall>, NoCall> {
    let known = calls.iter().all(|call| schemas.has(&call.name));
    if known { Ok(calls) } else { Err(NoCall::Malformed) }
}

/// Reads tool calls that each have markers. At the end of an answer the last marker may be missing.
fn sections(
    mut block: &str,
    open: &str,
    close: &str,
    is_last: bool,
    read: fn(&str) -> Result<ToolCall, NoCall>,
) -> Result<Vec<ToolCall>, NoCall> {
    let mut calls = Vec::new();
    while let Some((_, rest)) = block.split_once(open) {
        let (section, rest) = match rest.split_once(close) {
            Some(parts) => parts,
            None if is_last => (rest, ""),
            None => return Err(NoCall::Unfinished),
        };
        calls.push(read(section)?);
        block = rest;
    }
    Ok(calls)
}

/// `NAME` and arguments, or `function`, `NAME` and arguments in a fence.
fn deepseek(section: &str) -> Result<ToolCall, NoCall> {
    let (first, rest) = section.split_once(DEEPSEEK_SEPARATOR).ok_or(NoCall::Malformed)?;
    let fenced = rest.trim_end().strip_suffix("```").and_then(|rest| rest.split_once("```json"));
    match fenced {
        Some((name, json)) => named(name, json),
        None => named(first, rest),
    }
}

/// `functions.NAME:NUMBER` and arguments.
fn kimi(section: &str) -> Result<ToolCall, NoCall> {
    let (id, json) = section.split_once(KIMI_SEPARATOR).ok_or(NoCall::Malformed)?;
    let id = id.trim();
    let name = id.strip_prefix("functions.").unwrap_or(id);
    let name = name.rsplit_once(':').map_or(name, |(name, _)| name);
    Ok(ToolCall { id: Some(id.to_owned()), ..named(name, json)? })
}

/// `[TOOL_CALLS]NAME[CALL_ID]ID[ARGS]{..}` for each tool call, without the first marker; or a list
/// of tool calls.
fn mistral(block: &str) -> Result<Vec<ToolCall>, NoCall> {
    if block.trim_start().starts_with('[') {
        return array(block);
    }
    let calls = block.split("[TOOL_CALLS]").map(|call| {
        let (name, json) = match call.split_once("[ARGS]") {
            Some(parts) => parts,
            None => call.split_at(call.find('{').ok_or(NoCall::Malformed)?),
        };
        match name.split_once("[CALL_ID]") {
            Some((name, id)) => {
                Ok(ToolCall { id: Some(id.trim().to_owned()), ..named(name, json)? })
            }
            None => named(name, json),
        }
    });
    calls.collect()
}

/// A tool call with this name and these arguments.
fn named(name: &str, json: &str) -> Result<ToolCall, NoCall> {
    let name = name.trim();
    if name.is_empty() || name.contains(char::is_whitespace) {
        return Err(NoCall::Malformed);
    }
    Ok(ToolCall { id: None, name: name.to_owned(), arguments: arguments(json)? })
}
