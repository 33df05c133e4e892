//! The library as a program uses it.

mod prefixes;
mod texts;
