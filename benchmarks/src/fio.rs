//! Random reads of a model's files with fio, in the same pattern as the store's.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// Maximum number of model files to open.
const FILES: usize = 64;

/// The system's count of reserved huge pages.
const HUGE_PAGES: &str = "/proc/sys/vm/nr_hugepages";

/// True if fio can be run.
pub fn available() -> bool {
    Command::new("fio").arg("--version").output().is_ok_and(|output| output.status.success())
}

/// True if the system has reserved huge pages.
pub fn has_huge_pages() -> bool {
    std::fs::read_to_string(HUGE_PAGES).is_ok_and(|pages| pages.trim() != "0")
}

/// Bytes per second of random reads from the largest files in the directory `model`, `bytes` in
/// all. The reads bypass the page cache, 4 of 1 MiB in flight, into huge pages if `huge_pages`.
pub fn random_reads(model: &Path, bytes: u64, huge_pages: bool) -> Result<f64> {
    let mut files = Vec::new();
    for entry in model.read_dir()? {
        let entry = entry?;
        files.push((entry.metadata()?.len(), entry.path()));
    }
    files.sort();
    let mut names = Vec::new();
    for (length, path) in files.iter().rev().take(FILES) {
        if *length >= 1 << 20 {
            names.push(path.display().to_string());
        }
    }
    ensure!(!names.is_empty(), "`{}` holds nothing that fio could read", model.display());
    let mut words: Vec<String> = [
        "--name=experts",
        "--ioengine=io_uring",
        "--direct=1",
        "--rw=randread",
        "--bs=1M",
        "--iodepth=4",
        "--output-format=json",
        "--randrepeat=0",
        "--readonly",
    ]
    .map(str::to_owned)
    .to_vec();
    words.push(format!("--filename={}", names.join(":")));
    words.push(format!("--io_size={bytes}"));
    if huge_pages {
        words.push("--iomem=mmaphuge".to_owned());
    }
    let output = Command::new("fio").args(words.iter().map(OsStr::new)).output();
    let output = output.context("fio can not be run; install it with `apt install fio`")?;
    ensure!(output.status.success(), "fio: {}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout)?;
    report["jobs"][0]["read"]["bw_bytes"].as_f64().context("fio's report has changed")
}
