//! Texts of a given structure: JSON by a schema, regular expressions, choices, grammars.
//!
//! - A [`Structure`] is a requested structure. [`GrammarVocabulary::compile`] makes a [`Grammar`] of it for
//!   the tokens of a model, within bounds on size, nesting and work.
//! - A [`Grammar`] is a [`TokenMask`](crate::TokenMask): it says which tokens may come next,
//!   and which must.
//! - An [`AnswerMask`] is one too. It leaves what a model thinks before its answer free.
//!
//! The automata are those of the crate `llguidance`. A failure in it, panics included, is an error of
//! the structure.

mod answer;
mod arguments;
mod bounds;
mod gbnf;
mod marks;
mod mask;
mod pattern;
mod schema;
mod structure;
mod vocabulary;

pub use answer::AnswerMask;
pub use bounds::{MAX_CHOICES, MAX_NESTING, MAX_REGEX_BYTES, MAX_STRUCTURE_BYTES, StructureError};
pub use mask::Grammar;
pub use structure::{CallOption, Structure};
pub use vocabulary::GrammarVocabulary;
