//! Generation settings. The command line overrides `generation_config.json` or the keys of a GGUF
//! file. These override the recommendations of the model's family for conversations, and the
//! defaults.

mod families;
mod keys;
mod settings;

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};

use serde::{Deserialize, Serialize};
use sws_format::{Configuration, Value};

use crate::refusal::GenerationError;
use crate::{DryOptions, DrySettings};
use settings::{FREQUENCY_PENALTY, MIN_P, PRESENCE_PENALTY, REPETITION_PENALTY};
use settings::{Setting, TEMPERATURE, TOP_K, TOP_P};
pub use settings::{SettingOf, SettingOrigin};

/// Settings from the command line; None where an option is absent.
#[derive(Clone, Debug, Default)]
pub struct GenerationOptions {
    /// Temperature; 0 selects the likeliest token.
    pub temperature: Option<f32>,
    /// Number of likeliest tokens to keep; 0 keeps all.
    pub top_k: Option<usize>,
    /// Total probability of the tokens to keep; 1 keeps all.
    pub top_p: Option<f32>,
    /// Lowest probability to keep, relative to the likeliest token; 0 keeps all.
    pub min_p: Option<f32>,
    /// Repetition penalty; 1 has no effect.
    pub repetition_penalty: Option<f32>,
    /// Presence penalty; 0 has no effect.
    pub presence_penalty: Option<f32>,
    /// Frequency penalty; 0 has no effect.
    pub frequency_penalty: Option<f32>,
    /// DRY, a penalty for repetitions.
    pub dry: DryOptions,
    /// Seed; random if absent.
    pub seed: Option<u64>,
    /// Maximum number of tokens to generate.
    pub max_new_tokens: Option<usize>,
    /// Strings that end the text, in addition to those of the model.
    pub stop: Vec<String>,
    /// Continue after the model's end-of-text token.
    pub ignore_eos: bool,
    /// True for an answer in a conversation. Answers are sampled unless a setting says otherwise.
    pub conversation: bool,
    /// True if the model thinks before it answers. Its family may recommend other settings for
    /// that.
    pub thinks: bool,
}

/// Generation settings, resolved and checked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Generation {
    /// Settings for the selection of a token.
    pub sampling: Sampling,
    /// Maximum number of tokens to generate; None if neither the user nor the model sets one.
    pub max_new_tokens: Option<usize>,
    /// Tokens that end the text.
    pub stop_tokens: Vec<u32>,
    /// Strings that end the text.
    pub stop_strings: Vec<String>,
    /// Special tokens that are part of the text. Other special tokens have no text.
    pub shown_tokens: Vec<u32>,
    /// Origins of the settings for the selection of a token, in the order of
    /// [`settings`](Self::settings).
    pub origins: [SettingOrigin; 7],
    /// Keys of the model's GGUF file that have no effect, each in a sentence.
    pub ignored: Vec<String>,
}

/// Settings for the selection of a token from logits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// 0 selects the likeliest token, the first one on ties; then only the penalties below matter.
    pub temperature: f32,
    /// Number of likeliest tokens to keep; 0 keeps all.
    pub top_k: usize,
    /// Keep the likeliest tokens that together have this probability.
    pub top_p: f32,
    /// Drop tokens less likely than this times the likeliest.
    pub min_p: f32,
    /// Divides (if negative: multiplies) the logits of tokens in the prompt or the text so far.
    pub repetition_penalty: f32,
    /// Subtracted once from the logits of tokens in the text so far.
    pub presence_penalty: f32,
    /// Subtracted once for each occurrence of a token in the text so far.
    pub frequency_penalty: f32,
    /// A penalty for tokens that would continue a repetition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dry: Option<DrySettings>,
    /// Seed of the random numbers.
    pub seed: u64,
}

impl Sampling {
    /// The seed, if the text depends on it. With a temperature of 0 nothing is drawn.
    pub fn drawing_seed(&self) -> Option<u64> {
        (self.temperature != 0.0).then_some(self.seed)
    }
}

impl Default for Sampling {
    /// Always selects the likeliest token.
    fn default() -> Sampling {
        Sampling {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            dry: None,
            seed: 0,
        }
    }
}

/// Upper limits for bytes and stop tokens, far above those of any real file.
const MAX_BYTES: usize = 1 << 20;
const MAX_STOPS: usize = 1024;

const FILE: &str = "generation_config.json";
const EOS: &str = "eos_token_id";

