//! A second implementation of the layers, on candle tensors in f32.
//!
//! It reads the same [`ModelSpec`](sws_model::ModelSpec) as the forward pass of `sws-model` and shares
//! no arithmetic with it: names of tensors, attention, rotary frequencies, routing and the cache of keys and
//! values are its own. Checkpoints are read by its own code; shards come through the store and are decoded
//! by `sws-kernels`, since what bytes mean is the format's to say and not a layer's. Where the two agree, neither is wrong by itself; and where our kernels do
//! not run, or run slowly, this does. Its bits are its own too: they may depend on the machine, the
//! threads, and how a prompt is cut.
//!
//! [`draft`] trains what `sws-draft` forecasts with: tensors with gradients are candle's.
//!
//! [`CandleLm`] is a model in memory with one sequence, loaded from a checkpoint or from shards.
//!
//! ```no_run
//! use std::path::Path;
//! use sws_candle::CandleLm;
//! use sws_model::{CausalLm, ModelSpec};
//!
//! let dir = Path::new("tests/goldens/qwen3_moe");
//! let spec = ModelSpec::parse(&std::fs::read(dir.join("config.json"))?)?;
//! let mut lm = CandleLm::from_checkpoint(spec, dir, &mut |_| true)?;
//! let logits = lm.prefill(&[1, 2, 3])?;
//! assert_eq!(logits.len(), 173);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod attention;
pub mod draft;
mod ffn;
mod lm;
mod weights;

pub use lm::{CandleLm, supports};
pub use weights::CandleError;
