//! Gate 0: sharding and the lazy store.
//!
//! A forward pass with nothing in memory but the weights in use. It stays within its budget, its
//! logits match those of transformers, and unsharding restores the checkpoint bit for bit.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use anyhow::{Context, Result};
use sws_format::{Checkpoint, MANIFEST_FILE, open_checkpoint};
use sws_shard::unshard;
use sws_testing::goldens::{Golden, golden_dir, is_readable_in_place, variants};
use sws_text::Sampling;

use crate::models::{Large, make_shards};
use crate::report::Report;
use crate::setting::{Setting, mib};
use crate::task::{Done, Drafting, Ram, Task, Work, finished};

const WITHIN: &str = "the most memory of the process is at most its budget";
const ALONE: &str = "nothing stays in memory but norms and what is passing through";
const RIGHT: &str = "logits are those of transformers, below 1e-4 x max(1, largest)";
const SAME: &str = "a large model gives the same bits as in memory";
const SMALL: &str = "the large model has at least 8 times the memory of the process without it";
const BACK: &str = "shards become the checkpoint again, byte for byte";

/// Name of the large model's cases.
const LARGE: &str = "tales, large";

pub(crate) fn run(setting: &Setting) -> Result<Report> {
    let mut report = Report::new(0, "sharding and the lazy store");
    let temp = tempfile::tempdir()?;
    for name in variants() {
        let dir = golden_dir(&name);
        if !setting.wants(&name) {
            continue;
        }
        let shards = temp.path().join(&name);
        make_shards(&dir, &shards)?;
        let back = temp.path().join(format!("{name} back"));
        unshard(&shards, &back, false, None, &|_| ())?;
        let differs = difference(&dir, &back)?;
        report.check(BACK, differs.is_none(), || format!("{name}: {}", render(&differs)));
        let golden = Golden::read(&dir);
        let in_place = is_readable_in_place(&name).then_some(&dir);
        for model in in_place.into_iter().chain([&shards]) {
            let form = if model.join(MANIFEST_FILE).exists() { "shards" } else { "in place" };
            compare(&golden, &mut report, model, &format!("{name} {form}"))?;
        }
        std::fs::remove_dir_all(&shards)?;
        std::fs::remove_dir_all(&back)?;
    }
    if !setting.wants(LARGE) {
        return Ok(report);
    }
    let large = setting.large()?;
    let back = temp.path().join("back");
    unshard(&large.shards(), &back, false, None, &|_| ())?;
    let differs = difference(&large.checkpoint(), &back)?;
    report.check(BACK, differs.is_none(), || format!("{LARGE}: {}", render(&differs)));
    pass(&mut report, large)?;
    Ok(report)
}

/// One pass over a prompt of the large model.
fn pass(report: &mut Report, large: &Large) -> Result<()> {
    let prompt: Vec<u32> = (0..24).map(|n| (n * 131 + 5) % 4096).collect();
    for (form, model) in [("in place", large.checkpoint()), ("shards", large.shards())] {
        let case = format!("{LARGE}, {form}");
        let task = |ram, work| Task {
            model: model.clone(),
            ram,
            policy: "expected".to_owned(),
            reader: "direct".to_owned(),
            context: 64,
            work,
            draft: Drafting::No,
            only_plan: false,
        };
        let samplings = vec![Sampling::default()];
        let certify = Work::Certify { prompt: prompt.clone(), tokens: 1, samplings };
        let resident = finished(task(Ram::Resident, certify).run(None))?;
        let done = finished(task(Ram::Least, Work::Replay(resident.certificates)).run(None))?;
        report.check(SAME, done.agreed == done.steps, || format!("{case}: {:?}", done.differs));
        report.check(SMALL, done.weights >= 8 * done.floor, || {
            format!("{case}: {} and {}", mib(done.weights), mib(done.floor))
        });
        memory(report, &case, &done);
        report.row(&case, format!("{}/{}", done.agreed, done.steps), &done, None);
    }
    Ok(())
}

