//! The numbers of a model on a machine, which name neither the machine nor a path.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sws::Model;
use sws_format::Piece;
use sws_kernels::Tier;
use sws_os::machine::processor;

use crate::commands::machine::Machine;
use crate::commands::rounded::{digits, percent};
use crate::commands::{count as counted, size};
use crate::table::{table, wrapped};
use crate::terminal::{escaped, without_controls};

/// The value of [`BenchBoard::format`].
pub(super) const FORMAT: &str = "sws-bench-1";
/// Most letters of a text from a stranger's file that is shown.
const SHOWN: usize = 80;
/// More than any number of a round.
const MOST: f64 = 1e15;
/// Largest difference between a rate and the bytes and times that it follows from, as a share, beside that of
/// two tokens: they are counted at slightly different moments, and reads run ahead of a token.
const AGREEMENT: f64 = 0.1;

/// What `--out` writes.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BenchBoard {
    pub(super) format: String,
    /// That of the program.
    pub(super) version: String,
    pub(super) model: BoardModel,
    pub(super) machine: BoardMachine,
    pub(super) prompt_tokens: usize,
    pub(super) new_tokens: usize,
    pub(super) rounds: Vec<BenchRound>,
    /// As `sws run --certify` writes it.
    pub(super) certificate: Value,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BoardModel {
    model_type: String,
    fingerprint: String,
    /// `None` for a checkpoint in place.
    encoding: Option<String>,
    weight_bytes: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BoardMachine {
    /// The processor's name, where the system tells it.
    processor: Option<String>,
    system: String,
    tier: String,
    measured: Machine,
}

/// When a process begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum BenchStart {
    /// Without what earlier runs learned.
    Cold,
    Warm,
}

/// The numbers of one process.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BenchRound {
    pub(super) round: u8,
    pub(super) start: BenchStart,
    /// The budget as it was asked for, and in bytes.
    pub(super) ram: String,
    pub(super) ram_bytes: u64,
    pub(super) threads: u64,
    pub(super) load_seconds: f64,
    pub(super) first_token_seconds: f64,
    pub(super) tokens_per_second: f64,
    pub(super) bytes_per_token: f64,
    /// 10⁹ bytes a second over all the time of the new tokens.
    pub(super) disk_gb_per_second: f64,
    /// `None` for models without experts.
    pub(super) hit_rate: Option<f64>,
    pub(super) peak_rss_bytes: u64,
    /// Share of the processors that others had meanwhile.
    pub(super) others_share: Option<f64>,
}

impl BenchStart {
    fn name(self) -> &'static str {
        match self {
            BenchStart::Cold => "cold",
            BenchStart::Warm => "warm",
        }
    }
}

impl BenchRound {
    fn check(&self, new_tokens: usize) -> Result<(), &'static str> {
        let numbers = [
            self.load_seconds,
            self.first_token_seconds,
            self.tokens_per_second,
            self.bytes_per_token,
            self.disk_gb_per_second,
        ];
        if !numbers.iter().all(|number| (0.0..MOST).contains(number)) {
            return Err("a number is impossible");
        }
        let mut shares = [self.hit_rate, self.others_share].into_iter().flatten();
        if !shares.all(|share| (0.0..=1.0).contains(&share)) {
            return Err("a share is not between 0 and 1");
        }
        if self.ram_bytes == 0 || self.threads == 0 || self.peak_rss_bytes == 0 {
            return Err("memory or threads are 0");
        }
        let followed = self.tokens_per_second * self.bytes_per_token;
        let told = 1e9 * self.disk_gb_per_second;
        let agreement = AGREEMENT + 2.0 / new_tokens as f64;
        if (followed - told).abs() > agreement * followed.max(told) {
            return Err("the bytes of a token and its time give another rate of the drive");
        }
        Ok(())
    }
}

