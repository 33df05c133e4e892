//! Compares two builds of `sws` in alternating runs, to show that a change is not slower.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

mod cases;
mod instructions;
mod report;

use cases::{CASES, Case, Prepared};
use report::{Measured, OLD_AND_NEW, Pair, Report};

use crate::size::parse_size;

/// Options of `sws-bench versions`.
#[derive(Debug, clap::Args)]
pub struct VersionsArguments {
    /// Path of the old `sws`, the reference
    old: PathBuf,
    /// Path of the new `sws`, which must not be slower
    new: PathBuf,
    /// Directory for copies of both programs, so that building meanwhile changes neither, and for
    /// the models: a disk with room for five times 256 experts. Existing models are used again
    #[arg(long, value_name = "DIR")]
    scratch: PathBuf,
    /// Shards of the small model
    #[arg(long, value_name = "DIR", default_value = "shards/tales-moe")]
    tales: PathBuf,
    /// Size of an enlarged expert
    #[arg(long, value_parser = parse_size, value_name = "SIZE", default_value = "8MiB")]
    expert_bytes: u64,
    /// Only cases whose name contains these words
    #[arg(long, value_name = "WORDS")]
    only: Option<String>,
    /// Pairs of runs in each case [default: by the case]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(6..=1000))]
    pairs: Option<u32>,
    /// Minimum for the lower end of each interval
    #[arg(long, value_name = "RATIO", default_value_t = 0.985)]
    bar: f64,
    /// Threads of each version
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,
    /// Count instructions on one thread with valgrind, instead of measuring time
    #[arg(long, conflicts_with_all = ["only", "pairs", "json", "threads"])]
    instructions: bool,
    /// File for every run, written after each pair
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Measures all cases and prints the table. Returns false if a bar was missed.
pub fn run(arguments: &VersionsArguments) -> Result<bool> {
    ensure!(arguments.bar > 0.0, "--bar must be above 0; leave it out for 0.985");
    let cases = chosen(arguments.only.as_deref())?;
    let copied = |program: &Path, name| {
        copied(program, &arguments.scratch.join(name))
            .with_context(|| format!("cannot copy `{}` to --scratch", program.display()))
    };
    let programs = [copied(&arguments.old, "old")?, copied(&arguments.new, "new")?];
    if arguments.instructions {
        let VersionsArguments { tales, scratch, bar, .. } = arguments;
        return instructions::run(&programs, tales, scratch, *bar);
    }
    let mut report = Report::new([&arguments.old, &arguments.new], arguments.bar);
    for case in cases {
        let pairs = arguments.pairs.unwrap_or(case.pairs);
        eprintln!("{}: {pairs} pairs, after one to warm up that does not count", case.name);
        let prepared = case.prepare(arguments, &programs)?;
        report.cases.push(Measured::new(case, &prepared));
        // Pair 0 is the warm-up.
        for number in 0..=pairs {
            let pair = pair(&prepared, number).context(case.name)?;
            let measured = report.cases.last_mut().expect("pushed above");
            measured.push(number, pair, arguments.bar);
            if number % pairs.div_ceil(4) == 0 || number == pairs {
                eprintln!("{}", measured.progress(pairs));
            }
            if let Some(path) = &arguments.json {
                std::fs::write(path, serde_json::to_string_pretty(&report)?)
                    .with_context(|| format!("writing `{}`", path.display()))?;
            }
        }
    }
    print!("{}", report.table());
    Ok(report.met())
}

fn chosen(only: Option<&str>) -> Result<Vec<&'static Case>> {
    let words = only.unwrap_or("");
    let chosen: Vec<_> = CASES.iter().filter(|case| case.name.contains(words)).collect();
    let names = CASES.map(|case| case.name).join(", ");
    ensure!(!chosen.is_empty(), "no case has `{words}` in its name; choose among {names}");
    Ok(chosen)
}

/// Copies a program to `dir`. Both copies have paths of one length: the stack's start depends on
/// that, and the speed depends a little on the stack's start.
fn copied(program: &Path, dir: &Path) -> std::io::Result<PathBuf> {
    std::fs::create_dir_all(dir)?;
    let copy = dir.join("sws");
    std::fs::copy(program, &copy)?;
    Ok(copy)
}

/// Runs each version once, and requires the same results.
fn pair(prepared: &Prepared, number: u32) -> Result<Pair> {
    let order = order(number);
    let mut runs = [None, None];
    for which in order {
        runs[which] = Some(prepared.run(which, number == 0)?);
    }
    let [Some(old), Some(new)] = runs else { unreachable!("each had its turn") };
    ensure!(
        old.work == new.work,
        "the two builds gave different results, so their speeds cannot be compared: {} and {}",
        old.work,
        new.work
    );
    Ok(Pair { first: OLD_AND_NEW[order[0]], old: old.speed, new: new.speed })
}

/// Order of a pair. It alternates, so that side effects of the first run do not always favour the
/// same version.
fn order(number: u32) -> [usize; 2] {
    if number.is_multiple_of(2) { [0, 1] } else { [1, 0] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_is_first_in_every_other_pair() {
        let first: Vec<usize> = (1..=6).map(|number| order(number)[0]).collect();
        assert_eq!(first, [1, 0, 1, 0, 1, 0]);
        for number in 0..4 {
            assert_eq!(order(number).iter().sum::<usize>(), 1, "each has one turn");
        }
    }

    #[test]
    fn cases_are_chosen_by_words_in_their_names() {
        let names = |only| -> Vec<_> {
            chosen(only).map_or(vec![], |cases| cases.iter().map(|case| case.name).collect())
        };
        assert_eq!(names(None).len(), CASES.len());
        assert_eq!(names(Some("sharding")), ["sharding"]);
        assert_eq!(names(Some("tales")), ["tales, resident", "tales, 56 MiB"]);
        let error = chosen(Some("nothing like it")).unwrap_err().to_string();
        assert!(error.contains("tales, resident"), "{error}");
    }
}
