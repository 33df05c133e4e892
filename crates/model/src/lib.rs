//! What a checkpoint means.
//!
//! [`naming()`] reads a `config.json` and returns the [`Naming`](sws_store::Naming) of its family:
//! which tensor belongs to which piece, and in what order a piece computes with its tensors.
//! [`text`] is what lies between text and token ids, and between logits and a token.
//!
//! ```
//! use sws_store::{PieceId, Placement};
//!
//! let config = br#"{"model_type": "mixtral", "num_hidden_layers": 32, "num_local_experts": 8}"#;
//! let naming = sws_model::naming(config)?;
//! let name = "model.layers.3.block_sparse_moe.experts.7.w2.weight";
//! let placement = naming.place(name, &[4096, 14336]);
//! assert!(matches!(placement, Placement::Piece { id, matrix: true, .. } if id == PieceId::expert(3, 7)));
//! # Ok::<(), sws_model::ConfigError>(())
//! ```

mod config;
mod families;
mod naming;
pub mod text;

pub use config::ConfigError;
pub use families::supported;
pub use naming::naming;
