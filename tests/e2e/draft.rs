//! Drafts: trained from recordings, scored against other forecasts, loaded with their model, and
//! without effect on any answer.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use serde_json::Value;
use sws_testing::tales;

use crate::goldens::{Tensors, golden_dir, runnable};
use crate::sws::{Outcome, sws, tree};

fn call(words: &[&str]) -> Outcome {
    sws(&words.iter().map(|word| word as &dyn AsRef<OsStr>).collect::<Vec<_>>())
}

fn record(dir: &Path, prompts: &[&str]) -> Vec<String> {
    let each = |(seed, prompt): (usize, &&str)| {
        let file = dir.join(format!("{seed}.safetensors")).to_str().unwrap().to_owned();
        let seed = seed.to_string();
        let tales = tales();
        let model = ["run", tales.to_str().unwrap(), "--resident", "--prompt", prompt];
        let how = ["--seed", &seed, "--temperature", "0.8", "--max-new-tokens", "60"];
        let what = ["--ignore-eos", "--record", &file, "--record-hidden"];
        call(&[&model[..], &how, &what].concat()).succeeded();
        file
    };
    prompts.iter().enumerate().map(each).collect()
}

fn rows<'a>(report: &'a Value, forecast: &str) -> Vec<&'a Value> {
    let rows = report["rows"].as_array().unwrap().iter();
    rows.filter(|row| row["forecast"] == forecast).collect()
}

/// True if a draft was queried during generation.
fn asked(outcome: &Value) -> bool {
    let took = &outcome["metrics"]["cost"]["generation"]["speculation"]["draft_ns"];
    took.as_f64().unwrap() > 0.0
}

/// Inner width of experts that are large only by padding.
const WIDTH: usize = 8192;

#[test]
fn untrained_draft_is_used_for_large_experts() {
    let temp = tempfile::tempdir().unwrap();
    let small = golden_dir("qwen3_moe");
    let large = temp.path().join("large");
    copy(&small, &large);
    let config = large.join("config.json");
    let mut values: Value = serde_json::from_slice(&fs::read(&config).unwrap()).unwrap();
    values["moe_intermediate_size"] = WIDTH.into();
    fs::write(&config, values.to_string()).unwrap();
    let weights = large.join("model.safetensors");
    let mut tensors = Tensors::read(&weights);
    for (name, (_, shape, bytes)) in &mut tensors.0 {
        if name.contains(".experts.") {
            // Zeroed inner neurons: further rows of gate and up, further columns of down.
            let down = name.contains("down_proj");
            let row = bytes.len() / shape[0];
            let wide = if down { row / shape[1] * WIDTH } else { row };
            let mut rows: Vec<Vec<u8>> = bytes.chunks(row).map(<[u8]>::to_vec).collect();
            rows.iter_mut().for_each(|bytes| bytes.resize(wide, 0));
            shape[usize::from(down)] = WIDTH;
            rows.resize(shape[0], vec![0; wide]);
            *bytes = rows.concat();
        }
    }
    tensors.write(&weights);
    let run = |model: &Path, more: &[&str]| -> Value {
        let how = ["--tokens", "1,2,3", "--temperature", "0", "--max-new-tokens", "20"];
        let how = [&how[..], &["--ignore-eos", "--no-warm-start", "--json"]].concat();
        let model = ["run", model.to_str().unwrap()];
        let outcome = call(&[&model[..], &how, more].concat()).succeeded();
        serde_json::from_str(outcome.stdout.lines().last().unwrap()).unwrap()
    };
    let expected = run(&small, &["--ram", "96MiB"]);
    assert!(!asked(&expected));
    // The last case has half of the experts in memory.
    let cases = [
        (&["--ram", "96MiB"][..], true),
        (&["--ram", "96MiB", "--no-draft"], false),
        (&["--ram", "96MiB", "--no-speculation"], false),
        (&["--ram", "min"], false),
        (&["--ram", "60MiB"], true),
    ];
    for (more, expects) in cases {
        let found = run(&large, more);
        assert_eq!(found["tokens"], expected["tokens"], "{more:?}");
        assert_eq!(asked(&found), expects, "{more:?}");
    }
}

