//! GGUF files as programs see them: by the names of the files, with the sampling in their keys.

use std::path::Path;

use serde_json::{Value, json};
use sws_testing::gguf::{Key, conversational};
use sws_testing::goldens;

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
