//! Shared parts of the benchmarks and checkpoint makers.