/// The part of `generation_config.json` that is used. Numbers are f64 because 50 is also written as
/// 50.0.
#[derive(Deserialize, Default)]
struct GenerationFile {
    do_sample: Option<bool>,
    temperature: Option<f64>,
    top_k: Option<f64>,
    top_p: Option<f64>,
    min_p: Option<f64>,
    repetition_penalty: Option<f64>,
    presence_penalty: Option<f64>,
    frequency_penalty: Option<f64>,
    max_new_tokens: Option<f64>,
    eos_token_id: Option<Value>,
    stop_strings: Option<OneOrMany>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl Generation {
    /// Resolves the settings from the command line, `generation_config.json` (if there is one) and
    /// the stop tokens of the configuration, where older checkpoints define them.
    ///
    /// As in transformers, tokens are sampled only if the file sets `do_sample`, and then from the
    /// 50 likeliest unless it sets another number. A temperature above 0, top-k, top-p or min-p on
    /// the command line also enables sampling.
    ///
    /// A model whose file says nothing about sampling has the settings in the keys of its GGUF file.
    /// Where there are some, and in conversations, the rest is as in programs for such files: the
    /// likeliest token alone leads most models into loops.
    pub fn resolve(
        generation_config: Option<&[u8]>,
        config: &Configuration,
        typed: &GenerationOptions,
    ) -> Result<Generation, GenerationError> {
        let mut file: GenerationFile = match generation_config {
            Some(json) => parse(json)?,
            None => GenerationFile::default(),
        };
        let mut origin = SettingOrigin::GenerationConfig;
        let mut ignored = Vec::new();
        let mut is_chat = false;
        if !file.is_about_sampling() {
            origin = SettingOrigin::Gguf;
            ignored = file.take_keys(config);
            is_chat = typed.conversation || file.is_about_choice();
        }
        let family = if is_chat { families::of(config, typed.thinks) } else { None };
        let defaults = SettingDefaults { origin, is_chat, family };
        let max_new_tokens = match typed.max_new_tokens {
            Some(tokens) => Some(tokens),
            None => whole("max_new_tokens", file.max_new_tokens)?,
        };
        let top_k = match typed.top_k {
            Some(k) => (k, SettingOrigin::Option),
            None => match whole(TOP_K.name, file.top_k)? {
                Some(k) => (k, origin),
                None => {
                    let (k, origin) = defaults.of(&TOP_K);
                    (k as usize, origin)
                }
            },
        };
        let mut temperature = defaults.pick(&TEMPERATURE, typed.temperature, file.temperature)?;
        let top_p = defaults.pick(&TOP_P, typed.top_p, file.top_p)?;
        let min_p = defaults.pick(&MIN_P, typed.min_p, file.min_p)?;
        let repetition_penalty = defaults.pick(
            &REPETITION_PENALTY,
            typed.repetition_penalty,
            file.repetition_penalty,
        )?;
        let presence_penalty =
            defaults.pick(&PRESENCE_PENALTY, typed.presence_penalty, file.presence_penalty)?;
        let frequency_penalty =
            defaults.pick(&FREQUENCY_PENALTY, typed.frequency_penalty, file.frequency_penalty)?;
        let asked = [top_k.1, top_p.1, min_p.1].contains(&SettingOrigin::Option);
        if typed.temperature.is_none() && !asked && !is_chat && file.do_sample != Some(true) {
            let is_given = file.do_sample.is_some();
            temperature = (0.0, if is_given { origin } else { SettingOrigin::Default });
        }
        let sampling = Sampling {
            temperature: temperature.0,
            top_k: top_k.0,
            top_p: top_p.0,
            min_p: min_p.0,
            repetition_penalty: repetition_penalty.0,
            presence_penalty: presence_penalty.0,
            frequency_penalty: frequency_penalty.0,
            dry: DrySettings::resolve(&typed.dry)?,
            // The keys of `RandomState` are the standard library's source of random bits. The seed
            // has 32 bits, because JSON without large integers would round more.
            seed: typed.seed.unwrap_or_else(|| RandomState::new().hash_one(0) >> 32),
        };
        let origins = [
            temperature.1,
            top_k.1,
            top_p.1,
            min_p.1,
            repetition_penalty.1,
            presence_penalty.1,
            frequency_penalty.1,
        ];

        let mut stop_tokens = stop_tokens(file.eos_token_id.as_ref(), config)?;
        if typed.ignore_eos {
            stop_tokens.clear();
        }
        let mut stop_strings = stop_strings(file.stop_strings)?;
        stop_strings.extend(typed.stop.iter().cloned());
        let shown_tokens = Vec::new();
        Ok(Generation {
            sampling,
            max_new_tokens,
            stop_tokens,
            stop_strings,
            shown_tokens,
            origins,
            ignored,
        })
    }
}

/// The tokens that end a text: those that the file gives, or else the configuration of the model.
fn stop_tokens(given: Option<&Value>, config: &Configuration) -> Result<Vec<u32>, GenerationError> {
    let tokens = stop_ids(FILE, given)?;
    if !tokens.is_empty() {
        return Ok(tokens);
    }
    let inner = config.entries.get("text_config").and_then(Value::as_map);
    let ids = [Some(&config.entries), inner].into_iter().flatten();
    let mut ids = ids.filter_map(|entries| entries.get(EOS));
    let tokens = stop_ids(&config.origin, ids.find(|ids| !ids.is_null()))?;
    if !tokens.is_empty() {
        return Ok(tokens);
    }
    let ids = Value::List(gguf_stop_tokens(&config.entries));
    stop_ids(&config.origin, Some(&ids))
}

/// The strings of the file that end a text.
fn stop_strings(given: Option<OneOrMany>) -> Result<Vec<String>, GenerationError> {
    let strings = match given {
        Some(OneOrMany::One(string)) => vec![string],
        Some(OneOrMany::Many(strings)) => strings,
        None => Vec::new(),
    };
    if strings.len() > MAX_STOPS {
        let value = format!("{} strings", strings.len());
        return Err(absurd(FILE, "stop_strings", value, "at most 1024 strings"));
    }
    Ok(strings)
}

fn parse(json: &[u8]) -> Result<GenerationFile, GenerationError> {
    if json.len() > MAX_BYTES {
        let reason = format!("{} bytes", json.len());
        return Err(GenerationError::Damaged { file: FILE, reason });
    }
    serde_json::from_slice(json)
        .map_err(|e| GenerationError::Damaged { file: FILE, reason: e.to_string() })
}

/// Defaults, for settings that no other source has.
#[derive(Clone, Copy)]
struct SettingDefaults {
    /// The origin of the settings of the file, which come before the defaults.
    origin: SettingOrigin,
    is_chat: bool,
    /// Settings recommended by the model's family.
    family: Option<families::Recommended>,
}

impl SettingDefaults {
    fn of(self, setting: &Setting) -> (f32, SettingOrigin) {
        match self.family.and_then(|family| family.value(setting)) {
            Some(value) => (value, SettingOrigin::Family),
            None => (setting.default(self.is_chat), SettingOrigin::Default),
        }
    }

