//! `sws forward` and `sws run` match transformers, wherever the model is stored.

use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use crate::goldens::{Tensors, change, copy, golden, golden_dir, list, runnable, variants};
use crate::sws::{Outcome, command, sws, tree};

/// The last line of standard output.
fn last_line(outcome: &Outcome) -> Value {
    serde_json::from_str(outcome.stdout.lines().last().unwrap()).unwrap()
}

/// Continues `tokens` greedily.
fn greedy(model: &Path, tokens: &[u32], count: usize, more: &[&str]) -> Vec<u32> {
    let tokens = list(tokens);
    let count = count.to_string();
    let mut args: Vec<&dyn AsRef<OsStr>> =
        vec![&"run", &model, &"--tokens", &tokens, &"--max-new-tokens", &count];
    args.extend([&"--temperature" as &dyn AsRef<OsStr>, &"0", &"--ignore-eos", &"--json"]);
    args.extend(more.iter().map(|word| word as &dyn AsRef<OsStr>));
    let json = last_line(&sws(&args).succeeded());
    serde_json::from_value(json["tokens"].clone()).unwrap()
}

#[test]
fn every_family_matches_transformers() {
    let temp = tempfile::tempdir().unwrap();
    for name in variants() {
        let expected = golden(&name);
        let model = runnable(&name);
        let out = temp.path().join(format!("{name}.safetensors"));
        let dir = &model.dir;
        let tokens = list(&expected.tokens);
        sws(&[&"forward", &dir, &"--tokens", &tokens, &"--out", &out, &"--routes"]).succeeded();

        let file = Tensors::read(&out);
        let logits = file.floats("logits");
        assert_eq!(logits.len(), expected.logits.len(), "{name}");
        let largest = expected.logits.iter().fold(1.0f32, |a, b| a.max(b.abs()));
        let pairs = logits.iter().zip(&expected.logits);
        let difference = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(difference < 1e-4 * largest, "{name}: {difference} of {largest}");
        assert_eq!(file.integers("routes"), expected.routes, "{name}");
        let vocab = logits.len() / expected.tokens.len();
        assert_eq!(file.0["logits"].1, [expected.tokens.len(), vocab], "{name}");

        let found = greedy(dir, &expected.tokens, expected.greedy.len(), &[]);
        assert_eq!(found, expected.greedy, "{name}");
    }
    // No unfinished file is left.
    assert_eq!(tree(temp.path()).len(), variants().len());
}

#[test]
fn no_bit_depends_on_storage_or_reader() {
    let temp = tempfile::tempdir().unwrap();
    for name in ["qwen2_moe", "mixtral_sharded", "llama_linear_tied"] {
        let shards = temp.path().join(name);
        sws(&[&"shard", &golden_dir(name), &"--out", &shards]).succeeded();
        let tokens = list(&golden(name).tokens);
        let out = temp.path().join("out.safetensors");
        let forward = |model: &Path, more: &[&str]| {
            let mut args: Vec<&dyn AsRef<OsStr>> =
                vec![&"forward", &model, &"--tokens", &tokens, &"--out", &out, &"--resident"];
            args.extend(more.iter().map(|word| word as &dyn AsRef<OsStr>));
            sws(&args).succeeded();
            std::fs::read(&out).unwrap()
        };
        let expected = forward(&golden_dir(name), &[]);
        let cases: [&[&str]; 5] = [
            &[],
            &["--threads", "1"],
            &["--threads", "3"],
            &["--reader", "mmap"],
            &["--reader", "direct"],
        ];
        for more in cases {
            assert!(forward(&shards, more) == expected, "{name} {more:?}");
            assert!(forward(&golden_dir(name), more) == expected, "{name} in place {more:?}");
        }
    }
}

