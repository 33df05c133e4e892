//! The choice of a text's tokens, and of its end.

use sws_model::ForwardError;
use sws_model::text::{Finish, Generation, Position, SampleError, Sampler, TextStream, Tokenizer};

use crate::{End, Error, Generated, Piece, Result};

/// Chooses the tokens of a text from their logits, and ends the text.
#[derive(Debug)]
pub(crate) struct Writer<'m> {
    sampler: Sampler,
    stop_tokens: Vec<u32>,
    most: usize,
    /// `None` without a tokenizer, and once the text has ended.
    text: Option<TextStream<'m>>,
    pub(crate) made: Generated,
}

impl<'m> Writer<'m> {
    /// Continues a prompt, given in parts, of a model with `vocab` tokens.
    pub(crate) fn new(
        prompt: &[&[u32]],
        vocab: usize,
        generation: &Generation,
        tokenizer: Option<(&'m Tokenizer, Position)>,
    ) -> Result<Writer<'m>> {
        let mut sampler = Sampler::new(generation.sampling.clone(), vocab);
        prompt.iter().try_for_each(|tokens| sampler.prompt(tokens)).map_err(|e| match e {
            SampleError::Outside { id, vocab_size } => {
                ForwardError::UnknownToken { token: id, last: vocab_size - 1 }.into()
            }
            error => Error::from(error),
        })?;
        let (stop_tokens, stop_strings) = (&generation.stop_tokens, &generation.stop_strings);
        let text = tokenizer.map(|(tokenizer, position)| {
            TextStream::new(tokenizer, position, stop_tokens, stop_strings)
                .showing(&generation.shown_tokens)
        });
        Ok(Writer {
            sampler,
            stop_tokens: stop_tokens.clone(),
            most: generation.max_new_tokens.unwrap_or(usize::MAX),
            text,
            made: Generated::default(),
        })
    }

    /// True if the text has all tokens that were asked for.
    pub(crate) fn is_complete(&self) -> bool {
        self.made.tokens.len() == self.most
    }

    /// Chooses the token at `position`. With an end, the text is over.
    pub(crate) fn choose(
        &mut self,
        logits: &mut [f32],
        position: usize,
    ) -> Result<(Piece, Option<End>)> {
        let token = self.sampler.sample(logits, position)?;
        let Generated { tokens, text, .. } = &mut self.made;
        tokens.push(token);
        let before = text.len();
        let finish = match &mut self.text {
            Some(stream) => stream.push(token, text),
            None if self.stop_tokens.contains(&token) => Some(Finish::Token(token)),
            None => None,
        };
        let end = finish.map(|finish| match finish {
            Finish::Token(_) => End::StopToken,
            Finish::String => End::StopString,
        });
        if let Some(end) = end {
            self.text = None;
            self.made.end = end;
        }
        Ok((Piece { token: Some(token), text: self.made.text[before..].to_owned() }, end))
    }

    /// Ends the text, unless it has ended. Returns the text held back, if any.
    pub(crate) fn end(&mut self, end: End) -> Option<Piece> {
        self.made.end = end;
        let before = self.made.text.len();
        if let Some(mut text) = self.text.take()
            && text.finish(&mut self.made.text) == Some(Finish::String)
        {
            self.made.end = End::StopString;
        }
        let text = &self.made.text[before..];
        (!text.is_empty()).then(|| Piece { token: None, text: text.to_owned() })
    }
}
