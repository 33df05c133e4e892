//! Tests of files from untrusted sources: checkpoints and manifests.

#![allow(unreachable_pub)]

mod bad_checkpoint;
mod bad_manifest;
mod corpus;
mod gguf_checkpoint;
mod gguf_header;
mod in_place;
mod memory;
mod small;
mod unprivileged;
