//! Configurations, tensors and the forward pass.

mod corpus;
mod forward;
mod naming;
