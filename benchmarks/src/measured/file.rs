//! A file of `sws bench --out`, checked as one of a stranger.

use std::io::Read;
use std::ops::RangeInclusive;
use std::path::Path;

use anyhow::{Result, anyhow};
use serde::Deserialize;
use serde_json::Value;
use sws_format::open_regular;

/// Formats that are read.
const FORMAT: &str = "sws-bench-1";
const MAX_BYTES: u64 = 64 << 20;
/// Most letters of a name, and most rounds.
const MOST_LETTERS: usize = 80;
const MOST_ROUNDS: usize = 1000;
/// Bounds of what a machine of today can do.
const BYTES: RangeInclusive<u64> = 1 << 20..=1 << 50;
const RATES: RangeInclusive<f64> = 1e6..=1e13;
const SPEEDS: RangeInclusive<f64> = 1e-4..=1e5;
const SECONDS: RangeInclusive<f64> = 0.0..=1e5;
/// Bytes that arrive may be more than those of the device by this share and so many per second, as its
/// counter is read a little earlier.
const SLACK: f64 = 1.25;
const SLACK_RATE: f64 = 4e6;

/// The numbers of a model on a machine.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    format: String,
    version: String,
    /// The model that was measured.
    pub model: MeasuredModel,
    /// The machine.
    pub machine: MeasuredMachine,
    prompt_tokens: u64,
    new_tokens: u64,
    rounds: Vec<MeasuredRound>,
    certificate: Value,
}

/// The model of a measurement.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredModel {
    /// Its family.
    pub model_type: String,
    fingerprint: String,
    /// `None` for a checkpoint in place.
    pub encoding: Option<String>,
    /// Bytes of its weights.
    pub weight_bytes: u64,
}

/// The machine of a measurement.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredMachine {
    /// Name of the processor, where its system tells it.
    pub processor: Option<String>,
    system: String,
    /// Tier of the kernels.
    pub tier: String,
    /// Its speeds before the rounds.
    pub measured: MeasuredSpeeds,
}

/// Speeds of a machine.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredSpeeds {
    ram_bytes: u64,
    free_bytes: Option<u64>,
    threads: Option<u64>,
    /// Of the disk that the model lies on.
    pub disk_bytes_per_second: Option<f64>,
    /// Of memory.
    pub memory_bytes_per_second: Option<f64>,
    others_share: Option<f64>,
}

/// The numbers of a process.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredRound {
    round: u64,
    start: String,
    ram: String,
    /// The budget in bytes.
    pub ram_bytes: u64,
    /// Compute threads.
    pub threads: u64,
    load_seconds: f64,
    /// From the prompt to the first token.
    pub first_token_seconds: f64,
    /// Speed of the tokens after it.
    pub tokens_per_second: f64,
    /// Bytes read for a token.
    pub bytes_per_token: f64,
    /// 10⁹ bytes a second over all the time of the tokens.
    pub disk_gb_per_second: f64,
    /// `None` without experts.
    pub hit_rate: Option<f64>,
    /// The most memory of the process.
    pub peak_rss_bytes: u64,
    /// Share of the processors that others had.
    pub others_share: Option<f64>,
}

