//! Settings that publishers recommend for conversations with their models, for models whose files
//! have none.

use sws_format::Configuration;

use super::settings::{MIN_P, Setting, TEMPERATURE, TOP_K, TOP_P};

/// Recommended settings. docs/supported.md has the source of each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Recommended {
    temperature: f32,
    /// Maximum number of tokens; 0 keeps all.
    top_k: f32,
    top_p: f32,
}

const fn recommended(temperature: f32, top_k: u8, top_p: f32) -> Recommended {
    Recommended { temperature, top_k: top_k as f32, top_p }
}

/// The settings of model types: for answers with reasoning, and without.
const FAMILIES: [(&[&str], [Recommended; 2]); 9] = [
    (&["qwen3", "qwen3_moe"], [recommended(0.6, 20, 0.95), recommended(0.7, 20, 0.8)]),
    (&["qwen3_next"], [recommended(0.6, 20, 0.95), recommended(0.7, 20, 0.8)]),
    (&["gemma3", "gemma3_text", "gemma4", "gemma4_text"], [recommended(1.0, 64, 0.95); 2]),
    (&["gpt_oss"], [recommended(1.0, 0, 1.0); 2]),
    (&["glm4_moe"], [recommended(1.0, 40, 0.95); 2]),
    (&["deepseek_v3"], [recommended(0.6, 0, 0.95); 2]),
    (&["kimi_k2"], [recommended(0.6, 0, 1.0); 2]),
    (&["minimax_m2"], [recommended(1.0, 40, 0.95); 2]),
    (&["smollm3"], [recommended(0.6, 0, 0.95); 2]),
];

/// The settings recommended for a model, with or without reasoning before its answers.
pub(super) fn of(config: &Configuration, thinks: bool) -> Option<Recommended> {
    let kind = config.entries.get("model_type")?.as_str()?;
    let (_, settings) = FAMILIES.iter().find(|(types, _)| types.contains(&kind))?;
    Some(settings[usize::from(!thinks)])
}

impl Recommended {
    /// The value of a setting, if there is a recommendation.
    pub(super) fn value(self, setting: &Setting) -> Option<f32> {
        let named = [
            (TEMPERATURE.name, self.temperature),
            (TOP_K.name, self.top_k),
            (TOP_P.name, self.top_p),
            // No publisher recommends a value.
            (MIN_P.name, 0.0),
        ];
        let (_, value) = named.into_iter().find(|(name, _)| *name == setting.name)?;
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_those_of_the_family_and_of_reasoning() {
        let config = |kind: &str| {
            let json = format!("{{\"model_type\": \"{kind}\"}}");
            Configuration::from_json("config.json", json.as_bytes()).unwrap()
        };
        for (kind, thinks, expected) in [
            ("qwen3_moe", true, Some(recommended(0.6, 20, 0.95))),
            ("qwen3_moe", false, Some(recommended(0.7, 20, 0.8))),
            ("gpt_oss", true, Some(recommended(1.0, 0, 1.0))),
            ("mixtral", false, None),
        ] {
            assert_eq!(of(&config(kind), thinks), expected, "{kind} {thinks}");
        }
        let settings = of(&config("gemma3"), false).unwrap();
        assert_eq!(settings.value(&TOP_K), Some(64.0));
        assert_eq!(settings.value(&super::super::settings::PRESENCE_PENALTY), None);
    }

    #[test]
    fn recommended_settings_are_within_bounds() {
        for (types, settings) in FAMILIES {
            for settings in settings {
                for setting in [&TEMPERATURE, &TOP_K, &TOP_P, &MIN_P] {
                    let value = settings.value(setting).unwrap();
                    assert!((setting.sane)(value), "{types:?}: {} {value}", setting.name);
                }
            }
        }
    }
}
