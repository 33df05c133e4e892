//! Models without weights: what `sws inspect` and `sws plan` say of a configuration.

pub(crate) mod formats;

use std::process::ExitCode;

use serde::Serialize;
use sws::{Outline, SequenceBytes, Threads};
use sws_cache::history::HistoryShape;
use sws_engine::{HitBasis, HitCurve, PlanOptions};
use sws_kernels::Encoding;
use sws_model::ModelSpec;

use super::machine::Machine;
use super::plan::vram::{Card, TierExpectation, VramEstimate};
use super::plan::why::{self, SettingReason};
use super::remote::Remote;
use super::{both, count, print_report, size};
use crate::args::PlanArgs;
use crate::table::wrapped;
use formats::{FormatRow, Timed};

const GIB: u64 = 1 << 30;
/// Encoding of shards without an option: exact and small.
pub(super) const DEFAULT: Encoding = Encoding::Bf12;
/// Budgets of common machines.
pub(crate) const BUDGETS: [u64; 3] = [16 * GIB, 32 * GIB, 64 * GIB];

/// A caution about all estimates: their basis, and how far off they were.
pub(crate) fn estimates(hits: &HitCurve) -> String {
    let basis = match hits.basis() {
        HitBasis::Model(model) => format!("hits as of published routes of {model}"),
        HitBasis::Recorded(model) => {
            format!("hits as of published routes of {model}, which has this shape")
        }
        HitBasis::Tokens(tokens) => format!("hits as in the last {tokens} tokens of earlier runs"),
    };
    let [low, high] = hits.accuracy();
    let runs = match hits.basis() {
        HitBasis::Recorded(_) => "six plans of random weights in the shape of Qwen3-30B-A3B",
        HitBasis::Model(_) | HitBasis::Tokens(_) => "36 runs of small models and random weights",
    };
    wrapped(&format!(
        "estimates: {basis}; in {runs} they were {low:.2} to {high:.2} times the real speed\n"
    ))
}

/// The subject of a plan without weights, besides the configuration.
#[derive(Debug)]
pub(crate) struct PlanSubject<'t> {
    pub(crate) machine: Machine,
    /// Threads on which to measure how long tokens are computed, if this is the machine.
    pub(crate) threads: Option<&'t Threads>,
    /// Budget.
    pub(crate) ram: Option<u64>,
    /// The options of the plan.
    pub(crate) args: Option<&'t PlanArgs>,
    /// The model's repository, if the configuration is from there.
    pub(crate) remote: Option<Remote>,
}

/// Prints what the configuration says, with the reads at common budgets: of all formats, or of the
/// one that was named.
pub(crate) fn print(
    outline: &Outline,
    named: Option<Encoding>,
    options: PlanOptions,
    asked: Option<PlanSubject<'_>>,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let report = OutlineReport::of(outline, named, options, asked)?;
    print_report(json, &report, OutlineReport::text)
}

/// The fields of the JSON.
#[derive(Debug, Serialize)]
struct OutlineReport {
    model_type: Option<String>,
    /// False if a checkpoint with this configuration cannot be run; `reason` says why.
    supported: bool,
    reason: Option<String>,
    layers: Option<u64>,
    hidden: Option<u64>,
    vocab: Option<u64>,
    context: Option<u64>,
    experts: Option<u64>,
    experts_per_token: Option<u64>,
    expert_width: Option<u64>,
    quantised: Option<String>,
    parameters: Option<u64>,
    parameters_per_token: Option<u64>,
    /// Memory of a sequence: for each position, and for any number of them.
    kv_bytes_per_position: Option<u64>,
    kv_fixed_bytes: Option<u64>,
    /// The --ram of the command, which is one of `budgets`.
    asked: Option<u64>,
    machine: Option<Machine>,
    /// The model on the hub, if it is not on this machine.
    hub: Option<Remote>,
    budgets: Vec<u64>,
    formats: Vec<FormatRow>,
    /// Why each setting of the plan is what it is, with --why.
    why: Option<Vec<SettingReason>>,
    /// A graphics card, of the format that is planned best.
    vram: Option<VramEstimate>,
    /// True if only one of the formats was asked for.
    #[serde(skip)]
    named: bool,
}

