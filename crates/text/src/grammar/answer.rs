//! Structured answers that may follow free reasoning.

use std::fmt;
use std::sync::Arc;

use crate::{
    Constraint, ConstraintError, ReplyFormat, ReplyReader, ReplyStage, TokenMask, Tokenizer,
    ToolSchemas,
};

use super::Grammar;
use super::mask::restrict;

/// Maximum number of line-break tokens between reasoning and answer.
const BREAKS: usize = 2;

/// Constraint for answers: free reasoning, if the model has any, followed by a structured text.
/// Where tools were shown, a tool call may take the place of the text, and it is free too. An
/// answer cannot end within reasoning.
pub struct AnswerMask {
    grammar: Grammar,
    tokenizer: Arc<Tokenizer>,
    format: ReplyFormat,
    /// The last characters of the prompt.
    prompt: String,
    schemas: Option<ToolSchemas>,
    /// Tokens of markers that begin reasoning or a header.
    openers: Arc<[u32]>,
    /// Tokens of markers that begin a tool call.
    calls: Arc<[u32]>,
    /// Tokens that are line breaks.
    breaks: Arc<[u32]>,
}

impl AnswerMask {
    /// A constraint for answers in this format, to a prompt that ends in `prompt`. `schemas` has
    /// the tools that were shown, if any.
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

    /// True if tools were shown, but no answer with the structure can be a tool call.
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

/// State of one answer.
struct Answering {
    grammar: Grammar,
    tokenizer: Arc<Tokenizer>,
    reader: ReplyReader,
    place: AnswerPart,
    /// True if a header has to come first.
    needs_header: bool,
    openers: Arc<[u32]>,
    calls: Arc<[u32]>,
    breaks: Arc<[u32]>,
}

/// The next part of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnswerPart {
    /// The marker of reasoning or of a header. Without headers, the structure may begin here, too.
    Start,
    /// Reasoning, or the rest of a header.
    Free,
    /// The structure, or up to this many more line breaks.
    Breaks(usize),
    /// The structure.
    Structure,
    /// A tool call, to the end of the answer.
    Call,
}

impl Answering {
    /// True if a token may come next although the structure does not allow it.
    fn is_other(&self, token: u32) -> bool {
        let own = match self.place {
            AnswerPart::Start => &self.openers[..],
            AnswerPart::Breaks(0) => &[],
            AnswerPart::Breaks(_) => &self.breaks,
            AnswerPart::Free | AnswerPart::Structure | AnswerPart::Call => return false,
        };
        own.contains(&token) || self.calls.contains(&token)
    }

    /// Takes a token that belongs to the structure.
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
            // The next message begins.
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
                // A line break that the structure allows belongs to the structure.
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
            // Several tokens may be possible.
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
