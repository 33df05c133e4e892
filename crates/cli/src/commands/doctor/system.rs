//! Checks of the system: memory, limits, folders.

use std::path::Path;

use sws::{Model, Options, Planning, TextCodec};
use sws_engine::Plan;
use sws_format::Piece;
use sws_hub::Library;
use sws_os::limits::ProcessLimits;
use sws_os::machine::{self, HUGE_PAGES};
use sws_os::space;
use sws_store::{LimitSource, SystemMemory, open_file_limit, user_cache};

use super::DoctorLine;
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

pub(super) fn memory() -> DoctorLine {
    let check = "memory";
    let Some(SystemMemory { total, available, holder }) = SystemMemory::now() else {
        return DoctorLine::ok(check, "unknown");
    };
    let found = format!("{} of {} free, as {holder} has it", size(available), size(total));
    match available < LITTLE {
        true => DoctorLine::hurts(
            check,
            found,
            "close other programs, or raise the limit of the control group",
        ),
        false => DoctorLine::ok(check, found),
    }
}

/// Compares the smallest budget of a model with the memory that is free.
pub(super) fn memory_for(model: &Model) -> DoctorLine {
    let check = "memory for the model";
    let (least, all) = match needs(model) {
        Ok(needs) => needs,
        Err(error) => return DoctorLine::hurts(check, "unknown", error.to_string()),
    };
    let mut found = format!("at least {}", size(least));
    if let Some(all) = all {
        found += &format!(", and no reads of weights from about {} on", size(all));
    }
    let free = available().unwrap_or(u64::MAX);
    match free < least {
        true => DoctorLine::hurts(
            check,
            found,
            "it does not run here: close other programs, or take a smaller model",
        ),
        false => DoctorLine::ok(check, found),
    }
}

/// The smallest budget of a model, and one in which all its weights have room beside everything else,
/// little above the smallest of those.
fn needs(model: &Model) -> anyhow::Result<(u64, Option<u64>)> {
    let threads = threads(None)?;
    let loader = model.with(Options::default()).text(TextCodec::open(model)?).threads(&threads);
    let Planning { planner, .. } = loader.planning()?;
    let least = planner.minimum();
    let weights = planner.weights();
    // More than enough: slots are at most twice as large as what they hold, and chunks of prompts take a
    // share.
    let most = least.saturating_add(weights.saturating_mul(2)).saturating_add(GIB);
    let all = match reads_nothing(&planner.plan(most)?) {
        true => Some(planner.smallest_with(most, (weights / 64).max(MIB), reads_nothing)?),
        false => None,
    };
    Ok((least, all))
}

fn reads_nothing(plan: &Plan) -> bool {
    plan.per_token.is_in_memory()
}

/// Memory that is free, if the system says so.
fn available() -> Option<u64> {
    Some(SystemMemory::now()?.available)
}

pub(super) fn control_group() -> DoctorLine {
    let found = match SystemMemory::now() {
        Some(SystemMemory { holder: LimitSource::Cgroup(dir), total, available }) => {
            format!("`{}` leaves {} of {}", dir.display(), size(available), size(total))
        }
        Some(SystemMemory { holder: LimitSource::Job, total, available }) => {
            format!("the job object leaves {} of {}", size(available), size(total))
        }
        _ => "none that limits memory further".to_owned(),
    };
    DoctorLine::ok("control group", found)
}

pub(super) fn huge_pages() -> DoctorLine {
    let check = "huge pages";
    let Some(mode) = machine::huge_pages() else {
        return DoctorLine::ok(check, "not in this kernel");
    };
    match mode.as_str() {
        "never" => {
            let remedy = format!("reads are slower: `echo madvise > {HUGE_PAGES}` as root");
            DoctorLine::hurts(check, mode, remedy)
        }
        _ => DoctorLine::ok(check, mode),
    }
}