#[test]
fn a_huge_context_is_cut_to_what_memory_allows() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("m");
    copy("llama", &dir);
    change(&dir, "config.json", |config| config["max_position_embeddings"] = 1_000_000_000.into());
    // A plan gives the context its share of the budget, and reports it only on request.
    for (mode, told) in [("--resident", true), ("--ram=auto", false)] {
        let args: [&dyn AsRef<OsStr>; 7] = [
            &"run",
            &dir,
            &"--tokens=1,2",
            &"--max-new-tokens=2",
            &"--temperature=0",
            &"--json",
            &mode,
        ];
        let outcome = sws(&args).succeeded();
        assert_eq!(outcome.stderr.contains("has 1000000000 positions"), told, "{outcome:?}");
        assert_eq!(last_line(&outcome)["tokens"].as_array().unwrap().len(), 2);
    }
}

/// io_uring depends on the system and the build: without it, the error names the reader to choose.
#[test]
fn the_ring_reader_reads_the_same_or_says_why_not() {
    let temp = tempfile::tempdir().unwrap();
    let forward = |reader: &str| {
        let out = temp.path().join(reader);
        let dir = golden_dir("mixtral_sharded");
        let args: [&dyn AsRef<OsStr>; 8] =
            [&"forward", &dir, &"--tokens", &"1,2,3", &"--out", &out, &"--reader", &reader];
        (sws(&args), out)
    };
    let (direct, expected) = forward("direct");
    direct.succeeded();
    let (ring, found) = forward("uring");
    if ring.code == Some(0) {
        assert!(std::fs::read(found).unwrap() == std::fs::read(expected).unwrap());
    } else {
        ring.refused(2, &["io_uring", "choose `direct`"]);
        assert!(!found.exists());
    }
}

#[test]
fn a_tier_can_be_forced_and_changes_no_bit() {
    let temp = tempfile::tempdir().unwrap();
    let dir = golden_dir("qwen3_moe");
    let out = temp.path().join("out.safetensors");
    let forward = |tier: &str| {
        let args: [&dyn AsRef<OsStr>; 6] =
            [&"forward", &dir, &"--tokens", &"1,2,3,5,8", &"--out", &out];
        Outcome::of(command(&args).env("SWS_TIER", tier).output().unwrap())
    };
    forward("scalar").succeeded();
    let expected = std::fs::read(&out).unwrap();
    for tier in sws_kernels::Tier::available() {
        forward(tier.name()).succeeded();
        assert!(std::fs::read(&out).unwrap() == expected, "{tier}");
    }
    forward("").succeeded();
    assert!(std::fs::read(&out).unwrap() == expected, "an empty variable counts as unset");
    let refused = |outcome: Outcome, words: &[&str]| {
        assert_eq!(outcome.code, Some(2), "{outcome:?}");
        let first = outcome.stderr.lines().next().unwrap();
        assert!(words.iter().all(|word| first.contains(word)), "no {words:?} in {first:?}");
    };
    refused(forward("abacus"), &["--tier", "`abacus`", "portable", "scalar"]);

    let run = |more: &[&str]| {
        let mut args: Vec<&dyn AsRef<OsStr>> = vec![&"run", &dir, &"--tokens", &"1,2,3"];
        args.extend(more.iter().map(|word| word as &dyn AsRef<OsStr>));
        sws(&args)
    };
    let few = ["--max-new-tokens", "2", "--temperature", "0", "--json"];
    let chosen = run(&[&few[..], &["--tier", "portable"]].concat()).succeeded();
    let chosen: Value = serde_json::from_str(&chosen.stdout).unwrap();
    assert_eq!(chosen["metrics"]["tier"], "portable");
    let candle = run(&[&few[..], &["--tier", "scalar", "--backend", "candle"]].concat());
    candle.refused(2, &["--tier", "candle"]);
    refused(run(&["--tier", "abacus"]), &["`abacus`", "--tier", "scalar"]);
}

