//! The engine: streamed weights give the bits of resident ones, within the budget, whatever fails.

mod faults;
mod proposals;
mod speculation;
mod stand_ins;
mod stream;
mod streamer;
