//! llama.cpp and fio.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::child::output;
use super::group::Group;

/// How many of a model's files fio opens.
const FILES: usize = 64;

/// Seconds a token of `llama-completion`, within a limit of memory beginning with an empty page cache.
pub(super) fn llama(
    program: &Path,
    gguf: &Path,
    prompt: &Path,
    (tokens, threads): (u32, u32),
    limit: Option<u64>,
) -> Result<f64> {
    let group = match limit {
        Some(limit) => {
            drop_page_cache()?;
            Some(Group::new("bench", limit).context(
            "llama.cpp has no budget of its own, and no control group that limits memory can be made here; run as root, or leave out --llama",
        )?)
        }
        None => None,
    };
    let words = [
        ["-n", &tokens.to_string()],
        ["-t", &threads.to_string()],
        ["--temp", "1"],
        ["--top-k", "40"],
        ["--top-p", "0.95"],
        ["--seed", "7"],
        ["-c", "1024"],
    ]
    .map(|pair| pair.map(str::to_owned))
    .concat();
    let mut arguments =
        vec![OsStr::new("-m"), gguf.as_os_str(), OsStr::new("-f"), prompt.as_os_str()];
    arguments.extend(words.iter().map(OsStr::new));
    arguments.extend(["-no-cnv", "--ignore-eos", "--no-warmup", "--perf"].map(OsStr::new));
    let output = output(program, &arguments, group.as_ref())?;
    let report = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        let last: Vec<_> = report.lines().rev().take(3).collect();
        bail!("`{}` ({}): {}", program.display(), output.status, last.join(" | "));
    }
    eval_time(&report).context("llama.cpp tells no `eval time`")
}

/// `eval time = 123.4 ms / 5 runs`, not that of the prompt: seconds a run.
fn eval_time(report: &str) -> Option<f64> {
    let mut lines = report.lines().filter(|line| !line.contains("prompt eval time"));
    let (_, rest) = lines.find_map(|line| line.split_once(" eval time ="))?;
    let (time, rest) = rest.split_once("ms /")?;
    let runs = rest.split_whitespace().next()?;
    Some(time.trim().parse::<f64>().ok()? / 1e3 / runs.parse::<f64>().ok()?)
}

/// Else files would be in memory that no group is charged for.
fn drop_page_cache() -> Result<()> {
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "3").context(
        "the page cache, which llama.cpp reads through, cannot be dropped; run as root, or leave out --llama",
    )
}

/// Bytes a second of fio's random reads of the model's largest files, like the store's: past the
/// page cache, 4 of 1 MiB in flight, in huge pages if asked for.
pub(super) fn fio(model: &Path, bytes: u64, huge_pages: bool) -> Result<f64> {
    let mut files = Vec::new();
    for entry in model.read_dir()? {
        let entry = entry?;
        files.push((entry.metadata()?.len(), entry.path()));
    }
    files.sort();
    let name = |(length, path): &(u64, std::path::PathBuf)| {
        (*length >= 1 << 20).then(|| path.display().to_string())
    };
    let names: Vec<_> = files.iter().rev().take(FILES).filter_map(name).collect();
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
    let output = output(Path::new("fio"), &words, None)?;
    ensure!(output.status.success(), "fio: {}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout)?;
    report["jobs"][0]["read"]["bw_bytes"].as_f64().context("fio's report has changed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_tokens_is_found_beside_that_of_the_prompt() {
        let cases = [
            (
                "x: prompt eval time =  50.00 ms / 5 tokens\nx:        eval time =  90.00 ms / 3 runs   (",
                Some(0.03),
            ),
            ("x: prompt eval time =  50.00 ms / 5 tokens\n", None),
            ("x:        eval time =  words ms / 3 runs", None),
        ];
        for (report, expected) in cases {
            assert_eq!(eval_time(report), expected, "{report}");
        }
    }
}
