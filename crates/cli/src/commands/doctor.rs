//! `sws doctor`.

mod bits;
mod cards;
mod disk;
mod drive;
mod system;

use std::process::ExitCode;

pub(super) use disk::readers;
use serde::Serialize;
use sws::Model;
use sws_kernels::{TIER_VARIABLE, Tier};

use super::print_report;
use crate::exit::FAILED;
use crate::here::newest;
use crate::table::{table, wrapped, wrapped_at};
use crate::{args, here, model};

/// Heading of the last column.
const FOUND: &str = "found";

/// One check.
#[derive(Debug, Serialize)]
struct DoctorLine {
    check: &'static str,
    /// True if something will be slow or fail.
    hurts: bool,
    found: String,
    /// Only where it hurts.
    remedy: Option<String>,
}

#[derive(Debug, Serialize)]
struct DoctorReport {
    checks: Vec<DoctorLine>,
    hurts: bool,
}

pub(crate) fn run(args: &args::Doctor) -> anyhow::Result<ExitCode> {
    let model = match args.model.as_deref() {
        Some(name) => Some(model::open(Some(name))?),
        None => None,
    };
    let mut checks = vec![
        processor(),
        bits::line(),
        system::memory(),
        system::control_group(),
        system::huge_pages(),
        system::address_space(),
        system::locked_memory(),
        system::open_files(model.as_ref()),
        system::cache(),
    ];
    // Drivers take memory, which runs without a card do not.
    let needed = model.as_ref().map(system::memory_for);
    checks.extend(cards::lines());
    checks.extend(needed);
    if let Some(model) = &model {
        checks.push(system::space(model));
        // Shards that are elsewhere say nothing about the disk.
        if model.supplier().is_none() {
            checks.extend(disk::lines(model));
            checks.extend(drive::lines(model.dir()));
        }
    } else {
        checks.push(system::space_for_models());
        if let Some(any) = any_model() {
            checks.push(DoctorLine::ok("model read from disk", any.dir().display().to_string()));
            checks.extend(disk::lines(&any));
            checks.extend(drive::lines(any.dir()));
        }
    }
    let hurts = checks.iter().any(|line| line.hurts);
    let report = DoctorReport { checks, hurts };
    print_report(args.json, &report, DoctorReport::text)?;
    Ok(if hurts { ExitCode::from(FAILED) } else { ExitCode::SUCCESS })
}

/// The newest model of this machine, or the bundled one: its disk stands for that of others.
fn any_model() -> Option<Model> {
    for here in newest() {
        if let Some(path) = here.path
            && let Ok(model) = model::open(Some(&path))
        {
            return Some(model);
        }
    }
    let bundled = here::bundled_files().ok()??;
    model::open(Some(&bundled)).ok()
}

impl DoctorReport {
    fn text(&self) -> String {
        let rows: Vec<_> = self.checks.iter().map(DoctorLine::cells).collect();
        let text = table(&["check", "<", &format!("<{FOUND}")], &rows);
        let column = text.find(FOUND).unwrap_or(0);
        let mut text = wrapped_at(column, &text);
        for line in &self.checks {
            if let Some(remedy) = &line.remedy {
                text += &format!("\n{}", wrapped(&format!("{}: {remedy}\n", line.check)));
            }
        }
        text
    }
}

impl DoctorLine {
    fn cells(&self) -> Vec<String> {
        let state = if self.hurts { "hurts" } else { "ok" };
        vec![self.check.to_owned(), state.to_owned(), self.found.clone()]
    }

    fn ok(check: &'static str, found: impl Into<String>) -> DoctorLine {
        DoctorLine { check, hurts: false, found: found.into(), remedy: None }
    }

    fn hurts(
        check: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> DoctorLine {
        DoctorLine { check, hurts: true, found: found.into(), remedy: Some(remedy.into()) }
    }
}

fn processor() -> DoctorLine {
    let check = "kernels";
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let best = Tier::best();
    let chosen = match Tier::from_env() {
        Ok(tier) => tier,
        Err(error) => {
            return DoctorLine::hurts(check, error.to_string(), format!("unset {TIER_VARIABLE}"));
        }
    };
    let found = format!("{chosen}, {cores} cores");
    if chosen.name() != best.name() {
        return DoctorLine::hurts(
            check,
            found,
            format!("{best} is faster here; unset {TIER_VARIABLE}"),
        );
    }
    // Other architectures have no faster tier.
    if cfg!(target_arch = "x86_64") && best.name() == "portable" {
        return DoctorLine::hurts(
            check,
            found,
            "computing is slow on a CPU without AVX2; use a newer one",
        );
    }
    DoctorLine::ok(check, found)
}
