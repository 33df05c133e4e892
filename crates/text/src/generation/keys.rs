//! Settings in the keys `general.sampling.*` of a GGUF file.

use sws_format::{Configuration, Value};

use super::GenerationFile;
use super::settings::{MIN_P, REPETITION_PENALTY, Setting, TEMPERATURE, TOP_K, TOP_P};

const PREFIX: &str = "general.sampling.";

impl GenerationFile {
    /// True if a file has settings for sampling.
    pub(super) fn is_about_sampling(&self) -> bool {
        let penalties = [self.repetition_penalty, self.presence_penalty, self.frequency_penalty];
        self.do_sample.is_some() || self.is_about_choice() || penalties.iter().any(Option::is_some)
    }

    /// True if a file limits the tokens to choose from.
    pub(super) fn is_about_choice(&self) -> bool {
        [self.temperature, self.top_k, self.top_p, self.min_p].iter().any(Option::is_some)
    }

    /// Takes settings from the keys of a GGUF file. Returns a sentence for each key without effect.
    /// Users could not correct a value in the header of a file, so no value is an error.
    pub(super) fn take_keys(&mut self, config: &Configuration) -> Vec<String> {
        let mut ignored = Vec::new();
        if !config.entries.contains_key("general.architecture") {
            return ignored;
        }
        let mut window = None;
        for (key, value) in config.entries.range(PREFIX.to_owned()..) {
            let Some(key) = key.strip_prefix(PREFIX) else { break };
            let number = value.as_f64();
            let (setting, place): (&Setting, _) = match key {
                "temp" => (&TEMPERATURE, &mut self.temperature),
                "top_k" => (&TOP_K, &mut self.top_k),
                "top_p" => (&TOP_P, &mut self.top_p),
                "min_p" => (&MIN_P, &mut self.min_p),
                "penalty_repeat" => (&REPETITION_PENALTY, &mut self.repetition_penalty),
                "penalty_last_n" => {
                    window = number;
                    continue;
                }
                // These keys belong to unsupported methods, or modify other keys.
                "mirostat_tau" | "mirostat_eta" | "xtc_threshold" | "sequence" => continue,
                "mirostat" | "xtc_probability" if number == Some(0.0) => continue,
                _ => {
                    let key: String = key.escape_debug().take(40).collect();
                    ignored.push(format!(
                        "`{PREFIX}{key}` in {} is not supported and has no effect",
                        config.origin
                    ));
                    continue;
                }
            };
            let number = match key {
                // llama.cpp reads a negative number as all tokens.
                "top_k" if number.is_some_and(|number| number < 0.0) => Some(0.0),
                _ => number,
            };
            match number.map(|number| number as f32).filter(|&number| (setting.sane)(number)) {
                Some(number) => *place = Some(number.into()),
                None => ignored.push(format!(
                    "{} gives {} for `{PREFIX}{key}`, which must be {}; it has no effect",
                    config.origin,
                    render(value),
                    setting.expected
                )),
            }
        }
        match window {
            // The penalty considers no tokens.
            Some(0.0) => self.repetition_penalty = None,
            Some(tokens) if tokens > 0.0 && self.repetition_penalty.is_some_and(|p| p != 1.0) => {
                ignored.push(format!(
                    "`{PREFIX}penalty_last_n` in {} has no effect: the penalty is for all tokens of the text",
                    config.origin
                ));
            }
            _ => {}
        }
        ignored
    }
}

fn render(value: &Value) -> String {
    value.to_string().chars().take(40).collect()
}
