//! The engine: streamed weights give the bits of resident ones, within the budget, whatever fails.

mod faults;
mod speculation;
mod speculative;
mod stand_ins;
mod stream;
mod streamer;
