//! The exact encoding of shards for this machine and a budget.

use anyhow::bail;
use sws::Outline;
use sws_engine::{PlanOptions, RamBudget};
use sws_kernels::{Encoding, Tier};
use sws_store::ReaderKind;

use super::machine::Machine;
use super::outline::DEFAULT;
use super::outline::formats::{self, Timed};
use crate::limits;
use crate::terminal::note;

/// The encoding in which the model is planned to be fastest, and the default one where none is faster
/// or no speed is known. Says which, and why.
pub(crate) fn encoding(outline: &Outline, ram: Option<RamBudget>) -> anyhow::Result<Encoding> {
    let ram = ram.unwrap_or(RamBudget::Auto);
    if ram == RamBudget::Min {
        bail!("--ram min is known once there are shards; give a size to choose an encoding for");
    }
    let threads = limits::threads(None)?;
    let machine = Machine::measure(None, ReaderKind::Direct, &threads);
    let budget = machine.budget(ram, 0);
    let options =
        PlanOptions { tier: Tier::best(), threads: threads.count(), ..PlanOptions::default() };
    let mut exact = outline.formats();
    exact.retain(|format| !format.plain.is_lossy());
    let timed = Timed { machine: Some(machine), threads: Some(&threads) };
    let rows = formats::rows(outline, &exact, options, timed, &[budget], None)?;
    let at = Some(0);
    let Some(best) = formats::best(&rows, at, None) else { return Ok(DEFAULT) };
    note!("sws: {}", formats::reason(&rows, best, budget, at));
    Ok(best.plain)
}
