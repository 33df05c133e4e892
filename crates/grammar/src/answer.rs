//! Answers that have a form, behind thoughts that have none.

use std::fmt;
use std::sync::Arc;

use sws_model::text::{
    Constrain, Constraint, ConstraintError, ReplyFormat, ReplyReader, ReplyStage, Tokenizer,
    ToolSchemas,
};

use crate::Grammar;
use crate::grammar::restrict;

/// Maximum number of line breaks between thoughts and an answer, as tokens.
const BREAKS: usize = 2;

/// Answers to a prompt: free thoughts, if the model has any, and a text of a form; or, where tools were
/// shown, a call of one, which is free too. A text does not end within thoughts.
pub struct Answer {
    grammar: Grammar,
    tokenizer: Arc<Tokenizer>,
    format: ReplyFormat,
    /// The last characters of the prompt.
    prompt: String,
    schemas: Option<ToolSchemas>,
    /// Tokens of markers with which thoughts or a header begin.
    openers: Arc<[u32]>,
    /// Tokens of markers with which calls begin.
    calls: Arc<[u32]>,
    /// Tokens of line breaks.
    breaks: Arc<[u32]>,
}

impl Answer {
    /// Answers in this format to a prompt with these last characters; with `schemas` of the tools that
    /// were shown.
    pub fn new(
        grammar: Grammar,
        tokenizer: Arc<Tokenizer>,
        format: ReplyFormat,
        prompt: &str,
        schemas: Option<ToolSchemas>,
    ) -> Answer {
        let ids =
            |markers: &[&str]| markers.iter().filter_map(|marker| tokenizer.id(marker)).collect();
        let openers = ids(&format.openers());
        let calls = ids(if schemas.is_some() { format.call_openers() } else { &[] });
        let breaks = ["\n", "\n\n"].into_iter().filter_map(|text| {
            let ids = tokenizer.encode(text, false).ok()?;
            match ids[..] {
                [id] if tokenizer.bytes(id)? == text.as_bytes() => Some(id),
                _ => None,
            }
        });
        let breaks = breaks.collect();
        let prompt = prompt.to_owned();
        Answer { grammar, tokenizer, format, prompt, schemas, openers, calls, breaks }
    }

    /// True if tools were shown, and no answer of the form can be a call.
    pub fn rules_out_calls(&self) -> bool {
        self.schemas.is_some() && self.calls.is_empty() && !self.format.has_headers()
    }
}

impl Constrain for Answer {
    fn begin(&self) -> Box<dyn Constraint> {
        let reader = self.format.reader(&self.prompt, self.schemas.clone());
        let place = match reader.stage() {
            ReplyStage::Start => Place::Start,
            ReplyStage::Thoughts => Place::Free,
            ReplyStage::Call => Place::Call,
            _ => Place::Form,
        };
        Box::new(Answering {
            grammar: self.grammar.copy(),
            tokenizer: Arc::clone(&self.tokenizer),
            reader,
            place,
            needs_header: self.format.has_headers(),
            openers: Arc::clone(&self.openers),
            calls: Arc::clone(&self.calls),
            breaks: Arc::clone(&self.breaks),
        })
    }
}

/// An answer in the making.
struct Answering {
    grammar: Grammar,
    tokenizer: Arc<Tokenizer>,
    reader: ReplyReader,
    place: Place,
    /// True if nothing comes before a header.
    needs_header: bool,
    openers: Arc<[u32]>,
    calls: Arc<[u32]>,
    breaks: Arc<[u32]>,
}

/// The part of an answer that comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// The marker of thoughts or of a header; or, where there are no headers, the form.
    Start,
    /// Thoughts, or the rest of a header.
    Free,
    /// The form, or so many line breaks.
    Breaks(usize),
    /// The form.
    Form,
    /// A call, to the end of the answer.
    Call,
}

impl Answering {
    /// True for a token that may come next beside those of the form.
    fn is_other(&self, token: u32) -> bool {
        let own = match self.place {
            Place::Start => &self.openers[..],
            Place::Breaks(0) => &[],
            Place::Breaks(_) => &self.breaks,
            Place::Free | Place::Form | Place::Call => return false,
        };
        own.contains(&token) || self.calls.contains(&token)
    }

    /// Takes a token of the form.
    fn form(&mut self, token: u32) -> Result<(), ConstraintError> {
        self.place = Place::Form;
        self.grammar.take(token)
    }

    /// Takes a token before the form.
    fn read(&mut self, token: u32) {
        let before = self.reader.stage();
        let bytes = self.tokenizer.bytes(token).unwrap_or_default();
        self.reader.push(&String::from_utf8_lossy(&bytes), &mut Vec::new());
        self.place = match self.reader.stage() {
            ReplyStage::Answer if self.needs_header => Place::Form,
            ReplyStage::Answer => Place::Breaks(BREAKS),
            ReplyStage::Call => Place::Call,
            // The next message.
            ReplyStage::Start if before == ReplyStage::Thoughts => Place::Start,
            _ => Place::Free,
        };
    }
}

impl Constraint for Answering {
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), ConstraintError> {
        match self.place {
            Place::Start if self.needs_header && !self.openers.is_empty() => {
                restrict(logits, |token| self.openers.contains(&token));
            }
            Place::Free => restrict(logits, |token| !self.grammar.ends().contains(&token)),
            Place::Call => {}
            _ => {
                let allowed = self.grammar.allowed()?;
                restrict(logits, |token| allowed.has(token) || self.is_other(token));
            }
        }
        Ok(())
    }

    fn take(&mut self, token: u32) -> Result<(), ConstraintError> {
        match self.place {
            Place::Call => {}
            Place::Free => self.read(token),
            Place::Breaks(left) if left > 0 && self.breaks.contains(&token) => {
                // A break that the form begins with is its own.
                match self.grammar.allowed()?.has(token) {
                    true => self.form(token)?,
                    false => self.place = Place::Breaks(left - 1),
                }
            }
            _ if self.is_other(token) => self.read(token),
            _ => self.form(token)?,
        }
        Ok(())
    }

    fn forced(&mut self) -> Result<Vec<u32>, ConstraintError> {
        match self.place {
            Place::Form => self.grammar.forced(),
            // There is a choice, or may be.
            _ => Ok(Vec::new()),
        }
    }

    fn is_complete(&self) -> bool {
        self.place == Place::Form && self.grammar.is_complete()
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").field("grammar", &self.grammar).finish_non_exhaustive()
    }
}

impl fmt::Debug for Answering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answering").field("place", &self.place).finish_non_exhaustive()
    }
}