#[test]
fn a_draft_is_trained_scored_and_used() {
    let temp = tempfile::tempdir().unwrap();
    let prompts = ["Once upon a time", "The old king", "Alice said to the", "In the deep forest"];
    let files = record(temp.path(), &prompts);
    let draft = temp.path().join("draft.safetensors").to_str().unwrap().to_owned();
    let tales_dir = tales();
    let traces = files.iter().map(String::as_str).collect::<Vec<_>>();
    let model = tales_dir.to_str().unwrap();
    let train = ["draft", "train", model, "--out", &draft, "--rank", "4", "--epochs", "2"];
    let trained = call(&[&train[..], &["--json", "--traces"], &traces].concat()).succeeded();
    let trained: Value = serde_json::from_str(&trained.stdout).unwrap();
    assert_eq!(trained["layers"].as_array().unwrap().len(), 15, "{trained}");
    for layer in trained["layers"].as_array().unwrap() {
        assert!(layer["loss_after"].as_f64() <= layer["loss_before"].as_f64(), "{layer}");
    }

    let score = ["draft", "score", model, "--json"];
    let score = |more: &[&str]| -> Value {
        let args = [&score[..], more, &["--traces"], &traces].concat();
        serde_json::from_str(&call(&args).succeeded().stdout).unwrap()
    };
    let found = score(&["--draft", &draft]);
    assert_eq!((&found["sequences"], &found["trained"]), (&4.into(), &true.into()));
    // A layer's own router on its own state must name all experts, or no other figure can be
    // trusted.
    assert_eq!(rows(&found, "control")[0]["recall"][0], 1.0);
    let recall = |report: &Value, who: &str, distance: usize| {
        let rows = rows(report, who);
        rows.iter().find(|row| row["distance"] == distance).unwrap()["recall"][0].as_f64().unwrap()
    };
    // It follows the router where it has learned nothing better.
    let recalls: Vec<_> =
        (0..=4).map(|far| ["draft", "router"].map(|who| recall(&found, who, far))).collect();
    assert!(recalls.iter().all(|[draft, router]| draft >= router), "{recalls:?}");
    assert!(recalls.iter().any(|[draft, router]| draft > router), "{recalls:?}");
    assert!(recall(&found, "draft", 1) > recall(&found, "hot", 0) + 0.2);
    assert_eq!(score(&["--untrained"])["trained"], false);
    let pairs = score(&["--draft", &draft, "--pairs"]);
    assert_eq!(pairs["pairs"], 2, "{pairs}");
    let small = score(&["--draft", &draft, "--size", "100KiB"]);
    assert!(small["bytes"].as_u64() <= Some(100 << 10), "{small}");

    // The correction of evictions is beside the draft. A replay of recordings with states uses it.
    let eviction = temp.path().join("eviction.safetensors");
    assert_eq!(trained["eviction"]["file"], eviction.to_str().unwrap());
    for losses in trained["eviction"]["losses"].as_array().unwrap() {
        assert!(losses[1].as_f64() <= losses[0].as_f64(), "{losses}");
    }
    let file = eviction.to_str().unwrap();
    let replay = [&["replay"], &traces[..], &["--budgets", "50", "--eviction", file]].concat();
    let replayed = call(&[&replay[..], &["--json"]].concat()).succeeded();
    let replayed: Value = serde_json::from_str(&replayed.stdout).unwrap();
    let policies: Vec<_> =
        replayed["runs"].as_array().unwrap().iter().map(|r| &r["policy"]).collect();
    assert_eq!(policies, ["lru", "expected", "belady", "corrected"]);
    let [expected, corrected] = [1, 3].map(|run| replayed["runs"][run]["misses"].as_u64().unwrap());
    // So few recordings teach little.
    assert!(corrected <= expected, "{corrected} of {expected}");
    // One that learns on the way sees states if all recordings have them, and begins with nothing.
    let plain = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/traces/tales.safetensors");
    let plain = plain.to_str().unwrap();
    for traces in [&traces[..], &[plain], &[plain, traces[0]]] {
        let arguments = ["--budgets", "75", "--policies", "expected,learning", "--json"];
        let replayed = call(&[&["replay"], traces, &arguments].concat()).succeeded();
        let replayed: Value = serde_json::from_str(&replayed.stdout).unwrap();
        let of = |run: usize, what: &str| replayed["runs"][run][what].clone();
        assert_eq!(of(1, "policy"), "learning");
        let [expected, learning] = [0, 1].map(|run| of(run, "misses").as_u64().unwrap());
        assert!(learning <= expected + expected / 100, "{learning} of {expected}");
    }
    call(&["replay", plain, "--eviction", file]).refused(2, &["has no states", "--record-hidden"]);
    call(&["replay", traces[0], plain, "--eviction", file]).refused(2, &[plain, "has no states"]);
    call(&["replay", plain, "--eviction", &draft]).refused(2, &["no correction", "draft train"]);

    // A draft in the model's directory is found. It changes nothing but the reads.
    let shards = temp.path().join("shards");
    copy(&tales_dir, &shards);
    fs::copy(&draft, shards.join("draft.safetensors")).unwrap();
    fs::copy(&eviction, shards.join("eviction.safetensors")).unwrap();
    let with = shards.to_str().unwrap();
    let run = |more: &[&str]| -> Value {
        let sampled = ["run", with, "--prompt", "The fox", "--seed", "3", "--json"];
        let length = ["--max-new-tokens", "40", "--ignore-eos"];
        let outcome = call(&[&sampled[..], &length, more].concat()).succeeded();
        serde_json::from_str(outcome.stdout.lines().last().unwrap()).unwrap()
    };
    let expected = run(&["--resident"]);
    // Budgets, and whether a draft is queried: with the smallest budget there are no slots besides
    // it.
    let cases = [
        (&["--ram", "min"][..], false),
        (&["--ram", "60MiB"], true),
        (&["--ram", "60MiB", "--no-draft"], false),
        (&["--ram", "60MiB", "--no-speculation"], false),
    ];
    for (more, expects) in cases {
        let found = run(more);
        assert_eq!(found["tokens"], expected["tokens"], "{more:?}");
        assert_eq!(asked(&found), expects, "{more:?}");
    }
    // Nor does a correction of evictions change more than the reads.
    let reserved = || {
        let plan = call(&["plan", with, "--ram", "60MiB", "--json"]).succeeded();
        let plan: Value = serde_json::from_str(&plan.stdout).unwrap();
        plan["ledger"]["correction"].as_u64().unwrap_or(0)
    };
    assert!(reserved() > 0);
    fs::remove_file(shards.join("eviction.safetensors")).unwrap();
    assert_eq!(reserved(), 0);
    assert_eq!(run(&["--ram", "60MiB"])["tokens"], expected["tokens"]);
    fs::write(shards.join("eviction.safetensors"), b"no correction").unwrap();
    let refused = call(&["run", with, "--prompt", "The fox", "--ram", "60MiB", "--json"]);
    refused.refused(2, &["eviction.safetensors", "sws draft train"]);
    fs::remove_file(shards.join("eviction.safetensors")).unwrap();
    // Such small experts do not justify an untrained draft.
    fs::remove_file(shards.join("draft.safetensors")).unwrap();
    assert!(!asked(&run(&["--ram", "60MiB"])));
    assert_eq!(run(&["--ram", "60MiB", "--draft", &draft])["tokens"], expected["tokens"]);
    let left_out = call(&["run", with, "--tokens", "5", "--ram", "min", "--draft", &draft]);
    let told = left_out.succeeded().stderr;
    assert!(
        told.contains("draft.safetensors` is left out") && told.contains("raise --ram"),
        "{told}"
    );
    fs::write(shards.join("draft.safetensors"), b"no draft").unwrap();
    let refused = call(&["run", with, "--prompt", "The fox", "--json"]);
    refused.refused(2, &["draft.safetensors", "sws draft train"]);
    call(&["run", with, "--draft", "/nowhere"]).refused(2, &["/nowhere", "cannot be read"]);
}

