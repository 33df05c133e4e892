//! Answers as blocks that are labelled by their content, as Inkling writes them:
//! `<|content_thinking|>TEXT<|end_message|>`, each after `<|message_model|>`, with which the prompt
//! ends.
//!
//! The format was pieced together from parsers that others have published. A call is
//! `NAME<|content_invoke_tool_json|>{"name": .., "args": {..}}`; the name before it says nothing new.

use super::json::call;
use super::{ReplyPart, ReplyStage, first_marker, open_marker};

const BEGINS: &str = "<|message_model|>";
const REASONING: &str = "<|content_thinking|>";
const TEXT: &str = "<|content_text|>";
const CALL: &str = "<|content_invoke_tool_json|>";
/// Markers that end a block. The next block may also begin without one.
const ENDS: [&str; 3] = ["<|end_message|>", "<|content_model_end_sampling|>", BEGINS];

/// Markers that begin a block, except those of tool calls.
pub(super) const OPENERS: &[&str] = &[BEGINS, REASONING, TEXT];

/// All markers.
pub(super) const MARKERS: &[&str] = &[BEGINS, REASONING, TEXT, CALL, ENDS[0], ENDS[1]];

/// Maximum length of a name before a tool call. Longer text is not a name.
const NAME: usize = 1 << 8;

/// The beginning of a tool call, up to the tool's name or its arguments.
pub(super) fn call_begins(name: Option<&str>) -> String {
    let begins = format!("{CALL}{{\"name\": \"");
    name.map_or(begins.clone(), |name| begins + &call_middle(name))
}

/// The text from a tool's name to its arguments.
pub(super) fn call_middle(name: &str) -> String {
    format!("{name}\", \"args\": ")
}

/// Reader of answers in blocks.
#[derive(Debug)]
pub(super) struct BlocksReader {
    has_tools: bool,
    held: String,
    /// Number of first bytes of a tool call that contain no marker.
    searched: usize,
    place: BlocksPlace,
    /// True once there was a block of this kind. A separator precedes the next one.
    has_reasoning: bool,
    has_text: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlocksPlace {
    /// Before the marker that labels a block.
    Start,
    Reasoning,
    Text,
    Call,
}

impl BlocksReader {
    /// A reader of the answer to a prompt, which may end in a block.
    pub(super) fn new(prompt: &str, has_tools: bool) -> BlocksReader {
        let place = match prompt.trim_end() {
            prompt if prompt.ends_with(REASONING) => BlocksPlace::Reasoning,
            prompt if prompt.ends_with(TEXT) => BlocksPlace::Text,
            _ => BlocksPlace::Start,
        };
        let has_reasoning = place == BlocksPlace::Reasoning;
        let has_text = place == BlocksPlace::Text;
        BlocksReader { has_tools, held: String::new(), searched: 0, place, has_reasoning, has_text }
    }

    pub(super) fn stage(&self) -> ReplyStage {
        match self.place {
            BlocksPlace::Start => ReplyStage::Start,
            BlocksPlace::Reasoning => ReplyStage::Reasoning,
            BlocksPlace::Text => ReplyStage::Answer,
            BlocksPlace::Call => ReplyStage::Call,
        }
    }

    pub(super) fn push(&mut self, text: &str, parts: &mut Vec<ReplyPart>) {
        self.held.push_str(text);
        while self.advance(false, parts) {}
    }

    pub(super) fn finish(&mut self, is_complete: bool, parts: &mut Vec<ReplyPart>) {
        while self.advance(true, parts) {}
        if self.place == BlocksPlace::Call {
            let text = std::mem::take(&mut self.held);
            parts.push(called(text, is_complete));
        }
        self.held.clear();
        self.place = BlocksPlace::Start;
    }

    /// Handles the text so far. Returns true if it should be called again.
    fn advance(&mut self, is_last: bool, parts: &mut Vec<ReplyPart>) -> bool {
        match self.place {
            BlocksPlace::Start => self.start(is_last, parts),
            BlocksPlace::Reasoning => self.body(is_last, ReplyPart::Reasoning, parts),
            BlocksPlace::Text => self.body(is_last, ReplyPart::Text, parts),
            BlocksPlace::Call => {
                let Some((at, marker)) = first_marker(&self.held, self.searched, &ENDS) else {
                    self.searched = self.held.len() - open_marker(&self.held, &ENDS);
                    return false;
                };
                let text = self.held[..at].to_owned();
                parts.push(called(text, true));
                self.end(at, marker);
                true
            }
        }
    }

    /// Reads the marker of a block and the name before it, or text without a marker.
    fn start(&mut self, is_last: bool, parts: &mut Vec<ReplyPart>) -> bool {
        if let Some((at, marker)) = first_marker(&self.held, 0, MARKERS) {
            let place = match marker {
                REASONING => BlocksPlace::Reasoning,
                TEXT => BlocksPlace::Text,
                CALL if self.has_tools => BlocksPlace::Call,
                CALL => BlocksPlace::Text,
                _ => BlocksPlace::Start,
            };
            let before = &self.held[..at];
            if !is_name(before) || (place == BlocksPlace::Start && !before.trim().is_empty()) {
                // This text has no marker.
                self.begin(BlocksPlace::Text, parts);
                return true;
            }
            self.held.drain(..at + marker.len());
            self.begin(place, parts);
            return true;
        }
        let may_be = is_name(&self.held[..self.held.len() - open_marker(&self.held, MARKERS)]);
        if (may_be && !is_last) || self.held.trim().is_empty() {
            return false;
        }
        self.begin(BlocksPlace::Text, parts);
        true
    }

    /// Begins a block, with a separator after an earlier block of the same kind.
    fn begin(&mut self, place: BlocksPlace, parts: &mut Vec<ReplyPart>) {
        match place {
            BlocksPlace::Reasoning if self.has_reasoning => {
                parts.push(ReplyPart::Reasoning("\n\n".to_owned()))
            }
            BlocksPlace::Text if self.has_text => parts.push(ReplyPart::Text("\n\n".to_owned())),
            _ => {}
        }
        self.has_reasoning |= place == BlocksPlace::Reasoning;
        self.has_text |= place == BlocksPlace::Text;
        self.place = place;
    }

    /// Passes a block on, up to its end.
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

    /// Ends a block.
    fn end(&mut self, at: usize, marker: &str) {
        self.held.drain(..at + marker.len());
        (self.place, self.searched) = (BlocksPlace::Start, 0);
    }
}

/// True if the text may be the name of a tool, or is empty.
fn is_name(text: &str) -> bool {
    let of_name = |c: char| c.is_alphanumeric() || "_-.".contains(c);
    text.len() <= NAME && text.trim().chars().all(of_name)
}

/// A tool call, or its text if it is not a valid one.
fn called(text: String, is_complete: bool) -> ReplyPart {
    match call(&text) {
        Ok(call) if is_complete => ReplyPart::Call(call),
        _ => ReplyPart::Text(text),
    }
}