/// All memory of a budget is reserved as address space first.
pub(super) fn address_space() -> DoctorLine {
    let check = "address space";
    let Some(limit) = ProcessLimits::now().address_space else {
        return DoctorLine::ok(check, "no limit");
    };
    let found = format!("limited to {}", size(limit));
    let needed = match available() {
        Some(free) => free.saturating_add(BESIDES),
        None => 0,
    };
    match limit < needed {
        true => {
            let remedy = "it is less than the memory that is free, and budgets above it fail: raise it (`ulimit -v unlimited`)";
            DoctorLine::hurts(check, found, remedy)
        }
        false => DoctorLine::ok(check, found),
    }
}

pub(super) fn locked_memory() -> DoctorLine {
    let found = match ProcessLimits::now().locked {
        None => "no limit".to_owned(),
        Some(limit) => format!("limited to {}; no memory is locked", size(limit)),
    };
    DoctorLine::ok("locked memory", found)
}

pub(super) fn open_files(model: Option<&Model>) -> DoctorLine {
    let check = "open files";
    let limit = open_file_limit();
    let files = match model {
        Some(model) => model.manifest().files.len(),
        None => FEW_FILES,
    };
    let found = match model {
        Some(_) => format!("up to {limit} for {files} files of the model"),
        None => format!("up to {limit} for weights"),
    };
    match limit < files.min(MOST_FILES) {
        true => DoctorLine::hurts(
            check,
            found,
            "files are opened again and again: raise it (`ulimit -n 8192`)",
        ),
        false => DoctorLine::ok(check, found),
    }
}

/// The folder for records of what runs learn and of files without checksums.
pub(super) fn cache() -> DoctorLine {
    let check = "cache";
    let Some(dir) = user_cache() else {
        let remedy = "runs remember nothing: set HOME or XDG_CACHE_HOME";
        return DoctorLine::hurts(check, "no folder", remedy);
    };
    // It is made when it is first needed.
    let existing = existing(&dir).unwrap_or(Path::new("/"));
    if !space::can_write(existing) {
        let remedy = "runs remember nothing: set XDG_CACHE_HOME to a folder that you may write to";
        return DoctorLine::hurts(check, format!("`{}` cannot be written", dir.display()), remedy);
    }
    match free(existing) {
        Some(bytes) if bytes < RECORDS => DoctorLine::hurts(
            check,
            format!("{} free for `{}`", size(bytes), dir.display()),
            "runs may remember nothing: make room, or set XDG_CACHE_HOME to a folder on another disk",
        ),
        Some(bytes) => {
            DoctorLine::ok(check, format!("{} free for `{}`", size(bytes), dir.display()))
        }
        None => DoctorLine::ok(check, format!("`{}`, space unknown", dir.display())),
    }
}

/// Space beside a model; of a checkpoint, compared with the shards that could be made of it.
pub(super) fn space(model: &Model) -> DoctorLine {
    let check = "space beside the model";
    let Some(bytes) = free(model.dir()) else { return DoctorLine::ok(check, "unknown") };
    let stored = model.manifest().pieces.iter().map(Piece::stored_bytes).sum::<u64>();
    // bf12 takes three quarters of bf16.
    let shards = stored / 4 * 3;
    match model.is_sharded() {
        false if bytes < shards => DoctorLine::hurts(
            check,
            format!("{}, and shards take {} or more", size(bytes), size(shards)),
            "make shards on another disk (`sws shard --out`), or run the checkpoint as it is",
        ),
        _ => DoctorLine::ok(check, size(bytes)),
    }
}

/// Space where models are downloaded to.
pub(super) fn space_for_models() -> DoctorLine {
    let check = "space for models";
    let bytes = match Library::of_process() {
        Some(library) => existing(library.dir()).and_then(free),
        None => None,
    };
    match bytes {
        Some(bytes) => DoctorLine::ok(check, size(bytes)),
        None => DoctorLine::ok(check, "unknown"),
    }
}

/// The directory, or its nearest parent that exists.
fn existing(dir: &Path) -> Option<&Path> {
    dir.ancestors().find(|dir| dir.exists())
}

fn free(dir: &Path) -> Option<u64> {
    // A file system that has no blocks, such as /proc, has no room for files.
    Some(space::free(dir).ok()?.unwrap_or(0))
}
