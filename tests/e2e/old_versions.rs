//! Files written by earlier versions load with the same bits.

use std::path::{Path, PathBuf};

use crate::sws::{Outcome, command, sws};

const TOKENS: &str = "34,145,16,65,30,126,115,120,97,53,24,124,7,99,110,0,114,68,58,26,81,7,5,6,138,2,\
                      97,55,108,7,135,56,112,126,141,59,88,59,56,117";

/// Fingerprint in the model's manifest.
const FINGERPRINT: &str = "b9f75fe5a4df1d79d956cdfcf6a745a0d7f431ee36b88ab1d4265726643e34e7";

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/fce7e55").join(name)
}

#[test]
fn shards_have_the_same_logits() {
    let temp = tempfile::tempdir().unwrap();
    let out = temp.path().join("logits");
    let golden = std::fs::read(fixture("golden.safetensors")).unwrap();
    sws(&[&"verify", &fixture("shards")]).succeeded();
    for holding in [["--resident", "--no-speculation"], ["--ram", "min"], ["--ram", "1GiB"]] {
        let draft = fixture("draft.safetensors");
        let shards = fixture("shards");
        let drafted: [&dyn AsRef<std::ffi::OsStr>; 2] = match holding[0] {
            "--ram" => [&"--draft", &draft],
            _ => [&"--kv", &"f32"],
        };
        let [[a, b], [c, d]] = [holding.map(|word| word), ["--tokens", TOKENS]];
        let line: [&dyn AsRef<std::ffi::OsStr>; 10] =
            [&"forward", &shards, &a, &b, &c, &d, &"--out", &out, drafted[0], drafted[1]];
        sws(&line).succeeded();
        assert!(std::fs::read(&out).unwrap() == golden, "{holding:?}");
        std::fs::remove_file(&out).unwrap();
    }
}

/// Runs with a draft, and with a learned file in the cache directory.
fn run(cache: &Path, draft: &Path, learned: &[u8]) -> Outcome {
    let dir = cache.join("sws/learned");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join(FINGERPRINT).with_extension("safetensors"), learned).unwrap();
    let mut command = command(&[
        &"run",
        &fixture("shards"),
        &"--draft",
        &draft,
        &"--tokens",
        &TOKENS,
        &"--max-new-tokens",
        &"8",
        &"--json",
    ]);
    Outcome::of(command.env("XDG_CACHE_HOME", cache).output().unwrap())
}

#[test]
fn drafts_and_learned_files_are_used() {
    let temp = tempfile::tempdir().unwrap();
    let draft = fixture("draft.safetensors");
    let mut learned = std::fs::read(fixture("learned.safetensors")).unwrap();
    let outcome = run(temp.path(), &draft, &learned).succeeded();
    assert!(!outcome.stderr.contains("takes its place"), "{outcome:?}");

    // Both files are really read: damaged ones are named.
    learned.truncate(100);
    let outcome = run(temp.path(), &draft, &learned).succeeded();
    assert!(outcome.stderr.contains("what is learned in this run takes its place"), "{outcome:?}");
    let cut = temp.path().join("cut.safetensors");
    std::fs::write(&cut, &std::fs::read(&draft).unwrap()[..1000]).unwrap();
    run(temp.path(), &cut, &learned).refused(2, &["cut.safetensors"]);
}
