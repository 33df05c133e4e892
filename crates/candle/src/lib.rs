//! A second implementation of the layers, on candle tensors in f32.
//!
//! It reads the same [`ModelSpec`](sws_model::ModelSpec) as the forward pass of `sws-model` and
//! shares no arithmetic with it: tensor names, attention, rotary frequencies, routing and the cache
//! of keys and values are its own. It also has its own code to read checkpoints. Shards are read
//! through the store and decoded by `sws-kernels`, because the meaning of their bytes belongs to
//! the format and not to a layer.
//!
//! It serves two purposes. Where both implementations agree, an error in only one of them is ruled
//! out. And it runs where our kernels do not run, or run slowly. Its results may differ in their
//! last bits with the machine, the number of threads, and the split of a prompt.
//!
//! [`draft`] trains the predictor of `sws-draft`, with candle's automatic differentiation.
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
