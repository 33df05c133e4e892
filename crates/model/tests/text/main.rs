//! Text: tokenizers, streaming, stopping, sampling.

mod generation;
mod sampler;
mod stop;
mod tokenizer;
