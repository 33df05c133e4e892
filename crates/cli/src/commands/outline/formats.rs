//! The formats that a model can have: sizes, and reads or speeds by budget.

use serde::Serialize;
use sws::{Computing, Dry, Format, Outline, Threads};
use sws_engine::{PerToken, PlanOptions};
use sws_format::PieceKind;
use sws_kernels::Encoding;

use super::super::machine::Machine;
use super::super::plan::vram::Card;
use super::super::remote::Remote;
use super::super::rounded::{about, digits, time};
use super::super::{both, size};
use super::{BUDGETS, GIB};

/// Speed-up for which another encoding than the default one is chosen. Estimates are no better than this.
const WORTH: f64 = 1.03;

/// The machine that speeds are planned for, and threads on which to measure how long tokens are
/// computed, if it is this one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timed<'t> {
    pub(crate) machine: Option<Machine>,
    pub(crate) threads: Option<&'t Threads>,
}

/// The model in one format.
#[derive(Debug, Serialize)]
pub(crate) struct FormatRow {
    pub(super) format: String,
    /// The encoding of what is published in plain floats.
    #[serde(skip)]
    pub(crate) plain: Encoding,
    /// False if weights differ from the published ones.
    pub(super) exact: bool,
    /// True for what `sws shard` makes unless told otherwise, and for what it starts from.
    #[serde(skip)]
    pub(super) usual: bool,
    pub(super) bytes: u64,
    pub(super) infrastructure_bytes: u64,
    /// The tables of what tokens give to layers, and what is read of them for a token.
    pub(super) table_bytes: Option<u64>,
    pub(super) table_row_bytes: Option<u64>,
    pub(super) smallest_budget: u64,
    /// Estimated, for each budget; None where it is too small.
    pub(super) read_bytes_per_token: Vec<Option<u64>>,
    /// For each budget, true if nothing but rows of tables is read from disk.
    #[serde(skip)]
    in_memory: Vec<bool>,
    /// The time of computing a token, if it was measured.
    #[serde(skip)]
    pub(super) computing: Option<Computing>,
    /// Bytes of memory that a graphics card takes beside it.
    #[serde(skip)]
    pub(super) device: u64,
    /// Estimated for each budget, if the speeds of the machine are known.
    pub(super) tokens_per_second: Vec<Option<f64>>,
    pub(super) first_token_seconds: Option<f64>,
}

/// The budgets of common machines, and the one that was asked for.
pub(crate) fn budgets(asked: Option<u64>) -> Vec<u64> {
    let mut budgets: Vec<u64> = BUDGETS.into_iter().chain(asked).collect();
    budgets.sort_unstable();
    budgets.dedup();
    budgets
}

/// Index of a budget among others.
pub(crate) fn column(budgets: &[u64], ram: u64) -> Option<usize> {
    budgets.iter().position(|&budget| budget == ram)
}

/// The model in each of these formats, beside a graphics card if there is one.
pub(crate) fn rows(
    outline: &Outline,
    formats: &[Format],
    options: PlanOptions,
    Timed { machine, threads }: Timed<'_>,
    budgets: &[u64],
    card: Option<Card>,
) -> Result<Vec<FormatRow>, sws::Error> {
    let mut dry = threads.and_then(|threads| Dry::new(options.tier, threads));
    let mut rows = Vec::with_capacity(formats.len());
    for &format in formats {
        let device = card.map_or(0, |card| card.host_bytes(outline, format));
        let footprint = outline.footprint(format, PlanOptions { device, ..options })?;
        let computing = dry.as_mut().and_then(|dry| outline.computing(format, dry));
        let most = format.of(PieceKind::Expert(0));
        let kernels = machine.map(|machine| machine.computing_in(most));
        let mut read_bytes_per_token = Vec::with_capacity(budgets.len());
        let mut in_memory = Vec::with_capacity(budgets.len());
        let mut tokens_per_second = Vec::with_capacity(budgets.len());
        for &ram in budgets {
            let token = footprint.plan(ram).map(|plan| plan.per_token);
            read_bytes_per_token.push(token.as_ref().map(PerToken::read));
            in_memory.push(token.as_ref().is_some_and(PerToken::is_in_memory));
            tokens_per_second.push(match (kernels, &token) {
                (Some(kernels), Some(token)) => kernels.pace(token, computing),
                _ => None,
            });
        }
        let [table_bytes, table_row_bytes] = both(footprint.layer_tables);
        let first_token_seconds =
            machine.and_then(|it| it.first_token(footprint.bytes - table_bytes.unwrap_or(0)));
        rows.push(FormatRow {
            format: format.to_string(),
            plain: format.plain,
            exact: !format.plain.is_lossy(),
            usual: format.plain != Encoding::Bf11,
            bytes: footprint.bytes,
            infrastructure_bytes: footprint.infrastructure,
            table_bytes,
            table_row_bytes,
            smallest_budget: footprint.smallest(),
            read_bytes_per_token,
            in_memory,
            computing,
            device,
            tokens_per_second,
            first_token_seconds,
        });
    }
    Ok(rows)
}

