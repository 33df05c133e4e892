//! Workloads for comparing versions.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sws_format::Clock;

use super::VersionsArguments;
use super::report::OLD_AND_NEW;
use crate::large;
use crate::sharding::settle;
use crate::stream::child::{Known, Task, ask, succeed};
use crate::stream::senseless;

#[derive(Debug)]
pub(super) struct Case {
    pub(super) name: &'static str,
    /// Chosen so that the interval of the median is about 1 % to either side, for runs that scatter
    /// as on the machine of docs/benchmarks.md. Many short runs are better than a few long ones:
    /// the speed of a process also depends on the placement of its memory.
    pub(super) pairs: u32,
    work: Work,
}

#[derive(Debug)]
enum Work {
    /// Greedy text of this many tokens.
    Text(Holding, u32),
    /// A prompt of this many tokens, with the large model in memory.
    Prompt(u32),
    /// Sharding of the large model.
    Sharding,
}

#[derive(Debug)]
enum Holding {
    /// The small model, in memory.
    Small,
    /// The small model within this many MiB.
    Within(u32),
    /// The large model, with room for this share of its experts.
    Share(f64),
}

pub(super) const CASES: [Case; 6] = [
    Case { name: "tales, resident", pairs: 128, work: Work::Text(Holding::Small, 512) },
    Case { name: "tales, 56 MiB", pairs: 128, work: Work::Text(Holding::Within(56), 256) },
    Case { name: "large experts, 50 %", pairs: 48, work: Work::Text(Holding::Share(0.5), 64) },
    Case { name: "large experts, 25 %", pairs: 48, work: Work::Text(Holding::Share(0.25), 64) },
    Case { name: "prompt of 512 tokens", pairs: 64, work: Work::Prompt(512) },
    Case { name: "sharding", pairs: 48, work: Work::Sharding },
];

/// Positions of the KV cache, the same for both versions.
const CONTEXT: u32 = 640;

/// A case with the models that it needs.
pub(super) struct Prepared {
    programs: [PathBuf; 2],
    kind: Kind,
    /// The arguments of `sws`, without the output directory.
    pub(super) arguments: Vec<OsString>,
}

