//! The text of a generation, as it is shown.

use super::{Detokenizer, Position, StopStrings, Tokenizer};

/// Turns generated ids into the text to show, until a stop token or a stop string.
#[derive(Debug)]
pub struct TextStream<'a> {
    detokenizer: Detokenizer<'a>,
    stop_tokens: Vec<u32>,
    stop_strings: StopStrings,
    decoded: String,
}

/// Why a generation is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model said so, by this token.
    Token(u32),
    /// The text holds a stop string.
    String,
}

impl<'a> TextStream<'a> {
    /// One that has seen nothing. Special tokens are not shown.
    pub fn new(
        tokenizer: &'a Tokenizer,
        position: Position,
        stop_tokens: &[u32],
        stop_strings: &[String],
    ) -> TextStream<'a> {
        TextStream {
            detokenizer: Detokenizer::new(tokenizer, position, true),
            stop_tokens: stop_tokens.to_vec(),
            stop_strings: StopStrings::new(stop_strings.iter().cloned()),
            decoded: String::new(),
        }
    }

    /// Takes the next id; appends the text that is ready. When it returns a reason, that was the last
    /// one: [`TextStream::finish`] has been done.
    pub fn push(&mut self, id: u32, text: &mut String) -> Option<Finish> {
        if self.stop_tokens.contains(&id) {
            return Some(self.finish(text).unwrap_or(Finish::Token(id)));
        }
        self.decoded.clear();
        self.detokenizer.push(id, &mut self.decoded);
        self.stop_strings.push(&self.decoded, text).then_some(Finish::String)
    }

    /// No more ids will come: appends what was held back. An incomplete last character can still
    /// complete a stop string.
    pub fn finish(&mut self, text: &mut String) -> Option<Finish> {
        self.decoded.clear();
        self.detokenizer.finish(&mut self.decoded);
        let stopped = self.stop_strings.push(&self.decoded, text);
        self.stop_strings.finish(text);
        stopped.then_some(Finish::String)
    }
}
