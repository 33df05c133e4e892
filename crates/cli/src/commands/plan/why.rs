//! The reasons of a plan: for each setting its value, and the numbers that it was chosen by.

use std::thread::available_parallelism;

use serde::Serialize;
use sws::{Computing, SequenceBytes};
use sws_engine::{
    DEFAULT_CONTEXT, KV_SHARE, LONG_KV_SHARE, MemoryUse, Plan, SlotClass, TokenCosts,
};
use sws_kernels::Encoding;
use sws_model::{KvPrecision, ModelSpec};
use sws_store::ReaderKind;

use crate::args::PlanArgs;
use crate::commands::machine::Machine;
use crate::commands::rounded::{about, digits};
use crate::commands::size;
use crate::model::all_experts;
use crate::table::wrapped_at;

/// Share of waiting in a token below which draft tokens have little to save.
const LITTLE: f64 = 0.1;
/// Columns of the names and values of settings.
const NAMES: usize = 10;
const VALUES: usize = 16;

/// A setting of a run and why it is what it is.
#[derive(Debug, Serialize)]
pub(crate) struct SettingReason {
    setting: &'static str,
    value: String,
    because: String,
}

/// The numbers that settings are chosen by.
pub(crate) struct PlanSettings<'c> {
    pub(crate) args: &'c PlanArgs,
    pub(crate) spec: &'c ModelSpec,
    pub(crate) plan: &'c Plan,
    pub(crate) machine: Machine,
    pub(crate) computing: Option<Computing>,
    /// Bytes of all weights.
    pub(crate) weights: u64,
    /// The plan of another budget, and the smallest.
    pub(crate) other: &'c dyn Fn(u64) -> Option<Plan>,
    pub(crate) smallest: u64,
    /// The smallest budget with which a token reads nothing.
    pub(crate) in_memory: Option<u64>,
    /// Name of the encoding, and why it is taken.
    pub(crate) encoding: [String; 2],
    /// Bytes per second of each reader, if they were measured.
    pub(crate) readers: Vec<(ReaderKind, f64)>,
    /// True for a trained draft; the inner `None` for no draft, the outer where that is not known.
    pub(crate) draft: Option<Option<bool>>,
}

/// The reasons as rows of at most 80 columns.
pub(crate) fn text(reasons: &[SettingReason]) -> String {
    let mut text = String::new();
    for SettingReason { setting, value, because } in reasons {
        let row = format!("{setting:<NAMES$}{value:<VALUES$}because {because}\n");
        text += &wrapped_at(NAMES + VALUES, &row);
    }
    text
}

/// Why shards are in the encoding that they are in.
pub(crate) fn encoding(encoding: Option<Encoding>, weights: u64) -> [String; 2] {
    let bytes = size(weights);
    match encoding {
        Some(it) => {
            let exact = if it.is_lossy() { "inexact" } else { "lossless" };
            [it.to_string(), format!("the shards are in it: {bytes}, {exact}")]
        }
        None => ["in place".to_owned(), format!("the {bytes} are read as they were published")],
    }
}

