//! The machine that a plan is for: this one, measured briefly, or another one, described in a file.

pub(crate) mod disk;

use std::ops::RangeInclusive;
use std::path::Path;

use anyhow::bail;
use serde::{Deserialize, Serialize};
use sws::{Computing, Model, Others, RamBudget, Threads, drives_speed, memory_speed};
use sws_engine::{PerToken, TokenCosts};
use sws_kernels::Encoding;
use sws_store::{ReaderKind, SystemMemory};

use super::rounded::{digits, time};
use super::size;
use crate::input::read_beginning;
use disk::disk_of_models;

/// Largest description.
const MOST_BYTES: u64 = 64 << 10;
/// Bounds of what a description says.
const MOST_MEMORY: u64 = 1 << 50;
const MOST_THREADS: u16 = 1024;
/// Bytes of bf11 and of fp7 that a thread computes with in a second, the latter with AVX2; see
/// docs/benchmarks/kernels.md.
const BF11: f64 = 9.1e9;
const FP7: f64 = 4.6e9;
const SPEEDS: RangeInclusive<f64> = 1e3..=1e15;
/// Share of the processors that others have on a busy machine, at least.
const BUSY: f64 = 0.1;

/// A machine. `sws plan --json` prints it, and `--describe` reads it. Absent speeds are not known.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Machine {
    /// Memory that processes can have together, and the part of it that is free.
    pub(crate) ram_bytes: u64,
    pub(crate) free_bytes: Option<u64>,
    pub(crate) threads: Option<u16>,
    pub(crate) disk_bytes_per_second: Option<f64>,
    pub(crate) memory_bytes_per_second: Option<f64>,
    /// Share of the processors that others had while this was measured, the hypervisor included.
    pub(crate) others_share: Option<f64>,
    /// True if the disk is not the one of models, of which nothing could be read.
    #[serde(skip)]
    pub(crate) is_of_the_program: bool,
    /// True if the disk is faster than it may be read.
    #[serde(skip)]
    pub(crate) is_disk_limited: bool,
}

impl Machine {
    /// This machine, with the speed of the disk of a model, or else of the disk where models are.
    pub(crate) fn measure(model: Option<&Model>, reader: ReaderKind, threads: &Threads) -> Machine {
        let others = Others::begin();
        let (disk, is_of_the_program) = match model {
            Some(model) => (drives_speed(model, reader), false),
            None => disk_of_models(reader),
        };
        Machine {
            disk_bytes_per_second: disk,
            is_of_the_program,
            memory_bytes_per_second: memory_speed(threads),
            others_share: others.as_ref().and_then(Others::share),
            ..Machine::unmeasured(threads)
        }
    }

    /// This machine, without its speeds.
    pub(crate) fn unmeasured(threads: &Threads) -> Machine {
        let threads = threads.count().try_into().ok();
        let mut machine = Machine { threads, ..Machine::default() };
        if let Some(memory) = SystemMemory::now() {
            machine.ram_bytes = memory.total;
            machine.free_bytes = Some(memory.available);
        }
        machine
    }

    /// The machine with at most so many bytes per second from its disk.
    pub(crate) fn kept_to(self, most: Option<u64>) -> Machine {
        let Some(most) = most else { return self };
        let most = most as f64;
        match self.disk_bytes_per_second {
            Some(speed) if most < speed => {
                Machine { disk_bytes_per_second: Some(most), is_disk_limited: true, ..self }
            }
            _ => self,
        }
    }

    /// Reads a description.
    pub(crate) fn described(path: &Path) -> anyhow::Result<Machine> {
        let shown = path.display();
        let json = match read_beginning(path, MOST_BYTES) {
            Ok(json) => json,
            Err(e) => bail!("`{shown}` cannot be read: {e}; give a description of a machine"),
        };
        match Machine::parse(&json) {
            Ok(machine) => Ok(machine),
            // It repeats what the file says.
            Err(why) => bail!(
                "`{shown}` describes no machine ({}); write JSON as `sws plan --json` prints it under `machine`",
                clipped(&why)
            ),
        }
    }

    fn parse(json: &[u8]) -> Result<Machine, String> {
        let machine: Machine = serde_json::from_slice(json).map_err(|e| e.to_string())?;
        machine.check()?;
        Ok(machine)
    }

