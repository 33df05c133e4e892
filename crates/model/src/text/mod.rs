//! Everything between text and token ids, and between logits and a token.
//!
//! A prompt becomes ids by [`ChatTemplate`] and [`Tokenizer`]; logits become an id by [`Sampler`], as
//! [`Generation`] says; ids become text again by [`TextStream`], which stops where it should.
//! Nothing here opens files: the bytes of `tokenizer.json` and its neighbours are handed in, and are
//! believed no further than the limits say.

mod chat;
mod detokenize;
mod generation;
mod guard;
mod noise;
mod rng;
mod sampler;
mod stop;
mod stream;
mod tokenizer;

pub use chat::{ChatError, ChatOptions, ChatTemplate, Json, MAX_TEMPLATE_BYTES, Message};
pub use detokenize::{Detokenizer, Position};
pub use generation::{Generation, GenerationError, GenerationOptions, Sampling};
pub use noise::SAMPLER;
pub use rng::SplitMix64;
pub use sampler::{SampleError, Sampler};
pub use stop::StopStrings;
pub use stream::{Finish, TextStream};
pub use tokenizer::{MAX_TOKENIZER_BYTES, Tokenizer, TokenizerError};
