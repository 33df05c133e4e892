//! Texts that begin like others have the tokens and probabilities that they have alone.

mod disk;
mod memory;
mod support;
