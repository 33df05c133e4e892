//! Conversion of texts to tokens and back.

use std::sync::Arc;
use std::time::Duration;

use sws_engine::RamBudget;
use sws_format::Clock;
use sws_text::{ChatPrompt, ChatTemplate, Detokenizer, Position, ReplyFormat, Tokenizer};

use crate::error::Lacking;
use crate::open::process;
use crate::open::reading::TokenizerReading;
use crate::{Model, Result};

/// Memory for encoding a short text.
const LEAST: u64 = 2 << 20;

/// The tokenizer and chat template of a model, as far as they are needed. Clones share the tokenizer.
#[derive(Clone, Debug, Default)]
pub struct TextCodec {
    tokenizer: Option<Arc<Tokenizer>>,
    template: Option<ChatTemplate>,
    /// Size of the tokenizer on the heap.
    heap: u64,
    /// Time that reading the tokenizer took.
    time: Duration,
    /// True if texts will be encoded while the model is loaded.
    later: bool,
}

impl TextCodec {
    /// Reads the tokenizer, if there is one, for texts encoded before the model is loaded.
    pub fn open(model: &Model) -> Result<TextCodec> {
        TextCodec::open_if(model, &|_| Ok(()))
    }

    /// Like [`open`](Self::open), but only if the memory of the tokenizer fits.
    pub(crate) fn open_if(
        model: &Model,
        fits: &dyn Fn(TokenizerReading) -> Result<()>,
    ) -> Result<TextCodec> {
        let clock = Clock::real();
        let started = clock.now();
        let (tokenizer, heap) = process::counted(model, || model.tokenizer_if(fits));
        let time = clock.now() - started;
        Ok(TextCodec { tokenizer: tokenizer?.map(Arc::new), heap, time, ..TextCodec::default() })
    }

    /// Declares that texts will be encoded while the model is loaded, so that the budget includes
    /// memory for that; with a template, also chats.
    pub fn while_loaded(self, template: Option<ChatTemplate>) -> TextCodec {
        TextCodec { template, later: self.tokenizer.is_some(), ..self }
    }

    /// The tokenizer, if there is one.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.tokenizer.as_deref()
    }

    /// The tokenizer, if there is one, for a thread that keeps it.
    pub fn shared_tokenizer(&self) -> Option<Arc<Tokenizer>> {
        self.tokenizer.clone()
    }

    /// The chat template, if it exists and is needed.
    pub fn template(&self) -> Option<&ChatTemplate> {
        self.template.as_ref()
    }

    /// The special tokens among the markers of a format. A reader of answers needs their text.
    pub fn markers(&self, format: ReplyFormat) -> Vec<u32> {
        let Some(tokenizer) = self.tokenizer() else {
            return Vec::new();
        };
        let mut ids = Vec::new();
        for marker in format.markers() {
            if let Some(id) = tokenizer.id(marker)
                && tokenizer.is_special(id)
            {
                ids.push(id);
            }
        }
        ids
    }

    /// Size of the tokenizer on the heap.
    pub(crate) fn heap(&self) -> u64 {
        self.heap
    }

    /// Time that reading the tokenizer took.
    pub(crate) fn time(&self) -> Duration {
        self.time
    }

    /// Bytes for encoding texts while the model is loaded: a constant, and an amount per position.
    pub(crate) fn encoding(&self) -> [u64; 2] {
        if self.later { Tokenizer::WORKING } else { [0; 2] }
    }

    /// Limits the encoding of texts to the memory that a budget leaves before the model is loaded.
    /// A short text is always encoded. If the model has no room for it either, its plan reports how
    /// much memory is needed.
    pub fn within(mut self, model: &Model, ram: RamBudget) -> TextCodec {
        let left = process::left(model, self.heap, ram).max(LEAST);
        self.bound(model.spec().context, left);
        self
    }

    /// Encodes the first text of a sequence.
    pub fn encode_first(&self, model: &Model, text: &str) -> Result<Vec<u32>> {
        self.encode(model, text, true)
    }

    /// Limits texts to this number of positions, and their encoding to `working` bytes.
    pub(crate) fn bound(&mut self, positions: usize, working: u64) {
        // The tokenizer is not shared before the model is loaded.
        if let Some(tokenizer) = self.tokenizer.as_mut().and_then(Arc::get_mut) {
            tokenizer.bound(positions, working);
        }
    }

    /// True if texts are encoded while the model is loaded.
    pub(crate) fn is_for_later(&self) -> bool {
        self.later
    }

    /// Encodes a text; `special` adds the tokens that the tokenizer puts around it.
    pub fn encode(&self, model: &Model, text: &str, special: bool) -> Result<Vec<u32>> {
        model.named(self.required(model)?.encode(text, special))
    }

    /// Decodes the tokens of a text at a position. Special tokens have no text.
    pub fn decode(&self, model: &Model, tokens: &[u32], position: Position) -> Result<String> {
        let mut detokenizer = Detokenizer::new(self.required(model)?, position, true);
        let mut text = String::new();
        for &token in tokens {
            detokenizer.push(token, &mut text);
        }
        detokenizer.finish(&mut text);
        Ok(text)
    }

    /// Encodes the output of a chat template.
    pub fn encode_prompt(&self, model: &Model, prompt: &ChatPrompt) -> Result<Vec<u32>> {
        model.named(self.required(model)?.encode_prompt(prompt))
    }

    /// The tokenizer. Fails for a model without one.
    fn required(&self, model: &Model) -> Result<&Tokenizer> {
        self.tokenizer().ok_or_else(|| model.error(Lacking::Tokenizer))
    }
}
