//! Parses answers into reasoning, text and tool calls.
//!
//! A model writes all of these as text, between markers that it was trained on. [`ReplyFormat`] finds
//! the markers in the model's chat template; a [`ReplyReader`] takes the text as it comes. The split of
//! the text changes nothing.

mod blocks;
mod calls;
mod form;
mod harmony;
mod json;
mod schema;
mod tags;
mod xml;
mod xtml;

use super::ChatTemplate;
use blocks::BlocksReader;
use calls::CallFormat;
pub use form::{ArgumentForm, ArgumentTags};
use harmony::Harmony;
pub use schema::ToolSchemas;
#[cfg(feature = "grammar")]
pub(crate) use schema::{Alternative, Alternatives, json, resolved};
use tags::Tags;
use xtml::Xtml;

/// The format of a model's answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplyFormat(ReplyKind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplyKind {
    /// Text, with reasoning and tool calls between markers.
    Tagged { reasoning: Option<ReasoningMarkers>, calls: Option<CallFormat> },
    /// Messages with headers, as gpt-oss writes them.
    Harmony,
    /// Labelled blocks, as Inkling writes them.
    Blocks,
    /// Elements, as Kimi K3 writes them.
    Xtml,
}

/// Markers around reasoning.
type ReasoningMarkers = [&'static str; 2];

/// Known pairs of markers around reasoning.
const REASONING: [ReasoningMarkers; 6] = [
    ["<think>", "</think>"],
    ["[THINK]", "[/THINK]"],
    ["<seed:think>", "</seed:think>"],
    ["<mm:think>", "</mm:think>"],
    ["<|START_THINKING|>", "<|END_THINKING|>"],
    ["<|channel>thought", "<channel|>"],
];

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyPart {
    /// More of the model's reasoning before its answer.
    Reasoning(String),
    /// More of the answer's text.
    Text(String),
    /// A complete tool call.
    Call(ToolCall),
}

/// A tool call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// The id that the model gave to this tool call, if its format has ids.
    pub id: Option<String>,
    /// Name of the tool.
    pub name: String,
    /// A JSON object, with the names of the tool's parameters as keys.
    pub arguments: String,
}

/// Reasons why text is not a tool call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NoCall {
    /// More text may make it a tool call.
    Unfinished,
    /// No further text can make it a tool call.
    Malformed,
}

impl Default for ReplyKind {
    fn default() -> ReplyKind {
        ReplyKind::Tagged { reasoning: None, calls: None }
    }
}

impl ReplyFormat {
    /// The format of a model with this chat template. Without known markers in the template, an
    /// answer is text only.
    pub fn of(template: &ChatTemplate) -> ReplyFormat {
        let t = template;
        if t.contains("<|channel|>") && t.contains("<|message|>") {
            return ReplyFormat(ReplyKind::Harmony);
        }
        if t.contains("<|open|>") && t.contains("<|close|>") && t.contains("<|sep|>") {
            return ReplyFormat(ReplyKind::Xtml);
        }
        if t.contains("<|content_thinking|>") && t.contains("<|end_message|>") {
            return ReplyFormat(ReplyKind::Blocks);
        }
        let reasoning = REASONING.into_iter().find(|[_, close]| t.contains(close));
        let calls = match CallFormat::of(t) {
            Some(known) if t.has_tools() => known,
            _ => CallFormat::Generic,
        };
        ReplyFormat(ReplyKind::Tagged { reasoning, calls: Some(calls) })
    }

    /// True if the template supports no known format of tools. A system text then lists the tools,
    /// and tool calls are read as JSON.
    pub fn has_generic_calls(self) -> bool {
        matches!(self.0, ReplyKind::Tagged { calls: Some(CallFormat::Generic), .. })
    }

