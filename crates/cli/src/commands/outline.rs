//! Models without weights: what `sws inspect` and `sws plan` say of a configuration.

use std::process::ExitCode;

use serde::Serialize;
use sws::{Dry, Outline, SequenceBytes, Threads};
use sws_engine::{HitCurve, PerToken, PlanOptions};
use sws_kernels::Encoding;

use super::machine::{Machine, about, digits, time};
use super::remote::Remote;
use super::{count, print_report, size};
use crate::table::{table, wrapped};

const GIB: u64 = 1 << 30;
/// Budgets of common machines.
pub(crate) const BUDGETS: [u64; 3] = [16 * GIB, 32 * GIB, 64 * GIB];

/// A caution about all estimates: their basis, and how far off they were.
pub(crate) fn estimates(hits: &HitCurve) -> String {
    let basis = match hits.tokens() {
        None => "hits as of DeepSeek-V2-Lite, not of this model".to_owned(),
        Some(tokens) => format!("hits as in the last {tokens} tokens of earlier runs"),
    };
    let [low, high] = hits.accuracy();
    wrapped(&format!(
        "estimates: {basis}; in 36 runs of small models and random weights they were {low:.2} to {high:.2} times the real speed\n"
    ))
}

/// The subject of a plan without weights, besides the configuration.
#[derive(Debug)]
pub(crate) struct Asked<'t> {
    pub(crate) machine: Machine,
    /// Threads on which to measure how long tokens are computed, if this is the machine.
    pub(crate) threads: Option<&'t Threads>,
    /// Budget.
    pub(crate) ram: Option<u64>,
    /// The model's repository, if the configuration is from there.
    pub(crate) remote: Option<Remote>,
}

/// Prints what the configuration says, with the reads at common budgets.
pub(crate) fn print(
    outline: &Outline,
    options: PlanOptions,
    asked: Option<Asked<'_>>,
    json: bool,
) -> anyhow::Result<ExitCode> {
    let report = Report::of(outline, options, asked)?;
    print_report(json, &report, || report.text())
}

/// The fields of the JSON.
#[derive(Debug, Serialize)]
struct Report {
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
    formats: Vec<Row>,
}

/// The model in one format.
#[derive(Debug, Serialize)]
struct Row {
    format: String,
    /// False if weights differ from the published ones.
    exact: bool,
    /// True for what `sws shard` makes unless told otherwise, and for what it starts from.
    #[serde(skip)]
    usual: bool,
    bytes: u64,
    infrastructure_bytes: u64,
    /// The table of what tokens give to layers, and what is read for a row of it.
    layer_table_bytes: Option<u64>,
    layer_table_row_bytes: Option<u64>,
    smallest_budget: u64,
    /// Estimated, for each budget; None where it is too small.
    read_bytes_per_token: Vec<Option<u64>>,
    /// Estimated for each budget, if the speeds of the machine are known.
    tokens_per_second: Vec<Option<f64>>,
    first_token_seconds: Option<f64>,
}

impl Report {
    fn of(
        outline: &Outline,
        options: PlanOptions,
        asked: Option<Asked<'_>>,
    ) -> anyhow::Result<Report> {
        let (machine, threads, asked, hub) = match asked {
            Some(Asked { machine, threads, ram, remote }) => (Some(machine), threads, ram, remote),
            None => (None, None, None, None),
        };
        let mut dry = threads.and_then(|threads| Dry::new(options.tier, threads));
        let mut budgets: Vec<u64> = BUDGETS.into_iter().chain(asked).collect();
        budgets.sort_unstable();
        budgets.dedup();
        let sequence = outline.sequence(options.kv);
        let description = outline.description().clone();
        let parameters = outline.spec().map(|spec| spec.parameters());
        let rows = outline.formats().into_iter().map(|format| {
            let footprint = outline.footprint(format, options)?;
            let tokens: Vec<Option<PerToken>> =
                budgets.iter().map(|&ram| Some(footprint.plan(ram)?.per_token)).collect();
            let read = |token: &Option<PerToken>| Some(token.as_ref()?.read());
            let computing = dry.as_mut().and_then(|dry| outline.computing(format, dry));
            let pace = |token: &Option<PerToken>| machine?.pace(token.as_ref()?, computing);
            Ok(Row {
                format: format.to_string(),
                exact: !format.plain.is_lossy(),
                usual: format.plain != Encoding::Bf11,
                bytes: footprint.bytes,
                infrastructure_bytes: footprint.infrastructure,
                layer_table_bytes: footprint.layer_table.map(|[bytes, _]| bytes),
                layer_table_row_bytes: footprint.layer_table.map(|[_, row]| row),
                smallest_budget: footprint.smallest(),
                read_bytes_per_token: tokens.iter().map(read).collect(),
                tokens_per_second: tokens.iter().map(pace).collect(),
                first_token_seconds: machine.and_then(|it| {
                    let table = footprint.layer_table.map_or(0, |[bytes, _]| bytes);
                    it.first_token(footprint.bytes - table)
                }),
            })
        });
        Ok(Report {
            formats: rows.collect::<Result<_, sws::Error>>()?,
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
            parameters: parameters.map(|[all, _]| all),
            parameters_per_token: parameters.map(|[_, active]| active),
            kv_bytes_per_position: sequence.map(|bytes| bytes.position),
            kv_fixed_bytes: sequence.map(|bytes| bytes.fixed),
            asked,
            machine,
            hub,
            budgets,
        })
    }

