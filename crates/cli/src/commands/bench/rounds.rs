//! Processes that continue the text.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output, Stdio};

use anyhow::{Context, anyhow, bail};
use serde_json::Value;
use sws::{Model, Others};
use sws_engine::RamBudget;

use super::board::BenchRound;
pub(super) use super::board::BenchStart;
use crate::args;
use crate::exit::REFUSED;

/// A text that is continued with the same options by each process.
pub(super) struct Continuing {
    program: PathBuf,
    /// Options that all processes have.
    options: Vec<OsString>,
}

/// The tokens of the text, and their certificate.
pub(super) struct CertifiedText {
    pub(super) tokens: Vec<u64>,
    pub(super) certificate: Value,
}

impl Continuing {
    pub(super) fn new(
        model: &Model,
        prompt: &[u32],
        args: &args::BenchArgs,
    ) -> anyhow::Result<Continuing> {
        let ids: Vec<String> = prompt.iter().map(u32::to_string).collect();
        let mut options: Vec<OsString> = vec!["run".into(), path_of(args, model)?.into()];
        for word in ["--json", "--ignore-eos", "--temperature", "0", "--tokens"] {
            options.push(word.into());
        }
        options.push(ids.join(",").into());
        options.push("-n".into());
        options.push(args.tokens.to_string().into());
        options.extend(threads(args));
        options.extend(copies(args));
        Ok(Continuing { program: program()?, options })
    }

    /// Continues the text once, with a certificate. This round is not measured: it is the first to read the
    /// model.
    pub(super) fn certified(&self, ram: RamBudget) -> anyhow::Result<CertifiedText> {
        let dir = tempfile::tempdir().context("a directory for the certificate")?;
        let file = dir.path().join("certificate.json");
        let told = self.process(ram, dir.path(), &["--certify".as_ref(), file.as_os_str()])?;
        let certificate = std::fs::read(&file).context("the certificate of the first round")?;
        let certificate = serde_json::from_slice(&certificate)?;
        Ok(CertifiedText { tokens: tokens(&told)?, certificate })
    }

    /// Continues the text and returns the numbers.
    pub(super) fn round(
        &self,
        round: u8,
        ram: RamBudget,
        start: BenchStart,
        learned: &Path,
        certified: &CertifiedText,
    ) -> anyhow::Result<BenchRound> {
        let others = Others::begin();
        let told = self.process(ram, learned, &[])?;
        let others_share = others.as_ref().and_then(Others::share);
        if tokens(&told)? != certified.tokens {
            bail!("round {round} at {ram} gave other tokens than the first; please report this");
        }
        let metrics = &told["metrics"];
        let cost = &metrics["cost"]["generation"];
        let kinds = cost["bytes_per_token"].as_object().ok_or_else(unprinted)?;
        Ok(BenchRound {
            round,
            start,
            ram: ram.to_string(),
            ram_bytes: number(&metrics["ram_bytes"])? as u64,
            threads: number(&metrics["threads"])? as u64,
            load_seconds: number(&metrics["load_seconds"])?,
            first_token_seconds: number(&metrics["first_token_seconds"])?,
            tokens_per_second: number(&metrics["generation"]["tokens_per_second"])?,
            bytes_per_token: kinds.values().filter_map(Value::as_f64).sum(),
            disk_gb_per_second: number(&cost["disk"]["gb_per_second"])?,
            hit_rate: cost["experts"]["hit_rate"].as_f64(),
            peak_rss_bytes: number(&metrics["peak_rss_bytes"])? as u64,
            others_share,
        })
    }

    /// Runs a process and returns what it printed.
    fn process(
        &self,
        ram: RamBudget,
        learned: &Path,
        more: &[&std::ffi::OsStr],
    ) -> anyhow::Result<Value> {
        let mut command = Command::new(&self.program);
        command.args(&self.options).arg("--ram").arg(ram.to_string()).args(more);
        // Without the user's defaults, nor what other runs learned.
        command.env("SWS_CONFIG", "").env("XDG_CACHE_HOME", learned);
        let Output { status, stdout, stderr } = command
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("`{}` cannot be started", self.program.display()))?;
        if !status.success() {
            let stderr = String::from_utf8_lossy(&stderr);
            let sentence = stderr.lines().rev().find_map(|line| line.strip_prefix("sws: "));
            bail!("a round ended early: {}", sentence.unwrap_or("it printed no reason"));
        }
        serde_json::from_slice(&stdout).context("the output of a round")
    }
}

/// Recomputes a certificate in a process that prints the outcome itself.
pub(super) fn certify(
    model: &Model,
    certificate: &Path,
    args: &args::BenchArgs,
) -> anyhow::Result<ExitCode> {
    let mut command = Command::new(program()?);
    let dir = certificate.parent().context("a certificate without a directory")?;
    let name = certificate.file_name().context("a certificate without a name")?;
    command.current_dir(dir).env("SWS_CONFIG", "");
    command.arg("certify").arg(Path::new(".").join(name));
    command.arg(std::path::absolute(path_of(args, model)?)?);
    command.arg("--ram").arg(args.ram[0].to_string()).args(threads(args));
    command.args(copies(args));
    if args.json {
        command.arg("--json");
    }
    let status = command.stdin(Stdio::null()).status().context("`sws certify`")?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.unwrap_or(REFUSED)))
}

fn program() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("the path of this program")
}

/// The path of the model: ids would be looked up in the cache directory, which rounds have of their own.
fn path_of(args: &args::BenchArgs, model: &Model) -> anyhow::Result<PathBuf> {
    match &args.model {
        Some(typed) => Ok(sws::locate(typed)?),
        None => Ok(model.dir().to_owned()),
    }
}

fn threads(args: &args::BenchArgs) -> Vec<OsString> {
    let Some(threads) = args.threads else { return Vec::new() };
    vec!["--threads".into(), threads.to_string().into()]
}

fn copies(args: &args::BenchArgs) -> Vec<OsString> {
    let mut words = Vec::new();
    for dir in &args.also {
        let absolute = std::path::absolute(dir).unwrap_or_else(|_| dir.clone());
        words.extend(["--also".into(), absolute.into()]);
    }
    words
}

fn number(value: &Value) -> anyhow::Result<f64> {
    value.as_f64().ok_or_else(unprinted)
}

fn unprinted() -> anyhow::Error {
    anyhow!("a round did not print all numbers")
}

fn tokens(told: &Value) -> anyhow::Result<Vec<u64>> {
    let tokens = told["tokens"].as_array().ok_or_else(unprinted)?;
    tokens.iter().map(token).collect()
}

fn token(value: &Value) -> anyhow::Result<u64> {
    value.as_u64().ok_or_else(unprinted)
}
