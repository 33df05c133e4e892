//! Pieces of a model on disk.
