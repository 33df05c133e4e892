//! Models without weights: what `sws inspect` and `sws plan` say of a configuration.

use std::process::ExitCode;

use serde::Serialize;
use sws::{Outline, SequenceBytes};
use sws_engine::PlanOptions;

use super::{count, print_report, size};
use crate::table::table;

/// Budgets of common machines.
const BUDGETS: [u64; 3] = [16 << 30, 32 << 30, 64 << 30];

/// Prints what the configuration says, with the reads at common budgets and those `asked` for.
pub(crate) fn print(
    outline: &Outline,
    options: PlanOptions,
    asked: Option<u64>,
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
    budgets: Vec<u64>,
    formats: Vec<Row>,
}

/// The model in one format.
#[derive(Debug, Serialize)]
struct Row {
    format: String,
    bytes: u64,
    infrastructure_bytes: u64,
    smallest_budget: u64,
    /// Estimated, for each budget; None where it is too small.
    read_bytes_per_token: Vec<Option<u64>>,
}

impl Report {
    fn of(outline: &Outline, options: PlanOptions, asked: Option<u64>) -> anyhow::Result<Report> {
        let mut budgets: Vec<u64> = BUDGETS.into_iter().chain(asked).collect();
        budgets.sort_unstable();
        budgets.dedup();
        let sequence = outline.sequence(options.kv);
        let description = outline.description().clone();
        let parameters = outline.spec().map(|spec| spec.parameters());
        let rows = outline.formats().into_iter().map(|format| {
            let footprint = outline.footprint(format, options)?;
            let read = |&ram: &u64| Some(footprint.plan(ram)?.per_token.read());
            Ok(Row {
                format: format.to_string(),
                bytes: footprint.bytes,
                infrastructure_bytes: footprint.infrastructure,
                smallest_budget: footprint.smallest(),
                read_bytes_per_token: budgets.iter().map(read).collect(),
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
            budgets,
        })
    }

    fn text(&self) -> String {
        let mut text = self.summary() + "\n";
        if let Some(reason) = &self.reason {
            text += &format!("not supported: {reason}\n");
        }
        if self.formats.is_empty() {
            return text;
        }
        if let (Some(position), Some(fixed)) = (self.kv_bytes_per_position, self.kv_fixed_bytes) {
            text += &sequence(SequenceBytes { position, fixed });
        }
        let reads = self.budgets.iter().map(|&ram| match self.asked == Some(ram) {
            true => format!("--ram {}", size(ram)),
            false => format!("at {}", size(ram)),
        });
        let heading: Vec<String> = ["format", "weights", "not of experts", "smallest --ram"]
            .into_iter()
            .map(str::to_owned)
            .chain(reads)
            .collect();
        let heading: Vec<&str> = heading.iter().map(String::as_str).collect();
        let rows: Vec<Vec<String>> = self.formats.iter().map(Row::cells).collect();
        text += "no weights here: sizes follow from the configuration, and reads per token at a --ram are estimates\n\n";
        text + &table(&heading, &rows)
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
    fn cells(&self) -> Vec<String> {
        let read = |&read: &Option<u64>| read.map_or("too small".to_owned(), size);
        let fixed = [
            self.format.clone(),
            size(self.bytes),
            size(self.infrastructure_bytes),
            format!("{}MiB", self.smallest_budget >> 20),
        ];
        fixed.into_iter().chain(self.read_bytes_per_token.iter().map(read)).collect()
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

fn billions(number: u64) -> String {
    match number as f64 / 1e9 {
        small if small < 10.0 => format!("{small:.2} B"),
        large => format!("{large:.1} B"),
    }
}