impl BoardModel {
    pub(super) fn of(model: &Model) -> BoardModel {
        let manifest = model.manifest();
        BoardModel {
            model_type: manifest.model.model_type.clone(),
            fingerprint: manifest.model.fingerprint.clone(),
            encoding: manifest.encoding.as_ref().map(ToString::to_string),
            weight_bytes: manifest.pieces.iter().map(Piece::stored_bytes).sum(),
        }
    }
}

impl BoardMachine {
    pub(super) fn of(measured: Machine) -> BoardMachine {
        let system = format!("{} {}", std::env::consts::OS, std::env::consts::ARCH);
        BoardMachine { processor: processor(), system, tier: Tier::best().to_string(), measured }
    }
}

impl BenchBoard {
    /// Reads a board of a stranger.
    pub(super) fn parse(json: &[u8]) -> Result<BenchBoard, String> {
        let board: BenchBoard =
            serde_json::from_slice(json).map_err(|e| shortened(&e.to_string()))?;
        if board.format != FORMAT {
            return Err(format!("its format is {:?}", shortened(&board.format)));
        }
        board.check()?;
        Ok(board)
    }

    /// Refuses a board of another model, or of another text than `prompt` continued greedily.
    pub(super) fn check_text(&self, model: &Model, prompt: &[u32]) -> Result<(), &'static str> {
        let certificate = &self.certificate;
        if self.model != BoardModel::of(model) {
            return Err("it is of another model");
        }
        if certificate["prompt"] != serde_json::json!(prompt) {
            return Err("it continues another text than `sws bench` of this version");
        }
        if certificate["sampling"]["temperature"] != 0.0 || certificate["kv"] != "f32" {
            return Err("its text is not the one with the default KV cache at temperature 0");
        }
        Ok(())
    }

    /// Refuses numbers that cannot all be those of one measurement. Numbers that agree may still be
    /// invented: only the text is proven.
    fn check(&self) -> Result<(), String> {
        self.machine.measured.check()?;
        if self.certified("prompt") != Some(self.prompt_tokens)
            || self.certified("tokens") != Some(self.new_tokens)
        {
            return Err("its certificate is of other numbers of tokens".to_owned());
        }
        // No round may be left out, as a slow one would be.
        let count = self.count();
        for ram in self.budgets() {
            for start in [BenchStart::Cold, BenchStart::Warm] {
                let rounds = self.rounds_of(start, ram);
                let mut numbers: Vec<u8> = rounds.iter().map(|round| round.round).collect();
                numbers.sort_unstable();
                if !numbers.iter().copied().eq(1..=count) {
                    let ram = shortened(ram);
                    return Err(format!("rounds at {ram} are missing, or there twice"));
                }
            }
        }
        for round in &self.rounds {
            if let Err(why) = round.check(self.new_tokens) {
                let start = round.start.name();
                let ram = shortened(&round.ram);
                return Err(format!("{why} in the {start} round {} at {ram}", round.round));
            }
        }
        match self.rounds.is_empty() {
            true => Err("it has no rounds".to_owned()),
            false => Ok(()),
        }
    }

    /// A table with the median of the rounds for each budget and start.
    pub(super) fn text(&self) -> String {
        let BenchBoard { model, machine, .. } = self;
        let mut text = format!(
            "model: {}, {}, {}\n",
            shortened(&model.model_type),
            model.encoding.as_deref().map_or("in place".into(), shortened),
            size(model.weight_bytes),
        );
        let processor = machine.processor.as_deref().unwrap_or("unknown processor");
        text += &format!("{}, {}\n", shortened(processor), shortened(&machine.tier));
        text += &wrapped(&machine.measured.line());
        let drive = machine.measured.disk_bytes_per_second;
        let mut rows = Vec::new();
        for start in [BenchStart::Cold, BenchStart::Warm] {
            for ram in self.budgets() {
                rows.extend(row(start, &self.rounds_of(start, ram), drive));
            }
        }
        let heading =
            ["start", "budget", "tok/s", "first", "MB/token", "drive", "hits", "peak", "others"];
        let count = self.count();
        text += &format!("\n\n{}\n", table(&heading, &rows));
        text += &wrapped(&format!(
            "medians of {}, {} behind {} of a prompt; the tokens of all rounds are equal\n",
            counted(count, "round"),
            counted(self.new_tokens as u64, "token"),
            self.prompt_tokens,
        ));
        text
    }

    /// Number of tokens of a kind in the certificate.
    fn certified(&self, kind: &str) -> Option<usize> {
        self.certificate[kind].as_array().map(Vec::len)
    }

    /// The highest number of a round.
    fn count(&self) -> u8 {
        self.rounds.iter().map(|round| round.round).max().unwrap_or(0)
    }

    fn rounds_of(&self, start: BenchStart, ram: &str) -> Vec<&BenchRound> {
        self.rounds.iter().filter(|round| round.start == start && round.ram == ram).collect()
    }

    /// The budgets in order.
    fn budgets(&self) -> Vec<&str> {
        let mut budgets: Vec<&str> = Vec::new();
        for round in &self.rounds {
            if !budgets.contains(&round.ram.as_str()) {
                budgets.push(&round.ram);
            }
        }
        budgets
    }
}