    /// Markers that must be part of the text, although their tokens may have none.
    pub fn markers(self) -> Vec<&'static str> {
        match self.0 {
            ReplyKind::Tagged { reasoning, calls } => {
                let calls = calls.map_or(&[][..], CallFormat::markers);
                let reasoning = reasoning.into_iter().flatten().map(without_channel);
                reasoning.chain(calls.iter().copied()).collect()
            }
            ReplyKind::Harmony => harmony::MARKERS.to_vec(),
            ReplyKind::Blocks => blocks::MARKERS.to_vec(),
            ReplyKind::Xtml => xtml::MARKERS.to_vec(),
        }
    }

    /// Markers that begin reasoning or a header before an answer.
    pub fn openers(self) -> Vec<&'static str> {
        match self.0 {
            ReplyKind::Tagged { reasoning: Some([open, _]), .. } => vec![without_channel(open)],
            ReplyKind::Tagged { reasoning: None, .. } => Vec::new(),
            ReplyKind::Harmony => harmony::OPENERS.to_vec(),
            ReplyKind::Blocks => blocks::OPENERS.to_vec(),
            ReplyKind::Xtml => xtml::OPENERS.to_vec(),
        }
    }

    /// Markers that begin tool calls, if these are separate from text; empty if a header announces
    /// them.
    pub fn call_openers(self) -> &'static [&'static str] {
        match self.0 {
            ReplyKind::Tagged { calls: Some(calls), .. } => calls.opens(),
            _ => &[],
        }
    }

    /// True if an answer has a header.
    pub fn has_headers(self) -> bool {
        matches!(self.0, ReplyKind::Harmony | ReplyKind::Blocks | ReplyKind::Xtml)
    }

    /// The beginning of an answer to a prompt that is a tool call: of the tool with this name, or
    /// of any tool. `None` if the format has no tool calls.
    pub fn call_begins(self, prompt: &str, name: Option<&str>) -> Option<String> {
        match self.0 {
            ReplyKind::Tagged { reasoning, calls } => {
                let begins = calls?.begins(name);
                Some(match reasoning.filter(|[open, _]| prompt.trim_end().ends_with(open)) {
                    Some([_, close]) => format!("\n{close}\n\n{}", begins.trim_start()),
                    None => begins,
                })
            }
            ReplyKind::Harmony => Some(harmony::call_begins(name)),
            ReplyKind::Blocks => Some(blocks::call_begins(name)),
            ReplyKind::Xtml => Some(xtml::call_begins(prompt, name)),
        }
    }

    /// The text from a tool's name to its arguments, after the [beginning](Self::call_begins) of a
    /// call of any tool. `None` if the format has no tool calls.
    pub fn call_middle(self, name: &str) -> Option<String> {
        match self.0 {
            ReplyKind::Tagged { calls, .. } => Some(calls?.middle(name)),
            ReplyKind::Harmony => Some(harmony::call_middle(name)),
            ReplyKind::Blocks => Some(blocks::call_middle(name)),
            ReplyKind::Xtml => Some(xtml::call_middle(name)),
        }
    }

    /// How the arguments of a tool call are written, and the text after those of a call that ends
    /// an answer. `None` if the format has no tool calls.
    pub fn call_arguments(self) -> Option<(ArgumentForm, &'static str)> {
        match self.0 {
            ReplyKind::Tagged { calls, .. } => Some(calls?.arguments()),
            ReplyKind::Harmony => Some((ArgumentForm::Json, "")),
            ReplyKind::Blocks => Some((ArgumentForm::Json, "}")),
            ReplyKind::Xtml => Some((ArgumentForm::Tags(ArgumentTags::XTML), "")),
        }
    }

    /// A reader of the answer to a prompt, whose end may begin the model's reasoning. Without
    /// `tools`, tool calls are text.
    pub fn reader(self, prompt: &str, tools: Option<ToolSchemas>) -> ReplyReader {
        ReplyReader(match self.0 {
            ReplyKind::Tagged { reasoning, calls } => {
                let calls = calls.zip(tools);
                let thinks = reasoning.is_some_and(|[open, _]| prompt.trim_end().ends_with(open));
                ReaderState::Tags(Tags::new(reasoning, thinks, calls))
            }
            ReplyKind::Harmony => ReaderState::Harmony(Harmony::new(tools.is_some())),
            ReplyKind::Blocks => ReaderState::Blocks(BlocksReader::new(prompt, tools.is_some())),
            ReplyKind::Xtml => ReaderState::Xtml(Xtml::new(prompt, tools.is_some())),
        })
    }
}