    /// Refuses what no machine has.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut speeds =
            [self.disk_bytes_per_second, self.memory_bytes_per_second].into_iter().flatten();
        if !(1..=MOST_MEMORY).contains(&self.ram_bytes) {
            return Err("ram_bytes is missing, 0, or more than 1 PiB".to_owned());
        }
        if self.free_bytes > Some(self.ram_bytes) {
            return Err("free_bytes is more than ram_bytes".to_owned());
        }
        if let Some(threads) = self.threads
            && !(1..=MOST_THREADS).contains(&threads)
        {
            return Err(format!("threads is not between 1 and {MOST_THREADS}"));
        }
        if speeds.any(|speed| !SPEEDS.contains(&speed)) {
            return Err("a speed is not between 1e3 and 1e15 bytes per second".to_owned());
        }
        if let Some(share) = self.others_share
            && !(0.0..=1.0).contains(&share)
        {
            return Err("others_share is not between 0 and 1".to_owned());
        }
        Ok(())
    }

    /// A budget in bytes, on this machine.
    pub(crate) fn budget(&self, ram: RamBudget, least: u64) -> u64 {
        ram.resolve(self.ram_bytes, self.free_bytes.unwrap_or(self.ram_bytes), least)
    }

    /// Tokens per second, by the estimate of a plan. Computing is taken from the speed of memory where it
    /// was not measured.
    pub(crate) fn pace(&self, token: &PerToken, computing: Option<Computing>) -> Option<f64> {
        let costs = TokenCosts::FITTED;
        let computing = match computing {
            Some(computing) => computing.seconds(token),
            None => token.computing(self.memory_bytes_per_second?, &costs),
        };
        Some(1.0 / token.seconds(self.disk_bytes_per_second?, computing, &costs))
    }

    /// The machine for a model most of which is in an encoding, as far as computing is not measured: its
    /// memory is no faster than the kernel.
    pub(crate) fn computing_in(self, encoding: Encoding) -> Machine {
        let kernel = match (encoding, self.threads) {
            (Encoding::Bf11 | Encoding::Nested, Some(threads)) => f64::from(threads) * BF11,
            (Encoding::Fp7(_), Some(threads)) => f64::from(threads) * FP7,
            _ => f64::INFINITY,
        };
        let memory = self.memory_bytes_per_second.map(|speed| speed.min(kernel));
        Machine { memory_bytes_per_second: memory, ..self }
    }

    /// Seconds that a long prompt takes at least, as it needs nearly all weights once.
    pub(crate) fn first_token(&self, weights: u64) -> Option<f64> {
        Some(weights as f64 / self.disk_bytes_per_second?)
    }

    /// The answer of a plan: whether a model runs within a budget, and how fast. `form` is its format
    /// where it can have several.
    pub(crate) fn answer(&self, form: &str, ram: u64, [pace, first]: [Option<f64>; 2]) -> String {
        let mut answer = format!("runs{form} within {}", size(ram));
        if let Some(pace) = pace {
            answer += &format!(": {} (planned, not measured)", speed(pace));
        }
        answer.push('\n');
        if ram > self.ram_bytes {
            answer += &format!("that is more than its {} of memory\n", size(self.ram_bytes));
        }
        if let Some(first) = first
            && first >= 1.0
        {
            answer += &format!(
                "a long prompt takes {} or more, as it reads nearly all weights\n",
                time(first)
            );
        }
        answer
    }

    /// The machine in one line, and in another that it was busy.
    pub(crate) fn line(&self) -> String {
        let mut line = format!("machine: {} of memory", size(self.ram_bytes));
        if let Some(free) = self.free_bytes {
            line += &format!(", {} of it free", size(free));
        }
        if let Some(speed) = self.memory_bytes_per_second {
            line += &format!(", read at {} GB/s", digits(speed / 1e9));
        }
        let which = match self.is_disk_limited {
            true => " (as --max-disk-rate says)",
            false if self.is_of_the_program => " (of this program)",
            false => "",
        };
        if let Some(speed) = self.disk_bytes_per_second {
            line += &format!("; disk {} GB/s{which}", digits(speed / 1e9));
        }
        if let Some(threads) = self.threads {
            line += &format!("; {threads} threads");
        }
        if let Some(share) = self.others_share
            && share >= BUSY
        {
            let percent = 100.0 * share;
            line += &format!(
                "\nothers had {percent:.0} % of the processors meanwhile: speeds are higher on a quiet machine"
            );
        }
        line
    }
}

/// Tokens per second, or seconds per token where that is the larger number.
fn speed(pace: f64) -> String {
    match pace {
        _ if pace >= 1.0 => format!("about {} tokens a second", digits(pace)),
        _ => format!("about {} a token", time(1.0 / pace)),
    }
}