fn memory(report: &mut Report, case: &str, done: &Done) {
    report.check(WITHIN, done.peak_rss <= done.budget, || {
        format!("{case}: {} of {}", mib(done.peak_rss), mib(done.budget))
    });
    report.check(ALONE, done.pinned == 0 && done.slots == 0 && done.arena > 0, || {
        format!("{case}: {} pieces pinned, {} in slots", done.pinned, mib(done.slots))
    });
}

/// Compares the logits of a model with those of transformers.
fn compare(golden: &Golden, report: &mut Report, model: &Path, case: &str) -> Result<()> {
    let task = Task {
        model: model.to_owned(),
        ram: Ram::Least,
        policy: "expected".to_owned(),
        reader: "direct".to_owned(),
        context: golden.tokens.len(),
        work: Work::Score(golden.tokens.clone()),
        draft: Drafting::No,
        only_plan: false,
    };
    let done = finished(task.run(None)).with_context(|| case.to_owned())?;
    let largest = golden.logits.iter().fold(1f32, |most, logit| most.max(logit.abs()));
    let mut error = 0f32;
    for (&bits, expected) in done.logits.iter().zip(&golden.logits) {
        let found = f32::from_bits(bits);
        // A NaN counts as an infinite error.
        error = error.max(if found.is_nan() { f32::INFINITY } else { (found - expected).abs() });
    }
    let all = done.logits.len() == golden.logits.len() && !golden.logits.is_empty();
    report.check(RIGHT, all && error < 1e-4 * largest, || {
        let found = done.logits.len();
        let expected = golden.logits.len();
        format!("{case}: off by {error:e} of {largest}; {found} of {expected} logits")
    });
    memory(report, case, &done);
    report.row(case, format!("{:.1e}", error / largest), &done, None);
    Ok(())
}

fn render(difference: &Option<String>) -> &str {
    difference.as_deref().unwrap_or("the same")
}

/// The first difference between two checkpoints.
fn difference(a: &Path, b: &Path) -> Result<Option<String>> {
    let a = open_checkpoint(a, None)?;
    let b = open_checkpoint(b, None)?;
    let config = "config.json";
    if a.read_small(config)? != b.read_small(config)? {
        return Ok(Some(config.to_owned()));
    }
    let a = &*a;
    let b = &*b;
    if names(a) != names(b) {
        return Ok(Some("the names and shapes of tensors".to_owned()));
    }
    for (file, tensor) in tensors(a) {
        let (other_file, other) = tensors(b)
            .find(|(_, other)| other.name == tensor.name)
            .context("a tensor's name has gone")?;
        let mut left = Vec::new();
        let mut right = Vec::new();
        let file = File::open(a.dir().join(file))?;
        let other_file = File::open(b.dir().join(other_file))?;
        let mut at = 0;
        while at < tensor.len {
            let len = (tensor.len - at).min(4 << 20) as usize;
            left.resize(len, 0);
            right.resize(len, 0);
            file.read_exact_at(&mut left, tensor.offset + at)?;
            other_file.read_exact_at(&mut right, other.offset + at)?;
            if left != right {
                return Ok(Some(format!("`{}` below byte {}", tensor.name, at + len as u64)));
            }
            at += len as u64;
        }
    }
    Ok(None)
}

/// Names, types and shapes of all tensors.
fn names(checkpoint: &dyn Checkpoint) -> Vec<String> {
    let mut names = Vec::new();
    for (_, tensor) in tensors(checkpoint) {
        names.push(format!("{} {} {:?}", tensor.name, tensor.dtype, tensor.shape));
    }
    names.sort();
    names
}

fn tensors(
    checkpoint: &dyn Checkpoint,
) -> impl Iterator<Item = (&String, &sws_format::HeaderTensor)> {
    let files = checkpoint.files().iter();
    files.flat_map(|file| file.tensors.iter().map(move |tensor| (&file.name, tensor)))
}
