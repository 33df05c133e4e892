//! What strangers put on disk, and what becomes of it.

#![allow(unreachable_pub)]

mod bad_checkpoint;
mod bad_manifest;
mod common;
mod corpus;
mod in_place;
mod limits;
mod memory;
mod small;
