//! Texts as vectors.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sws_testing::goldens::{copy, golden};
use sws_testing::tales;
use tempfile::TempDir;

use crate::client::{config, serve};

const PATH: &str = "/v1/embeddings";
const MODES: [&str; 2] = ["pooling_mode_lasttoken", "pooling_mode_mean_tokens"];

/// A model that was made for vectors.
fn model(mode: &str) -> (TempDir, PathBuf) {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("model");
    copy("qwen3", &dir);
    std::fs::create_dir(dir.join("1_Pooling")).unwrap();
    let pooling = json!({"word_embedding_dimension": 72, mode: true}).to_string();
    std::fs::write(dir.join("1_Pooling/config.json"), pooling).unwrap();
    (temp, dir)
}

/// The head of the model, [vocab, hidden].
fn head(dir: &Path) -> Vec<Vec<f64>> {
    let bytes = std::fs::read(dir.join("model.safetensors")).unwrap();
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + len]).unwrap();
    let tensor = &header["lm_head.weight"];
    assert_eq!(tensor["dtype"], "BF16");
    let place = |at: usize| 8 + len + tensor["data_offsets"][at].as_u64().unwrap() as usize;
    let bf16 =
        |pair: &[u8]| f32::from_bits(u32::from(u16::from_le_bytes([pair[0], pair[1]])) << 16);
    let weights: Vec<f64> =
        bytes[place(0)..place(1)].chunks(2).map(|pair| f64::from(bf16(pair))).collect();
    let hidden = tensor["shape"][1].as_u64().unwrap() as usize;
    weights.chunks(hidden).map(<[f64]>::to_vec).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn vector(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

/// The head is linear: the logits of a pooled state are the pooled logits, which transformers computed.
#[test]
fn vectors_are_pooled_final_states_of_length_one() {
    let golden = golden("qwen3");
    let vocab = golden.logits.len() / golden.tokens.len();
    for mode in MODES {
        let (_temp, dir) = model(mode);
        let server = serve(&dir, 2, config());
        let answer = server.ask(PATH, &json!({"input": golden.tokens}));
        assert_eq!(answer["usage"]["prompt_tokens"], golden.tokens.len());
        let found = vector(&answer["data"][0]["embedding"]);
        assert!((dot(&found, &found) - 1.0).abs() < 1e-6);
        let rows = golden.logits.chunks(vocab);
        let expected: Vec<f64> = match mode {
            "pooling_mode_lasttoken" => {
                rows.last().unwrap().iter().map(|&x| f64::from(x)).collect()
            }
            _ => (0..vocab).map(|at| rows.clone().map(|row| f64::from(row[at])).sum()).collect(),
        };
        let logits: Vec<f64> = head(&dir).iter().map(|row| dot(row, &found)).collect();
        let lengths = (dot(&logits, &logits) * dot(&expected, &expected)).sqrt();
        let cosine = dot(&logits, &expected) / lengths;
        assert!(cosine > 1.0 - 1e-6, "{mode}: {cosine}");
        let name = if mode == MODES[0] { "last" } else { "mean" };
        assert_eq!(answer["x_sws"]["pooling"], name);
    }
}

#[test]
fn each_interface_has_its_form() {
    let (_temp, dir) = model(MODES[0]);
    let server = serve(&dir, 2, config());
    let body = json!({"model": "tales", "input": ["where", "who is it"]});
    let data = server.ask(PATH, &body)["data"].clone();
    let vectors = [0, 1].map(|at| vector(&data[at]["embedding"]));
    assert_eq!((&data[1]["object"], &data[1]["index"]), (&json!("embedding"), &json!(1)));
    // The same alone, after a text, and in base64.
    let alone = |text: &str, more: Value| {
        let mut body = json!({"input": text});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.ask(PATH, &body)["data"][0]["embedding"].clone()
    };
    assert_eq!(alone("where", json!({})), data[0]["embedding"]);
    assert_eq!(alone("who is it", json!({})), data[1]["embedding"]);
    let text = alone("where", json!({"encoding_format": "base64"}));
    assert_eq!(text.as_str().unwrap().len(), (72 * 4_usize).div_ceil(3) * 4);
    let short = vector(&alone("where", json!({"dimensions": 8})));
    assert!(short.len() == 8 && (dot(&short, &short) - 1.0).abs() < 1e-6);
    let scale = vectors[0][0] / short[0];
    assert!(short.iter().zip(&vectors[0]).all(|(short, long)| (short * scale - long).abs() < 1e-6));
    // Ollama's.
    let answer = server.ask("/api/embed", &body);
    assert_eq!(answer["embeddings"][1], data[1]["embedding"]);
    let body = json!({"model": "tales", "prompt": "where"});
    assert_eq!(server.ask("/api/embeddings", &body)["embedding"], data[0]["embedding"]);
    for (body, param) in [
        (json!({"input": "a", "dimensions": 0}), "dimensions"),
        (json!({"input": "a", "dimensions": 73}), "dimensions"),
        (json!({"input": "a", "encoding_format": "hex"}), "encoding_format"),
        (json!({"input": []}), "input"),
    ] {
        let response = server.post(PATH, &body);
        assert_eq!((response.status, &response.json()["error"]["param"]), (400, &json!(param)));
    }
    assert_eq!(server.post(PATH, &json!({"input": [9999]})).status, 400);
    assert_eq!(server.post(PATH, &json!({"input": "a", "model": "nonesuch"})).status, 404);
    // The model still writes.
    server.ask("/v1/completions", &json!({"prompt": "where", "max_tokens": 2}));
}

#[test]
fn other_models_say_that_they_make_none() {
    let server = serve(&tales(), 1, config());
    for (path, body) in [
        (PATH, json!({"input": "a"})),
        ("/api/embed", json!({"model": "tales", "input": "a"})),
        ("/api/embeddings", json!({"model": "tales", "prompt": "a"})),
    ] {
        let response = server.post(path, &body);
        assert_eq!(response.status, 501, "{response:?}");
        assert!(response.body.contains("embeddings are not supported"), "{response:?}");
    }
}
