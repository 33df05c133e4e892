//! Texts of a given form: JSON by a schema, regular expressions, choices, grammars.
//!
//! - A [`Form`] is what was asked for. [`Vocabulary::compile`] makes a [`Grammar`] of it for the tokens
//!   of a model, within bounds on size, nesting and work.
//! - A [`Grammar`] is a [`Constrain`](sws_model::text::Constrain): it says which tokens may come next,
//!   and which must.
//! - An [`Answer`] is one too. It leaves what a model thinks before its answer free.
//!
//! The automata are those of the crate `llguidance`. A failure in it, panics included, is an error of
//! the form.
#![deny(missing_docs)]

mod answer;
mod form;
mod gbnf;
mod grammar;
mod schema;
mod vocabulary;

pub use answer::Answer;
pub use form::{Form, FormError, MAX_CHOICES, MAX_FORM_BYTES, MAX_NESTING, MAX_REGEX_BYTES};
pub use grammar::Grammar;
pub use vocabulary::Vocabulary;
