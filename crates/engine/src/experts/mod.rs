//! Routed experts: the demand of a layer, and the assembler that serves it.

mod assembler;
mod demand;
#[cfg(test)]
mod tests;
mod tier;
mod verifier;
mod weights;

pub(crate) use assembler::layers_with_experts;
pub use assembler::{Ablations, AssemblerConfig, DynamicAssembler, ExpectedReads};
pub use tier::{ExpertTier, TierCounts, TierTensor, TierUsage};
pub use verifier::{Exactness, Miss, NoBound, Presence, RealPath, Verdict, Verifier, detect_miss};
