//! The forward pass.

mod goldens;
mod support;