#[test]
fn a_prompt_in_text() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("qwen3_moe");
    copy("qwen3_moe", &dir);
    let fixed = ["--temperature", "1.5", "--seed", "7", "--max-new-tokens", "40"];
    let run = |more: &[&str], stdin: Option<&str>| {
        let mut args: Vec<&dyn AsRef<OsStr>> = vec![&"run", &dir];
        args.extend(fixed.iter().chain(more).map(|word| word as &dyn AsRef<OsStr>));
        let mut child = command(&args).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(stdin.unwrap_or("").as_bytes()).unwrap();
        Outcome::of(child.wait_with_output().unwrap()).succeeded()
    };
    let typed = run(&["--prompt", "a b", "--json"], None);
    let json = last_line(&typed);
    assert_eq!(typed.stdout.lines().count(), 1, "{typed:?}");
    assert_eq!((&json["seed"], &json["sampler"]), (&7.into(), &"gumbel-1".into()));
    assert_eq!(json["arithmetic"], 1, "the checkpoint has no matrix whose products have changed");
    let tokens = json["tokens"].as_array().unwrap();
    let text = json["text"].as_str().unwrap();
    assert!(tokens.len() > 1 && text.len() > 1, "{json}");
    assert_eq!(json["metrics"]["prompt"]["tokens"], 3);
    let first = json["metrics"]["first_token_seconds"].as_f64();
    assert!(first >= json["metrics"]["prompt"]["seconds"].as_f64(), "{json}");
    assert_eq!(json["metrics"]["generation"]["tokens"].as_u64(), Some(tokens.len() as u64 - 1));
    assert!(json["metrics"]["peak_rss_bytes"].as_u64().unwrap() > 1 << 20);
    assert_eq!(json["metrics"]["lossy"], serde_json::json!([]));
    let same = |outcome: &Outcome| {
        let other = last_line(outcome);
        assert_eq!((&other["tokens"], &other["text"]), (&json["tokens"], &json["text"]));
    };
    // The final line break of a shell is ignored, and token ids give the same prompt.
    same(&run(&["--json"], Some("a b")));
    same(&run(&["--json"], Some("a b\n")));
    same(&run(&["--json", "--tokens", "1,27,2"], Some("never read")));
    let file = temp.path().join("prompt.txt");
    std::fs::write(&file, "a b\r\n").unwrap();
    same(&run(&["--json", "--prompt-file", file.to_str().unwrap()], None));
    same(&run(&["--json", "-f", "-"], Some("a b\n")));
    // Only the streamed text is on standard output, and a line end.
    let plain = run(&["-p", "a b"], None);
    assert_eq!(plain.stdout, format!("{text}\n"));
    let closing = plain.stderr.trim_end().lines().find(|line| line.starts_with('[')).unwrap();
    assert!(closing.contains(" tokens, ") && closing.contains("memory "), "{plain:?}");
    assert!(closing.len() <= 80 && plain.stderr.contains("[seed 7"), "{plain:?}");
    assert!(!plain.stderr.contains("prompt  "), "{plain:?}");
    // Nothing depends on a seed where nothing is drawn.
    let greedy = |json: bool| {
        let mut args: Vec<&dyn AsRef<OsStr>> = vec![&"run", &dir, &"-p", &"a b", &"-n", &"2"];
        args.extend([&"--temperature" as &dyn AsRef<OsStr>, &"0", &"--seed", &"7"]);
        args.extend(json.then_some(&"--json" as &dyn AsRef<OsStr>));
        sws(&args).succeeded()
    };
    assert!(!greedy(false).stderr.contains("seed"));
    assert!(last_line(&greedy(true))["seed"].is_null());
    let verbose = run(&["-p", "a b", "-v"], None);
    assert!(
        verbose.stderr.contains("prompt  ") && verbose.stderr.contains("memory  "),
        "{verbose:?}"
    );
    // A stop string ends the text before it.
    let (before, after) = text.split_at(text.len() / 2);
    let stop: String = after.chars().take(6).collect();
    let stopped = run(&["--prompt", "a b", "--stop", &stop], None);
    let stopped_text = stopped.stdout.strip_suffix('\n').unwrap();
    assert_eq!(stopped_text, &text[..text.find(&stop).unwrap()]);
    assert!(before.starts_with(stopped_text), "{stopped:?}");
    // Without a prompt a default opening is used, which belongs to the text.
    let opening = run(&[], None);
    assert!(opening.stdout.starts_with("Once upon a time"), "{opening:?}");
    // Lossy results are labelled.
    let lossy = run(&["--prompt", "a b", "--kv", "bf16", "--json"], None);
    assert!(lossy.stderr.contains("sws: lossy: "), "{lossy:?}");
    assert_eq!(last_line(&lossy)["metrics"]["lossy"].as_array().unwrap().len(), 1);
    assert_eq!(last_line(&lossy)["metrics"]["kv"], "bf16");
}

