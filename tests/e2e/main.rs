//! End-to-end tests of the `sws` command, one module per subject.

mod bad_models;
mod budget;
mod candle;
mod cgroup;
mod chat;
mod checkpoints;
mod draft;
mod faults;
mod full_disk;
mod kill;
mod large;
mod library;
mod library_of_models;
mod limits;
mod links;
mod memory;
mod old_versions;
mod outline;
mod outputs;
mod pipes;
mod prompts;
mod pull;
mod refusals;
mod replay;
mod roundtrip;
mod run;
mod serve;
mod stand_ins;
mod stream;
mod sws;
mod tales;
mod terminal;
mod tokenizers;

use sws_testing::goldens;
