#![no_main]

#[path = "../src/patches.rs"]
mod patches;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    patches::fp7(data);
});