impl PlanSettings<'_> {
    pub(crate) fn reasons(&self) -> Vec<SettingReason> {
        let rows = [
            ("budget", self.budget()),
            ("encoding", self.encoding.clone()),
            ("cache", self.cache()),
            ("context", self.context()),
            ("KV", self.kv()),
            ("reader", self.reader()),
            ("threads", self.threads()),
            ("draft", self.draft()),
            ("proposals", self.proposals()),
        ];
        rows.map(|(setting, [value, because])| SettingReason { setting, value, because }).into()
    }

    fn pace(&self, plan: &Plan) -> Option<f64> {
        self.machine.pace(&plan.per_token, self.computing)
    }

    /// The speed within another budget.
    fn speed(&self, ram: u64) -> Option<String> {
        let pace = self.pace(&(self.other)(ram)?)?;
        Some(format!("{} tok/s", digits(pace)))
    }

    fn budget(&self) -> [String; 2] {
        let ram = self.plan.ledger.budget();
        let mut parts = vec![match self.args.ram {
            sws::RamBudget::Auto => "that much is free".to_owned(),
            _ => "--ram says so".to_owned(),
        }];
        if let Some(speed) = self.speed(ram) {
            parts.push(format!("{speed} are planned"));
        }
        if ram > self.smallest
            && let Some(speed) = self.speed(self.smallest)
        {
            parts.push(format!("{speed} with {}MiB, the least", self.smallest >> 20));
        }
        parts.push(match self.in_memory {
            Some(all) if all <= ram => format!("nothing is read from {} on", size(all)),
            Some(all) => match self.speed(all) {
                Some(speed) => format!("{speed} from {} on, where nothing is read", size(all)),
                None => format!("nothing is read from {} on", size(all)),
            },
            None => "some weights are always read".to_owned(),
        });
        [size(ram), parts.join(", ")]
    }

    /// Slots of experts, the lent ones included.
    fn slots(plan: &Plan) -> usize {
        let Plan { slots, lent, context_lent, structured_lent, .. } = plan;
        [slots, lent, context_lent, structured_lent].map(|it| SlotClass::count_of(it)).iter().sum()
    }

    fn cache(&self) -> [String; 2] {
        let Plan { ledger, per_token, .. } = self.plan;
        let pinned = size(ledger.get(MemoryUse::Pinned));
        let experts = all_experts(self.spec);
        if experts == 0 {
            let because = format!(
                "the model has no experts; {pinned} of {} stay in memory, and a token reads {}",
                size(self.weights),
                read(self.plan)
            );
            return ["none".to_owned(), because];
        }
        if self.plan.experts_stream {
            let because = format!(
                "{} have no room for the slots of one layer: a token reads {}",
                size(ledger.budget()),
                read(self.plan)
            );
            return ["none".to_owned(), because];
        }
        // Slots can be more than experts, as they come in whole pages.
        let slots = PlanSettings::slots(self.plan).min(experts);
        let mut because = format!(
            "{} are left for {experts} experts beside {pinned} of other weights; {:.0} % hit, and a token reads {}",
            size(ledger.get(MemoryUse::Slots)),
            100.0 * per_token.hit_rate,
            read(self.plan),
        );
        if !per_token.is_in_memory()
            && let Some(twice) = (self.other)(2 * ledger.budget())
        {
            because += &format!(
                "; with twice the memory {:.0} %, {}",
                100.0 * twice.per_token.hit_rate,
                read(&twice)
            );
        }
        [format!("{slots} slots"), because]
    }

    fn context(&self) -> [String; 2] {
        let context = self.plan.context;
        let SequenceBytes { position, .. } = SequenceBytes::of(self.spec, self.args.kv);
        let each = format!("1,000 positions take {}", about(1000 * position));
        let because = match context {
            _ if self.args.context.is_some() => "--context says so".to_owned(),
            all if all >= self.spec.context => "the model has no more".to_owned(),
            DEFAULT_CONTEXT => "more would take memory from weights".to_owned(),
            less if less < DEFAULT_CONTEXT => {
                format!("1/{KV_SHARE} of the memory above the least has no room for more")
            }
            _ => format!("1/{LONG_KV_SHARE} of the memory above the least has room for so many"),
        };
        [context.to_string(), format!("{because}; {each}")]
    }

    /// Bytes of the KV cache of a whole context.
    fn kv_bytes(&self, kv: KvPrecision) -> u64 {
        let SequenceBytes { position, fixed } = SequenceBytes::of(self.spec, kv);
        fixed + position * self.plan.context as u64
    }

    fn kv(&self) -> [String; 2] {
        let Plan { ledger, per_token, .. } = self.plan;
        let bytes = self.kv_bytes(self.args.kv);
        let share = 100.0 * bytes as f64 / ledger.budget().max(1) as f64;
        let kind = match self.args.kv {
            KvPrecision::F32 => "it is exact",
            KvPrecision::Bf16 | KvPrecision::Q8 => "--kv says so, though it is inexact",
        };
        let mut because = format!("{kind}; {} are {share:.1} % of the budget", size(bytes));
        let slots = SlotClass::count_of(&self.plan.slots) as u64;
        let saved = bytes.saturating_sub(self.kv_bytes(KvPrecision::Q8));
        if self.args.kv == KvPrecision::F32 && saved > 0 {
            because += &format!("; q8, inexact, frees {}", size(saved));
            let each = ledger.get(MemoryUse::Slots).checked_div(slots).unwrap_or(0);
            if each > 0 && !per_token.is_in_memory() {
                because += &format!(", {} experts", saved / each);
            }
        }
        [self.args.kv.name().to_owned(), because]
    }

    fn reader(&self) -> [String; 2] {
        let chosen = self.args.reader;
        let mut because = match self.readers.iter().find(|(reader, _)| *reader == chosen) {
            Some((_, speed)) => format!("it reads {} here", rate(*speed)),
            None if chosen == ReaderKind::Direct => "it works on every system".to_owned(),
            None => "--reader says so".to_owned(),
        };
        for (reader, speed) in &self.readers {
            if *reader != chosen {
                because += &format!(", {reader} {}", rate(*speed));
            }
        }
        if chosen == ReaderKind::Direct {
            because += "; it bypasses the page cache, which counts as memory";
        }
        [chosen.to_string(), because]
    }

    /// Seconds of computing and of waiting for the disk of a token.
    fn seconds(&self) -> Option<[f64; 2]> {
        let Machine { disk_bytes_per_second, memory_bytes_per_second, .. } = self.machine;
        let token = &self.plan.per_token;
        let costs = TokenCosts::FITTED;
        let computing = match self.computing {
            Some(computing) => computing.seconds(token),
            None => token.computing(memory_bytes_per_second?, &costs),
        };
        let all = token.seconds(disk_bytes_per_second?, computing, &costs);
        Some([computing, (all - computing).max(0.0)])
    }

    fn threads(&self) -> [String; 2] {
        let cores = available_parallelism().map_or(1, usize::from);
        let count = self.machine.threads.map_or(cores, usize::from);
        let mut because = match self.args.threads {
            Some(_) => "--threads says so".to_owned(),
            None if self.args.describe.is_some() => "the described machine has them".to_owned(),
            None => format!("this process may use {cores} processors"),
        };
        if let Some(seconds) = self.seconds() {
            let [computing, reading] = seconds.map(milliseconds);
            because += &format!("; a token computes {computing} ms and reads {reading} ms");
        }
        [count.to_string(), because]
    }

    fn draft(&self) -> [String; 2] {
        let bytes = self.plan.ledger.get(MemoryUse::Draft);
        let Some([all, of_each]) = self.experts() else {
            return ["none".to_owned(), "the model has no experts to forecast".to_owned()];
        };
        let none = "none".to_owned();
        match self.draft {
            None => [
                "auto".to_owned(),
                format!("it depends on the weights; a layer takes {of_each} of {all}"),
            ],
            Some(None) if self.spec.looped.is_some() => [
                none,
                "a token visits some layers several times, which no draft forecasts".to_owned(),
            ],
            Some(None) => {
                [none, "the experts are small beside a draft, which takes their memory".to_owned()]
            }
            Some(_) if self.plan.per_token.is_in_memory() && bytes == 0 => {
                [none, "a token reads nothing that a forecast could prefetch".to_owned()]
            }
            Some(_) if bytes == 0 => {
                [none, "memory has no room for it beside slots of experts".to_owned()]
            }
            Some(Some(is_trained)) => {
                let kind = if is_trained { "trained" } else { "untrained" };
                let from = if is_trained {
                    "its file is beside the model"
                } else {
                    "the model has none of its own"
                };
                let because = format!(
                    "{from}; {} forecast which {of_each} of {all} experts the next layers take, and reads ahead go on while they save time",
                    size(bytes)
                );
                [kind.to_owned(), because]
            }
        }
    }

    /// Experts of a layer in all, and for a token.
    fn experts(&self) -> Option<[usize; 2]> {
        let moe = self.spec.moes().next()?;
        Some([moe.experts, moe.top_k])
    }

    fn proposals(&self) -> [String; 2] {
        let off = "off".to_owned();
        let Some([computing, waiting]) = self.seconds() else {
            return [
                off,
                "it pays for some texts only; --proposals measures that in a run".to_owned(),
            ];
        };
        let share = waiting / (computing + waiting).max(1e-12);
        let shown = format!("reading is {:.0} % of a token", 100.0 * share);
        [
            off,
            match share < LITTLE {
                true => format!("{shown}, and draft tokens save little else"),
                false => format!(
                    "{shown}, which draft tokens share only in texts that repeat; --proposals measures that in a run"
                ),
            },
        ]
    }
}

