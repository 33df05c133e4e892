//! End-to-end tests of the `sws` command, one module a subject.
