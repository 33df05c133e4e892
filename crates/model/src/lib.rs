//! What a checkpoint means, and what it computes.
//!
//! A `config.json` becomes two things: [`naming()`] returns the [`Naming`](sws_store::Naming) of its
//! family, by which the store sorts tensors into pieces; [`ModelSpec`] says what each layer
//! computes. A [`Model`] is a spec and a choice of kernels. It takes a batch of tokens through the
//! layers, keeps what it carries in a [`State`], and asks a [`WeightSource`] for weights: a
//! [`ResidentSource`] has them all in memory, and an engine assembles them as they are needed. The
//! arithmetic is the same, so the bits are. [`Session`] is all of that for one sequence.
//!
//! Who only wants to use a model has a [`ModelHandle`] and asks it for a capability, such as
//! [`CausalLm`]. A session is one way to have it, other implementations of the layers are others.
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
mod finite;
mod forward;
mod handle;
mod inventory;
mod layer_state;
mod naming;
mod observer;
mod order;
mod resident;
mod role;
mod rope;
mod session;
mod source;
mod spec;
mod state;
pub mod text;

pub use config::ConfigError;
pub use families::supported;
pub use finite::first_not_finite;
pub use forward::{Chunk, ForwardError, Model, PassSize, RouterProbe, Rows};
pub use handle::{CausalLm, ModelHandle, check_tokens};
pub use inventory::{Held, Inventory, WeightsError};
pub use layer_state::KvPrecision;
pub use naming::naming;
pub use observer::Observer;
pub use order::{ReadStep, TensorSpec};
pub use resident::{LoadError, Loader, ResidentSource};
pub use role::Role;
pub use rope::{Rope, RopeScaling};
pub use session::Session;
pub use source::{
    Compute, Contribution, PassSource, Ready, Routed, RunAhead, SourceError, WeightSource, Weights,
};
pub use spec::{
    AttentionSpec, Ffn, LayerSpec, Mixer, MlpSpec, ModelSpec, MoeSpec, Norm, QkNorm, Router,
    SharedSpec,
};
pub use state::{Saved, State};