/// `None` without rounds.
fn row(start: BenchStart, rounds: &[&BenchRound], drive: Option<f64>) -> Option<Vec<String>> {
    let mut figures: [Vec<f64>; 8] = Default::default();
    let [ram, pace, first, read, rate, hits, peak, others] = &mut figures;
    for round in rounds {
        ram.push(round.ram_bytes as f64);
        pace.push(round.tokens_per_second);
        first.push(round.first_token_seconds);
        read.push(round.bytes_per_token);
        rate.push(round.disk_gb_per_second);
        hits.extend(round.hit_rate);
        peak.push(round.peak_rss_bytes as f64);
        others.extend(round.others_share);
    }
    let [ram, pace, first, read, rate, hits, peak, others] = figures.map(median);
    let rate = rate?;
    Some(vec![
        start.name().to_owned(),
        size(ram? as u64),
        digits(pace?),
        format!("{} s", digits(first?)),
        digits(read? / 1e6),
        percent(drive.map(|drive| 1e9 * rate / drive)),
        percent(hits),
        size(peak? as u64),
        percent(others),
    ])
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = values.get(values.len() / 2)?;
    let lower = values[(values.len() - 1) / 2];
    Some((lower + upper) / 2.0)
}

/// A text of a stranger, without what a terminal would obey.
fn shortened(text: &str) -> String {
    escaped(&without_controls(text, SHOWN)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boards_of_strangers_are_read_or_refused() {
        let refused = |json: &str| BenchBoard::parse(json.as_bytes()).unwrap_err();
        assert!(refused("").contains("EOF"));
        assert!(refused("[]").contains("invalid"));
        assert!(refused(r#"{"format":"sws-bench-1"}"#).contains("version"));
        let long = format!("{{\"{}\":1}}", "\u{7}x".repeat(1000));
        assert!(refused(&long).len() < 200);
    }

    #[test]
    fn a_row_has_the_median_of_its_rounds() {
        let round = |speed: f64| BenchRound {
            round: 1,
            start: BenchStart::Cold,
            ram: "8GiB".to_owned(),
            ram_bytes: 8 << 30,
            threads: 2,
            load_seconds: 0.1,
            first_token_seconds: 0.5,
            tokens_per_second: speed,
            bytes_per_token: 2e6,
            disk_gb_per_second: 1.0,
            hit_rate: None,
            peak_rss_bytes: 1 << 20,
            others_share: Some(0.25),
        };
        let rounds = [round(9.0), round(1.0), round(3.0)];
        let row = row(BenchStart::Cold, &rounds.each_ref(), Some(2e9)).unwrap();
        assert_eq!(
            row,
            ["cold", "8.00 GiB", "3.0", "0.50 s", "2.0", "50 %", "-", "1.00 MiB", "25 %"]
        );
        assert_eq!(super::row(BenchStart::Warm, &[], None), None);
    }
}