/// The beginning of a long text, up to the end of a word.
fn clipped(text: &str) -> String {
    let Some((end, _)) = text.char_indices().nth(120) else { return text.to_owned() };
    let words = match text[..end].rsplit_once(' ') {
        Some((words, _)) => words,
        None => &text[..end],
    };
    format!("{} ..", words.trim_end_matches(','))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_that_are_not_known_give_no_estimate() {
        let token = PerToken {
            experts: 1_000_000_000,
            hit_rate: 0.5,
            active: 2_000_000_000,
            ..PerToken::default()
        };
        let machine = |disk: Option<f64>, memory: Option<f64>| Machine {
            disk_bytes_per_second: disk,
            memory_bytes_per_second: memory,
            ..Machine::default()
        };
        let disk = Some(4e9);
        let memory = Some(5e10);
        for (machine, pace, first) in [
            (machine(disk, memory), Some(token.pace(4e9, 5e10)), Some(2.0)),
            (machine(disk, None), None, Some(2.0)),
            (machine(None, memory), None, None),
        ] {
            assert_eq!(machine.pace(&token, None), pace);
            assert_eq!(machine.first_token(8_000_000_000), first);
        }
    }

    #[test]
    fn a_busy_machine_is_said() {
        for (others_share, said) in [(None, None), (Some(0.05), None), (Some(0.416), Some("42 %"))]
        {
            let line = Machine { others_share, ..Machine::default() }.line();
            let busy = line.lines().nth(1);
            assert_eq!(busy.is_some(), said.is_some(), "{line}");
            assert!(busy.unwrap_or_default().contains(said.unwrap_or_default()), "{line}");
        }
    }

    #[test]
    fn a_limit_slows_the_disk_and_is_said() {
        let fast = Machine { disk_bytes_per_second: Some(3e9), ..Machine::default() };
        for (most, rate, said) in
            [(None, 3e9, false), (Some(5_000_000_000), 3e9, false), (Some(500_000_000), 5e8, true)]
        {
            let kept = fast.kept_to(most);
            assert_eq!(kept.disk_bytes_per_second, Some(rate));
            assert_eq!(kept.line().contains("--max-disk-rate"), said, "{}", kept.line());
        }
        assert_eq!(Machine::default().kept_to(Some(1)).disk_bytes_per_second, None);
    }

    #[test]
    fn the_answer_says_how_fast_and_that_it_is_planned() {
        let machine = Machine { ram_bytes: 32 << 30, ..Machine::default() };
        for (ram, figures, answer) in [
            (
                16 << 30,
                [Some(0.141), Some(150.0)],
                "runs in bf12 within 16.00 GiB: about 7.1 s a token (planned, not measured)\na long prompt takes 2.5 min or more, as it reads nearly all weights\n",
            ),
            (
                64 << 30,
                [Some(12.34), None],
                "runs in bf12 within 64.00 GiB: about 12 tokens a second (planned, not measured)\nthat is more than its 32.00 GiB of memory\n",
            ),
            (
                16 << 30,
                [Some(1234.0), None],
                "runs in bf12 within 16.00 GiB: about 1200 tokens a second (planned, not measured)\n",
            ),
            (16 << 30, [None, None], "runs in bf12 within 16.00 GiB\n"),
        ] {
            assert_eq!(machine.answer(" in bf12", ram, figures), answer);
        }
    }

    #[test]
    fn descriptions_are_checked() {
        let least = Machine::parse(br#"{"ram_bytes": 1}"#).unwrap();
        assert_eq!((least.ram_bytes, least.free_bytes, least.threads), (1, None, None));
        assert_eq!(least.budget(RamBudget::Auto, 0), 0);
        for (json, why) in [
            ("", "EOF"),
            ("[]", "ram_bytes"),
            ("{}", "ram_bytes"),
            (r#"{"ram_bytes": 1125899906842625}"#, "ram_bytes"),
            (r#"{"ram_bytes": 1, "free_bytes": 2}"#, "free_bytes"),
            (r#"{"ram_bytes": 1, "threads": 1025}"#, "threads"),
            (r#"{"ram_bytes": 1, "disk_bytes_per_second": 999}"#, "a speed"),
            (r#"{"ram_bytes": 1, "memory_bytes_per_second": 1e16}"#, "a speed"),
            (r#"{"ram_bytes": 1, "others_share": 1.5}"#, "others_share"),
        ] {
            let refused = Machine::parse(json.as_bytes()).unwrap_err();
            assert!(refused.contains(why), "{json} {refused}");
        }
    }

    #[test]
    fn long_texts_end_with_a_word() {
        assert_eq!(clipped("short text"), "short text");
        let long = clipped(&"words, ".repeat(40));
        assert!(long.ends_with("words ..") && long.len() < 124, "{long}");
    }
}
