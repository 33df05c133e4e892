//! `--kv bf16` and `--kv q8`: the same logits in every tier, budget and division of a prompt, other ones
//! than those of exact keys and values, and named wherever bits are.

use std::ffi::OsStr;
use std::path::Path;

use serde_json::Value;
use sws_testing::tales;

use crate::goldens::runnable;
use crate::serve::Server;
use crate::sws::{Outcome, command, sws};

const ROUNDED: [&str; 2] = ["bf16", "q8"];

fn forward(model: &Path, out: &Path, tier: &str, more: &[&str]) -> Vec<u8> {
    let mut args: Vec<&dyn AsRef<OsStr>> =
        vec![&"forward", &model, &"--tokens", &"1,2,3,5,8,13,21", &"--out", &out];
    args.extend(more.iter().map(|word| word as &dyn AsRef<OsStr>));
    Outcome::of(command(&args).env("SWS_TIER", tier).output().unwrap()).succeeded();
    std::fs::read(out).unwrap()
}

/// Keys and values, windows, latents, entries with an indexer.
#[test]
fn rounded_keys_and_values_give_the_same_bits_in_every_tier_and_budget() {
    let temp = tempfile::tempdir().unwrap();
    let out = temp.path().join("out.safetensors");
    for name in ["qwen3_moe", "gpt_oss", "deepseek_v3", "deepseek_v4"] {
        let runnable = runnable(name);
        let model = &runnable.dir;
        let exact = forward(model, &out, "scalar", &[]);
        let [bf16, q8] = ROUNDED.map(|kv| {
            let expected = forward(model, &out, "scalar", &["--kv", kv]);
            for tier in sws_kernels::Tier::available() {
                for holding in [["--ram", "min"], ["--resident", "--no-speculation"]] {
                    let more = [&["--kv", kv], &holding[..]].concat();
                    let found = forward(model, &out, tier.name(), &more);
                    assert!(found == expected, "{name}: {kv}, {tier}, {holding:?}");
                }
            }
            expected
        });
        assert!(bf16 != exact && q8 != exact && bf16 != q8, "{name}");
    }
}

#[test]
fn a_run_with_rounded_keys_and_values_says_so() {
    let temp = tempfile::tempdir().unwrap();
    let tales = tales();
    let certificate = temp.path().join("a.cert");
    for (kv, others) in [("bf16", ["f32", "q8"]), ("q8", ["f32", "bf16"])] {
        let outcome = sws(&[
            &"run",
            &tales,
            &"--tokens=1,2,3,4,5",
            &"-n=4",
            &"--json",
            &"--kv",
            &kv,
            &"--certify",
            &certificate,
        ])
        .succeeded();
        assert!(outcome.stderr.contains("keys and values rounded to"), "{}", outcome.stderr);
        let json: Value = serde_json::from_str(outcome.stdout.lines().last().unwrap()).unwrap();
        assert_eq!(json["metrics"]["kv"], kv);
        assert!(json["metrics"]["lossy"].to_string().contains("keys and values rounded to"));

        // The certificate is of this precision, and refuses every other one.
        let certify: [&dyn AsRef<OsStr>; 3] = [&"certify", &certificate, &tales];
        sws(&certify).succeeded();
        sws(&[&certify[..], &[&"--kv", &kv]].concat()).succeeded();
        for other in others {
            sws(&[&certify[..], &[&"--kv", &other]].concat())
                .refused(2, &["a.cert", "another --kv", "leave out --kv"]);
        }
    }
    sws(&[&"run", &tales, &"--kv", &"q4"]).refused(2, &["f32, bf16 or q8", "q4"]);
}

#[test]
fn plans_and_servers_name_rounded_keys_and_values() {
    let tales = tales();
    let plan = |kv: &str| -> Value {
        let args: [&dyn AsRef<OsStr>; 6] =
            [&"plan", &tales, &"--no-probe", &"--json", &"--kv", &kv];
        serde_json::from_str(&sws(&args).succeeded().stdout).unwrap()
    };
    let [exact, bf16, q8] = ["f32", "bf16", "q8"].map(|kv| {
        let plan = plan(kv);
        assert_eq!(plan["kv"], kv);
        plan["kv_bytes_per_position"].as_u64().unwrap()
    });
    // Heads of whole blocks: 34 bytes for 32 numbers.
    assert_eq!((2 * bf16, 64 * q8), (exact, 17 * exact));

    let props = |kv: &str| {
        let args: [&dyn AsRef<OsStr>; 7] =
            [&"serve", &tales, &"--port", &"0", &"--no-warm-start", &"--kv", &kv];
        Server::of(&mut command(&args)).client.get("/props")
    };
    let fingerprint = |props: &Value| props["system_fingerprint"].as_str().unwrap().to_owned();
    let exact = props("f32");
    assert_eq!(exact["kv"], "f32");
    for kv in ROUNDED {
        let rounded = props(kv);
        assert_eq!(rounded["kv"], kv);
        let named = format!("-kv-{kv}");
        assert_eq!(fingerprint(&rounded).replace(&named, ""), fingerprint(&exact));
        assert!(fingerprint(&rounded).contains(&named), "{rounded}");
        assert!(rounded["lossy"].to_string().contains("keys and values rounded to"), "{rounded}");
    }
}
