//! Configurations, tensors, the forward pass, and texts.

mod corpus;
mod forward;
mod naming;
mod text;
