//! Answers as messages with headers: `<|channel|>NAME<|message|>TEXT<|end|>`, as gpt-oss writes them.

use super::json::arguments;
use super::{ReplyPart, ReplyStage, ToolCall, first_marker, open_marker};

const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
const CONSTRAIN: &str = "<|constrain|>";
/// Markers that end a message. The next message may also begin without one.
const ENDS: [&str; 4] = ["<|end|>", "<|call|>", "<|return|>", START];

/// Markers that begin a header.
pub(super) const OPENERS: &[&str] = &[START, CHANNEL];

/// All markers.
pub(super) const MARKERS: &[&str] =
    &[START, CHANNEL, MESSAGE, CONSTRAIN, "<|end|>", "<|call|>", "<|return|>"];

/// Maximum length of a header. Longer text is not a header.
const HEADER: usize = 1 << 10;

/// The beginning of a tool call, up to the tool's name or its arguments.
pub(super) fn call_begins(name: Option<&str>) -> String {
    let header = format!("{CHANNEL}commentary to=functions.");
    name.map_or(header.clone(), |name| header + &call_middle(name))
}

/// The text from a tool's name to its arguments.
pub(super) fn call_middle(name: &str) -> String {
    format!("{name} {CONSTRAIN}json{MESSAGE}")
}

/// Reader of answers as messages. The prompt ends in the first header.
#[derive(Debug)]
pub(super) struct Harmony {
    has_tools: bool,
    held: String,
    /// Number of first bytes of a tool call that contain no marker.
    searched: usize,
    place: HarmonyPlace,
    /// True once there was a message of this kind. A separator precedes the next one.
    has_reasoning: bool,
    has_text: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum HarmonyPlace {
    Header,
    Reasoning,
    Text,
    /// A call of this tool.
    Call(String),
}

impl Harmony {
    pub(super) fn new(has_tools: bool) -> Harmony {
        Harmony {
            has_tools,
            held: String::new(),
            searched: 0,
            place: HarmonyPlace::Header,
            has_reasoning: false,
            has_text: false,
        }
    }

    pub(super) fn stage(&self) -> ReplyStage {
        match self.place {
            HarmonyPlace::Header => ReplyStage::Start,
            HarmonyPlace::Reasoning => ReplyStage::Reasoning,
            HarmonyPlace::Text => ReplyStage::Answer,
            HarmonyPlace::Call(_) => ReplyStage::Call,
        }
    }

    pub(super) fn push(&mut self, text: &str, parts: &mut Vec<ReplyPart>) {
        self.held.push_str(text);
        while self.advance(false, parts) {}
    }

    pub(super) fn finish(&mut self, is_complete: bool, parts: &mut Vec<ReplyPart>) {
        while self.advance(true, parts) {}
        if let HarmonyPlace::Call(name) = std::mem::replace(&mut self.place, HarmonyPlace::Header) {
            let text = std::mem::take(&mut self.held);
            parts.push(called(name, text, is_complete));
        }
        self.held.clear();
    }

    /// Handles the text so far. Returns true if it should be called again.
    fn advance(&mut self, is_last: bool, parts: &mut Vec<ReplyPart>) -> bool {
        match &self.place {
            HarmonyPlace::Header => self.header(is_last, parts),
            HarmonyPlace::Reasoning => self.body(is_last, ReplyPart::Reasoning, parts),
            HarmonyPlace::Text => self.body(is_last, ReplyPart::Text, parts),
            HarmonyPlace::Call(name) => {
                let Some((at, marker)) = first_marker(&self.held, self.searched, &ENDS) else {
                    self.searched = self.held.len() - open_marker(&self.held, &ENDS);
                    return false;
                };
                let text = self.held[..at].to_owned();
                parts.push(called(name.clone(), text, true));
                self.end(at, marker);
                true
            }
        }
    }

    /// Reads a header, or text without a header.
    fn header(&mut self, is_last: bool, parts: &mut Vec<ReplyPart>) -> bool {
        let begins = self.held.trim_start();
        let start = self.held.len() - begins.len();
        let message = first_marker(&self.held, 0, &[MESSAGE]).map(|(at, _)| at);
        let is_near = |at: &usize| at + MESSAGE.len() <= start + HEADER;
        // In whatever pieces the text comes: by what it begins with, before what follows is known.
        let at = match (may_be_header(begins), message.filter(is_near)) {
            (true, Some(at)) => at,
            (true, None) if begins.len() <= HEADER => {
                if is_last {
                    self.held.clear();
                }
                return false;
            }
            _ => {
                self.begin(HarmonyPlace::Text, parts);
                return true;
            }
        };
        let place = self.place_of(&self.held[..at]);
        self.held.drain(..at + MESSAGE.len());
        self.begin(place, parts);
        true
    }

    /// The kind of message with this header.
    fn place_of(&self, header: &str) -> HarmonyPlace {
        match (word_after(header, "to="), word_after(header, CHANNEL)) {
            (Some(name), _) if self.has_tools && !name.is_empty() => {
                HarmonyPlace::Call(name.strip_prefix("functions.").unwrap_or(name).to_owned())
            }
            (None, Some("analysis")) => HarmonyPlace::Reasoning,
            _ => HarmonyPlace::Text,
        }
    }

    /// Begins a message, with a separator after an earlier message of the same kind.
    fn begin(&mut self, place: HarmonyPlace, parts: &mut Vec<ReplyPart>) {
        match place {
            HarmonyPlace::Reasoning if self.has_reasoning => {
                parts.push(ReplyPart::Reasoning("\n\n".to_owned()))
            }
            HarmonyPlace::Text if self.has_text => parts.push(ReplyPart::Text("\n\n".to_owned())),
            _ => {}
        }
        self.has_reasoning |= place == HarmonyPlace::Reasoning;
        self.has_text |= place == HarmonyPlace::Text;
        self.place = place;
    }

    /// Passes a message on, up to its end.
    fn body(
        &mut self,
        is_last: bool,
        part: fn(String) -> ReplyPart,
        parts: &mut Vec<ReplyPart>,
    ) -> bool {
        let found = first_marker(&self.held, 0, &ENDS);
        let end = match found {
            Some((at, _)) => at,
            None if is_last => self.held.len(),
            None => self.held.len() - open_marker(&self.held, &ENDS),
        };
        if end > 0 {
            parts.push(part(self.held[..end].to_owned()));
        }
        match found {
            Some((at, marker)) => self.end(at, marker),
            None => drop(self.held.drain(..end)),
        }
        found.is_some()
    }

    /// Ends a message.
    fn end(&mut self, at: usize, marker: &str) {
        self.held.drain(..at + marker.len());
        (self.place, self.searched) = (HarmonyPlace::Header, 0);
    }
}

/// False for a text that begins as no header does.
fn may_be_header(begins: &str) -> bool {
    let is_like = |word: &str| begins.starts_with(word) || word.starts_with(begins);
    begins.starts_with('<') || is_like("assistant") || is_like("to=")
}

/// A tool call, or its text if it is not a valid one.
fn called(name: String, text: String, is_complete: bool) -> ReplyPart {
    match arguments(&text) {
        Ok(arguments) if is_complete => ReplyPart::Call(ToolCall { id: None, name, arguments }),
        _ => ReplyPart::Text(text),
    }
}

/// The word after a text in a header.
fn word_after<'h>(header: &'h str, text: &str) -> Option<&'h str> {
    let (_, rest) = header.split_once(text)?;
    rest.trim_start().split(|c: char| c == '<' || c.is_whitespace()).next()
}