#[test]
fn bad_recordings_are_refused() {
    let temp = tempfile::tempdir().unwrap();
    let files = record(temp.path(), &["Once upon a time", "The king"]);
    let before = tree(temp.path());
    let tales = tales();
    let golden = golden_dir("qwen3_moe");
    let dense = golden_dir("llama");
    let plain = temp.path().join("plain").to_str().unwrap().to_owned();
    let model = tales.to_str().unwrap();
    call(&["run", model, "--prompt", "A", "--max-new-tokens", "4", "--record", &plain]).succeeded();
    let out = temp.path().join("out").to_str().unwrap().to_owned();
    let cases: [(&str, &str, &[&str]); 5] = [
        (model, &plain, &["`attended`", "--record-hidden"]),
        (golden.to_str().unwrap(), &files[0], &["0.safetensors", "--record-hidden"]),
        (dense.to_str().unwrap(), &files[0], &["no experts"]),
        (model, model, &["not a regular file"]),
        (model, "/nowhere", &["/nowhere", "cannot be read"]),
    ];
    for (model, trace, words) in cases {
        call(&["draft", "train", model, "--out", &out, "--traces", trace]).refused(2, words);
        call(&["draft", "score", model, "--traces", trace]).refused(2, words);
    }
    call(&["draft", "train", model, "--out", &out, "--traces", &files[0]])
        .refused(2, &["one sequence"]);
    fs::remove_file(&plain).unwrap();
    assert_eq!(tree(temp.path()), before, "nothing half-written is left");
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).unwrap()),
        }
    }
}