/// The next part of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyStage {
    /// Reasoning or the answer, or a header of either.
    Start,
    /// More of the reasoning.
    Reasoning,
    /// More of the answer.
    Answer,
    /// More of a tool call.
    Call,
}

/// Parses an answer.
#[derive(Debug)]
pub struct ReplyReader(ReaderState);

#[derive(Debug)]
enum ReaderState {
    Tags(Tags),
    Harmony(Harmony),
    Blocks(BlocksReader),
    Xtml(Xtml),
}

impl Default for ReplyReader {
    /// A reader of text without reasoning and tool calls.
    fn default() -> ReplyReader {
        ReplyFormat::default().reader("", None)
    }
}

impl ReplyReader {
    /// Takes more text, and appends the parts that it completes.
    pub fn push(&mut self, text: &str, parts: &mut Vec<ReplyPart>) {
        match &mut self.0 {
            ReaderState::Tags(tags) => tags.push(text, parts),
            ReaderState::Harmony(harmony) => harmony.push(text, parts),
            ReaderState::Blocks(blocks) => blocks.push(text, parts),
            ReaderState::Xtml(xtml) => xtml.push(text, parts),
        }
    }

    /// Ends the text, and appends the parts that were held back. A tool call without its end counts
    /// only if the answer was not cut off (`is_complete`).
    pub fn finish(&mut self, is_complete: bool, parts: &mut Vec<ReplyPart>) {
        match &mut self.0 {
            ReaderState::Tags(tags) => tags.finish(is_complete, parts),
            ReaderState::Harmony(harmony) => harmony.finish(is_complete, parts),
            ReaderState::Blocks(blocks) => blocks.finish(is_complete, parts),
            ReaderState::Xtml(xtml) => xtml.finish(is_complete, parts),
        }
    }

    /// True while the model thinks.
    pub fn is_thinking(&self) -> bool {
        self.stage() == ReplyStage::Reasoning
    }

    /// The next part of the answer.
    pub fn stage(&self) -> ReplyStage {
        match &self.0 {
            ReaderState::Tags(tags) => tags.stage(),
            ReaderState::Harmony(harmony) => harmony.stage(),
            ReaderState::Blocks(blocks) => blocks.stage(),
            ReaderState::Xtml(xtml) => xtml.stage(),
        }
    }
}

/// The first of these markers in a text from `from` on, with its place. If several begin there, the
/// longest.
fn first_marker<'m>(text: &str, from: usize, markers: &[&'m str]) -> Option<(usize, &'m str)> {
    let found = markers.iter().filter_map(|&marker| {
        let at = text.get(from..)?.find(marker)?;
        Some((from + at, marker))
    });
    found.min_by_key(|&(at, marker)| (at, usize::MAX - marker.len()))
}

/// Length of the longest suffix of a text that is the beginning of a marker.
fn open_marker(text: &str, markers: &[&str]) -> usize {
    let longest = markers.iter().map(|marker| marker.len()).max().unwrap_or(1) - 1;
    let from = text.len().saturating_sub(longest);
    for (at, _) in text.char_indices() {
        if at >= from && markers.iter().any(|marker| marker.starts_with(&text[at..])) {
            return text.len() - at;
        }
    }
    0
}

/// A marker of reasoning without the name of a channel, which is text.
fn without_channel(marker: &'static str) -> &'static str {
    marker.strip_suffix("thought").unwrap_or(marker)
}

#[cfg(test)]
mod tests;
