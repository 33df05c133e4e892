//! The variable that forces a tier. In a process of its own: the environment is everybody's.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use sws_kernels::{TIER_VARIABLE, Tier};

#[test]
fn the_variable_forces_a_tier_and_refuses_other_words() {
    let force = |word: &OsStr| {
        // SAFETY: no other test is in this process, and the harness reads no environment meanwhile.
        unsafe { std::env::set_var(TIER_VARIABLE, word) };
        Tier::from_env().map(Tier::name)
    };
    for tier in Tier::available() {
        assert_eq!(force(tier.name().as_ref()), Ok(tier.name()));
    }
    let names: Vec<_> = Tier::available().into_iter().map(Tier::name).collect();
    for word in [&b""[..], b"AVX2", b"sse", b"avx2 ", b"avx\xff"] {
        let error = force(OsStr::from_bytes(word)).unwrap_err();
        let shown = String::from_utf8_lossy(word);
        let expected = format!(
            "`{shown}` is not a kernel tier of this CPU; choose one of {}",
            names.join(", ")
        );
        assert_eq!(error.to_string(), expected);
    }
    // SAFETY: as above.
    unsafe { std::env::remove_var(TIER_VARIABLE) };
    assert_eq!(Tier::from_env().map(Tier::name), Ok(Tier::best().name()));
}
