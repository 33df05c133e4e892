//! Tests of sharding through its public API.

/// Shards that an earlier call left.
mod resumed;
