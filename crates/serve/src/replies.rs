//! Answers in conversations, parsed into reasoning, text and tool calls.

use sws::{End, Piece};
use sws_text::{ReplyPart, ReplyReader, ToolCall};

use crate::app::App;
use crate::messages::PromptRequest;
use crate::served::Served;

/// The answers to a conversation.
#[derive(Debug)]
pub(crate) struct Replies {
    replies: Vec<ParsedReply>,
    /// Number of the next tool call, for its id.
    next: u64,
    /// True if an answer has at most one tool call.
    one_call: bool,
}

#[derive(Debug, Default)]
struct ParsedReply {
    reader: ReplyReader,
    /// All parts so far. Adjacent parts are of different kinds, except tool calls.
    parts: Vec<ReplyPart>,
    /// Number of reasoning tokens.
    reasoning: usize,
}

impl Replies {
    /// Parsers for `n` answers.
    pub(crate) fn new(app: &App, served: &Served, request: &PromptRequest, n: usize) -> Replies {
        let mut replies = Vec::with_capacity(n);
        for _ in 0..n {
            let mut reader = served.format.reader(&request.end, request.schemas.clone());
            // The begun part of an answer completes no part of a reply.
            reader.push(&request.begun, &mut Vec::new());
            replies.push(ParsedReply { reader, ..ParsedReply::default() });
        }
        Replies { replies, next: app.first_call(), one_call: request.one_call }
    }

    /// Adds a piece to an answer, and returns the parts that it completes.
    pub(crate) fn take(&mut self, number: usize, piece: &Piece) -> Vec<ReplyPart> {
        let mut parts = Vec::new();
        let reply = &mut self.replies[number];
        reply.reasoning += usize::from(piece.token.is_some() && reply.reader.is_thinking());
        reply.reader.push(&piece.text, &mut parts);
        self.added(number, parts)
    }

    /// Ends an answer, and returns the parts that were held back.
    pub(crate) fn end(&mut self, number: usize, end: End) -> Vec<ReplyPart> {
        let mut parts = Vec::new();
        let is_complete = !matches!(end, End::Length | End::Context);
        self.replies[number].reader.finish(is_complete, &mut parts);
        self.added(number, parts)
    }

    /// All parts of an answer so far.
    pub(crate) fn parts(&self, number: usize) -> &[ReplyPart] {
        &self.replies[number].parts
    }

    /// Number of tool calls in an answer so far.
    pub(crate) fn calls(&self, number: usize) -> usize {
        let parts = self.replies[number].parts.iter();
        parts.filter(|part| matches!(part, ReplyPart::Call(_))).count()
    }

    /// Number of reasoning tokens in all answers.
    pub(crate) fn reasoning(&self) -> usize {
        self.replies.iter().map(|reply| reply.reasoning).sum()
    }

    /// Adds parts to an answer, and gives every tool call an id.
    fn added(&mut self, number: usize, parts: Vec<ReplyPart>) -> Vec<ReplyPart> {
        let mut added = Vec::new();
        for mut part in parts {
            if let ReplyPart::Call(ToolCall { id, .. }) = &mut part {
                if self.one_call && self.calls(number) > 0 {
                    continue;
                }
                id.get_or_insert_with(|| call_id(self.next));
                self.next += 1;
            }
            let reply = &mut self.replies[number];
            match (reply.parts.last_mut(), &part) {
                (Some(ReplyPart::Text(text)), ReplyPart::Text(more))
                | (Some(ReplyPart::Reasoning(text)), ReplyPart::Reasoning(more)) => {
                    text.push_str(more)
                }
                _ => reply.parts.push(part.clone()),
            }
            added.push(part);
        }
        added
    }
}

/// An id of nine digits and letters, the only form that the templates of some models accept for
/// tool calls.
fn call_id(mut number: u64) -> String {
    const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let mut id = [b'0'; 9];
    for digit in id.iter_mut().rev() {
        *digit = DIGITS[(number % 36) as usize];
        number /= 36;
    }
    id.into_iter().map(char::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_calls_have_nine_characters() {
        assert_eq!(call_id(0), "000000000");
        assert_eq!(call_id(36 * 36 + 35), "00000010z");
        assert_eq!(call_id(u64::MAX).len(), 9);
    }
}
