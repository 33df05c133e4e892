//! Weights that do not all fit are the same weights.

mod goldens;
mod support;
