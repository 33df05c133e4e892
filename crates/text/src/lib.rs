//! Conversion between text and token ids, and selection of tokens from logits.
//!
//! [`ChatTemplate`] and [`Tokenizer`] convert a prompt to ids. [`Sampler`] selects an id from
//! logits, with the settings of [`Generation`]. [`TextStream`] converts ids back to text, and ends
//! it at stop tokens and stop strings. With the feature `grammar`, [`grammar`] restricts texts to a
//! schema. Nothing here opens files: callers pass in the bytes of
//! `tokenizer.json` and related files, whose contents are trusted only within fixed limits.
//!
//! ```
//! use sws_text::{Sampler, Sampling, StopStrings};
//!
//! let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
//! let mut sampler = Sampler::new(greedy, 3);
//! assert_eq!(sampler.sample(&mut [0.5, 2.0, -1.0], 0)?, 1);
//!
//! let mut stop = StopStrings::new(["###".to_owned()]);
//! let mut text = String::new();
//! assert!(stop.push("The end.### More", &mut text));
//! assert_eq!(text, "The end.");
//! # Ok::<(), sws_text::SampleError>(())
//! ```

mod chat;
mod constraint;
mod detokenize;
mod dry;
mod generation;
pub mod gguf;
#[cfg(feature = "grammar")]
pub mod grammar;
mod guard;
mod infill;
mod noise;
mod pieces;
mod refusal;
mod reply;
mod rng;
mod sampler;
mod stop;
mod stream;
mod tokenizer;

pub use chat::{
    ChatError, ChatOptions, ChatPrompt, ChatTemplate, Json, MAX_TEMPLATE_BYTES, Message,
};
pub use constraint::{Constraint, ConstraintError, TokenMask};
pub use detokenize::Detokenizer;
pub use dry::{DryOptions, DrySettings};
pub use generation::{Generation, GenerationOptions, Sampling, SettingOf, SettingOrigin};
pub use infill::{Infill, InfillFile};
pub use noise::SAMPLER;
pub use pieces::Position;
pub use refusal::GenerationError;
pub use reply::{
    ArgumentForm, ArgumentTags, ReplyFormat, ReplyPart, ReplyReader, ReplyStage, ToolCall,
    ToolSchemas,
};
pub use rng::SplitMix64;
pub use sampler::{SampleError, Sampler};
pub use stop::StopStrings;
pub use stream::{Finish, TextStream};
pub use tokenizer::{MAX_TOKENIZER_BYTES, Tokenizer, TokenizerError, TokenizerMemory};
