#![no_main]

#[path = "../src/request.rs"]
mod check;
#[path = "../src/offline.rs"]
mod offline;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    check::check(data);
});
