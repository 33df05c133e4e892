//! Models in object storage on loopback that misbehaves.

mod access;
mod cache;
mod faults;
mod helpers;
mod pushing;
