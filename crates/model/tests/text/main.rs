//! Text: tokenizers, chat templates, streaming, stopping, sampling.

mod chat;
mod generation;
mod sampler;
mod stop;
mod tokenizer;
