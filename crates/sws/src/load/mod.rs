//! From a model on disk to one that runs: the options, the plan of its memory, and the backend that reads
//! its weights.

pub(crate) mod backend;
pub(crate) mod loader;
pub(crate) mod options;
pub(crate) mod planning;
pub(crate) mod process;
pub(crate) mod resident;
pub(crate) mod threads;
pub(crate) mod warning;
