//! Model configurations and the forward pass.
//!
//! A [`Configuration`](sws_format::Configuration) becomes two things. [`naming()`] returns the
//! [`Naming`](sws_format::Naming) of its family, by which the store sorts tensors into pieces.
//! [`ModelSpec`] describes the computation of each layer.
//!
//! A [`ForwardPass`] is a spec and a choice of kernels. It takes a batch of tokens through the layers,
//! keeps intermediate results in a [`ForwardState`], and requests weights from a [`WeightSource`]. A
//! [`ResidentSource`] has them all in memory; an engine assembles them as they are needed. The
//! arithmetic is the same, so the results are identical bit for bit. [`Sequences`] combine all of
//! this for any number of sequences, a [`Session`] for one.
//!
//! Callers that only continue one sequence hold a [`CausalLm`]. A session is one implementation; other
//! implementations of the layers are possible.
//!
//! ```
//! use sws_format::{Configuration, PieceId, Placement};
//!
//! let config = br#"{"model_type": "mixtral", "num_hidden_layers": 32, "num_local_experts": 8}"#;
//! let naming = sws_model::naming(&Configuration::from_json("config.json", config)?)?;
//! let name = "model.layers.3.block_sparse_moe.experts.7.w2.weight";
//! let placement = naming.place(name, &[4096, 14336]);
//! assert!(matches!(placement, Placement::Piece { id, matrix: true, .. } if id == PieceId::expert(3, 7)));
//! # Ok::<(), sws_model::InvalidConfig>(())
//! ```

mod agreeing;
mod config;
mod describe;
mod executor;
mod families;
mod forward;
mod gguf;
mod handle;
mod inventory;
mod layer_state;
mod naming;
mod observer;
mod order;
mod outline;
mod places;
mod prefix;
mod reading;
mod resident;
mod role;
mod rope;
mod routed;
mod sequences;
mod session;
mod source;
mod spec;
mod spellings;
mod state;
mod unused;
mod workspace;
mod wrappers;

pub use config::{ConfigError, InvalidConfig};
pub use describe::Description;
pub use executor::{ExpertBatch, ExpertExecutor};
pub use families::{LACKING, Lacking, supported};
pub use forward::{Chunk, ForwardError, ForwardPass, LogitRows, PassSize, RouterProbe};
pub use handle::{CausalLm, check_tokens};
pub use inventory::{HeldTensor, Inventory, WeightsError};
pub use layer_state::KvPrecision;
pub use naming::naming;
pub use observer::Observer;
pub use order::{ReadStep, TensorSpec};
pub use outline::{HubTensor, TooManyWeights};
pub use prefix::Prefix;
pub use resident::{LoadError, ResidentLoader, ResidentSource};
pub use role::Role;
pub use rope::{Rope, RopeScaling};
pub use sequences::{Sequences, StepOutcome};
pub use session::Session;
pub use source::{
    Compute, Contribution, FindRows, PassSource, Ready, Routed, RunAhead, SourceError, TakeRow,
    WeightSource, Weights,
};
pub use spec::{
    AddedConv, AttentionExtras, AttentionGate, AttentionSpec, BlocksSpec, CompressedSpec, ConvSpec,
    DeltaInputs, DeltaSpec, DistanceSpec, ExpertGroups, Ffn, GateUp, GroupMeasure, HeadSpec,
    IndexerSpec, KeptStates, KeyValues, LatentGates, LatentNorm, LatentSpec, LayerInputs,
    LayerSpec, LoopSpec, Mixer, MlpSpec, ModelSpec, MoeSpec, NgramNumbers, NgramSpec, Norm,
    NormGates, PoolIndexer, PoolSpec, QkNorm, RankedRouter, Renormalise, Residual, Router,
    RouterScores, SharedSpec, SparseSpec, StateSpaceSpec, StreamReads, Temperature,
};
pub use state::{ForwardState, SavedState};
pub use unused::{LeftOut, Unused, UnusedPart};
