//! The variable that chooses a tier. In a process of its own, because the environment is shared.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use sws_kernels::{TIER_VARIABLE, Tier};

fn force(word: &OsStr) -> Result<Tier, String> {
    // SAFETY: no other test is in this process, and the harness reads no environment meanwhile.
    unsafe { std::env::set_var(TIER_VARIABLE, word) };
    Tier::from_env().map_err(|e| e.to_string())
}

#[test]
fn the_variable_chooses_a_tier_and_refuses_other_words() {
    let names: Vec<_> = Tier::available().into_iter().map(Tier::name).collect();
    for tier in Tier::available() {
        assert_eq!(force(tier.name().as_ref()), Ok(tier));
    }
    assert_eq!(force("".as_ref()), Ok(Tier::best()));
    let refused: [&[u8]; 5] = [b"AVX2", b"sse", b"avx2 ", b"avx\xff", b"portable,"];
    for word in refused {
        let (named, names) = (String::from_utf8_lossy(word), names.join(", "));
        let expected = format!("`{named}` is not a kernel tier of this CPU; choose one of {names}");
        assert_eq!(force(OsStr::from_bytes(word)), Err(expected));
    }
    // SAFETY: as above.
    unsafe { std::env::remove_var(TIER_VARIABLE) };
    assert_eq!(Tier::from_env(), Ok(Tier::best()));
}