impl OutlineReport {
    fn of(
        outline: &Outline,
        named: Option<Encoding>,
        options: PlanOptions,
        asked: Option<PlanSubject<'_>>,
    ) -> anyhow::Result<OutlineReport> {
        let (machine, threads, asked, args, hub) = match asked {
            Some(PlanSubject { machine, threads, ram, args, remote }) => {
                (Some(machine), threads, ram, args, remote)
            }
            None => (None, None, None, None, None),
        };
        let budgets = formats::budgets(asked);
        let sequence = outline.sequence(options.kv).map(|bytes| [bytes.position, bytes.fixed]);
        let [kv_bytes_per_position, kv_fixed_bytes] = both(sequence);
        let description = outline.description().clone();
        let parameters = outline.spec().map(ModelSpec::parameters);
        let [parameters, parameters_per_token] = both(parameters);
        let timed = Timed { machine, threads };
        let card = match (args, outline.spec()) {
            (Some(args), Some(_)) => Card::of(args)?,
            _ => None,
        };
        let formats = match named {
            Some(encoding) => outline.format(encoding).into_iter().collect(),
            None => outline.formats(),
        };
        let mut report = OutlineReport {
            why: None,
            vram: None,
            named: named.is_some(),
            formats: formats::rows(outline, &formats, options, timed, &budgets, card)?,
            model_type: description.model_type,
            supported: outline.refusal().is_none(),
            reason: outline.refusal().map(ToString::to_string),
            layers: description.layers,
            hidden: description.hidden,
            vocab: description.vocab,
            context: description.context,
            experts: description.experts,
            experts_per_token: description.top_k,
            expert_width: description.expert_width,
            quantised: description.quantised,
            parameters,
            parameters_per_token,
            kv_bytes_per_position,
            kv_fixed_bytes,
            asked,
            machine,
            hub,
            budgets,
        };
        if let Some(args) = args
            && let Some(spec) = outline.spec()
        {
            if let Some(card) = card {
                report.vram = report.estimate(card, outline, options)?;
            }
            if args.why {
                report.why = report.reasons(args, spec, outline, options)?;
            }
        }
        Ok(report)
    }

    /// What a card holds of the best format beside its plan; `None` for nothing.
    fn estimate(
        &self,
        card: Card,
        outline: &Outline,
        options: PlanOptions,
    ) -> anyhow::Result<Option<VramEstimate>> {
        let Some(best) = self.best() else { return Ok(None) };
        let Some(format) = outline.format(best.plain) else { return Ok(None) };
        let Some(held) = card.holds_of(outline, format)? else { return Ok(None) };
        let footprint = outline.footprint(format, best.beside_card(options))?;
        let ram = self.asked.unwrap_or(footprint.smallest());
        let expected = match footprint.plan(ram) {
            Some(plan) => TierExpectation::of(footprint.tier_hits(&plan, held.slots)),
            None => TierExpectation::TooLittle(ram),
        };
        Ok(Some(VramEstimate::new(held, expected)))
    }

    /// Why each setting of the best format's plan is what it is; `None` if none fits.
    fn reasons(
        &self,
        args: &PlanArgs,
        spec: &ModelSpec,
        outline: &Outline,
        options: PlanOptions,
    ) -> anyhow::Result<Option<Vec<SettingReason>>> {
        let (Some(machine), Some(ram), Some(best)) = (self.machine, self.asked, self.best()) else {
            return Ok(None);
        };
        let Some(format) = outline.format(best.plain) else { return Ok(None) };
        let footprint = outline.footprint(format, best.beside_card(options))?;
        let Some(plan) = footprint.plan(ram) else { return Ok(None) };
        let at = self.column();
        let choices = why::PlanSettings {
            args,
            spec,
            plan: &plan,
            machine: machine.computing_in(best.plain),
            computing: best.computing,
            weights: footprint.bytes,
            other: &|ram| footprint.plan(ram),
            smallest: footprint.smallest(),
            in_memory: footprint.in_memory(),
            encoding: match self.named {
                true => [best.format.clone(), "its name says so".to_owned()],
                false => {
                    let reason = formats::reason(&self.formats, best, ram, at);
                    [best.format.clone(), format!("`--encoding auto` makes {reason}")]
                }
            },
            readers: Vec::new(),
            draft: None,
        };
        Ok(Some(choices.reasons()))
    }

    fn text(&self) -> String {
        let mut text = self.answer() + &self.summary() + "\n";
        if let Some(hub) = &self.hub {
            text += &hub.line();
        }
        if let Some(machine) = &self.machine {
            text += &machine.line();
            text += "\n";
        }
        if let Some(reason) = &self.reason {
            text += &format!("not supported yet: {reason}\n");
        }
        if self.formats.is_empty() {
            if self.supported {
                text += "sizes and speeds are not known before its weights are here: the configuration does not say which of them are quantised, or how\n";
            }
            return wrapped(&text);
        }
        if let Some(position) = self.kv_bytes_per_position
            && let Some(fixed) = self.kv_fixed_bytes
        {
            text += &sequence(SequenceBytes { position, fixed });
        }
        if let Some(row) = self.formats.first()
            && let Some(bytes) = row.table_bytes
            && let Some(each) = row.table_row_bytes
        {
            text += &layer_tables([bytes, each]);
        }
        let vram = match (&self.vram, self.best()) {
            (Some(vram), Some(best)) => format!("in {}, {}", best.format, vram.text()),
            _ => String::new(),
        };
        if let Some(reasons) = &self.why {
            let estimates = estimates(&self.hits());
            return format!(
                "{}\n{}\n{}{estimates}",
                wrapped(&text),
                why::text(reasons),
                wrapped(&vram)
            );
        }
        let paced = formats::paced(self.machine.as_ref());
        text += if self.named { "no such shards here" } else { "no weights here" };
        text += ": sizes follow from the configuration. ";
        text += formats::heading(paced);
        let mut text = wrapped(&text);
        text += &formats::table(&self.formats, &self.budgets, paced);
        if let Some(hub) = &self.hub {
            let mut fitting = Vec::new();
            let mut too_large = Vec::new();
            for row in &self.formats {
                match hub.fits(row.bytes) {
                    true => fitting.push(row.format.as_str()),
                    false => too_large.push(row.format.as_str()),
                }
            }
            if !too_large.is_empty() {
                text += &wrapped(&format!(
                    "no room on this disk for shards, with two files beside them: {}\n",
                    too_large.join(", ")
                ));
            }
            text += &format!("\n{}{}", wrapped(&vram), estimates(&self.hits()));
            let best = self.best().filter(|row| hub.fits(row.bytes));
            text += &match (best, fitting.last()) {
                (Some(row), _) if self.named || row.plain == DEFAULT => hub.next(None),
                (Some(row), _) => hub.next(Some(row.plain.name())),
                // Of quantised models only what is not quantised has a choice.
                (None, Some(format)) => hub.next(format.rsplit(' ').next()),
                (None, None) => hub.next_disk(),
            };
            return text;
        }
        text + &format!("\n{}{}", wrapped(&vram), estimates(&self.hits()))
    }

