//! Texts that keep to a schema, an expression or a grammar.

mod answers;
mod calls;
mod structured;
