//! Runs of llama.cpp.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use sws_testing::cgroup::Group;

use super::child::output;

/// Settings of a `llama-completion` run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Means {
    pub(super) tokens: u32,
    pub(super) threads: u32,
    /// Memory limit, page cache included.
    pub(super) limit: Option<u64>,
    /// True if an identical run first warms up the page cache, which otherwise starts empty.
    pub(super) warm: bool,
}

/// Seconds per token of `llama-completion`.
pub(super) fn llama(program: &Path, gguf: &Path, prompt: &Path, means: Means) -> Result<f64> {
    let Means { tokens, threads, limit, warm } = means;
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
    if warm {
        output(program, &arguments, group.as_ref())?;
    }
    let output = output(program, &arguments, group.as_ref())?;
    let report = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        let last: Vec<_> = report.lines().rev().take(3).collect();
        bail!("`{}` ({}): {}", program.display(), output.status, last.join(" | "));
    }
    eval_time(&report).context("llama.cpp reports no `eval time`")
}

/// Seconds per run from `eval time = 123.4 ms / 5 runs`, not from the line of the prompt.
fn eval_time(report: &str) -> Option<f64> {
    let mut lines = report.lines().filter(|line| !line.contains("prompt eval time"));
    let (_, rest) = lines.find_map(|line| line.split_once(" eval time ="))?;
    let (time, rest) = rest.split_once("ms /")?;
    let runs = rest.split_whitespace().next()?;
    Some(time.trim().parse::<f64>().ok()? / 1e3 / runs.parse::<f64>().ok()?)
}

/// Drops the page cache. Cached files would be in memory that is charged to no group.
fn drop_page_cache() -> Result<()> {
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "3").context(
        "the page cache, which llama.cpp reads through, cannot be dropped; run as root, or leave out --llama",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eval_time_is_not_that_of_the_prompt() {
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
