//! GGUF files as programs see them: by the names of the files, with the sampling in their keys.

use std::path::Path;

use serde_json::{Value, json};
use sws_testing::gguf::{GgufFile, Key, conversational};
use sws_testing::goldens::{self, Golden, list};

use crate::serve::Server;
use crate::sws::{command, sws};

const TEMPLATE: &str = "{{ messages[-1].content }}";

/// Writes two models into one directory, the first with keys for sampling.
fn write(dir: &Path) {
    let checkpoint = tempfile::tempdir().unwrap();
    goldens::copy("qwen3_moe", checkpoint.path());
    let mut file = conversational(checkpoint.path(), TEMPLATE).unwrap();
    std::fs::create_dir_all(dir).unwrap();
    file.write(&dir.join("b.Q8_0-00001-of-00001.gguf"));
    file.key("general.sampling.temp", Key::F32(0.6));
    file.key("general.sampling.top_k", Key::U32(20));
    file.key("general.sampling.mirostat", Key::U32(2));
    file.write(&dir.join("a-q4_k_m.gguf"));
}

#[test]
fn a_gguf_file_is_named_by_itself_and_samples_as_its_keys_say() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("models");
    write(&dir);
    let cases = [
        (
            "a-q4_k_m.gguf",
            "a-q4_k_m",
            [0.6, 20.0, 0.95, 0.05],
            ["GGUF", "GGUF", "default", "default"],
        ),
        ("b.Q8_0-00001-of-00001.gguf", "b.Q8_0", [0.7, 40.0, 0.95, 0.05], ["default"; 4]),
    ];
    let names = ["temperature", "top_k", "top_p", "min_p"];
    for (file, name, values, origins) in cases {
        let path = dir.join(file);
        let asked = sws(&[&"chat", &path, &"hello", &"-n2", &"--json"]).succeeded();
        assert_eq!(asked.stderr.contains("general.sampling.mirostat"), name == "a-q4_k_m");
        assert!(asked.stderr.contains("[seed "), "{asked:?}");
        let asked: Value = serde_json::from_str(&asked.stdout).unwrap();
        assert_eq!(asked["metrics"]["model"], name);
        let sampling = &asked["sampling"];
        assert_eq!(names.map(|name| sampling[name]["value"].as_f64().unwrap()), values);
        assert_eq!(names.map(|name| sampling[name]["from"].as_str().unwrap()), origins);
        let greedy = sws(&[&"chat", &path, &"hello", &"-n2", &"--temperature=0"]).succeeded();
        assert!(!greedy.stderr.contains("seed"), "{greedy:?}");

        let mut serve = command(&[&"serve", &path, &"--port", &"0", &"--no-warm-start"]);
        let server = Server::of(&mut serve);
        let client = &server.client;
        let model = &client.get("/v1/models")["data"][0];
        assert_eq!(
            (&model["id"], &model["capabilities"]),
            (&json!(name), &json!(["completion", "chat", "tools"]))
        );
        assert_eq!(client.get(&format!("/v1/models/{name}.gguf"))["id"], name);
        assert_eq!(client.status("/v1/models/models"), "404");
        let props = client.get("/props");
        let settings = &props["default_generation_settings"];
        let params = names.map(|name| settings["params"][name].as_f64().unwrap());
        let from = names.map(|name| settings["origins"][name].as_str().unwrap());
        assert_eq!((&props["tools"], params, from), (&json!("generic"), values, origins));
        for id in [name.to_owned(), format!("{name}.gguf")] {
            let answer = client.ask(&json!({"prompt": "a", "model": id, "max_tokens": 1}));
            assert_eq!(answer["model"], name);
        }
    }
}

/// A file of llama.cpp's converter, with a tokenizer that can be read.
fn converted(name: &str) -> GgufFile {
    let dir = goldens::goldens().join("gguf").join(name);
    let mut file = GgufFile::read(&dir.join("model.gguf"));
    file.key("tokenizer.ggml.merges", Key::Texts(Vec::new()));
    file
}

/// Files of llama.cpp's converter, with experts and rows of n-grams read from disk as they are used.
#[test]
fn converted_files_stream() {
    for name in ["deepseek4", "granitehybrid", "kimi-linear", "llama4", "minimax-m3", "qwen4exp"] {
        let dir = goldens::goldens().join("gguf").join(name);
        let golden = Golden::read(&dir);
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("model.gguf");
        converted(name).write(&path);
        let tokens = list(&golden.tokens);
        let count = golden.greedy.len().to_string();
        let args: [&dyn AsRef<std::ffi::OsStr>; 10] = [
            &"run",
            &path,
            &"--tokens",
            &tokens,
            &"--max-new-tokens",
            &count,
            &"--temperature=0",
            &"--ignore-eos",
            &"--ram=min",
            &"--json",
        ];
        let ran = sws(&args).succeeded();
        let ran: Value = serde_json::from_str(ran.stdout.lines().last().unwrap()).unwrap();
        assert_eq!(ran["tokens"], json!(golden.greedy), "{name}");
    }
}

#[test]
fn bad_files_are_refused_in_a_sentence() {
    type Spoil = fn(&mut GgufFile);
    fn set(file: &mut GgufFile, key: &str, value: Key) {
        file.keys.retain(|(name, _)| name != key);
        file.key(key, value);
    }
    #[rustfmt::skip]
    let cases: [(&str, Spoil, &[&str]); 6] = [
        ("llama4", |f| set(f, "general.architecture", "llama5".into()), &["m.gguf", "`llama5`", "the nearest that is, `llama4`, has the same tensors"]),
        ("qwen4exp", |f| set(f, "general.architecture", "clip".into()), &["m.gguf", "only the part of a model for images"]),
        ("qwen4exp", |f| f.keys.retain(|(name, _)| name != "qwen4exp.ple.head_offsets"), &["m.gguf", "`qwen4exp.ple.head_offsets`"]),
        ("deepseek4", |f| set(f, "deepseek4.attention.q_lora_rank", "wide".into()), &["m.gguf", "q_lora_rank"]),
        ("deepseek4", |f| set(f, "deepseek4.hyper_connection.count", Key::U32(1 << 30)), &["m.gguf"]),
        ("kimi-linear", |f| f.tensors.retain(|tensor| !tensor.name.ends_with("ssm_a")), &["A_log", "lack"]),
    ];
    for (name, spoil, words) in cases {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("m.gguf");
        let mut file = converted(name);
        spoil(&mut file);
        file.write(&path);
        sws(&[&"run", &path, &"--tokens=1", &"-n1"]).refused(2, words);
    }
}
