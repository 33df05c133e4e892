//! Checks of the system: memory, limits, folders.

use std::path::Path;

use rustix::fs::{Access, access, statvfs};
use sws::{Model, Options, Planning, Text};
use sws_engine::Plan;
use sws_hub::Library;
use sws_store::{Holder, Limits, Memory, open_file_limit, user_cache};

use super::Line;
use crate::commands::size;
use crate::limits::threads;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Memory below which few models run.
const LITTLE: u64 = 256 * MIB;
/// Address space that a process takes besides its budget.
const BESIDES: u64 = 512 * MIB;
/// Open files that suffice for most models.
const FEW_FILES: usize = 256;
/// Files that a reader keeps open at most.
const MOST_FILES: usize = 4096;
/// Space below which the records of runs may not fit.
const RECORDS: u64 = 64 * MIB;
const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

pub(super) fn memory() -> Line {
    let check = "memory";
    let Some(Memory { total, available, holder }) = Memory::now() else {
        return Line::ok(check, "unknown");
    };
    let found = format!("{} of {} free, as {holder} has it", size(available), size(total));
    match available < LITTLE {
        true => Line::hurts(
            check,
            found,
            "close other programs, or raise the limit of the control group",
        ),
        false => Line::ok(check, found),
    }
}

/// Compares the smallest budget of a model with the memory that is free.
pub(super) fn memory_for(model: &Model) -> Line {
    let check = "memory for the model";
    let (least, all) = match needs(model) {
        Ok(needs) => needs,
        Err(error) => return Line::hurts(check, "unknown", error.to_string()),
    };
    let mut found = format!("at least {}", size(least));
    found.extend(all.map(|all| format!(", and no reads of weights from about {} on", size(all))));
    let free = Memory::now().map_or(u64::MAX, |memory| memory.available);
    match free < least {
        true => Line::hurts(
            check,
            found,
            "it does not run here: close other programs, or take a smaller model",
        ),
        false => Line::ok(check, found),
    }
}

/// The smallest budget of a model, and one in which all its weights have room beside everything else,
/// little above the smallest of those.
fn needs(model: &Model) -> anyhow::Result<(u64, Option<u64>)> {
    let threads = threads(None)?;
    let loader = model.with(Options::default()).text(Text::open(model)?).threads(&threads);
    let Planning { planner, .. } = loader.planning()?;
    let (least, weights) = (planner.minimum(), planner.weights());
    let reads_nothing = |plan: &Plan| plan.per_token.is_in_memory();
    // More than enough: slots are at most twice as large as what they hold, and chunks of prompts take a
    // share.
    let most = least.saturating_add(weights.saturating_mul(2)).saturating_add(GIB);
    let all = match reads_nothing(&planner.plan(most)?) {
        true => Some(planner.smallest_with(most, (weights / 64).max(MIB), reads_nothing)?),
        false => None,
    };
    Ok((least, all))
}

pub(super) fn control_group() -> Line {
    let found = match Memory::now() {
        Some(Memory { holder: Holder::Cgroup(dir), total, available }) => {
            format!("`{}` leaves {} of {}", dir.display(), size(available), size(total))
        }
        _ => "none that limits memory further".to_owned(),
    };
    Line::ok("control group", found)
}

pub(super) fn huge_pages() -> Line {
    let check = "huge pages";
    let Ok(text) = std::fs::read_to_string(HUGE_PAGES) else {
        return Line::ok(check, "not in this kernel");
    };
    let mode = text.split(['[', ']']).nth(1).unwrap_or("unknown").to_owned();
    match mode.as_str() {
        "never" => {
            let remedy = format!("reads are slower: `echo madvise > {HUGE_PAGES}` as root");
            Line::hurts(check, mode, remedy)
        }
        _ => Line::ok(check, mode),
    }
}

/// All memory of a budget is reserved as address space first.
pub(super) fn address_space() -> Line {
    let check = "address space";
    let Some(limit) = Limits::now().address_space else { return Line::ok(check, "no limit") };
    let found = format!("limited to {}", size(limit));
    let needed = Memory::now().map_or(0, |memory| memory.available.saturating_add(BESIDES));
    match limit < needed {
        true => {
            let remedy = "it is less than the memory that is free, and budgets above it fail: raise it (`ulimit -v unlimited`)";
            Line::hurts(check, found, remedy)
        }
        false => Line::ok(check, found),
    }
}

pub(super) fn locked_memory() -> Line {
    let found = match Limits::now().locked {
        None => "no limit".to_owned(),
        Some(limit) => format!("limited to {}; no memory is locked", size(limit)),
    };
    Line::ok("locked memory", found)
}

pub(super) fn open_files(model: Option<&Model>) -> Line {
    let check = "open files";
    let limit = open_file_limit();
    let files = model.map_or(FEW_FILES, |model| model.manifest().files.len());
    let found = match model {
        Some(_) => format!("up to {limit} for {files} files of the model"),
        None => format!("up to {limit} for weights"),
    };
    match limit < files.min(MOST_FILES) {
        true => Line::hurts(
            check,
            found,
            "files are opened again and again: raise it (`ulimit -n 8192`)",
        ),
        false => Line::ok(check, found),
    }
}

/// The folder for records of what runs learn and of files without checksums.
pub(super) fn cache() -> Line {
    let check = "cache";
    let Some(dir) = user_cache() else {
        let remedy = "runs remember nothing: set HOME or XDG_CACHE_HOME";
        return Line::hurts(check, "no folder", remedy);
    };
    // It is made when it is first needed.
    let existing = dir.ancestors().find(|dir| dir.exists()).unwrap_or(Path::new("/"));
    if access(existing, Access::WRITE_OK).is_err() {
        let remedy = "runs remember nothing: set XDG_CACHE_HOME to a folder that you may write to";
        return Line::hurts(check, format!("`{}` cannot be written", dir.display()), remedy);
    }
    match free(existing) {
        Some(bytes) if bytes < RECORDS => Line::hurts(
            check,
            format!("{} free for `{}`", size(bytes), dir.display()),
            "runs may remember nothing: make room, or set XDG_CACHE_HOME to a folder on another disk",
        ),
        Some(bytes) => Line::ok(check, format!("{} free for `{}`", size(bytes), dir.display())),
        None => Line::ok(check, format!("`{}`, space unknown", dir.display())),
    }
}

/// Space beside a model; of a checkpoint, compared with the shards that could be made of it.
pub(super) fn space(model: &Model) -> Line {
    let check = "space beside the model";
    let Some(bytes) = free(model.dir()) else { return Line::ok(check, "unknown") };
    let stored = model.manifest().pieces.iter().map(|piece| piece.stored_bytes()).sum::<u64>();
    // bf12 takes three quarters of bf16.
    let shards = stored / 4 * 3;
    match model.is_sharded() {
        false if bytes < shards => Line::hurts(
            check,
            format!("{}, and shards take {} or more", size(bytes), size(shards)),
            "make shards on another disk (`sws shard --out`), or run the checkpoint as it is",
        ),
        _ => Line::ok(check, size(bytes)),
    }
}

/// Space where models are downloaded to.
pub(super) fn space_for_models() -> Line {
    let check = "space for models";
    let library = Library::of_process();
    let dir = library.as_ref().and_then(|it| it.dir().ancestors().find(|dir| dir.exists()));
    match dir.and_then(free) {
        Some(bytes) => Line::ok(check, size(bytes)),
        None => Line::ok(check, "unknown"),
    }
}

fn free(dir: &Path) -> Option<u64> {
    let found = statvfs(dir).ok()?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}
