//! `sws-bench` through the command, and the pages that it writes.

mod checkpoints;
mod kernels;
mod links;
mod measured;
mod models;
mod plans;
mod published;
mod reliability;
mod report;
mod resident;
mod stream;
