//! `sws bench`: a board of numbers with a certificate that others can recompute.

use serde_json::Value;
use sws_testing::tales;

use crate::goldens::copy;
use crate::sws::sws;

/// A name, a change of a board, and a part of the sentence that refuses it.
type Lie = (&'static str, fn(&mut Value), &'static str);

#[test]
fn a_board_has_rounds_and_a_certificate_that_holds() {
    let model = tales();
    let temp = tempfile::tempdir().unwrap();
    let board = temp.path().join("board.json");
    let options = [&"--rounds=1", &"-n3", &"--ram=min,100MiB"] as [&dyn AsRef<std::ffi::OsStr>; 3];
    let [rounds, tokens, ram] = options;
    let outcome = sws(&[&"bench", &model, rounds, tokens, ram, &"--out", &board]).succeeded();
    for word in ["cold", "warm", "100.00 MiB", "qwen3_moe", "medians of 1 round"] {
        assert!(outcome.stdout.contains(word), "no {word:?} in {}", outcome.stdout);
    }
    let text = std::fs::read_to_string(&board).unwrap();
    let json: Value = serde_json::from_str(&text).unwrap();
    let rounds = json["rounds"].as_array().unwrap();
    assert_eq!(rounds.len(), 4);
    for round in rounds {
        let budget = round["ram_bytes"].as_u64().unwrap();
        assert!(round["ram"] == "min" || budget == 100 << 20, "{round}");
        assert!(round["peak_rss_bytes"].as_u64().unwrap() <= budget, "{round}");
    }
    assert_eq!(json["new_tokens"], 3);
    // Neither this machine nor a path is named.
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    assert!(host.is_empty() || !text.contains(&format!("\"{host}\"")), "{text}");
    assert!(!text.contains(temp.path().to_str().unwrap()) && !text.contains("shards/"), "{text}");

    let check = |file: &std::path::Path| sws(&[&"bench", &model, &"--check", &file]);
    let agrees = check(&board).succeeded();
    let agree = "board.json: every bit agrees in all 3 steps";
    assert!(agrees.stdout.contains(agree), "{agrees:?}");

    // Another text, and other logits, are found out.
    for change in ["tokens", "steps"] {
        let mut forged = json.clone();
        let of = &mut forged["certificate"][change][1];
        match change {
            "tokens" => *of = (of.as_u64().unwrap() ^ 1).into(),
            _ => of["logits"] = "00000000000000000000000000000000".into(),
        }
        let file = temp.path().join(change);
        std::fs::write(&file, forged.to_string()).unwrap();
        let outcome = check(&file);
        assert!(matches!(outcome.code, Some(1 | 2)), "{change}: {outcome:?}");
        assert!(!outcome.stdout.contains("agrees"), "{change}: {outcome:?}");
    }

    // Numbers that contradict each other are refused before anything is computed.
    let lies: [Lie; 11] = [
        ("speed", |of| of["rounds"][0]["tokens_per_second"] = 1e6.into(), "another rate"),
        ("negative", |of| of["rounds"][1]["load_seconds"] = (-1.0).into(), "impossible"),
        ("hits", |of| of["rounds"][2]["hit_rate"] = 1.5.into(), "not between 0 and 1"),
        ("memory", |of| of["rounds"][3]["peak_rss_bytes"] = 0.into(), "are 0"),
        ("fewer", |of| drop(of["rounds"].as_array_mut().unwrap().pop()), "missing, or there twice"),
        ("tokens", |of| of["new_tokens"] = 4096.into(), "other numbers of tokens"),
        ("drive", |of| of["machine"]["measured"]["ram_bytes"] = 0.into(), "ram_bytes"),
        ("larger", |of| of["model"]["weight_bytes"] = (1u64 << 40).into(), "another model"),
        ("other", |of| of["model"]["fingerprint"] = "0".repeat(64).into(), "another model"),
        ("text", |of| of["certificate"]["prompt"][0] = 5.into(), "another text"),
        ("warm", |of| of["certificate"]["sampling"]["temperature"] = 1.into(), "temperature 0"),
    ];
    for (name, lie, sentence) in lies {
        let mut forged = json.clone();
        lie(&mut forged);
        let file = temp.path().join(name);
        std::fs::write(&file, forged.to_string()).unwrap();
        check(&file).refused(2, &[name, sentence]);
    }
}

#[test]
fn boards_that_are_none_are_refused_with_one_sentence() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("board.json");
    let model = tales();
    for bytes in [&b""[..], b"{}", b"[1]", b"\xff\xfe", br#"{"format":"sws-bench-9"}"#] {
        std::fs::write(&file, bytes).unwrap();
        let outcome = sws(&[&"bench", &model, &"--check", &file]);
        outcome.refused(2, &["board.json", "is not a board", "sws bench --out"]);
    }
    sws(&[&"bench", &model, &"--check", &"/nonesuch"]).refused(2, &["/nonesuch", "cannot be read"]);
    sws(&[&"bench", &model, &"--rounds=1", &"-n2", &"--ram=1MiB"])
        .refused(2, &["a round ended early", "too small"]);
    let other = temp.path().join("other");
    copy("qwen3_moe", &other);
    let board = temp.path().join("own.json");
    sws(&[&"bench", &model, &"--rounds=1", &"-n2", &"--out", &board]).succeeded();
    let outcome = sws(&[&"bench", &other, &"--check", &board]);
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
    assert!(outcome.stderr.contains("another model"), "{outcome:?}");
}
