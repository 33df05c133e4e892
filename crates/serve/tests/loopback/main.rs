//! Requests over a loopback port, with small models.

mod arrival;
mod cancel;
mod chats;
mod client;
mod completions;
mod embeddings;
mod events;
mod gauges;
mod infill;
mod interfaces;
mod kept;
mod kv;
mod leaving;
mod llama;
mod matrix;
mod names;
mod ollama;
mod recorded;
mod refusals;
mod requests;
mod several;
mod structured;
mod tools;
