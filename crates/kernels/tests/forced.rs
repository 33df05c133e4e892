//! The variable that chooses implementations. In a process of its own, because the environment is
//! shared.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use sws_kernels::{Functionals, Kind, TIER_VARIABLE, Tier};

fn force(words: &OsStr) -> Result<Functionals, String> {
    // SAFETY: no other test is in this process, and the harness reads no environment meanwhile.
    unsafe { std::env::set_var(TIER_VARIABLE, words) };
    Functionals::from_env().map_err(|e| e.to_string())
}

#[test]
fn the_variable_chooses_implementations_and_refuses_other_words() {
    let names: Vec<_> = Tier::available().into_iter().map(Tier::name).collect();
    for tier in Tier::available() {
        assert_eq!(force(tier.name().as_ref()), Ok(Functionals::from(tier)));
    }
    let (best, portable) = (Functionals::best(), Functionals::from(Tier::Portable));
    let chosen = [
        ("", best),
        ("attention=scalar", best.with(Kind::Attention, Tier::Scalar)),
        ("portable,moe=scalar", portable.with(Kind::Moe, Tier::Scalar)),
        (
            "portable,norm=scalar,rope=scalar",
            portable.with(Kind::Norm, Tier::Scalar).with(Kind::Rope, Tier::Scalar),
        ),
        // The last word wins.
        ("linear=scalar,portable", portable),
        ("portable,linear=scalar,linear=portable", portable),
    ];
    for (words, expected) in chosen {
        assert_eq!(force(words.as_ref()), Ok(expected), "{words}");
        // The printed form can be parsed.
        assert_eq!(expected.to_string().parse(), Ok(expected), "{words}");
    }
    assert_eq!(portable.with(Kind::Rope, Tier::Scalar).to_string(), "portable,rope=scalar");

    let no_tier = |word: &[u8]| {
        let (word, names) = (String::from_utf8_lossy(word), names.join(", "));
        format!("`{word}` is not a kernel tier of this CPU; choose one of {names}")
    };
    let no_kind = |word: &str| {
        format!(
            "`{word}` is no kind of functional; choose one of linear, attention, norm, rope, moe"
        )
    };
    let refused: [(&[u8], String); 8] = [
        (b"AVX2", no_tier(b"AVX2")),
        (b"sse", no_tier(b"sse")),
        (b"avx2 ", no_tier(b"avx2 ")),
        (b"avx\xff", no_tier(b"avx\xff")),
        (b"portable,", no_tier(b"")),
        (b"norm=", no_tier(b"")),
        (b"norms=portable", no_kind("norms")),
        (b"=portable", no_kind("")),
    ];
    for (words, expected) in refused {
        assert_eq!(force(OsStr::from_bytes(words)), Err(expected));
    }
    // SAFETY: as above.
    unsafe { std::env::remove_var(TIER_VARIABLE) };
    assert_eq!(Functionals::from_env(), Ok(best));
    assert_eq!(best, Functionals::from(Tier::best()));
}