    fn text(&self) -> String {
        let mut text = self.answer() + &self.summary() + "\n";
        text.extend(self.hub.iter().map(Remote::line));
        text.extend(self.machine.iter().map(|machine| machine.line() + "\n"));
        if let Some(reason) = &self.reason {
            text += &format!("not supported yet: {reason}\n");
        }
        if self.formats.is_empty() {
            return wrapped(&text);
        }
        if let (Some(position), Some(fixed)) = (self.kv_bytes_per_position, self.kv_fixed_bytes) {
            text += &sequence(SequenceBytes { position, fixed });
        }
        if let Some(row) = self.formats.first()
            && let (Some(bytes), Some(each)) = (row.layer_table_bytes, row.layer_table_row_bytes)
        {
            text += &layer_table([bytes, each]);
        }
        let paced = self.paced();
        text += match paced {
            true => {
                "no weights here: sizes follow from the configuration. The least --ram, the time of a long prompt, and tokens per second by --ram:\n\n"
            }
            false => {
                "no weights here: sizes follow from the configuration. Bytes besides those of experts, the least --ram, and bytes read per token by --ram:\n\n"
            }
        };
        let mut text = wrapped(&text);
        let fixed: &[&str] = match paced {
            true => &["format", "weights", "<exact", "--ram", "prompt"],
            false => &["format", "weights", "besides", "--ram"],
        };
        let budget = |ram: &u64| match ram % GIB {
            0 => format!("{} GiB", ram / GIB),
            _ => size(*ram),
        };
        let budgets: Vec<String> = self.budgets.iter().map(budget).collect();
        let heading: Vec<&str> =
            fixed.iter().copied().chain(budgets.iter().map(String::as_str)).collect();
        let rows: Vec<Vec<String>> = self.formats.iter().map(|row| row.cells(paced)).collect();
        text += &table(&heading, &rows);
        if let Some(hub) = &self.hub {
            let names = |fits| {
                let rows = self.formats.iter().filter(move |row| hub.fits(row.bytes) == fits);
                rows.map(|row| row.format.as_str()).collect::<Vec<_>>()
            };
            let (none, some) = (names(false), names(true));
            if !none.is_empty() {
                text += &wrapped(&format!(
                    "no room on this disk for shards, with the largest file beside them: {}\n",
                    none.join(", ")
                ));
            }
            text += &format!("\n{}", estimates(&HitCurve::default()));
            // Of quantised models only what is not quantised has a choice.
            let made = |name: &&str| name.rsplit(' ').next().unwrap_or(name).to_owned();
            let default = || self.smallest_exact().is_some_and(|row| hub.fits(row.bytes));
            text += &match some.last().map(made) {
                _ if default() => hub.next(None),
                Some(form) => hub.next(Some(&form)),
                None => "next: make room, or sws pull --out DIR on another disk\n".to_owned(),
            };
            return text;
        }
        text + &format!("\n{}", estimates(&HitCurve::default()))
    }

    /// The smallest format that is exact and needs no option.
    fn smallest_exact(&self) -> Option<&Row> {
        self.formats.iter().filter(|row| row.exact && row.usual).min_by_key(|row| row.bytes)
    }

