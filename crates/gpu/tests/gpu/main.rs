//! Tests on a device of OpenCL, which PoCL has on any CPU (Debian: apt-get install pocl-opencl-icd). Without one each
//! says so and passes.

#![allow(clippy::print_stderr)]

mod choice;
mod encodings;
mod faults;
mod in_front;
mod ledger;
mod models;
mod refused;
mod source;
mod streamed;
mod support;