enum Kind {
    /// Tokens per second from this part of the metrics.
    Tokens(&'static str),
    /// Checkpoint bytes per second when sharding into a directory of this name with a suffix.
    Bytes(u64, PathBuf),
}

/// Result of a run.
pub(super) struct Outcome {
    /// Speed in [`Prepared::unit`].
    pub(super) speed: f64,
    /// Results that must not depend on the version.
    pub(super) work: Value,
}

impl Case {
    pub(super) fn prepare(
        &self,
        arguments: &VersionsArguments,
        programs: &[PathBuf; 2],
    ) -> Result<Prepared> {
        let prepared = |kind, arguments| Prepared { programs: programs.clone(), kind, arguments };
        let run = |model: &Path, holding: [&str; 2], rest: [&str; 4]| {
            let mut line = vec!["run".into(), model.into()];
            let threads = arguments.threads.to_string();
            let context = CONTEXT.to_string();
            // No run may depend on earlier ones. Without a penalty the greedy text of a small model
            // soon loops, and flatters any cache.
            let all = ["--context", &context, "--threads", &threads, "--temperature", "0"];
            let same = ["--repetition-penalty", "1.3", "--no-warm-start", "--ignore-eos", "--json"];
            let words = holding.iter().chain(&rest).chain(&all).chain(&same);
            line.extend(words.filter(|word| !word.is_empty()).map(OsString::from));
            line
        };
        let tales = &arguments.tales;
        Ok(match self.work {
            Work::Text(ref holding, tokens) => {
                let tokens = tokens.to_string();
                let rest = ["--prompt", "Once upon a time", "--max-new-tokens", &tokens];
                let line = match *holding {
                    Holding::Small => run(tales, ["--resident", ""], rest),
                    Holding::Within(mib) => run(tales, ["--ram", &format!("{mib}MiB")], rest),
                    Holding::Share(share) => {
                        let (_, shards) = models(arguments, &programs[1])?;
                        let task = Task {
                            prompt: vec![],
                            tokens: 1,
                            context: CONTEXT,
                            threads: arguments.threads,
                        };
                        let budget = Known::new(&programs[1], &shards)?.budget(share, &task)?;
                        run(&shards, ["--ram", &format!("{}MiB", budget >> 20)], rest)
                    }
                };
                prepared(Kind::Tokens("generation"), line)
            }
            Work::Prompt(tokens) => {
                let (_, shards) = models(arguments, &programs[1])?;
                let rest = ["--tokens", &senseless(tokens), "--max-new-tokens", "8"];
                prepared(Kind::Tokens("prompt"), run(&shards, ["--resident", ""], rest))
            }
            Work::Sharding => {
                let (checkpoint, _) = models(arguments, &programs[1])?;
                let bytes = safetensors(&checkpoint)?.values().sum();
                let line = vec!["shard".into(), checkpoint.into(), "--out".into()];
                let dir = arguments.scratch.join("sharded");
                // Of a run that was interrupted.
                for suffix in OLD_AND_NEW {
                    remove(&dir.with_extension(suffix))?;
                }
                prepared(Kind::Bytes(bytes, dir), line)
            }
        })
    }
}

/// The small model with large experts, as a checkpoint and as shards in bf12 made by `program`.
fn models(arguments: &VersionsArguments, program: &Path) -> Result<(PathBuf, PathBuf)> {
    let dir = arguments.scratch.join(format!("experts-of-{}", arguments.expert_bytes));
    let checkpoint = large::make_checkpoint(&arguments.tales, &dir, arguments.expert_bytes)?;
    let shards = dir.join("shards");
    if !shards.join("manifest.json").exists() {
        eprintln!("sharding `{}`", checkpoint.display());
        let checkpoint = checkpoint.as_os_str();
        let shards = shards.as_os_str();
        let line = ["shard".as_ref(), checkpoint, "--encoding".as_ref(), "bf12".as_ref()];
        succeed(program, &[&line[..], &["--out".as_ref(), shards]].concat(), None)?;
        settle();
    }
    Ok((checkpoint, shards))
}

impl Prepared {
    pub(super) fn unit(&self) -> &'static str {
        match self.kind {
            Kind::Tokens("prompt") => "prompt tok/s",
            Kind::Tokens(_) => "tok/s",
            Kind::Bytes(..) => "GB/s",
        }
    }

    /// Runs the old or the new version. In the warm-up pair, shards are compared byte by byte.
    pub(super) fn run(&self, which: usize, warm_up: bool) -> Result<Outcome> {
        let program = &self.programs[which];
        match &self.kind {
            Kind::Tokens(part) => {
                let told = ask(program, &self.arguments, None)?;
                tokens(&told, part)
            }
            Kind::Bytes(bytes, dir) => {
                let suffixed = |which: usize| dir.with_extension(OLD_AND_NEW[which]);
                let out = suffixed(which);
                let other = suffixed(1 - which);
                remove(&out)?;
                if !warm_up {
                    remove(&other)?;
                }
                settle();
                let mut line: Vec<&OsStr> =
                    self.arguments.iter().map(OsString::as_os_str).collect();
                line.push(out.as_os_str());
                let clock = Clock::real();
                succeed(program, &line, None)?;
                let seconds = clock.now().as_secs_f64();
                let files = safetensors(&out)?;
                let compared = match warm_up && other.exists() {
                    true => same_files(&out, &other, files.keys()),
                    false => Ok(()),
                };
                // Those of the first of the warm-up pair are kept for the second.
                if !warm_up || other.exists() {
                    remove(&out)?;
                    remove(&other)?;
                }
                compared?;
                Ok(Outcome { speed: *bytes as f64 / 1e9 / seconds, work: json!(files) })
            }
        }
    }
}

/// Reads the speed of a part of the run, and the tokens, from the output of `sws run --json`.
fn tokens(told: &Value, part: &str) -> Result<Outcome> {
    let speed = told["metrics"][part]["tokens_per_second"].as_f64();
    let speed = speed.filter(|speed| *speed > 0.0);
    let speed =
        speed.with_context(|| format!("`sws run --json` reports no speed of its {part}"))?;
    ensure!(told["tokens"].is_array(), "`sws run --json` lists no tokens");
    Ok(Outcome { speed, work: told["tokens"].clone() })
}