    /// Whether the model runs on a machine, and how fast, in the smallest usual format that is exact.
    fn answer(&self) -> String {
        let (Some(machine), Some(row)) = (&self.machine, self.smallest_exact()) else {
            return String::new();
        };
        let Some(ram) = self.asked else {
            return format!("runs in {} with --ram {}MiB\n", row.format, row.smallest_budget >> 20);
        };
        let at = self.budgets.iter().position(|&budget| budget == ram).unwrap_or(0);
        if row.read_bytes_per_token[at].is_none() {
            let (format, least) = (&row.format, row.smallest_budget >> 20);
            return format!("does not run within {}: {format} needs {least}MiB\n", size(ram));
        }
        if self.hub.as_ref().is_some_and(|hub| !hub.fits(row.bytes)) {
            let (format, bytes) = (&row.format, size(row.bytes));
            return format!("does not fit this disk: shards in {format} take {bytes}\n");
        }
        let figures = [row.tokens_per_second[at], row.first_token_seconds];
        machine.answer(&format!(" in {}", row.format), ram, figures)
    }

    /// True if speeds are known.
    fn paced(&self) -> bool {
        let speeds = self.machine.map(|it| (it.disk_bytes_per_second, it.memory_bytes_per_second));
        matches!(speeds, Some((Some(_), Some(_))))
    }

    /// The model in one line.
    fn summary(&self) -> String {
        let model_type = self.model_type.as_deref().unwrap_or("unknown model type");
        let model_type: String = model_type.escape_debug().take(100).collect();
        let mut parts = Vec::new();
        parts.extend(self.layers.map(|layers| count(layers, "layer")));
        parts.extend(self.hidden.map(|hidden| format!("hidden state of {hidden}")));
        parts.extend(self.experts.map(|experts| {
            let chosen = self.experts_per_token.map_or(String::new(), |k| format!(", {k} a token"));
            let width = self.expert_width.map_or(String::new(), |width| format!(", width {width}"));
            format!(
                "{} a layer ({})",
                count(experts, "expert"),
                (chosen + &width).trim_start_matches(", ")
            )
        }));
        if let (Some(all), Some(active)) = (self.parameters, self.parameters_per_token) {
            parts.push(format!("{} parameters, {} a token", billions(all), billions(active)));
        }
        parts.extend(self.quantised.as_ref().map(|method| {
            format!("published in {}", method.escape_debug().take(100).collect::<String>())
        }));
        format!("{model_type}: {}", parts.join("; "))
    }
}

impl Row {
    fn cells(&self, paced: bool) -> Vec<String> {
        let format = self.format.replace(", as published", "").replace(" and ", "+");
        let mut cells = vec![format, about(self.bytes)];
        let least = format!("{}MiB", self.smallest_budget >> 20);
        let none = || "-".to_owned();
        if paced {
            let exact = if self.exact { "yes" } else { "no" };
            let first = self.first_token_seconds.map_or_else(String::new, time);
            cells.extend([exact.to_owned(), least, first]);
            let paces = self.tokens_per_second.iter();
            cells.extend(paces.map(|pace| pace.map_or_else(none, digits)));
        } else {
            cells.extend([about(self.infrastructure_bytes), least]);
            let reads = self.read_bytes_per_token.iter();
            cells.extend(reads.map(|read| read.map_or_else(none, about)));
        }
        cells
    }
}

/// A line about the memory of a sequence.
pub(crate) fn sequence(bytes: SequenceBytes) -> String {
    let fixed = match bytes.fixed {
        0 => String::new(),
        fixed => format!(", and {} for any number of them", size(fixed)),
    };
    format!("keys and values of a context take {} a position{fixed}\n", size(bytes.position))
}

/// A line about the table of what tokens give to layers, and what is read for a row of it.
pub(crate) fn layer_table([bytes, row]: [u64; 2]) -> String {
    format!(
        "a table of {} gives each token its inputs of layers; it stays on disk, and a token reads {} of it\n",
        size(bytes),
        size(row)
    )
}

fn billions(number: u64) -> String {
    match number as f64 / 1e9 {
        _ if number < 10_000_000 => format!("{:.1} M", number as f64 / 1e6),
        small if small < 10.0 => format!("{small:.2} B"),
        large => format!("{large:.1} B"),
    }
}
