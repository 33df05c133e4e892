//! Text: tokenizers, chat templates, streaming, stopping, sampling.

mod chat;
mod draws;
mod generation;
mod gguf;
mod honest;
mod hostile;
mod sampler;
mod stop;
mod tokenizer;
