//! Answers as elements: `<|open|>NAME<|sep|>TEXT<|close|>NAME<|sep|>`, as Kimi K3 writes them. The prompt
//! ends in the element of reasoning, or in that of the answer.

use super::json::arguments;
use super::xml::XmlCall;
use super::{NoCall, ReplyPart, ReplyStage, ToolCall, ToolSchemas, first_marker, open_marker};

const OPEN: &str = "<|open|>";
const CLOSE: &str = "<|close|>";
const SEP: &str = "<|sep|>";
/// Marker after an answer, if it is text.
const END: &str = "<|end_of_msg|>";
const REASONING: &str = "<|open|>think<|sep|>";
const RESPONSE: &str = "<|open|>response<|sep|>";
const END_OF_CALL: &str = "<|close|>call<|sep|>";

/// Markers that begin an element.
pub(super) const OPENERS: &[&str] = &[OPEN];

/// All markers.
pub(super) const MARKERS: &[&str] = &[OPEN, CLOSE, SEP];

/// Maximum length of a tag. Longer text is not a tag.
const TAG: usize = 1 << 10;

/// The beginning of a tool call, up to the tool's name or its arguments.
pub(super) fn call_begins(prompt: &str, name: Option<&str>) -> String {
    let before = match place_behind(prompt) {
        XtmlPlace::Reasoning => {
            "<|close|>think<|sep|><|open|>response<|sep|><|close|>response<|sep|>"
        }
        XtmlPlace::Text => "<|close|>response<|sep|>",
        XtmlPlace::Outside | XtmlPlace::Call => "",
    };
    let begins = format!("{before}<|open|>tools<|sep|><|open|>call tool=\"");
    name.map_or(begins.clone(), |name| begins + &call_middle(name))
}

/// The text from a tool's name to its arguments.
pub(super) fn call_middle(name: &str) -> String {
    format!("{}\" index=\"1\"<|sep|>", escaped(name))
}

/// The value of an attribute as its tag has it.
pub(super) fn escaped(value: &str) -> String {
    value.replace('&', "&amp;").replace('"', "&quot;")
}

/// Reader of answers as elements.
#[derive(Debug)]
pub(super) struct Xtml {
    has_tools: bool,
    held: String,
    /// Number of first bytes of a tool call that cannot contain its end.
    searched: usize,
    place: XtmlPlace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum XtmlPlace {
    /// Between elements.
    Outside,
    Reasoning,
    Text,
    /// In a tool call, whose text is held back as a whole.
    Call,
}

/// The kind of text that follows a prompt.
fn place_behind(prompt: &str) -> XtmlPlace {
    match prompt.trim_end() {
        prompt if prompt.ends_with(REASONING) => XtmlPlace::Reasoning,
        prompt if prompt.ends_with(RESPONSE) => XtmlPlace::Text,
        _ => XtmlPlace::Outside,
    }
}

impl Xtml {
    pub(super) fn new(prompt: &str, has_tools: bool) -> Xtml {
        Xtml { has_tools, held: String::new(), searched: 0, place: place_behind(prompt) }
    }

    pub(super) fn stage(&self) -> ReplyStage {
        match self.place {
            XtmlPlace::Outside => ReplyStage::Start,
            XtmlPlace::Reasoning => ReplyStage::Reasoning,
            XtmlPlace::Text => ReplyStage::Answer,
            XtmlPlace::Call => ReplyStage::Call,
        }
    }

    pub(super) fn push(&mut self, text: &str, parts: &mut Vec<ReplyPart>) {
        self.held.push_str(text);
        while self.advance(false, parts) {}
    }

    pub(super) fn finish(&mut self, is_complete: bool, parts: &mut Vec<ReplyPart>) {
        while self.advance(true, parts) {}
        if self.place == XtmlPlace::Call {
            let text = std::mem::take(&mut self.held);
            parts.push(match call(&text) {
                Ok(call) if is_complete => ReplyPart::Call(call),
                _ => ReplyPart::Text(text),
            });
        }
        (self.place, self.searched) = (XtmlPlace::Outside, 0);
        self.held.clear();
    }

    /// Handles the text so far. Returns true if it should be called again.
    fn advance(&mut self, is_last: bool, parts: &mut Vec<ReplyPart>) -> bool {
        match self.place {
            XtmlPlace::Outside => self.outside(is_last),
            XtmlPlace::Reasoning => self.body(is_last, ReplyPart::Reasoning, parts),
            XtmlPlace::Text => self.body(is_last, ReplyPart::Text, parts),
            XtmlPlace::Call => {
                let Some((at, _)) = first_marker(&self.held, self.searched, &[END_OF_CALL]) else {
                    self.searched = self.held.len() - open_marker(&self.held, &[END_OF_CALL]);
                    return false;
                };
                let rest = self.held.split_off(at + END_OF_CALL.len());
                let text = std::mem::replace(&mut self.held, rest);
                parts.push(match call(&text[..at]) {
                    Ok(call) => ReplyPart::Call(call),
                    Err(_) => ReplyPart::Text(text),
                });
                (self.place, self.searched) = (XtmlPlace::Outside, 0);
                true
            }
        }
    }