/// Bytes that a token reads.
fn read(plan: &Plan) -> String {
    about(plan.per_token.read())
}

fn rate(bytes_per_second: f64) -> String {
    format!("{} GB/s", digits(bytes_per_second / 1e9))
}

fn milliseconds(seconds: f64) -> String {
    digits(1e3 * seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_rows_of_a_screen() {
        let reason = |setting, value: &str| SettingReason {
            setting,
            value: value.to_owned(),
            because: "1234567 of 7654321 words ".repeat(5),
        };
        let text = text(&[reason("budget", "244.00 MiB"), reason("KV", "f32")]);
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        assert!(text.starts_with("budget    244.00 MiB      because 1234567"), "{text}");
        assert!(text.lines().nth(1).unwrap().starts_with(&" ".repeat(NAMES + VALUES)), "{text}");
    }

    #[test]
    fn encodings_say_whether_they_are_exact() {
        for (encoding, words) in [
            (Some(Encoding::Bf12), ["bf12", "lossless"]),
            (Some(Encoding::Q4), ["q4", "inexact"]),
            (None, ["in place", "published"]),
        ] {
            let [name, because] = super::encoding(encoding, 3 << 30);
            assert_eq!(name, words[0]);
            assert!(because.contains(words[1]) && because.contains("3.00 GiB"), "{because}");
        }
    }
}
