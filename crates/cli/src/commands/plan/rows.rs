//! The plans for several budgets, side by side.

use std::path::Path;

use serde::Serialize;
use sws::Computing;
use sws_engine::{MemoryUse, PerToken, Plan, Planner, SlotClass};

use crate::commands::machine::Machine;
use crate::commands::rounded::{about, digits, percent};
use crate::commands::{outline, size};
use crate::table::{table, wrapped};

/// Maximum number of steps between the smallest budget and one that is large enough.
const STEPS: u64 = 6;
const GIB: u64 = 1 << 30;

/// The plan for one budget.
#[derive(Debug, Serialize)]
pub(super) struct PlanRow {
    budget: u64,
    pinned_bytes: u64,
    ring_bytes: u64,
    slots: usize,
    lent: usize,
    chunk: usize,
    context: usize,
    /// Estimated, as are the following fields.
    hit_rate: Option<f64>,
    read_bytes_per_token: u64,
    tokens_per_second: Option<f64>,
}

pub(super) fn row(plan: &Plan, machine: Machine, computing: Option<Computing>) -> PlanRow {
    let PerToken { experts, hit_rate, .. } = plan.per_token;
    PlanRow {
        budget: plan.ledger.budget(),
        pinned_bytes: plan.ledger.get(MemoryUse::Pinned),
        ring_bytes: plan.ledger.get(MemoryUse::Ring),
        slots: SlotClass::count_of(&plan.slots),
        lent: SlotClass::count_of(&plan.lent),
        chunk: plan.chunk,
        context: plan.context,
        hit_rate: (experts > 0).then_some(hit_rate),
        read_bytes_per_token: plan.per_token.read(),
        tokens_per_second: machine.pace(&plan.per_token, computing),
    }
}

/// Budgets for the table: the smallest, the requested one, those of common machines, and steps in
/// between, up to more than enough.
pub(super) fn budgets(planner: &Planner, asked: u64, most: u64) -> Vec<u64> {
    let smallest = planner.smallest();
    let weights = planner.weights();
    let enough = smallest + weights + weights / 4 + GIB.min(weights);
    let end = most.min(enough).max(smallest);
    let mut step = if weights < GIB { 16 << 20 } else { GIB };
    while (end - smallest) / step > STEPS {
        step *= 2;
    }
    let first = (smallest + 1).next_multiple_of(step);
    let mut budgets: Vec<u64> = (first..=end).step_by(step as usize).collect();
    budgets.extend(outline::BUDGETS.into_iter().filter(|&budget| budget < enough));
    budgets.extend([smallest, asked]);
    budgets.sort_unstable();
    budgets.dedup();
    budgets
}

pub(super) fn text(
    model: &Path,
    planner: &Planner,
    asked: u64,
    machine: Machine,
    rows: &[PlanRow],
    first_tokens: &str,
) -> String {
    let pace = rows.iter().find(|row| row.budget == asked).and_then(|row| row.tokens_per_second);
    let mut text = machine.answer("", asked, [pace, None]);
    text += first_tokens;
    text += &format!(
        "{}: {} of weights\nthe smallest --ram is {}MiB (`min` takes the {} that are needed now)\n{}\n\n",
        model.display(),
        size(planner.weights()),
        planner.smallest() >> 20,
        size(planner.minimum()),
        machine.line(),
    );
    let mut cells = Vec::new();
    for row in rows {
        cells.push(vec![
            size(row.budget),
            row.context.to_string(),
            percent(row.hit_rate),
            about(row.read_bytes_per_token),
            row.tokens_per_second.map_or("-".to_owned(), digits),
            if row.budget == asked { "this plan".to_owned() } else { String::new() },
        ]);
    }
    text = wrapped(&text);
    text += &table(&["--ram", "context", "hits", "read/token", "tok/s", "<"], &cells);
    text + "\n"
}
