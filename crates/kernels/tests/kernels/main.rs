//! Encodings and products, with the weights of every format.

mod common;
mod corpus;
mod definition;
mod encodings;
mod fp7;
mod gguf;
mod int8;
mod published;
mod sums;
mod tiers;
