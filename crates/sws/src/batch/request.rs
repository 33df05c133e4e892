//! A text to continue among others, and what happens to it.

use std::sync::{Arc, Mutex};

use sws_engine::Witness;
use sws_model::text::{Generation, Position, TokenMask};
use sws_store::shard::Progress;

use crate::{Cancel, Generated, Piece, Rank, Result};

/// A text to continue among others.
#[derive(Clone, Debug)]
pub struct BatchRequest {
    /// The tokens of the prompt.
    pub tokens: Vec<u32>,
    /// The [resolved](crate::Model::generation) options; without a limit of new tokens, the text goes
    /// on as far as the context allows.
    pub generation: Generation,
    /// The place of the new text: at the start of an answer, or in the middle of a text.
    pub position: Position,
    /// Numbers added to the logits of tokens before a token is chosen.
    pub bias: Vec<(u32, f32)>,
    /// Restricts the tokens that may be chosen. Those that it forces are computed in one pass, unless
    /// `ranks` asks for the probabilities of each.
    pub constraint: Option<Arc<dyn TokenMask>>,
    /// Number of likeliest tokens to report beside each token, with their probabilities; `None` for
    /// no probabilities at all.
    pub ranks: Option<usize>,
    /// True if the tokens of the prompt are ranked, too. A budget has room for that if
    /// [`Needs::all_logits`](crate::Needs::all_logits) was declared.
    pub prompt_ranks: bool,
    /// Sees the routes and logits of all its tokens, for a certificate. Nothing of earlier texts is then
    /// used again, and there may be neither a constraint nor a bias.
    pub witness: Option<Arc<Mutex<Witness>>>,
    /// True for a text that is hardly ever continued, such as a title for others: what is kept of it goes
    /// sooner, until it has been used.
    pub short_lived: bool,
    /// The owner of the text. What was computed for a text is used again for texts of its owner that
    /// begin as it does. The same text again, such as one that was cancelled, goes on where it was, if
    /// it has neither a constraint nor ranks.
    pub owner: u64,
    /// Cancels the text.
    pub cancel: Cancel,
}

impl BatchRequest {
    /// A request without anything special: in the middle of a text, and nobody's in particular.
    pub fn new(tokens: Vec<u32>, generation: Generation) -> BatchRequest {
        BatchRequest {
            tokens,
            generation,
            position: Position::Middle,
            bias: Vec::new(),
            constraint: None,
            ranks: None,
            prompt_ranks: false,
            witness: None,
            short_lived: false,
            owner: 0,
            cancel: Cancel::default(),
        }
    }
}

/// Progress of a text in a step.
#[derive(Debug)]
pub enum Event {
    /// A part of its prompt was computed.
    Prompt(Progress),
    /// Tokens of its prompt, from the second on, with their probabilities.
    Ranked(Vec<Rank>),
    /// The tokens that the same text had before.
    Resumed(Vec<Piece>),
    /// A token was chosen, or text that was held back is complete.
    Piece(Piece, Option<Rank>),
    /// The text is over.
    Ended(Box<Result<Generated>>),
}
