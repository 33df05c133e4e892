//! Tests of sharding through its public API.

/// Copies on another drive.
mod mirror;
/// Shards that an earlier call left.
mod resumed;
