//! The `sws` command.

fn main() {}
