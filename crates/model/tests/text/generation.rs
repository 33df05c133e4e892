//! Resolution of settings: command line over generation_config.json over defaults.

use sws_model::text::{Generation, GenerationOptions, Sampling};
use sws_store::Configuration;

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
