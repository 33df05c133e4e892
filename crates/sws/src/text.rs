//! Texts of a model: into tokens and back.

use sws_engine::Budget;
use sws_model::text::{ChatTemplate, Tokenizer};

use crate::error::Lacking;
use crate::{Model, Result, process};

/// The tokenizer and the chat template of a model, as far as they are wanted.
#[derive(Debug, Default)]
pub struct Text {
    tokenizer: Option<Tokenizer>,
    template: Option<ChatTemplate>,
    /// The part of the heap that the tokenizer takes.
    heap: u64,
    /// True if texts will be encoded while the model is there.
    later: bool,
}

impl Text {
    /// The tokenizer, if there is one, for texts that are encoded before the model is loaded.
    pub fn open(model: &Model) -> Result<Text> {
        let (tokenizer, heap) = process::counted(model, || model.tokenizer());
        Ok(Text { tokenizer: tokenizer?, heap, ..Text::default() })
    }

    /// Texts will be encoded while the model is there, for which its budget has to have room; those of a
    /// chat, if there is a template.
    pub fn while_loaded(self, template: Option<ChatTemplate>) -> Text {
        Text { template, later: self.tokenizer.is_some(), ..self }
    }

    /// The tokenizer, if there is one.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.tokenizer.as_ref()
    }

    /// The chat template, if there is one and it is wanted.
    pub(crate) fn template(&self) -> Option<&ChatTemplate> {
        self.template.as_ref()
    }

    /// The part of the heap that the tokenizer takes.
    pub(crate) fn heap(&self) -> u64 {
        self.heap
    }

    /// Bytes for encoding texts while the model is there: so many, and more for each position.
    pub(crate) fn encoding(&self) -> [u64; 2] {
        if self.later { Tokenizer::WORKING } else { [0; 2] }
    }

    /// The tokens of a text with which a sequence begins, encoded within what a budget leaves before the
    /// model is loaded.
    pub fn encode_first(&mut self, model: &Model, ram: Budget, text: &str) -> Result<Vec<u32>> {
        let left = process::left(model, self.heap, ram);
        self.bound(model.spec().context, left);
        self.encode(model, text, true)
    }

    /// Bounds texts to so many tokens, and to so much memory while they are encoded.
    pub(crate) fn bound(&mut self, positions: usize, working: u64) {
        if let Some(tokenizer) = &mut self.tokenizer {
            tokenizer.bound(positions, working);
        }
    }

    /// True if texts are encoded while the model is there.
    pub(crate) fn is_for_later(&self) -> bool {
        self.later
    }

    /// The tokens of a text; `special` adds those that the tokenizer puts around one.
    pub(crate) fn encode(&self, model: &Model, text: &str, special: bool) -> Result<Vec<u32>> {
        let tokenizer = self.tokenizer.as_ref().ok_or_else(|| model.error(Lacking::Tokenizer))?;
        tokenizer.encode(text, special).map_err(|e| model.error(e))
    }
}