    /// Reads tags, up to one after which text follows.
    fn outside(&mut self, is_last: bool) -> bool {
        let space = self.held.len() - self.held.trim_start().len();
        self.held.drain(..space);
        if self.held.starts_with(END) {
            self.held.drain(..END.len());
            return true;
        }
        let is_tag = [OPEN, CLOSE].iter().any(|marker| self.held.starts_with(marker));
        let may_be = [OPEN, CLOSE, END].iter().any(|marker| marker.starts_with(&*self.held));
        if !is_tag {
            if self.held.is_empty() || may_be && !is_last {
                return false;
            }
            // Text outside elements is the answer.
            self.place = XtmlPlace::Text;
            return true;
        }
        let Some((marker, name, len)) = self.tag() else {
            if is_last {
                self.held.clear();
            }
            return false;
        };
        match (marker, name) {
            (OPEN, ElementName::Think) => self.place = XtmlPlace::Reasoning,
            (OPEN, ElementName::Response) => self.place = XtmlPlace::Text,
            (OPEN, ElementName::Call) => {
                // The tag is part of the tool call.
                self.place = XtmlPlace::Call;
                return true;
            }
            (_, ElementName::Other) => {
                self.place = XtmlPlace::Text;
                return true;
            }
            _ => {}
        }
        self.held.drain(..len);
        true
    }

    /// The tag at the beginning of the text, if it is complete: its marker, name and length.
    fn tag(&self) -> Option<(&'static str, ElementName, usize)> {
        let marker = [OPEN, CLOSE].into_iter().find(|marker| self.held.starts_with(marker))?;
        let end = match self.held.find(SEP) {
            Some(end) if end <= TAG => end,
            None if self.held.len() <= TAG + SEP.len() => return None,
            _ => return Some((marker, ElementName::Other, 0)),
        };
        let inner = self.held.get(marker.len()..end)?;
        let name = match (inner.split(' ').next().unwrap_or_default(), self.has_tools) {
            _ if inner.contains(OPEN) || inner.contains(CLOSE) => ElementName::Other,
            ("think", _) => ElementName::Think,
            ("response", _) => ElementName::Response,
            ("message", _) | ("tools", true) => ElementName::Around,
            ("call", true) => ElementName::Call,
            _ => ElementName::Other,
        };
        Some((marker, name, end + SEP.len()))
    }

    /// Passes text on, up to a tag that ends it.
    fn body(
        &mut self,
        is_last: bool,
        part: fn(String) -> ReplyPart,
        parts: &mut Vec<ReplyPart>,
    ) -> bool {
        let markers = [OPEN, CLOSE];
        let found = first_marker(&self.held, 0, &markers);
        let end = match found {
            Some((at, _)) => at,
            None if is_last => self.held.len(),
            None => self.held.len() - open_marker(&self.held, &markers),
        };
        if end > 0 {
            parts.push(part(self.held.drain(..end).collect()));
        }
        let Some((_, marker)) = found else { return false };
        match self.tag() {
            Some((_, name, _)) if name != ElementName::Other => {
                self.place = XtmlPlace::Outside;
                true
            }
            None => {
                if is_last {
                    // The answer was cut off in the middle of a tag.
                    self.held.clear();
                }
                false
            }
            Some(_) => {
                parts.push(part(self.held.drain(..marker.len()).collect()));
                true
            }
        }
    }
}

/// The name of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ElementName {
    Think,
    Response,
    /// An element that contains others.
    Around,
    Call,
    /// An unknown element, whose tag is text.
    Other,
}

/// Reads a tool call without its closing tag. It has typed arguments, or one argument that is JSON.
fn call(text: &str) -> Result<ToolCall, NoCall> {
    let (tag, mut rest) = open_tag(text)?;
    let name = attribute(tag, "tool").ok_or(NoCall::Malformed)?;
    let schemas = ToolSchemas::default();
    let mut call = XmlCall::new(&name, &schemas)?;
    while !rest.trim().is_empty() {
        let (tag, value) = open_tag(rest.trim_start())?;
        let element = tag.split(' ').next().unwrap_or_default();
        let (value, after) =
            value.split_once(&format!("{CLOSE}{element}{SEP}")).ok_or(NoCall::Unfinished)?;
        match element {
            "json" => return Ok(ToolCall { arguments: arguments(value)?, ..call.made() }),
            "argument" => {
                let key = attribute(tag, "key").ok_or(NoCall::Malformed)?;
                let is_string = attribute(tag, "type").is_none_or(|kind| kind == "string");
                call.add(&key, value, Some(is_string));
            }
            _ => return Err(NoCall::Malformed),
        }
        rest = after;
    }
    Ok(call.made())
}

/// The inside of the tag at the beginning of a text, and the text after it.
fn open_tag(text: &str) -> Result<(&str, &str), NoCall> {
    let inner = text.strip_prefix(OPEN).ok_or(NoCall::Malformed)?;
    inner.split_once(SEP).ok_or(NoCall::Unfinished)
}

/// The value of an attribute.
fn attribute(tag: &str, name: &str) -> Option<String> {
    let (_, value) = tag.split_once(&format!(" {name}=\""))?;
    let (value, _) = value.split_once('"')?;
    Some(value.replace("&quot;", "\"").replace("&amp;", "&"))
}