/// Softmax of all experts and of the chosen ones, sigmoids and roots, groups by their best and by
/// their two best, corrections, biases, layers with tables: a router asked early chooses as the pass
/// does.
#[test]
fn routers_of_every_kind_forecast_all_experts_from_their_own_state() {
    #[rustfmt::skip]
    let kinds = [
        "mixtral", "qwen3_moe", "gpt_oss", "phimoe", "gemma4_text", "llama4_text", "deepseek_v2_groups",
        "deepseek_v3", "deepseek_v4", "glm4_moe", "glm_moe_dsa", "minimax_m2", "mistral4_groups",
        "qwen3_5_moe", "hy_v4_yarn", "nemotron_h_latent", "bailing_moe_v2", "ernie4_5_moe",
    ];
    for name in kinds {
        let temp = tempfile::tempdir().unwrap();
        let model = runnable(name);
        let model = model.dir.to_str().unwrap();
        let trace = temp.path().join("trace.safetensors");
        let trace = trace.to_str().unwrap();
        let run = ["run", model, "--resident", "--tokens", "1,5,9,2,7,3", "--json"];
        let how = ["--max-new-tokens", "24", "--ignore-eos", "--record", trace, "--record-hidden"];
        call(&[&run[..], &how].concat()).succeeded();
        let score = ["draft", "score", model, "--untrained", "--json", "--traces", trace];
        let found: Value = serde_json::from_str(&call(&score).succeeded().stdout).unwrap();
        let control = rows(&found, "control")[0];
        assert_eq!(control["recall"][0], 1.0, "{name}");
        // Layers with a table have no router to ask.
        let layers = |row: &Value| row["by_layer"].as_object().unwrap().len();
        let tables = if name == "deepseek_v4" { 2 } else { 0 };
        assert_eq!(layers(rows(&found, "hot")[0]) - layers(control), tables, "{name}");
    }
}
