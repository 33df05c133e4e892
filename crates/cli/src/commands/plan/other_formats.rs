//! The formats that shards of a checkpoint can have, beside its plan.

use sws::{Format, Model, Outline};
use sws_engine::PlanOptions;
use sws_format::{Dtype, Manifest};
use sws_kernels::Encoding;

use super::vram::Card;
use crate::commands::machine::Machine;
use crate::commands::outline::formats::{self, FormatRow, Timed};
use crate::table::wrapped;

/// The formats that `sws shard` makes of a checkpoint, at some budgets.
pub(super) struct OtherFormats {
    pub(super) rows: Vec<FormatRow>,
    pub(super) at: Vec<u64>,
}

impl OtherFormats {
    /// `None` for a model of which `sws shard` makes no other formats.
    pub(super) fn of(
        model: &Model,
        ram: u64,
        options: PlanOptions,
        timed: Timed<'_>,
        card: Option<Card>,
    ) -> anyhow::Result<Option<OtherFormats>> {
        let Some((outline, formats)) = formats_of(model) else { return Ok(None) };
        let at = formats::budgets(Some(ram));
        let rows = formats::rows(&outline, &formats, options, timed, &at, card)?;
        Ok(Some(OtherFormats { rows, at }))
    }

    /// The best format within a budget, and why.
    pub(super) fn best(&self, ram: u64) -> Option<String> {
        let at = formats::column(&self.at, ram);
        let best = formats::best(&self.rows, at, None)?;
        Some(formats::reason(&self.rows, best, ram, at))
    }

    pub(super) fn text(&self, machine: &Machine, ram: u64) -> String {
        let paced = formats::paced(Some(machine));
        let lead = "\n`sws shard` makes other formats, whose sizes follow from the configuration. ";
        let mut text = wrapped(&format!("{lead}{}", formats::heading(paced)));
        text += &formats::table(&self.rows, &self.at, paced);
        if let Some(reason) = self.best(ram) {
            text += &wrapped(&format!("\n`sws shard --encoding auto` makes {reason}\n"));
        }
        text
    }
}

/// The formats that `sws shard` can make of a checkpoint that is published in bf16 or quantised.
/// Sizes of others do not follow from the configuration.
fn formats_of(model: &Model) -> Option<(Outline, Vec<Format>)> {
    let is_gguf = model.manifest().files.iter().any(|file| file.path.ends_with(".gguf"));
    if model.is_sharded() || is_gguf || is_in_other_floats(model.manifest()) {
        return None;
    }
    let outline = Outline::read(model.dir()).ok()?;
    let mut formats = outline.formats();
    formats.retain(|format| format.plain != Encoding::Bf16);
    (!formats.is_empty()).then_some((outline, formats))
}

/// True if most bytes of the weights are floats of another type than bf16.
fn is_in_other_floats(manifest: &Manifest) -> bool {
    let mut all: u64 = 0;
    let mut others: u64 = 0;
    for piece in &manifest.pieces {
        for tensor in &piece.tensors {
            all = all.saturating_add(tensor.stored_bytes());
            if matches!(tensor.dtype, Dtype::F16 | Dtype::F32) {
                others = others.saturating_add(tensor.stored_bytes());
            }
        }
    }
    others > all / 2
}
