//! Models on disk: finding one by its name, its manifest and configuration, and its tokenizer and chat
//! template. Nothing here reads weights.

pub(crate) mod find;
pub(crate) mod model;
mod name;
pub(crate) mod process;
pub(crate) mod reading;
pub(crate) mod suggestions;
pub(crate) mod text;