    /// Resolves a setting: the typed value, else that of the file, else the default.
    fn pick(
        self,
        setting: &Setting,
        typed: Option<f32>,
        file: Option<f64>,
    ) -> Result<(f32, SettingOrigin), GenerationError> {
        let Setting { name: key, expected, sane, .. } = *setting;
        match (typed, file) {
            (Some(value), _) if sane(value) => Ok((value, SettingOrigin::Option)),
            (Some(value), _) => Err(GenerationError::Option { key, value, expected }),
            (None, Some(value)) => {
                let value = value as f32;
                if sane(value) {
                    Ok((value, self.origin))
                } else {
                    Err(absurd(FILE, key, value.to_string(), expected))
                }
            }
            (None, None) => Ok(self.of(setting)),
        }
    }
}

/// A whole number from the file.
fn whole(key: &'static str, value: Option<f64>) -> Result<Option<usize>, GenerationError> {
    let Some(value) = value else { return Ok(None) };
    if settings::is_count(value) {
        Ok(Some(value as usize))
    } else {
        Err(absurd(FILE, key, value.to_string(), settings::COUNT))
    }
}

/// The end tokens of a GGUF file, for a model without a generation configuration.
fn gguf_stop_tokens(given: &BTreeMap<String, Value>) -> Vec<Value> {
    let keys = ["eos", "eot", "eom"].map(|end| format!("tokenizer.ggml.{end}_token_id"));
    keys.iter().filter_map(|key| given.get(key)).cloned().collect()
}

/// Stop tokens, given as one id or a list.
fn stop_ids(file: &str, value: Option<&Value>) -> Result<Vec<u32>, GenerationError> {
    let values = match value {
        None => return Ok(Vec::new()),
        Some(Value::List(values)) => values.as_slice(),
        Some(value) => std::slice::from_ref(value),
    };
    const EXPECTED: &str = "a token id, or a list of at most 1024";
    if values.len() > MAX_STOPS {
        let value = format!("{} ids", values.len());
        return Err(absurd(file, EOS, value, EXPECTED));
    }
    let mut ids = Vec::with_capacity(values.len());
    for value in values {
        let Some(id) = value.as_u64().and_then(|id| u32::try_from(id).ok()) else {
            let shortened = value.to_string().chars().take(40).collect();
            return Err(absurd(file, EOS, shortened, EXPECTED));
        };
        ids.push(id);
    }
    Ok(ids)
}

fn absurd(
    origin: &str,
    key: &'static str,
    value: String,
    expected: &'static str,
) -> GenerationError {
    GenerationError::Absurd { origin: origin.to_owned(), key, value, expected }
}