/// The exact format for a budget, of which `at` is the index: the smallest that needs no option, or bf11
/// where that one would read from disk and bf11 is planned to be faster by more than [`WORTH`]. Of a
/// model on the hub, shards in bf11 need room on the disk.
pub(crate) fn best<'r>(
    rows: &'r [FormatRow],
    at: Option<usize>,
    hub: Option<&Remote>,
) -> Option<&'r FormatRow> {
    let usual = exact(rows).filter(|row| row.usual).min_by_key(|row| row.bytes)?;
    let smaller = exact(rows).find(|row| row.plain == Encoding::Bf11 && fits(hub, row.bytes));
    let least = WORTH * usual.pace(at);
    match smaller {
        Some(smaller) if !usual.is_in_memory(at) && smaller.pace(at) > least => Some(smaller),
        _ => Some(usual),
    }
}

/// False for shards of a model on the hub that the disk has no room for.
pub(super) fn fits(hub: Option<&Remote>, bytes: u64) -> bool {
    match hub {
        Some(hub) => hub.fits(bytes),
        None => true,
    }
}

/// The encoding of the [`best`] of these formats, and why it is chosen.
pub(crate) fn reason(rows: &[FormatRow], best: &FormatRow, ram: u64, at: Option<usize>) -> String {
    let name = best.plain.name();
    let within = size(ram);
    let pace = best.pace(at);
    if !best.runs(at) {
        let least = best.smallest_budget >> 20;
        return format!("{name}, which needs {least}MiB and does not run within {within}");
    }
    if best.is_in_memory(at) {
        return format!("{name}, as all of it fits in {within}");
    }
    if pace == 0.0 {
        return format!("{name}, as no speed is known within {within}");
    }
    let mut others = Vec::new();
    for row in exact(rows) {
        if row.plain != best.plain {
            others.push(format!("{} {}", row.plain.name(), digits(row.pace(at))));
        }
    }
    let others = match others.is_empty() {
        true => String::new(),
        false => format!(" ({})", others.join(", ")),
    };
    let why = match best.usual {
        true => "as bf11 is not clearly faster",
        false => "as the disk decides",
    };
    let pace = digits(pace);
    format!("{name} for {within}, {why}: {pace} tokens a second are planned{others}")
}

fn exact(rows: &[FormatRow]) -> impl Iterator<Item = &FormatRow> {
    rows.iter().filter(|row| row.exact)
}

/// A budget in the heading of a column.
fn budget(ram: u64) -> String {
    match ram % GIB {
        0 => format!("{} GiB", ram / GIB),
        _ => size(ram),
    }
}

/// True if the speeds of a machine are known.
pub(crate) fn paced(machine: Option<&Machine>) -> bool {
    let Some(machine) = machine else { return false };
    machine.disk_bytes_per_second.is_some() && machine.memory_bytes_per_second.is_some()
}

/// What a [`table`] shows.
pub(crate) fn heading(paced: bool) -> &'static str {
    match paced {
        true => "The least --ram, the time of a long prompt, and tokens per second by --ram:\n\n",
        false => {
            "Bytes besides those of experts, the least --ram, and bytes read per token by --ram:\n\n"
        }
    }
}

/// A table of formats, with speeds or bytes by budget.
pub(crate) fn table(rows: &[FormatRow], budgets: &[u64], paced: bool) -> String {
    let fixed: &[&str] = match paced {
        true => &["format", "weights", "<exact", "--ram", "prompt"],
        false => &["format", "weights", "besides", "--ram"],
    };
    let budgets: Vec<String> = budgets.iter().copied().map(budget).collect();
    let mut heading = fixed.to_vec();
    heading.extend(budgets.iter().map(String::as_str));
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.cells(paced)).collect();
    crate::table::table(&heading, &rows)
}

impl FormatRow {
    /// Options of a plan beside the card that this was planned with.
    pub(super) fn beside_card(&self, options: PlanOptions) -> PlanOptions {
        PlanOptions { device: self.device, ..options }
    }

    /// True if it runs within the budget.
    fn runs(&self, at: Option<usize>) -> bool {
        at.is_some_and(|at| self.read_bytes_per_token[at].is_some())
    }

    fn is_in_memory(&self, at: Option<usize>) -> bool {
        at.is_some_and(|at| self.in_memory[at])
    }

    /// Planned tokens per second within the budget; 0 if there are none, or none is known.
    fn pace(&self, at: Option<usize>) -> f64 {
        at.and_then(|at| self.tokens_per_second[at]).unwrap_or(0.0)
    }

    fn cells(&self, paced: bool) -> Vec<String> {
        let format = self.format.replace(", as published", "").replace(" and ", "+");
        let mut cells = vec![format, about(self.bytes)];
        let least = format!("{}MiB", self.smallest_budget >> 20);
        if paced {
            let exact = if self.exact { "yes" } else { "no" };
            let first = self.first_token_seconds.map_or_else(String::new, time);
            cells.extend([exact.to_owned(), least, first]);
            for pace in &self.tokens_per_second {
                cells.push(pace.map_or("-".to_owned(), digits));
            }
        } else {
            cells.extend([about(self.infrastructure_bytes), least]);
            for read in &self.read_bytes_per_token {
                cells.push(read.map_or("-".to_owned(), about));
            }
        }
        cells
    }
}
