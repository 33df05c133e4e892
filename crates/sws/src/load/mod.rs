//! Loading a model: the options, the plan of its memory, and the backend that reads its weights.

pub(crate) mod backend;
#[cfg(feature = "candle")]
mod candle;
mod context;
mod engine;
pub(crate) mod loader;
mod loading;
pub(crate) mod options;
pub(crate) mod planning;
pub(crate) mod resident;
pub(crate) mod set;
pub(crate) mod vram;
