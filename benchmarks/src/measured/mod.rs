//! The page of measurements, docs/measured.md, from the files of `sws bench` in `benchmarks/measured`.

mod file;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::paired;

pub use file::{Measured, MeasuredRound};

const OPENING: &str = "\
# Measured

Speeds of `sws bench`, as the people who ran it tell them: a row for each machine, model and budget, with medians of its
rounds. The text is the same everywhere, and `sws bench MODEL --check FILE` recomputes it bit by bit. Speeds cannot be
recomputed. *Drive* is the share of the speed that the drive had in a probe just before, *others* the share of the
processors that other programs had, *cold* the speed without what earlier runs learned.

To add yours: `sws bench MODEL --out FILE`, then the issue template *Measurement*. `sws-bench measured >
docs/measured.md` writes this page from [benchmarks/measured](../benchmarks/measured), and a test fails when it is not up
to date.

| file | processor, tier, threads | disk, memory GB/s | model, encoding, GiB | budget, GiB | tok/s | cold | first token, s | MB a token | drive | hits | peak, GiB | others |
|---|---|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|
";

/// The committed files.
pub fn files() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("measured")
}

/// Writes the page for all files in `dir`, in the order of their names.
pub fn page(dir: &Path) -> Result<String> {
    let told = || format!("cannot read the directory `{}`", dir.display());
    let entries = dir.read_dir().with_context(told)?;
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.with_context(told)?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            paths.push(path);
        }
    }
    paths.sort();
    ensure!(!paths.is_empty(), "`{}` has no measurements; add files of `sws bench`", dir.display());
    let mut page = OPENING.to_owned();
    for path in paths {
        let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || !name.chars().all(plain) {
            bail!("`{}` has another name than letters, digits, - and _; rename it", path.display());
        }
        let measured = Measured::read(&path)?;
        for ram in measured.budgets() {
            page += &row(name, &measured, ram)?;
        }
    }
    Ok(page)
}

fn row(name: &str, measured: &Measured, ram: &str) -> Result<String> {
    let warm = measured.rounds_of(ram, "warm");
    let cold = measured.rounds_of(ram, "cold");
    let of = |value: fn(&MeasuredRound) -> Option<f64>| median(&warm, value);
    let about = &measured.machine;
    let mut row = String::new();
    write!(
        row,
        "| [{name}](../benchmarks/measured/{name}.json) | {}, {}, {} | {}, {} |",
        about.processor.as_deref().unwrap_or("unknown"),
        about.tier,
        warm.first().map_or(0, |round| round.threads),
        gigabytes(about.measured.disk_bytes_per_second),
        gigabytes(about.measured.memory_bytes_per_second),
    )?;
    let model = &measured.model;
    write!(
        row,
        " {}, {}, {} | {} |",
        model.model_type,
        model.encoding.as_deref().unwrap_or("in place"),
        gib(model.weight_bytes as f64),
        gib(of(|round| Some(round.ram_bytes as f64)).unwrap_or(0.0)),
    )?;
    let drive = about.measured.disk_bytes_per_second;
    let read = of(|round| Some(round.disk_gb_per_second));
    writeln!(
        row,
        " {} | {} | {} | {} | {} | {} | {} | {} |",
        number(of(|round| Some(round.tokens_per_second))),
        number(median(&cold, |round| Some(round.tokens_per_second))),
        number(of(|round| Some(round.first_token_seconds))),
        number(of(|round| Some(round.bytes_per_token / 1e6))),
        percent(drive.zip(read).map(|(drive, read)| 1e9 * read / drive)),
        percent(of(|round| round.hit_rate)),
        gib(of(|round| Some(round.peak_rss_bytes as f64)).unwrap_or(0.0)),
        percent(of(|round| round.others_share)),
    )?;
    Ok(row)
}

fn gib(bytes: f64) -> String {
    format!("{:.2}", bytes / f64::from(1 << 30))
}

fn gigabytes(bytes: Option<f64>) -> String {
    number(bytes.map(|bytes| bytes / 1e9))
}

fn percent(share: Option<f64>) -> String {
    share.map_or("–".to_owned(), |share| format!("{:.0} %", 100.0 * share))
}

fn number(value: Option<f64>) -> String {
    value.map_or("–".to_owned(), digits)
}

fn median(rounds: &[&MeasuredRound], value: fn(&MeasuredRound) -> Option<f64>) -> Option<f64> {
    let values: Vec<f64> = rounds.iter().filter_map(|round| value(round)).collect();
    (!values.is_empty()).then(|| paired::median(values))
}

/// Two digits that count, or all before the point.
fn digits(number: f64) -> String {
    let decimals = match number {
        _ if number >= 9.95 || number == 0.0 => 0,
        _ if number >= 0.995 => 1,
        _ => 2,
    };
    format!("{number:.decimals$}")
}
