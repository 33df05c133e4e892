//! Resolution of settings: command line over generation_config.json or the keys of a GGUF file over
//! defaults.

use std::collections::BTreeMap;

use sws_format::{Configuration, Value};
use sws_text::SettingOrigin::{Default as D, GenerationConfig as J, Gguf as G, Option as O};
use sws_text::{Generation, GenerationOptions, Sampling};

const CONFIG: &str = r#"{"eos_token_id": 2}"#;

fn resolve(file: Option<&str>, typed: GenerationOptions) -> Result<Generation, String> {
    resolve_with(file, CONFIG, typed)
}

fn resolve_with(
    file: Option<&str>,
    config: &str,
    typed: GenerationOptions,
) -> Result<Generation, String> {
    let config = Configuration::from_json("config.json", config.as_bytes()).unwrap();
    Generation::resolve(file.map(str::as_bytes), &config, &typed).map_err(|e| e.to_string())
}

#[test]
fn command_line_overrides_file_and_file_overrides_defaults() {
    let typed = |change: fn(&mut GenerationOptions)| {
        let mut options = GenerationOptions { seed: Some(1), ..GenerationOptions::default() };
        change(&mut options);
        options
    };
    let qwen =
        r#"{"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "pad_token_id": 7}"#;
    let none = Sampling { seed: 1, top_k: 50, ..Sampling::default() };
    let file = Sampling { temperature: 0.6, top_k: 20, top_p: 0.95, ..none.clone() };
    let cases: [(_, GenerationOptions, Sampling); 11] = [
        (None, typed(|_| {}), none.clone()),
        (Some("{}"), typed(|_| {}), none.clone()),
        (Some(qwen), typed(|_| {}), file.clone()),
        (Some(r#"{"do_sample": false, "temperature": 0.6}"#), typed(|_| {}), none.clone()),
        (
            Some(r#"{"do_sample": true, "top_k": null}"#),
            typed(|_| {}),
            Sampling { temperature: 1.0, ..none.clone() },
        ),
        (
            Some(qwen),
            typed(|o| o.temperature = Some(0.0)),
            Sampling { temperature: 0.0, ..file.clone() },
        ),
        (Some(qwen), typed(|o| o.top_k = Some(0)), Sampling { top_k: 0, ..file.clone() }),
        (None, typed(|o| o.temperature = Some(0.8)), Sampling { temperature: 0.8, ..none.clone() }),
        (
            None,
            typed(|o| o.min_p = Some(0.1)),
            Sampling { temperature: 1.0, min_p: 0.1, ..none.clone() },
        ),
        (
            None,
            typed(|o| o.repetition_penalty = Some(1.1)),
            Sampling { repetition_penalty: 1.1, ..none.clone() },
        ),
        (
            Some(r#"{"top_k": 40.0, "do_sample": true}"#),
            typed(|_| {}),
            Sampling { temperature: 1.0, top_k: 40, ..none },
        ),
    ];
    for (json, typed, expected) in cases {
        let shown = format!("{json:?} {typed:?}");
        assert_eq!(resolve(json, typed).map(|g| g.sampling), Ok(expected), "{shown}");
    }
}

/// A configuration as a GGUF file has it.
fn gguf(keys: &[(&str, Value)]) -> Configuration {
    let mut entries: BTreeMap<String, Value> = keys
        .iter()
        .map(|(key, value)| (format!("general.sampling.{key}"), value.clone()))
        .collect();
    entries.insert("general.architecture".to_owned(), Value::String("llama".to_owned()));
    Configuration { origin: "m.gguf".to_owned(), entries }
}

#[test]
fn sampling_comes_from_options_files_gguf_keys_and_defaults() {
    let float = Value::Float;
    let keys = [("temp", float(0.6)), ("top_k", Value::Int(20)), ("penalty_repeat", float(1.05))];
    let none = GenerationOptions::default();
    let chat = GenerationOptions { conversation: true, ..none.clone() };
    let cold = GenerationOptions { temperature: Some(0.0), ..chat.clone() };
    let warm = GenerationOptions { temperature: Some(0.3), ..chat.clone() };
    let peaked = GenerationOptions { top_k: Some(3), ..none.clone() };
    let long = r#"{"eos_token_id": 5, "max_new_tokens": 9}"#;
    let greedy = r#"{"do_sample": false}"#;
    let sampled = r#"{"do_sample": true, "top_p": 0.8}"#;
    let penalised = r#"{"repetition_penalty": 1.2}"#;
    for (file, keys, typed, values, origins) in [
        // Neither file nor keys.
        (None, &[][..], &none, [0.0, 50.0, 1.0, 0.0, 1.0], [D, D, D, D, D]),
        (None, &[], &chat, [0.7, 40.0, 0.95, 0.05, 1.0], [D, D, D, D, D]),
        (None, &[], &cold, [0.0, 40.0, 0.95, 0.05, 1.0], [O, D, D, D, D]),
        (None, &[], &warm, [0.3, 40.0, 0.95, 0.05, 1.0], [O, D, D, D, D]),
        (None, &[], &peaked, [1.0, 3.0, 1.0, 0.0, 1.0], [D, O, D, D, D]),
        // A file without settings of sampling.
        (Some(long), &[], &none, [0.0, 50.0, 1.0, 0.0, 1.0], [D, D, D, D, D]),
        (Some(long), &[], &chat, [0.7, 40.0, 0.95, 0.05, 1.0], [D, D, D, D, D]),
        // A file with some of them.
        (Some(greedy), &[], &chat, [0.0, 50.0, 1.0, 0.0, 1.0], [J, D, D, D, D]),
        (Some(sampled), &[], &chat, [1.0, 50.0, 0.8, 0.0, 1.0], [D, D, J, D, D]),
        (Some(penalised), &[], &chat, [0.0, 50.0, 1.0, 0.0, 1.2], [D, D, D, D, J]),
        (Some(sampled), &keys, &chat, [1.0, 50.0, 0.8, 0.0, 1.0], [D, D, J, D, D]),
        // Keys.
        (None, &keys, &chat, [0.6, 20.0, 0.95, 0.05, 1.05], [G, G, D, D, G]),
        (None, &keys, &none, [0.6, 20.0, 0.95, 0.05, 1.05], [G, G, D, D, G]),
        (None, &keys, &warm, [0.3, 20.0, 0.95, 0.05, 1.05], [O, G, D, D, G]),
        (None, &keys[2..], &none, [0.0, 50.0, 1.0, 0.0, 1.05], [D, D, D, D, G]),
        (None, &keys[2..], &chat, [0.7, 40.0, 0.95, 0.05, 1.05], [D, D, D, D, G]),
        (
            None,
            &[("temp", float(0.0)), ("top_k", Value::Int(-1)), ("min_p", float(0.02))],
            &chat,
            [0.0, 0.0, 0.95, 0.02, 1.0],
            [G, G, D, G, D],
        ),
        // A penalty that looks at no token.
        (
            None,
            &[("penalty_repeat", float(1.05)), ("penalty_last_n", Value::Int(0))],
            &none,
            [0.0, 50.0, 1.0, 0.0, 1.0],
            [D, D, D, D, D],
        ),
    ] {
        let resolved = Generation::resolve(file.map(str::as_bytes), &gguf(keys), typed).unwrap();
        let settings = &resolved.settings()[..5];
        let found: Vec<f64> = settings.iter().map(|it| it.value).collect();
        assert_eq!(found, values, "{file:?} {keys:?} {typed:?}");
        let found: Vec<_> = settings.iter().map(|it| it.from).collect();
        assert_eq!(found, origins, "{file:?} {keys:?} {typed:?}");
        assert_eq!(resolved.ignored, [""; 0]);
    }
}

#[test]
fn keys_without_an_effect_are_named() {
    let float = Value::Float;
    for (key, value, words) in [
        ("temp", float(-1.0), "m.gguf gives -1.0 for `general.sampling.temp`, which must be 0, or"),
        ("temp", float(1e300), "for `general.sampling.temp`"),
        ("temp", float(f64::NAN), "for `general.sampling.temp`"),
        ("temp", Value::Bool(true), "gives true for `general.sampling.temp`"),
        ("top_k", float(2.5), "`general.sampling.top_k`, which must be a whole number"),
        ("top_p", float(1.5), "`general.sampling.top_p`, which must be a share between 0 and 1"),
        ("min_p", float(-0.5), "gives -0.5 for `general.sampling.min_p`"),
        ("penalty_repeat", float(0.0), "`general.sampling.penalty_repeat`"),
        ("mirostat", Value::Int(2), "`general.sampling.mirostat` in m.gguf is not supported"),
        ("xtc_probability", float(0.5), "`general.sampling.xtc_probability` in m.gguf"),
    ] {
        let typed = GenerationOptions { conversation: true, ..GenerationOptions::default() };
        let resolved = Generation::resolve(None, &gguf(&[(key, value.clone())]), &typed).unwrap();
        assert_eq!(resolved.ignored.len(), 1, "{key} {value:?}");
        assert!(resolved.ignored[0].contains(words), "{:?}", resolved.ignored);
        let expected = Sampling {
            temperature: 0.7,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            seed: resolved.sampling.seed,
            ..Sampling::default()
        };
        assert_eq!(resolved.sampling, expected, "{key}");
    }
    for (key, value) in [("mirostat", Value::Int(0)), ("xtc_probability", float(0.0))] {
        let silent = Generation::resolve(None, &gguf(&[(key, value)]), &Default::default());
        assert_eq!(silent.unwrap().ignored, [""; 0], "{key}");
    }
    let window = [("penalty_repeat", float(1.1)), ("penalty_last_n", Value::Int(64))];
    let resolved = Generation::resolve(None, &gguf(&window), &Default::default()).unwrap();
    assert!(resolved.ignored[0].contains("penalty_last_n"), "{:?}", resolved.ignored);
    // Only files in this format have such keys.
    let mut other = gguf(&[("temp", float(-1.0))]);
    other.entries.remove("general.architecture");
    let silent = Generation::resolve(None, &other, &Default::default()).unwrap();
    assert_eq!((silent.sampling.temperature, silent.ignored.len()), (0.0, 0));
}

#[test]
fn settings_are_described_with_their_origins() {
    let described =
        |file: Option<&str>, typed: GenerationOptions| resolve(file, typed).unwrap().described();
    let chat = GenerationOptions { conversation: true, ..GenerationOptions::default() };
    let plain = "temperature 0.7, top-k 40, top-p 0.95, min-p 0.05 (default)";
    assert_eq!(described(None, chat.clone()), plain);
    let typed = GenerationOptions { temperature: Some(0.3), min_p: Some(0.1), ..chat.clone() };
    let file = r#"{"do_sample": true, "top_k": 20, "repetition_penalty": 1.1}"#;
    assert_eq!(
        described(Some(file), typed),
        "temperature 0.3 (option); top-k 20 (generation_config.json); min-p 0.1 (option); repetition-penalty 1.1 (generation_config.json)"
    );
    let typed = GenerationOptions { temperature: Some(0.0), ..chat };
    assert_eq!(described(None, typed), "greedy, without sampling (option)");
    assert_eq!(described(None, GenerationOptions::default()), "greedy, without sampling (default)");
}

#[test]
fn stop_tokens_come_from_one_id_or_several_or_config_json() {
    let cases: [(Option<&str>, &str, &[u32]); 7] = [
        (Some(r#"{"eos_token_id": 5}"#), CONFIG, &[5]),
        (Some(r#"{"eos_token_id": [5, 6]}"#), CONFIG, &[5, 6]),
        (Some(r#"{"eos_token_id": null}"#), CONFIG, &[2]),
        (None, CONFIG, &[2]),
        (None, r#"{"eos_token_id": [3, 4]}"#, &[3, 4]),
        (None, r#"{"text_config": {"eos_token_id": 9}}"#, &[9]),
        (None, "{}", &[]),
    ];
    for (file, config, expected) in cases {
        let resolved = resolve_with(file, config, GenerationOptions::default());
        assert_eq!(resolved.map(|g| g.stop_tokens).unwrap(), expected, "{file:?}");
    }
    let typed = GenerationOptions { ignore_eos: true, ..GenerationOptions::default() };
    assert!(resolve(None, typed).unwrap().stop_tokens.is_empty());
    let typed = GenerationOptions { stop: vec!["b".into()], ..GenerationOptions::default() };
    assert_eq!(resolve(Some(r#"{"stop_strings": "a"}"#), typed).unwrap().stop_strings, ["a", "b"]);
}

#[test]
fn runs_without_a_seed_get_different_seeds() {
    let seed = || resolve(None, GenerationOptions::default()).unwrap().sampling.seed;
    assert_ne!(seed(), seed());
}

#[test]
fn absurd_values_are_refused_in_a_sentence() {
    let many = format!(r#"{{"eos_token_id": [{}1]}}"#, "1,".repeat(5000));
    let cases = [
        (
            r#"{"temperature": -1}"#,
            "generation_config.json gives -1 for temperature, which must be 0, or between 0.001 and 100",
        ),
        (r#"{"temperature": 1e300}"#, "gives inf for temperature"),
        (r#"{"top_p": 1.5}"#, "gives 1.5 for top_p, which must be a share between 0 and 1"),
        (r#"{"min_p": -0.5}"#, "gives -0.5 for min_p"),
        (r#"{"repetition_penalty": 0}"#, "gives 0 for repetition_penalty"),
        (r#"{"top_k": 2.5}"#, "gives 2.5 for top_k, which must be a whole number, 0 or more"),
        (r#"{"top_k": -3}"#, "gives -3 for top_k"),
        (r#"{"max_new_tokens": 1e30}"#, "for max_new_tokens, which must be a whole number"),
        (r#"{"eos_token_id": -1}"#, "gives -1 for eos_token_id"),
        (r#"{"eos_token_id": "</s>"}"#, r#"gives "</s>" for eos_token_id"#),
        (r#"{"temperature": "hot"}"#, "generation_config.json is damaged (invalid type"),
        ("[1", "generation_config.json is damaged ("),
        (many.as_str(), "gives 5001 ids for eos_token_id"),
    ];
    for (file, expected) in cases {
        let error = resolve(Some(file), GenerationOptions::default()).unwrap_err();
        assert!(error.contains(expected), "{file}: {error}");
        assert!(!error.contains('\n'), "{error}");
    }
    let typed = GenerationOptions { temperature: Some(f32::NAN), ..GenerationOptions::default() };
    let error = resolve(None, typed).unwrap_err();
    assert!(error.starts_with("temperature is NaN, and must be 0, or"), "{error}");
}