fn same_files<'f>(a: &Path, b: &Path, files: impl Iterator<Item = &'f PathBuf>) -> Result<()> {
    for file in files {
        let [a, b] = [a, b].map(|dir| dir.join(file));
        ensure!(
            same_bytes(&a, &b)?,
            "`{}` and `{}` differ, so the two builds gave different results",
            a.display(),
            b.display()
        );
    }
    Ok(())
}

fn remove(dir: &Path) -> Result<()> {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot delete `{}`", dir.display()))
        }
        _ => Ok(()),
    }
}

/// The safetensors files below a directory, by relative path, with their lengths.
fn safetensors(dir: &Path) -> Result<BTreeMap<PathBuf, u64>> {
    let mut files = BTreeMap::new();
    let mut dirs = vec![PathBuf::new()];
    while let Some(below) = dirs.pop() {
        let told = || format!("cannot list `{}`", dir.join(&below).display());
        for entry in dir.join(&below).read_dir().with_context(told)? {
            let entry = entry.with_context(told)?;
            let path = below.join(entry.file_name());
            let known = entry.metadata()?;
            if known.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|extension| extension == "safetensors") {
                files.insert(path, known.len());
            }
        }
    }
    ensure!(!files.is_empty(), "`{}` has no safetensors files", dir.display());
    Ok(files)
}

fn same_bytes(a: &Path, b: &Path) -> Result<bool> {
    let open = |path: &Path| {
        let file = File::open(path).with_context(|| format!("cannot open `{}`", path.display()))?;
        anyhow::Ok((file.metadata()?.len(), file))
    };
    let (a_len, mut a) = open(a)?;
    let (b_len, mut b) = open(b)?;
    let mut left = a_len;
    let mut of_a = vec![0; 1 << 20];
    let mut of_b = vec![0; 1 << 20];
    while a_len == b_len && left > 0 {
        let n = left.min(1 << 20);
        a.read_exact(&mut of_a[..n as usize])?;
        b.read_exact(&mut of_b[..n as usize])?;
        if of_a[..n as usize] != of_b[..n as usize] {
            return Ok(false);
        }
        left -= n;
    }
    Ok(a_len == b_len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speed_and_tokens_are_read_from_the_metrics() {
        let told = json!({
            "tokens": [3, 1],
            "metrics": {
                "prompt": { "tokens_per_second": 8.0 },
                "generation": { "tokens_per_second": 2.0 },
            },
        });
        let prompt = tokens(&told, "prompt").unwrap();
        assert_eq!((prompt.speed, prompt.work), (8.0, json!([3, 1])));
        assert_eq!(tokens(&told, "generation").unwrap().speed, 2.0);
        for wrong in [
            json!({ "tokens": [3] }),
            json!({ "metrics": { "prompt": { "tokens_per_second": 8.0 } } }),
            json!({ "tokens": [3], "metrics": { "prompt": { "tokens_per_second": 0.0 } } }),
        ] {
            assert!(tokens(&wrong, "prompt").is_err(), "{wrong}");
        }
    }

    #[test]
    fn files_are_compared_byte_by_byte() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: &[u8]| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, bytes).unwrap();
            path
        };
        let mut bytes = vec![7; (2 << 20) + 3];
        let a = file("layer_0/a.safetensors", &bytes);
        let same = file("b.safetensors", &bytes);
        bytes[2 << 20] = 8;
        let other = file("c.safetensors", &bytes);
        let shorter = file("d.txt", &bytes[..5]);
        assert!(same_bytes(&a, &same).unwrap());
        assert!(!same_bytes(&a, &other).unwrap());
        assert!(!same_bytes(&a, &shorter).unwrap());
        let names: Vec<_> = safetensors(dir.path()).unwrap().into_keys().collect();
        assert_eq!(
            names,
            ["b.safetensors", "c.safetensors", "layer_0/a.safetensors"].map(PathBuf::from)
        );
    }
}
