//! What a checkpoint means.