    /// The hit rates of the estimates.
    fn hits(&self) -> HitCurve {
        HitCurve::general(HistoryShape {
            layers: number(self.layers),
            experts: number(self.experts),
            top_k: number(self.experts_per_token),
        })
    }

    /// The format that was named, or else the exact one for the budget in question.
    fn best(&self) -> Option<&FormatRow> {
        if self.named {
            return self.formats.first();
        }
        formats::best(&self.formats, self.column(), self.hub.as_ref())
    }

    /// Index of the budget in question.
    fn column(&self) -> Option<usize> {
        formats::column(&self.budgets, self.asked?)
    }

    /// Whether the model runs on a machine, and how fast, in that format.
    fn answer(&self) -> String {
        let (Some(machine), Some(row)) = (&self.machine, self.best()) else {
            return String::new();
        };
        let Some(ram) = self.asked else {
            return format!("runs in {} with --ram {}MiB\n", row.format, row.smallest_budget >> 20);
        };
        let at = self.column().unwrap_or(0);
        if row.read_bytes_per_token[at].is_none() {
            let format = &row.format;
            let least = row.smallest_budget >> 20;
            return format!("does not run within {}: {format} needs {least}MiB\n", size(ram));
        }
        if !formats::fits(self.hub.as_ref(), row.bytes) {
            let format = &row.format;
            let bytes = size(row.bytes);
            return format!("does not fit this disk: shards in {format} take {bytes}\n");
        }
        let figures = [row.tokens_per_second[at], row.first_token_seconds];
        machine.answer(&format!(" in {}", row.format), ram, figures)
    }

    /// The model in one line.
    fn summary(&self) -> String {
        let model_type = self.model_type.as_deref().unwrap_or("unknown model type");
        let model_type: String = model_type.escape_debug().take(100).collect();
        let mut parts = Vec::new();
        if let Some(layers) = self.layers {
            parts.push(count(layers, "layer"));
        }
        if let Some(hidden) = self.hidden {
            parts.push(format!("hidden state of {hidden}"));
        }
        if let Some(experts) = self.experts {
            let mut details = Vec::new();
            if let Some(chosen) = self.experts_per_token {
                details.push(format!("{chosen} a token"));
            }
            if let Some(width) = self.expert_width {
                details.push(format!("width {width}"));
            }
            parts.push(format!("{} a layer ({})", count(experts, "expert"), details.join(", ")));
        }
        if let Some(all) = self.parameters
            && let Some(active) = self.parameters_per_token
        {
            parts.push(format!("{} parameters, {} a token", billions(all), billions(active)));
        }
        if let Some(method) = &self.quantised {
            let method: String = method.escape_debug().take(100).collect();
            parts.push(format!("published in {method}"));
        }
        format!("{model_type}: {}", parts.join("; "))
    }
}

fn number(count: Option<u64>) -> usize {
    usize::try_from(count.unwrap_or(0)).unwrap_or(usize::MAX)
}

/// A line about the memory of a sequence.
pub(crate) fn sequence(bytes: SequenceBytes) -> String {
    let fixed = match bytes.fixed {
        0 => String::new(),
        fixed => format!(", and {} for any number of them", size(fixed)),
    };
    format!("keys and values of a context take {} a position{fixed}\n", size(bytes.position))
}

/// A line about the tables of layers, and what is read for the rows of a token.
pub(crate) fn layer_tables([bytes, rows]: [u64; 2]) -> String {
    format!(
        "tables of {} give layers rows by the tokens of a text; they stay on disk, and a token reads {} of them\n",
        size(bytes),
        size(rows)
    )
}

fn billions(number: u64) -> String {
    match number as f64 / 1e9 {
        _ if number < 10_000_000 => format!("{:.1} M", number as f64 / 1e6),
        small if small < 10.0 => format!("{small:.2} B"),
        large => format!("{large:.1} B"),
    }
}
