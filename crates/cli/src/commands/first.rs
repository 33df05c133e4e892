//! Models to begin with: `sws pull` without a model.

use std::process::ExitCode;

use serde_json::json;
use sws::SUGGESTIONS;
use sws_store::SystemMemory;

use super::{print, print_json};
use crate::table::table;

const GIB: u64 = 1 << 30;
/// Memory of a machine that the kernel keeps for itself, in GiB.
const KEPT: u64 = 1;

/// Prints the models to begin with.
pub(crate) fn print_all(as_json: bool) -> anyhow::Result<ExitCode> {
    if as_json {
        let models = SUGGESTIONS.map(|model| {
            let [all, active] = model.parameters;
            json!({
                "model": model.id,
                "encoding": model.encoding,
                "ram_gib": model.ram,
                "disk_gib": model.disk,
                "billions": all,
                "billions_per_token": active,
                "command": model.command(),
            })
        });
        print_json(&json!(models))?;
    } else {
        print(&text(SystemMemory::now().map(|memory| memory.total)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The models as a table. The best for a machine with so much memory is named.
fn text(memory: Option<u64>) -> String {
    let mut cells = Vec::new();
    let mut fitting = String::new();
    for model in &SUGGESTIONS {
        let [all, active] = model.parameters;
        cells.push(vec![
            format!("{} GiB", model.ram),
            format!("{} GiB", model.disk),
            format!("{all} B"),
            format!("{active} B"),
            model.command(),
        ]);
        if memory.is_some_and(|memory| model.ram <= memory / GIB + KEPT) {
            fitting = format!("\nfor this machine: {}\n", model.command());
        }
    }
    let heading = ["memory", "disk", "weights", "a token", "<command"];
    format!(
        "models to begin with; `sws pull OWNER/NAME` takes any of a supported family\n\n{}{fitting}",
        table(&heading, &cells)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_for_the_machine_is_named() {
        for (gib, marked) in [
            (4, None),
            (8, Some("gemma-4-26B-A4B-it --as q4")),
            (15, Some("Qwen3.6-35B-A3B --as q4")),
            (31, Some("Qwen3.6-35B-A3B")),
            (500, Some("Flash-Next --as q4")),
        ] {
            let text = text(Some(gib * GIB));
            let line = text.lines().find(|line| line.starts_with("for this machine: "));
            match marked {
                None => assert_eq!(line, None),
                Some(name) => assert!(line.unwrap().ends_with(name), "{gib}: {text}"),
            }
            assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        }
        assert!(!text(None).contains("this machine"));
    }
}
