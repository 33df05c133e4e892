//! Answers with reasoning and tool calls between markers.

use super::calls::CallFormat;
use super::{
    NoCall, ReasoningMarkers, ReplyPart, ReplyStage, ToolCall, ToolSchemas, first_marker,
    open_marker,
};

/// Reader of answers with markers.
#[derive(Debug)]
pub(super) struct Tags {
    reasoning: Option<ReasoningMarkers>,
    calls: Option<(CallFormat, ToolSchemas)>,
    place: TagsPlace,
    /// Text that was not handled yet.
    held: String,
    /// Number of first bytes of that text that contain no marker.
    searched: usize,
    /// True if white space at this point belongs to a marker.
    after_marker: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TagsPlace {
    /// Before anything but white space.
    Start,
    Reasoning,
    Text,
    /// In a tool call, after this many bytes of its first marker.
    Call(usize),
}

impl Tags {
    pub(super) fn new(
        reasoning: Option<ReasoningMarkers>,
        thinks: bool,
        calls: Option<(CallFormat, ToolSchemas)>,
    ) -> Tags {
        let place = if thinks { TagsPlace::Reasoning } else { TagsPlace::Start };
        Tags { reasoning, calls, place, held: String::new(), searched: 0, after_marker: thinks }
    }

    pub(super) fn stage(&self) -> ReplyStage {
        match self.place {
            TagsPlace::Start => ReplyStage::Start,
            TagsPlace::Reasoning => ReplyStage::Reasoning,
            TagsPlace::Text => ReplyStage::Answer,
            TagsPlace::Call(_) => ReplyStage::Call,
        }
    }

    pub(super) fn push(&mut self, text: &str, parts: &mut Vec<ReplyPart>) {
        self.held.push_str(text);
        while self.advance(false, parts) {}
    }

    pub(super) fn finish(&mut self, is_complete: bool, parts: &mut Vec<ReplyPart>) {
        while self.advance(true, parts) {}
        if let TagsPlace::Call(marker) = self.place {
            let calls = match is_complete {
                true => self.read(&self.held[marker..], true).unwrap_or_default(),
                false => Vec::new(),
            };
            match calls.is_empty() {
                true => parts.push(ReplyPart::Text(std::mem::take(&mut self.held))),
                false => parts.extend(calls.into_iter().map(ReplyPart::Call)),
            }
        }
        self.held.clear();
    }

    /// Handles the text so far. Returns true if it should be called again.
    fn advance(&mut self, is_last: bool, parts: &mut Vec<ReplyPart>) -> bool {
        match self.place {
            TagsPlace::Start => self.start(is_last),
            TagsPlace::Reasoning => {
                let [_, close] = self.reasoning.unwrap_or_default();
                let found = self.take(&[close], is_last, ReplyPart::Reasoning, parts);
                if found.is_some() {
                    self.held.drain(..close.len());
                    self.go(TagsPlace::Text, true);
                }
                found.is_some()
            }
            TagsPlace::Text => {
                let Some((format, _)) = &self.calls else {
                    self.take(&[], is_last, ReplyPart::Text, parts);
                    return false;
                };
                let found = self.take(format.opens(), is_last, ReplyPart::Text, parts);
                found.is_some_and(|marker| {
                    self.go(TagsPlace::Call(marker.len()), false);
                    true
                })
            }
            TagsPlace::Call(marker) => self.call(marker, parts),
        }
    }

    /// Moves on to another place.
    fn go(&mut self, place: TagsPlace, after_marker: bool) {
        (self.place, self.after_marker, self.searched) = (place, after_marker, 0);
    }

    /// Decides if an answer begins with reasoning, or with a tool call without marker.
    fn start(&mut self, is_last: bool) -> bool {
        let begins = self.held.trim_start();
        let space = self.held.len() - begins.len();
        let bare = self.calls.as_ref().and_then(|(format, _)| format.begins_with());
        if let Some([open, _]) = self.reasoning {
            if let Some(rest) = begins.strip_prefix(open) {
                self.held = rest.to_owned();
                self.go(TagsPlace::Reasoning, true);
                return true;
            }
            if !is_last && open.starts_with(begins) {
                return false;
            }
        }
        if begins.is_empty() && !is_last && bare.is_some() {
            return false;
        }
        match bare.is_some_and(|bare| begins.starts_with(bare)) {
            true => self.go(TagsPlace::Call(space), false),
            false => self.go(TagsPlace::Text, false),
        }
        true
    }

    /// Takes text up to the first of some markers, if there is one. White space around a marker
    /// belongs to the marker.
    fn take<'a>(
        &mut self,
        markers: &[&'a str],
        is_last: bool,
        part: fn(String) -> ReplyPart,
        parts: &mut Vec<ReplyPart>,
    ) -> Option<&'a str> {
        if self.after_marker {
            let space = self.held.len() - self.held.trim_start().len();
            self.held.drain(..space);
            self.after_marker = self.held.is_empty();
        }
        let found = first_marker(&self.held, 0, markers);
        let end = match found {
            Some((at, _)) => self.held[..at].trim_end().len(),
            None if is_last || markers.is_empty() => self.held.len(),
            None => {
                self.held[..self.held.len() - open_marker(&self.held, markers)].trim_end().len()
            }
        };
        if end > 0 {
            parts.push(part(self.held[..end].to_owned()));
        }
        self.held.drain(..found.map_or(end, |(at, _)| at));
        found.map(|(_, marker)| marker)
    }

    /// Reads a tool call, if its last marker has arrived.
    fn call(&mut self, marker: usize, parts: &mut Vec<ReplyPart>) -> bool {
        let Some((format, _)) = &self.calls else { return false };
        let closes = format.closes();
        let from = self.searched.max(marker);
        let Some((at, close)) = first_marker(&self.held, from, closes) else {
            // The text may end with the beginning of a marker.
            self.searched = self.held.len() - open_marker(&self.held, closes);
            return false;
        };
        let end = at + close.len();
        let read = self.read(&self.held[marker..at], false);
        let is_call = read.is_ok();
        match read {
            Ok(calls) => parts.extend(calls.into_iter().map(ReplyPart::Call)),
            // The marker is part of an argument.
            Err(NoCall::Unfinished) => {
                self.searched = end;
                return true;
            }
            Err(NoCall::Malformed) => parts.push(ReplyPart::Text(self.held[..end].to_owned())),
        }
        self.held.drain(..end);
        self.go(TagsPlace::Text, is_call);
        true
    }

    fn read(&self, block: &str, is_last: bool) -> Result<Vec<ToolCall>, NoCall> {
        let (format, schemas) = self.calls.as_ref().ok_or(NoCall::Malformed)?;
        match format.read(block, schemas, is_last)? {
            calls if calls.is_empty() => Err(NoCall::Malformed),
            calls => Ok(calls),
        }
    }
}
