//! Chooses the tokens of a text, and decides where it ends.

use sws_model::ForwardError;
use sws_text::{
    Constraint, Finish, Generation, Position, ReplyPart, ReplyReader, SampleError, Sampler,
    TextStream, Tokenizer,
};

use crate::run::repeats::RepeatGuard;
use crate::{End, Generated, Piece, Result};

/// Chooses the tokens of a text from their logits, and ends the text.
#[derive(Debug)]
pub(crate) struct TokenWriter<'m> {
    sampler: Sampler,
    stop_tokens: Vec<u32>,
    most: usize,
    /// `None` without a tokenizer, and once the text has ended.
    text: Option<TextStream<'m>>,
    /// Reader of an answer in a conversation.
    reader: Option<ReplyReader>,
    /// Decides which tokens may follow.
    constraint: Option<Box<dyn Constraint>>,
    /// Ends a text that repeats itself.
    guard: Option<RepeatGuard>,
    pub(crate) made: Generated,
}

impl<'m> TokenWriter<'m> {
    /// Continues a prompt, given in parts, of a model with `vocab` tokens.
    pub(crate) fn new(
        prompt: &[&[u32]],
        vocab: usize,
        generation: &Generation,
        tokenizer: Option<(&'m Tokenizer, Position)>,
    ) -> Result<TokenWriter<'m>> {
        let mut sampler = Sampler::new(generation.sampling.clone(), vocab);
        if let Some((tokenizer, _)) = tokenizer {
            sampler.break_at(tokenizer);
        }
        for tokens in prompt {
            match sampler.prompt(tokens) {
                Err(SampleError::Outside { id, vocab_size }) => {
                    return Err(
                        ForwardError::UnknownToken { token: id, last: vocab_size - 1 }.into()
                    );
                }
                recorded => recorded?,
            }
        }
        let stop_tokens = &generation.stop_tokens;
        let stop_strings = &generation.stop_strings;
        let text = tokenizer.map(|(tokenizer, position)| {
            TextStream::new(tokenizer, position, stop_tokens, stop_strings)
                .showing(&generation.shown_tokens)
        });
        Ok(TokenWriter {
            sampler,
            stop_tokens: stop_tokens.clone(),
            most: generation.max_new_tokens.unwrap_or(usize::MAX),
            text,
            reader: None,
            constraint: None,
            guard: None,
            made: Generated::default(),
        })
    }

    /// True if the text has the requested number of tokens.
    pub(crate) fn is_complete(&self) -> bool {
        self.made.tokens.len() == self.most
    }

    /// Parses the text with `reader`, as an answer of a conversation.
    pub(crate) fn read_by(&mut self, reader: ReplyReader) {
        self.reader = Some(reader);
    }

    /// Restricts the tokens that may be chosen.
    pub(crate) fn restrict(&mut self, constraint: Box<dyn Constraint>) {
        self.constraint = Some(constraint);
    }

    /// Ends the text where it repeats itself.
    pub(crate) fn end_repeats(&mut self) {
        self.guard = Some(RepeatGuard::new());
    }

    /// Frees the memory of the restriction. No token may be chosen any more.
    pub(crate) fn forget_restriction(&mut self) {
        self.constraint = None;
    }

    /// True if the tokens are restricted.
    pub(crate) fn is_restricted(&self) -> bool {
        self.constraint.is_some()
    }

    /// Chooses the token at `position`. Returns an end if the text is over.
    pub(crate) fn choose(
        &mut self,
        logits: &mut [f32],
        position: usize,
    ) -> Result<(Piece, Option<End>)> {
        if let Some(constraint) = &mut self.constraint {
            constraint.mask(logits)?;
        }
        let token = self.sampler.sample(logits, position)?;
        self.push(token)
    }

    /// The draft token that these logits give at `position`. It may be wrong, as the tokens before
    /// it may be.
    pub(crate) fn guess(&mut self, logits: &mut [f32], position: usize) -> Option<u32> {
        self.sampler.guess(logits, position).ok()
    }

    /// True if a token ends the text.
    pub(crate) fn is_stop(&self, token: u32) -> bool {
        self.stop_tokens.contains(&token)
    }

    /// The number of tokens that may still be chosen.
    pub(crate) fn remaining(&self) -> usize {
        self.most - self.made.tokens.len()
    }

    /// The forced tokens, which have to come next.
    pub(crate) fn forced(&mut self) -> Result<Vec<u32>> {
        match &mut self.constraint {
            Some(constraint) => Ok(constraint.forced()?),
            None => Ok(Vec::new()),
        }
    }

    /// Adds a forced token, as if it had been chosen.
    pub(crate) fn take(&mut self, token: u32) -> Result<(Piece, Option<End>)> {
        self.sampler.generated(&[token])?;
        self.push(token)
    }

    /// Adds a token. Returns an end if the text is over.
    fn push(&mut self, token: u32) -> Result<(Piece, Option<End>)> {
        self.made.tokens.push(token);
        let mut text = String::new();
        let finish = match &mut self.text {
            Some(stream) => stream.push(token, &mut text),
            None if self.stop_tokens.contains(&token) => Some(Finish::Token(token)),
            None => None,
        };
        let mut end = match finish {
            Some(Finish::Token(_)) => Some(End::StopToken),
            Some(Finish::String) => Some(End::StopString),
            None => None,
        };
        if end.is_none()
            && let Some(constraint) = &mut self.constraint
        {
            constraint.take(token)?;
            if constraint.is_complete() {
                end = Some(End::Complete);
                if let Some(stream) = &mut self.text
                    && stream.finish(&mut text).is_some()
                {
                    end = Some(End::StopString);
                }
            }
        }
        if let Some(guard) = &mut self.guard
            && guard.repeats(&self.made.tokens)
        {
            end = end.or(Some(End::Repeats));
        }
        if let Some(end) = end {
            self.text = None;
            self.made.end = end;
        }
        Ok((self.piece(Some(token), text, end), end))
    }

    /// Ends the text, unless it has ended. Returns the text held back, if any.
    pub(crate) fn end(&mut self, end: End) -> Option<Piece> {
        self.made.end = end;
        let mut text = String::new();
        if let Some(mut stream) = self.text.take()
            && stream.finish(&mut text) == Some(Finish::String)
        {
            self.made.end = End::StopString;
        }
        let piece = self.piece(None, text, Some(self.made.end));
        (!piece.text.is_empty() || !piece.reasoning.is_empty()).then_some(piece)
    }

    /// Adds a token's text.
    fn piece(&mut self, token: Option<u32>, text: String, end: Option<End>) -> Piece {
        let mut piece = Piece { token, text, reasoning: String::new() };
        if let Some(reader) = &mut self.reader {
            let mut parts = Vec::new();
            reader.push(&std::mem::take(&mut piece.text), &mut parts);
            if let Some(end) = end {
                let is_complete = matches!(end, End::StopToken | End::StopString | End::Complete);
                reader.finish(is_complete, &mut parts);
            }
            for part in parts {
                match part {
                    ReplyPart::Reasoning(more) => piece.reasoning += &more,
                    ReplyPart::Text(more) => piece.text += &more,
                    // Without tools, a tool call is plain text.
                    ReplyPart::Call(_) => {}
                }
            }
        }
        self.made.text += &piece.text;
        self.made.reasoning += &piece.reasoning;
        piece
    }
}
