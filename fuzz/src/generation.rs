//! Any bytes as a `generation_config.json`, followed by a zero byte and a `config.json`.

use sws_format::Configuration;
use sws_text::{Generation, GenerationOptions};

/// True if the files were accepted.
pub(crate) fn check(data: &[u8]) -> bool {
    let mut files = data.splitn(2, |&byte| byte == 0);
    let file = files.next().filter(|file| !file.is_empty());
    let config = files.next().unwrap_or(b"{}");
    let Ok(config) = Configuration::from_json("config.json", config) else { return false };
    let typed = GenerationOptions { seed: Some(1), ..GenerationOptions::default() };
    let Ok(generation) = Generation::resolve(file, &config, &typed) else { return false };
    let again = Generation::resolve(file, &config, &typed);
    assert_eq!(again.ok().as_ref(), Some(&generation));
    let sampling = &generation.sampling;
    assert!(sampling.temperature.is_finite() && sampling.temperature >= 0.0, "{sampling:?}");
    assert!((0.0..=1.0).contains(&sampling.top_p) && (0.0..=1.0).contains(&sampling.min_p));
    assert!(sampling.repetition_penalty.is_finite() && sampling.repetition_penalty > 0.0);
    assert!(generation.stop_tokens.len() <= 1024, "{}", generation.stop_tokens.len());
    true
}
