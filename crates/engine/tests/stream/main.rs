//! Weights that do not all fit are the same weights.

mod bytes;
mod faults;
mod goldens;
mod support;
