//! The settings for the selection of a token: names, bounds, defaults and origins.

use std::fmt::Write;

use serde::Serialize;

use super::Generation;

/// Origin of a setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum SettingOrigin {
    /// An option, or a field of a request.
    #[serde(rename = "option")]
    Option,
    /// `generation_config.json`.
    #[serde(rename = "generation_config.json")]
    GenerationConfig,
    /// Keys of the GGUF file.
    #[serde(rename = "GGUF")]
    Gguf,
    /// Recommendation of the publisher of the model's family.
    #[serde(rename = "family")]
    Family,
    /// The built-in default.
    #[default]
    #[serde(rename = "default")]
    Default,
}

/// A setting of a text, and its origin.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SettingOf {
    /// Name of the setting, as in `generation_config.json`.
    #[serde(skip)]
    pub name: &'static str,
    /// Value of the setting.
    pub value: f64,
    /// Origin of the value.
    pub from: SettingOrigin,
}

/// A setting: its name, its bounds and its defaults.
pub(super) struct Setting {
    pub(super) name: &'static str,
    /// Description of the allowed values.
    pub(super) expected: &'static str,
    pub(super) sane: fn(f32) -> bool,
    /// Default of continued texts, as in transformers, and default of conversations.
    defaults: [f32; 2],
}

/// Allowed values of a number of tokens.
pub(super) const COUNT: &str = "a whole number, 0 or more";
const SHARE: &str = "a share between 0 and 1";
const ANY: &str = "a number between -100 and 100";

pub(super) const TEMPERATURE: Setting = Setting {
    name: "temperature",
    expected: "0, or between 0.001 and 100",
    sane: |x| x == 0.0 || (0.001..=100.0).contains(&x),
    defaults: [1.0, 0.7],
};
pub(super) const TOP_K: Setting = Setting {
    name: "top_k",
    expected: COUNT,
    sane: |x| is_count(x.into()),
    defaults: [50.0, 40.0],
};
pub(super) const TOP_P: Setting =
    Setting { name: "top_p", expected: SHARE, sane: is_share, defaults: [1.0, 0.95] };
pub(super) const MIN_P: Setting =
    Setting { name: "min_p", expected: SHARE, sane: is_share, defaults: [0.0, 0.05] };
pub(super) const REPETITION_PENALTY: Setting = Setting {
    name: "repetition_penalty",
    expected: "a number between 0.01 and 100",
    sane: |x| (0.01..=100.0).contains(&x),
    defaults: [1.0; 2],
};
pub(super) const PRESENCE_PENALTY: Setting =
    Setting { name: "presence_penalty", expected: ANY, sane: is_any, defaults: [0.0; 2] };
pub(super) const FREQUENCY_PENALTY: Setting =
    Setting { name: "frequency_penalty", expected: ANY, sane: is_any, defaults: [0.0; 2] };

fn is_share(x: f32) -> bool {
    (0.0..=1.0).contains(&x)
}

fn is_any(x: f32) -> bool {
    (-100.0..=100.0).contains(&x)
}

/// True for a valid number of tokens.
pub(super) fn is_count(value: f64) -> bool {
    value.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&value)
}

impl Setting {
    pub(super) fn default(&self, is_chat: bool) -> f32 {
        self.defaults[usize::from(is_chat)]
    }
}

impl SettingOrigin {
    /// Name of the origin, for messages.
    pub const fn name(self) -> &'static str {
        match self {
            SettingOrigin::Option => "option",
            SettingOrigin::GenerationConfig => "generation_config.json",
            SettingOrigin::Gguf => "GGUF file",
            SettingOrigin::Family => "recommended for its family",
            SettingOrigin::Default => "default",
        }
    }
}

impl Generation {
    /// The sampling settings, with their origins.
    pub fn settings(&self) -> [SettingOf; 7] {
        let it = &self.sampling;
        let values = [
            (TEMPERATURE.name, decimal(it.temperature)),
            (TOP_K.name, it.top_k as f64),
            (TOP_P.name, decimal(it.top_p)),
            (MIN_P.name, decimal(it.min_p)),
            (REPETITION_PENALTY.name, decimal(it.repetition_penalty)),
            (PRESENCE_PENALTY.name, decimal(it.presence_penalty)),
            (FREQUENCY_PENALTY.name, decimal(it.frequency_penalty)),
        ];
        let mut origins = self.origins.into_iter();
        values.map(|(name, value)| {
            let from = origins.next().unwrap_or_default();
            SettingOf { name, value, from }
        })
    }

    /// The settings that have an effect, with their origins: `temperature 0.6 (GGUF file); top-k 40,
    /// top-p 0.95 (default)`.
    pub fn described(&self) -> String {
        let mut text = String::new();
        let mut last = None;
        for SettingOf { name, value, from } in self.settings() {
            let is_greedy = self.sampling.temperature == 0.0;
            let shown = match name {
                "temperature" if is_greedy => "greedy, without sampling".to_owned(),
                "top_k" | "top_p" | "min_p" if is_greedy => continue,
                "top_k" | "min_p" | "presence_penalty" | "frequency_penalty" if value == 0.0 => {
                    continue;
                }
                "top_p" | "repetition_penalty" if value == 1.0 => continue,
                name => format!("{} {value}", name.replace('_', "-")),
            };
            match last.replace(from) {
                Some(before) if before == from => text += ", ",
                Some(before) => {
                    let _ = write!(text, " ({}); ", before.name());
                }
                None => {}
            }
            text += &shown;
        }
        let _ = last.map(|last| write!(text, " ({})", last.name()));
        text
    }
}

/// The decimal number with the fewest digits that rounds to this f32.
fn decimal(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(value.into())
}
