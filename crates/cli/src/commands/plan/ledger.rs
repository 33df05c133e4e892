//! The use of memory in a plan, line by line.

use sws_engine::{MemoryUse, Plan, SlotClass};
use sws_format::PieceKind;
use sws_model::Inventory;

use crate::commands::{count, size};
use crate::table::table;

pub(super) fn text(plan: &Plan, inventory: &Inventory) -> String {
    let mut lines = Vec::new();
    for (what, bytes) in plan.ledger.lines() {
        if bytes > 0 {
            lines.push(vec![what.words().to_owned(), size(bytes), note(plan, inventory, what)]);
        }
    }
    lines.push(vec!["total".to_owned(), size(plan.ledger.budget()), String::new()]);
    table(&["memory", "bytes", "<"], &lines)
}

/// Words on slots that are lent at times.
fn also(lent: &[SlotClass], when: &str) -> String {
    match SlotClass::count_of(lent) {
        0 => String::new(),
        n => format!("; {} while {when}", count(n, "more slot")),
    }
}

/// Remark on a line of the ledger.
fn note(plan: &Plan, inventory: &Inventory, what: MemoryUse) -> String {
    let experts = inventory.pieces().filter(|id| matches!(id.kind(), PieceKind::Expert(_))).count();
    match what {
        MemoryUse::KvCache => {
            let also = also(&plan.context_lent, "texts do not need them");
            format!("{} positions{also}", plan.context)
        }
        MemoryUse::Activations => {
            let also = also(&plan.lent, "tokens come one at a time");
            format!("{} of a prompt at once{also}", count(plan.chunk, "token"))
        }
        MemoryUse::Pinned => {
            format!("{} of {} pieces", plan.pinned.len(), inventory.pieces().count() - experts)
        }
        MemoryUse::Ring if plan.experts_stream => "experts too".to_owned(),
        MemoryUse::Ring if plan.per_token.table_rows > 0 => "rows of tables too".to_owned(),
        MemoryUse::Slots => format!("{} for {experts} experts", SlotClass::count_of(&plan.slots)),
        _ => String::new(),
    }
}
