//! Models on disk: finding a model by name, and its manifest, configuration, tokenizer and chat
//! template. No weights are read.

pub(crate) mod find;
pub(crate) mod mirrors;
pub(crate) mod model;
mod name;
pub(crate) mod pooling;
pub(crate) mod process;
pub(crate) mod reading;
pub(crate) mod suggestions;
pub(crate) mod text;