#[test]
fn a_text_ends_where_it_should() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("m");
    copy("qwen3_moe", &dir);
    let Golden { tokens, greedy } = {
        let golden = golden("qwen3_moe");
        Golden { tokens: golden.tokens, greedy: golden.greedy }
    };
    let run = |more: &[&str]| {
        let tokens = list(&tokens);
        let mut args: Vec<&dyn AsRef<OsStr>> =
            vec![&"run", &dir, &"--tokens", &tokens, &"--json", &"--temperature", &"0"];
        args.extend(more.iter().map(|word| word as &dyn AsRef<OsStr>));
        last_line(&sws(&args).succeeded())
    };
    let made = |json: &Value| json["tokens"].as_array().unwrap().len();
    let length = run(&["--max-new-tokens", "5", "--ignore-eos"]);
    assert_eq!((made(&length), &length["end"]), (5, &Value::from("length")));
    let none = run(&["--max-new-tokens", "0"]);
    assert_eq!((made(&none), &none["end"]), (0, &Value::from("length")));
    // The prompt and the computed tokens fill the context; the last new token needs no room.
    let context = run(&["--max-new-tokens", "1000", "--ignore-eos"]);
    assert_eq!((made(&context), &context["end"]), (257 - tokens.len(), &Value::from("context")));
    // The file names the token that ends a text, and it is the last one.
    let stop = greedy[9];
    let first = greedy.iter().position(|&token| token == stop).unwrap();
    std::fs::write(
        dir.join("generation_config.json"),
        format!(r#"{{"eos_token_id": [{stop}], "max_new_tokens": 12}}"#),
    )
    .unwrap();
    let ended = run(&[]);
    assert_eq!((made(&ended), &ended["end"]), (first + 1, &Value::from("stop_token")));
    assert_eq!(made(&run(&["--ignore-eos"])), 12);
}

struct Golden {
    tokens: Vec<u32>,
    greedy: Vec<u32>,
}

#[test]
fn a_model_in_the_hugging_face_cache() {
    let temp = tempfile::tempdir().unwrap();
    let repo = temp.path().join("hub/models--some--model");
    // The layout of the Python library: snapshots of links to blobs.
    let snapshot = repo.join("snapshots/0123abc");
    for dir in ["refs", "blobs"] {
        std::fs::create_dir_all(repo.join(dir)).unwrap();
    }
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::write(repo.join("refs/main"), "0123abc").unwrap();
    for (name, bytes) in tree(&golden_dir("qwen2_moe")) {
        let blob = repo.join("blobs").join(&name);
        std::fs::write(&blob, bytes).unwrap();
        let link = Path::new("../../blobs").join(&name);
        std::os::unix::fs::symlink(link, snapshot.join(&name)).unwrap();
    }
    let golden = golden("qwen2_moe");
    let tokens = list(&golden.tokens);
    let run = |id: &str, variable: &str, value: &Path| {
        let args: [&dyn AsRef<OsStr>; 9] = [
            &"run",
            &id,
            &"--tokens",
            &tokens,
            &"--max-new-tokens",
            &"24",
            &"--ignore-eos",
            &"--json",
            &"--temperature=0",
        ];
        let mut command = command(&args);
        command.env_remove("HF_HOME").env_remove("HF_HUB_CACHE").env(variable, value);
        Outcome::of(command.output().unwrap())
    };
    let home = temp.path();
    for (variable, value) in [("HF_HOME", home.to_owned()), ("HF_HUB_CACHE", home.join("hub"))] {
        let json = last_line(&run("some/model", variable, &value).succeeded());
        let tokens: Vec<u32> = serde_json::from_value(json["tokens"].clone()).unwrap();
        assert_eq!(tokens, golden.greedy, "{variable}");
    }
    run("some/other", "HF_HOME", home).refused(2, &["some/other", "sws pull some/other"]);
    run("../up/there", "HF_HOME", home).refused(2, &["../up/there", "does not exist"]);
}
