//! What strangers put on disk, and what becomes of it.

#![allow(unreachable_pub)]

mod common;
mod in_place;
mod manifest;
