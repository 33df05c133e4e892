//! Encodings and products with the weights of every format; the other operations of a decoder.

mod common;
mod corpus;
mod definition;
mod encodings;
mod finite;
mod fma;
mod fp7;
mod functional;
mod gguf;
mod int8;
mod published;
mod split;
mod sums;
mod tiers;
