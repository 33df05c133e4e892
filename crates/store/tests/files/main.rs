//! Tests of files from untrusted sources: checkpoints, manifests and system files.

#![allow(unreachable_pub)]

mod bad_checkpoint;
mod bad_manifest;
mod common;
mod corpus;
mod gguf_checkpoint;
mod gguf_header;
mod in_place;
mod limits;
mod memory;
mod resumed;
mod small;
