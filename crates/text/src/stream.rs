//! The text of a generation as it is displayed.

use super::{Detokenizer, Position, StopStrings, Tokenizer};

/// Converts generated ids to the displayed text, until a stop token or a stop string.
#[derive(Debug)]
pub struct TextStream<'a> {
    detokenizer: Detokenizer<'a>,
    stop_tokens: Vec<u32>,
    stop_strings: StopStrings,
    decoded: String,
}

/// Reasons for the end of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model generated this stop token.
    Token(u32),
    /// The text contains a stop string.
    String,
}

impl<'a> TextStream<'a> {
    /// Creates an empty stream. Special tokens are not displayed.
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

    /// Displays some special tokens.
    pub fn showing(mut self, shown: &[u32]) -> Self {
        self.detokenizer = self.detokenizer.showing(shown);
        self
    }

    /// Takes the next id, and appends the text that is ready. Returns a reason if the text has
    /// ended; [`TextStream::finish`] need not be called then.
    pub fn push(&mut self, id: u32, text: &mut String) -> Option<Finish> {
        if self.stop_tokens.contains(&id) {
            return Some(self.finish(text).unwrap_or(Finish::Token(id)));
        }
        self.decoded.clear();
        self.detokenizer.push(id, &mut self.decoded);
        self.stop_strings.push(&self.decoded, text).then_some(Finish::String)
    }

    /// Ends the ids: appends what was held back. An incomplete last character can still complete a
    /// stop string.
    pub fn finish(&mut self, text: &mut String) -> Option<Finish> {
        self.decoded.clear();
        self.detokenizer.finish(&mut self.decoded);
        let stopped = self.stop_strings.push(&self.decoded, text);
        self.stop_strings.finish(text);
        stopped.then_some(Finish::String)
    }
}
