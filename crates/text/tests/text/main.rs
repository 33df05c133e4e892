//! Text: tokenizers, chat templates, streaming, stopping, sampling, structured output.

mod chat;
mod corpus;
mod draws;
mod generation;
mod gguf;
#[cfg(feature = "grammar")]
mod grammar;
mod honest;
mod hostile;
mod sampler;
mod stop;
mod tokenizer;
