//! `sws doctor`.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::ExitCode;

use rustix::fs::{OFlags, statvfs};
use serde::Serialize;
use sws::Model;
use sws_kernels::{
    EncodedRows, Encoder, Encoding, Matrix, Scratch, Source, TIER_VARIABLE, Tier, matmul,
};
use sws_store::{Clock, Limits, Memory, ReaderKind, open_file_limit, probe, user_cache};

use super::{print_report, size};
use crate::table::table;
use crate::{FAILED, args, model};

const MIB: u64 = 1 << 20;
/// Memory below which few models run.
const LITTLE: u64 = 256 * MIB;
/// Open files that suffice for most models.
const FEW_FILES: usize = 256;
const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// One check.
#[derive(Debug, Serialize)]
struct Line {
    check: &'static str,
    /// True if something will be slow or fail.
    hurts: bool,
    found: String,
    /// Only where it hurts.
    remedy: Option<String>,
}

#[derive(Debug, Serialize)]
struct Report {
    checks: Vec<Line>,
    hurts: bool,
}

pub(crate) fn run(args: &args::Doctor) -> anyhow::Result<ExitCode> {
    let mut checks = vec![processor(), bits(), memory(), huge_pages()];
    checks.extend(address_space());
    match &args.model {
        None => checks.push(open_files(None)),
        Some(name) => {
            let model = model::open(Some(name))?;
            checks.push(open_files(Some(&model)));
            checks.push(direct_reads(&model));
            checks.extend(readers(&model));
            checks.push(space("space beside the model", model.dir()));
        }
    }
    checks.extend(
        user_cache().filter(|dir| dir.exists()).map(|dir| space("space for records", &dir)),
    );
    let hurts = checks.iter().any(|line| line.hurts);
    let report = Report { checks, hurts };
    print_report(args.json, &report, || report.text())?;
    Ok(if hurts { ExitCode::from(FAILED) } else { ExitCode::SUCCESS })
}

impl Report {
    fn text(&self) -> String {
        let cells = |line: &Line| {
            let state = if line.hurts { "hurts" } else { "ok" };
            vec![line.check.to_owned(), state.to_owned(), line.found.clone()]
        };
        let rows: Vec<_> = self.checks.iter().map(cells).collect();
        let mut text = table(&["check", "<", "<found"], &rows);
        for line in &self.checks {
            if let Some(remedy) = &line.remedy {
                text += &format!("\n{}: {remedy}", line.check);
            }
        }
        if self.hurts { text + "\n" } else { text }
    }
}

impl Line {
    fn ok(check: &'static str, found: impl Into<String>) -> Line {
        Line { check, hurts: false, found: found.into(), remedy: None }
    }

