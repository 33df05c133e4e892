//! The use of memory in a plan, line by line.

use sws_engine::{MemoryUse, Plan};
use sws_model::Inventory;
use sws_store::PieceKind;

use crate::commands::{count, size};
use crate::table::table;

pub(super) fn text(plan: &Plan, inventory: &Inventory) -> String {
    let lines = plan.ledger.lines().filter(|&(_, bytes)| bytes > 0);
    let lines: Vec<Vec<String>> = lines
        .map(|(what, bytes)| {
            vec![what.words().to_owned(), size(bytes), note(plan, inventory, what)]
        })
        .chain([vec!["total".to_owned(), size(plan.ledger.budget()), String::new()]])
        .collect();
    table(&["memory", "bytes", "<"], &lines)
}

/// Remark on a line of the ledger.
fn note(plan: &Plan, inventory: &Inventory, what: MemoryUse) -> String {
    let experts = inventory.pieces().filter(|id| matches!(id.kind(), PieceKind::Expert(_))).count();
    match what {
        MemoryUse::KvCache => format!("{} positions", plan.context),
        MemoryUse::Activations => {
            let lent: usize = plan.lent.iter().map(|class| class.count).sum();
            let also = match lent {
                0 => String::new(),
                n => format!("; {} while tokens come one at a time", count(n, "more slot")),
            };
            format!("{} of a prompt at once{also}", count(plan.chunk, "token"))
        }
        MemoryUse::Pinned => {
            format!("{} of {} pieces", plan.pinned.len(), inventory.pieces().count() - experts)
        }
        MemoryUse::Ring if plan.experts_stream => "experts too".to_owned(),
        MemoryUse::Ring if plan.per_token.table_rows > 0 => "rows of tables too".to_owned(),
        MemoryUse::Slots => {
            let slots: usize = plan.slots.iter().map(|class| class.count).sum();
            format!("{slots} for {experts} experts")
        }
        _ => String::new(),
    }
}