impl Measured {
    /// Reads a file. One that cannot be true is refused with a sentence.
    pub fn read(path: &Path) -> Result<Measured> {
        let shown = path.display();
        let refused = |why: String| {
            anyhow!(
                "`{shown}` is no measurement ({why}); take the file that `sws bench --out` wrote"
            )
        };
        let mut bytes = Vec::new();
        let file = open_regular(path).map_err(|e| refused(e.to_string()))?;
        file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|e| refused(e.to_string()))?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(refused(format!("it has more than {MAX_BYTES} bytes")));
        }
        Measured::parse(&bytes).map_err(refused)
    }

    /// Parses the bytes of a file.
    pub fn parse(json: &[u8]) -> Result<Measured, String> {
        let read: Measured = serde_json::from_slice(json).map_err(|e| {
            e.to_string()
                .chars()
                .filter(|c| !c.is_control())
                .take(2 * MOST_LETTERS)
                .collect::<String>()
        })?;
        match read.lie() {
            None => Ok(read),
            Some(lie) => Err(lie),
        }
    }

    /// The budgets as they were asked for, in their order. `min` is another number in each process.
    pub fn budgets(&self) -> Vec<&str> {
        let mut budgets: Vec<&str> = Vec::new();
        for round in &self.rounds {
            if !budgets.contains(&round.ram.as_str()) {
                budgets.push(&round.ram);
            }
        }
        budgets
    }

    /// The rounds of a budget, `cold` or `warm`.
    pub fn rounds_of(&self, ram: &str, start: &str) -> Vec<&MeasuredRound> {
        let rounds = self.rounds.iter();
        rounds.filter(|round| round.ram == ram && round.start == start).collect()
    }

    /// The first thing that cannot be true.
    fn lie(&self) -> Option<String> {
        let Measured { format, version, model, machine, certificate, .. } = self;
        if format != FORMAT {
            return Some("its format is another one".to_owned());
        }
        let names = [
            ("version", Some(version)),
            ("model_type", Some(&model.model_type)),
            ("fingerprint", Some(&model.fingerprint)),
            ("encoding", model.encoding.as_ref()),
            ("processor", machine.processor.as_ref()),
            ("system", Some(&machine.system)),
            ("tier", Some(&machine.tier)),
        ];
        for (key, name) in names {
            if name.is_some_and(|name| !is_name(name)) {
                return Some(format!("`{key}` is not a name of at most {MOST_LETTERS} letters"));
            }
        }
        let speeds = &machine.measured;
        let bytes = [
            ("weight_bytes", Some(model.weight_bytes)),
            ("ram_bytes", Some(speeds.ram_bytes)),
            ("free_bytes", speeds.free_bytes),
        ];
        let rates = [
            ("disk_bytes_per_second", speeds.disk_bytes_per_second),
            ("memory_bytes_per_second", speeds.memory_bytes_per_second),
        ];
        for (key, bytes) in bytes {
            if bytes.is_some_and(|bytes| !BYTES.contains(&bytes)) {
                return Some(format!("`{key}` is no machine's"));
            }
        }
        for (key, rate) in rates {
            if rate.is_some_and(|rate| !RATES.contains(&rate)) {
                return Some(format!("`{key}` is no machine's"));
            }
        }
        if speeds.free_bytes > Some(speeds.ram_bytes) {
            return Some("`free_bytes` is more than `ram_bytes`".to_owned());
        }
        if speeds.threads.is_some_and(|count| !(1..=1024).contains(&count))
            || !is_share(speeds.others_share)
        {
            return Some("`threads` or `others_share` is no machine's".to_owned());
        }
        if !(1..=4096).contains(&self.new_tokens) || !(1..=1 << 20).contains(&self.prompt_tokens) {
            return Some("`new_tokens` or `prompt_tokens` is not a text's".to_owned());
        }
        let certified = certificate["tokens"].as_array().map_or(0, Vec::len) as u64;
        if certified < self.new_tokens || !certificate["steps"].is_array() {
            return Some("its certificate is not that of the text".to_owned());
        }
        self.lie_of_rounds()
    }

    fn lie_of_rounds(&self) -> Option<String> {
        if !(1..=MOST_ROUNDS).contains(&self.rounds.len()) {
            return Some(format!("it has none or more than {MOST_ROUNDS} rounds"));
        }
        for (number, round) in self.rounds.iter().enumerate() {
            if let Some(lie) = round.lie() {
                return Some(format!("{lie} in round {} of the file", number + 1));
            }
        }
        for ram in self.budgets() {
            if self.rounds_of(ram, "cold").is_empty() || self.rounds_of(ram, "warm").is_empty() {
                return Some("a budget has no cold or no warm round".to_owned());
            }
        }
        None
    }
}

impl MeasuredRound {
    fn lie(&self) -> Option<String> {
        let arrived = self.tokens_per_second * self.bytes_per_token;
        let checks = [
            ("round", (1..=MOST_ROUNDS as u64).contains(&self.round)),
            ("start", ["cold", "warm"].contains(&self.start.as_str())),
            ("ram", is_name(&self.ram)),
            ("ram_bytes", BYTES.contains(&self.ram_bytes)),
            ("threads", (1..=1024).contains(&self.threads)),
            ("load_seconds", SECONDS.contains(&self.load_seconds)),
            ("first_token_seconds", SECONDS.contains(&self.first_token_seconds)),
            ("tokens_per_second", SPEEDS.contains(&self.tokens_per_second)),
            ("bytes_per_token", (0.0..=1e15).contains(&self.bytes_per_token)),
            ("disk_gb_per_second", (0.0..=1e4).contains(&self.disk_gb_per_second)),
            ("hit_rate", is_share(self.hit_rate)),
            ("peak_rss_bytes", BYTES.contains(&self.peak_rss_bytes)),
            ("others_share", is_share(self.others_share)),
        ];
        if let Some((key, _)) = checks.iter().find(|(_, holds)| !holds) {
            return Some(format!("`{key}` cannot be"));
        }
        if self.peak_rss_bytes > self.ram_bytes {
            return Some("`peak_rss_bytes` is above the budget".to_owned());
        }
        let most = SLACK * 1e9 * self.disk_gb_per_second + SLACK_RATE;
        (arrived > most).then(|| "more bytes arrive than are read".to_owned())
    }
}

fn is_share(share: Option<f64>) -> bool {
    share.is_none_or(|share| (0.0..=1.0).contains(&share))
}

/// True for text that means nothing to Markdown.
fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || " -_.,:;@()/+%&'".contains(c);
    !text.is_empty() && text.len() <= MOST_LETTERS && text.chars().all(plain)
}