    fn hurts(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Line {
        Line { check, hurts: true, found: found.into(), remedy: Some(remedy.into()) }
    }
}

fn processor() -> Line {
    let check = "kernels";
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let best = Tier::best();
    let chosen = match Tier::from_env() {
        Ok(tier) => tier,
        Err(error) => {
            return Line::hurts(check, error.to_string(), format!("unset {TIER_VARIABLE}"));
        }
    };
    let found = format!("{chosen}, {cores} cores");
    if chosen.name() != best.name() {
        return Line::hurts(check, found, format!("{best} is faster here; unset {TIER_VARIABLE}"));
    }
    // Other architectures have no faster tier.
    if cfg!(target_arch = "x86_64") && best.name() == "portable" {
        return Line::hurts(
            check,
            found,
            "computing is slow on a CPU without AVX2; use a newer one",
        );
    }
    Line::ok(check, found)
}

/// Compares the bits of all tiers.
fn bits() -> Line {
    let check = "bits";
    const ENCODINGS: [Encoding; 6] =
        [Encoding::F32, Encoding::F16, Encoding::Bf16, Encoding::Q8, Encoding::Q4, Encoding::Fp8];
    let tiers = Tier::available();
    for encoding in ENCODINGS {
        let mut scalar: Option<Vec<u32>> = None;
        for &tier in [Tier::Scalar].iter().chain(&tiers) {
            let Some(found) = product(encoding, tier) else { continue };
            if *scalar.get_or_insert_with(|| found.clone()) != found {
                let found = format!("{tier} and scalar kernels differ in {encoding}");
                let remedy = "use `--tier scalar`, test the memory of this machine, and report it with the CPU's name";
                return Line::hurts(check, found, remedy);
            }
        }
    }
    let names: Vec<&str> = tiers.iter().map(|tier| tier.name()).collect();
    Line::ok(check, format!("the same in {}", names.join(", ")))
}

/// Bits of a product of fixed numbers; `None` if no matrix can be encoded so.
fn product(encoding: Encoding, tier: Tier) -> Option<Vec<u32>> {
    const ROWS: usize = 128;
    const COLS: usize = 167;
    const TOKENS: usize = 3;
    let number = |i: usize| {
        let mixed = (i as u32).wrapping_mul(2_654_435_761).rotate_left(11);
        (mixed >> 8) as f32 / 8_388_608.0 - 1.0
    };
    let weights: Vec<u8> = (0..ROWS * COLS).flat_map(|i| number(i).to_le_bytes()).collect();
    let mut encoded = EncodedRows::default();
    Encoder::new(encoding, Source::F32, COLS).ok()?.encode(&weights, &mut encoded).ok()?;
    let parts: Vec<&[u8]> = encoded.parts.iter().map(Vec::as_slice).collect();
    let matrix = Matrix::new(encoding, ROWS, COLS, &parts).ok()?;
    let x: Vec<f32> = (0..TOKENS * COLS).map(|i| number(i + 7)).collect();
    let mut y = vec![0.0; TOKENS * ROWS];
    matmul(tier, &matrix, &x, TOKENS, &mut y, &mut Scratch::new());
    Some(y.iter().map(|y| y.to_bits()).collect())
}

fn memory() -> Line {
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

fn huge_pages() -> Line {
    let check = "huge pages";
    let Ok(text) = std::fs::read_to_string(HUGE_PAGES) else {
        return Line::ok(check, "not in this kernel");
    };
    let mode = text.split(['[', ']']).nth(1).unwrap_or("unknown").to_owned();
    match mode.as_str() {
        "never" => {
            let remedy =
                format!("reading takes more CPU time: `echo madvise > {HUGE_PAGES}` as root");
            Line::hurts(check, mode, remedy)
        }
        _ => Line::ok(check, mode),
    }
}

/// Memory is reserved as address space first.
fn address_space() -> Option<Line> {
    let limit = Limits::now().address_space?;
    let remedy = "budgets above it fail: raise it (`ulimit -v unlimited`)";
    Some(Line::hurts("address space", format!("limited to {}", size(limit)), remedy))
}

fn open_files(model: Option<&Model>) -> Line {
    let check = "open files";
    let limit = open_file_limit();
    let files = model.map_or(FEW_FILES, |model| model.manifest().files.len());
    let found = match model {
        Some(_) => format!("up to {limit} for {files} files of the model"),
        None => format!("up to {limit} for weights"),
    };
    match limit < files.min(4096) {
        true => Line::hurts(
            check,
            found,
            "files are opened again and again: raise it (`ulimit -n 8192`)",
        ),
        false => Line::ok(check, found),
    }
}

fn direct_reads(model: &Model) -> Line {
    let check = "direct reads";
    let Some(file) = model.manifest().files.first() else { return Line::ok(check, "no files") };
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(OFlags::DIRECT.bits() as i32);
    match options.open(model.dir().join(&file.path)) {
        Ok(_) => Line::ok(check, "O_DIRECT works"),
        Err(error) => Line::hurts(
            check,
            format!("refused by the file system: {error}"),
            "reads go through the page cache, which counts as memory: move the model to ext4, xfs or btrfs",
        ),
    }
}

/// Speeds of the readers, each at its best depth.
fn readers(model: &Model) -> Vec<Line> {
    let report = probe(model.manifest(), model.dir(), &Clock::real(), None);
    let speed = |kind: ReaderKind, check: &'static str| {
        let figures = report.figures.iter().filter(|figure| figure.reader == kind);
        let best = figures.max_by(|a, b| a.bytes_per_second.total_cmp(&b.bytes_per_second));
        best.map(|best| {
            let speed = size(best.bytes_per_second as u64);
            Line::ok(check, format!("{speed}/s with {} reads of 1 MiB in flight", best.depth))
        })
    };
    let direct = speed(ReaderKind::Direct, "reader direct").unwrap_or_else(|| {
        let remedy = "check the disk and the permissions, and `sws verify` the model";
        Line::hurts("reader direct", "cannot read the model", remedy)
    });
    // The default reader does without io_uring.
    let uring = speed(ReaderKind::Uring, "reader uring")
        .unwrap_or_else(|| Line::ok("reader uring", "not measured or not available; not needed"));
    vec![direct, uring]
}

fn space(check: &'static str, dir: &Path) -> Line {
    match statvfs(dir) {
        Ok(found) => Line::ok(check, size(found.f_bavail.saturating_mul(found.f_frsize))),
        Err(error) => Line::ok(check, format!("unknown ({error})")),
    }
}
