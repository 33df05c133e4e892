//! Runs of llama.cpp, through its own `llama-bench`.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// Tokens per second of llama.cpp.
#[derive(Clone, Copy, Debug)]
pub(super) struct Speed {
    pub(super) prompt: f64,
    pub(super) generation: f64,
}

/// Runs `llama-bench` once: a warm-up, a prompt, a generation.
pub(super) fn llama_bench(
    program: &Path,
    gguf: &Path,
    threads: usize,
    (prompt, generated): (usize, usize),
) -> Result<Speed> {
    let output = Command::new(program)
        .arg("-m")
        .arg(gguf)
        .args(["-t", &threads.to_string(), "-p", &prompt.to_string(), "-n", &generated.to_string()])
        .args(["-r", "1", "-o", "json"])
        .output()
        .with_context(|| format!("cannot start `{}`", program.display()))?;
    if !output.status.success() {
        bail!("`{}`: {}", program.display(), String::from_utf8_lossy(&output.stderr).trim());
    }
    let runs: Vec<Value> = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("cannot parse the output of `{}`", program.display()))?;
    let rate = |key: &str| -> Result<f64> {
        let run = runs.iter().find(|run| run[key].as_u64().is_some_and(|n| n > 0));
        let rate = run.and_then(|run| run["avg_ts"].as_f64());
        let rate = rate.with_context(|| format!("llama-bench reports no speed for `{key}`"))?;
        ensure!(rate > 0.0, "llama-bench reports a speed of {rate}");
        Ok(rate)
    };
    Ok(Speed { prompt: rate("n_prompt")?, generation: rate("n_gen")? })
}
