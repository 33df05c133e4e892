//! Answers that have a structure, behind reasoning that has none.

use std::fmt;
use std::sync::Arc;

use crate::{
    Constraint, ConstraintError, ReplyFormat, ReplyReader, ReplyStage, TokenMask, Tokenizer,
    ToolSchemas,
};

use super::Grammar;
use super::mask::restrict;

/// Maximum number of line breaks between reasoning and an answer, as tokens.
const BREAKS: usize = 2;

/// Answers to a prompt: free reasoning, if the model has any, and a structured text; or, where tools were
/// shown, a call of one, which is free too. A text does not end within reasoning.
pub struct AnswerMask {
    grammar: Grammar,
    tokenizer: Arc<Tokenizer>,
    format: ReplyFormat,
    /// The last characters of the prompt.
    prompt: String,
    schemas: Option<ToolSchemas>,
    /// Tokens of markers with which reasoning or a header begins.
    openers: Arc<[u32]>,
    /// Tokens of markers with which calls begin.
    calls: Arc<[u32]>,
    /// Tokens of line breaks.
    breaks: Arc<[u32]>,
}

impl AnswerMask {
    /// Answers in this format to a prompt with these last characters; with `schemas` of the tools that
    /// were shown.
    pub fn new(
        grammar: Grammar,
        tokenizer: Arc<Tokenizer>,
        format: ReplyFormat,
        prompt: &str,
        schemas: Option<ToolSchemas>,
    ) -> AnswerMask {
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
        AnswerMask { grammar, tokenizer, format, prompt, schemas, openers, calls, breaks }
    }

    /// True if tools were shown, and no answer of the structure can be a call.
    pub fn rules_out_calls(&self) -> bool {
        self.schemas.is_some() && self.calls.is_empty() && !self.format.has_headers()
    }
}

impl TokenMask for AnswerMask {
    fn begin(&self) -> Box<dyn Constraint> {
        let reader = self.format.reader(&self.prompt, self.schemas.clone());
        let place = match reader.stage() {
            ReplyStage::Start => AnswerPart::Start,
            ReplyStage::Reasoning => AnswerPart::Free,
            ReplyStage::Call => AnswerPart::Call,
            _ => AnswerPart::Structure,
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
    place: AnswerPart,
    /// True if nothing comes before a header.
    needs_header: bool,
    openers: Arc<[u32]>,
    calls: Arc<[u32]>,
    breaks: Arc<[u32]>,
}

/// The part of an answer that comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnswerPart {
    /// The marker of reasoning or of a header; or, where there are no headers, the structure.
    Start,
    /// Reasoning, or the rest of a header.
    Free,
    /// The structure, or so many line breaks.
    Breaks(usize),
    /// The structure.
    Structure,
    /// A call, to the end of the answer.
    Call,
}

impl Answering {
    /// True for a token that may come next beside those of the structure.
    fn is_other(&self, token: u32) -> bool {
        let own = match self.place {
            AnswerPart::Start => &self.openers[..],
            AnswerPart::Breaks(0) => &[],
            AnswerPart::Breaks(_) => &self.breaks,
            AnswerPart::Free | AnswerPart::Structure | AnswerPart::Call => return false,
        };
        own.contains(&token) || self.calls.contains(&token)
    }

    /// Takes a token of the structure.
    fn structure(&mut self, token: u32) -> Result<(), ConstraintError> {
        self.place = AnswerPart::Structure;
        self.grammar.take(token)
    }

    /// Takes a token before the structure.
    fn read(&mut self, token: u32) {
        let before = self.reader.stage();
        let bytes = self.tokenizer.bytes(token).unwrap_or_default();
        self.reader.push(&String::from_utf8_lossy(&bytes), &mut Vec::new());
        self.place = match self.reader.stage() {
            ReplyStage::Answer if self.needs_header => AnswerPart::Structure,
            ReplyStage::Answer => AnswerPart::Breaks(BREAKS),
            ReplyStage::Call => AnswerPart::Call,
            // The next message.
            ReplyStage::Start if before == ReplyStage::Reasoning => AnswerPart::Start,
            _ => AnswerPart::Free,
        };
    }
}

impl Constraint for Answering {
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), ConstraintError> {
        match self.place {
            AnswerPart::Start if self.needs_header && !self.openers.is_empty() => {
                restrict(logits, |token| self.openers.contains(&token));
            }
            AnswerPart::Free => restrict(logits, |token| !self.grammar.ends().contains(&token)),
            AnswerPart::Call => {}
            _ => {
                let allowed = self.grammar.allowed()?;
                restrict(logits, |token| allowed.has(token) || self.is_other(token));
            }
        }
        Ok(())
    }

    fn take(&mut self, token: u32) -> Result<(), ConstraintError> {
        match self.place {
            AnswerPart::Call => {}
            AnswerPart::Free => self.read(token),
            AnswerPart::Breaks(left) if left > 0 && self.breaks.contains(&token) => {
                // A break that the structure begins with is its own.
                match self.grammar.allowed()?.has(token) {
                    true => self.structure(token)?,
                    false => self.place = AnswerPart::Breaks(left - 1),
                }
            }
            _ if self.is_other(token) => self.read(token),
            _ => self.structure(token)?,
        }
        Ok(())
    }

    fn forced(&mut self) -> Result<Vec<u32>, ConstraintError> {
        match self.place {
            AnswerPart::Structure => self.grammar.forced(),
            // There is a choice, or may be.
            _ => Ok(Vec::new()),
        }
    }

    fn is_complete(&self) -> bool {
        self.place == AnswerPart::Structure && self.grammar.is_complete()
    }
}

impl fmt::Debug for AnswerMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").field("grammar", &self.grammar).finish_non_exhaustive()
    }
}

impl fmt::Debug for Answering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answering").field("place", &self.place).finish_non_exhaustive()
    }
}
