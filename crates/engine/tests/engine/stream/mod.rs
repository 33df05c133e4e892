//! Streamed infrastructure gives the same bits as resident weights.

mod bytes;
mod faults;
mod goldens;
mod support;
