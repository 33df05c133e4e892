//! Instructions that two builds execute per token, counted by valgrind: the same on every run,
//! unlike time.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::stream::senseless;

/// A case, with the tokens of a short and a long run: their difference excludes start-up.
struct Case {
    name: &'static str,
    tokens: [u32; 2],
    arguments: fn(u32) -> [String; 4],
}

const CASES: [Case; 2] = [
    Case { name: "a token of a text", tokens: [8, 40], arguments: text },
    Case { name: "a token of a prompt", tokens: [16, 272], arguments: prompt },
];

fn text(tokens: u32) -> [String; 4] {
    ["--prompt", "Once", "--max-new-tokens", &tokens.to_string()].map(str::to_owned)
}

fn prompt(tokens: u32) -> [String; 4] {
    ["--tokens", &senseless(tokens), "--max-new-tokens", "1"].map(str::to_owned)
}

/// Counts and prints a table. Returns false if the new program executes more than 1 / `bar` times
/// as many instructions.
pub(super) fn run(programs: &[PathBuf; 2], tales: &Path, scratch: &Path, bar: f64) -> Result<bool> {
    let mut met = true;
    println!("| case | old | new | new/old |\n|---|---:|---:|---:|");
    for case in CASES {
        let mut each = [0.0; 2];
        for (program, each) in programs.iter().zip(&mut each) {
            let [short, long] = case.tokens;
            let count = |tokens| counted(program, tales, scratch, (case.arguments)(tokens));
            *each = (count(long)? as f64 - count(short)? as f64) / f64::from(long - short);
        }
        let [old, new] = each;
        ensure!(old > 0.0, "a longer run executes no more instructions, so nothing was counted");
        println!("| {} | {old:.0} | {new:.0} | {:.4} |", case.name, new / old);
        met &= new * bar <= old;
    }
    Ok(met)
}

/// Instructions of a run on one thread.
fn counted(program: &Path, tales: &Path, scratch: &Path, arguments: [String; 4]) -> Result<u64> {
    let report = scratch.join("callgrind.out");
    let mut valgrind = Command::new("valgrind");
    valgrind.arg("--tool=callgrind").arg("-q");
    valgrind.arg(format!("--callgrind-out-file={}", report.display()));
    valgrind.arg(program).arg("run").arg(tales).args(arguments);
    valgrind.args(["--resident", "--threads", "1", "--context", "640", "--no-warm-start"]);
    valgrind.args(["--temperature", "0", "--ignore-eos", "--json"]);
    if cfg!(target_arch = "x86_64") {
        // The widest tier that valgrind supports.
        valgrind.env("SWS_TIER", "avx2");
    }
    let output = valgrind.output().context("cannot start valgrind; install it first")?;
    if !output.status.success() {
        bail!("`sws` failed under valgrind: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let text = std::fs::read_to_string(&report)
        .with_context(|| format!("cannot read `{}`", report.display()))?;
    let total = text.lines().find_map(|line| line.strip_prefix("totals:"));
    let total = total.and_then(|total| total.trim().parse().ok());
    total.with_context(|| format!("`{}` has no total", report.display()))
}
