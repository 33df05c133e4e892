//! `sws push`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use anyhow::bail;
use serde_json::json;
use sws::{Model, ModelMirror, Progress};
use sws_far::{FarOrigin, Push, PushStep, Pushed, push};
use sws_format::Manifest;

use super::{count, print, print_json, shards, size};
use crate::args;
use crate::interrupt::Ending;
use crate::progress::ProgressMeter;
use crate::terminal::note;

pub(crate) fn run(args: &args::PushArgs) -> anyhow::Result<ExitCode> {
    let dir = shards(&args.dir)?;
    // Parsed here, as the argument parser would print what may be a signature.
    let to = FarOrigin::new(args.to.parse()?)?;
    let learned = match args.learned {
        true => Some(learned(&dir)?),
        false => None,
    };
    let manifest = Manifest::read(&dir)?;
    let notice = |sentence: &str| note!("sws: {sentence}");
    let copies = ModelMirror::of_shards(&dir, &manifest, &args.also, notice)?;
    let copies: Vec<PathBuf> = copies.into_iter().map(|copy| copy.dir).collect();
    let total = manifest.files.iter().map(|file| file.len).sum();
    let done = AtomicU64::new(0);
    let left_out = Mutex::new(Vec::new());
    let pushed = {
        let _ending = Ending::at_a_signal("interrupted; the same command begins anew")?;
        let verifying = OnceLock::new();
        let pushing = OnceLock::new();
        let report = |step: PushStep<'_>| match step {
            PushStep::Verified(progress) => show(&verifying, "verifying", progress),
            PushStep::Unserved { path, what, more } => {
                let told = unserved(path, what, more);
                left_out.lock().unwrap_or_else(PoisonError::into_inner).push(told);
            }
            PushStep::Moved(bytes) => {
                finish(&verifying);
                let done = done.fetch_add(bytes, Ordering::Relaxed) + bytes;
                show(&pushing, "pushing", Progress { done: done.min(total), total });
            }
        };
        let learned = learned.as_deref();
        let again = args.again;
        let what = Push { dir: &dir, copies: &copies, learned, to: &to, again };
        let pushed = push(&what, &report);
        finish(&verifying);
        finish(&pushing);
        for sentence in left_out.into_inner().unwrap_or_else(PoisonError::into_inner) {
            note!("sws: {sentence}");
        }
        pushed?
    };
    let Pushed { files, bytes, there, from_copies } = pushed;
    if let Some(first) = from_copies.first() {
        note!(
            "sws: {} of `{}` damaged, and sent from copies, first `{}`; `sws mirror` from that copy to there mends the shards",
            count(from_copies.len() as u64, "file"),
            dir.display(),
            first.display(),
        );
    }
    let address = to.address().to_string();
    if args.json {
        print_json(
            &json!({ "address": address, "files": files, "bytes": bytes, "there": there, "from_copies": from_copies.len() }),
        )?;
    } else {
        let how = if there { "there already" } else { "pushed" };
        print(&format!("{files} files, {}, {how}: {address}\nsws run {address}\n", size(bytes)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows progress on a meter, which is made with the first.
fn show(meter: &OnceLock<ProgressMeter>, name: &'static str, progress: Progress) {
    meter.get_or_init(|| ProgressMeter::new(name)).show(progress);
}

/// A sentence about a copy that cannot serve files which are damaged in the shards.
fn unserved(path: &Path, what: &str, more: usize) -> String {
    let others = match more {
        0 => String::new(),
        more => format!(" ({} there)", count(more as u64, "more such file")),
    };
    format!(
        "`{}` {what}, so this copy of the file is left out{others}; mend that copy with `sws mirror` from a sound one",
        path.display()
    )
}

fn finish(meter: &OnceLock<ProgressMeter>) {
    if let Some(meter) = meter.get() {
        meter.finish();
    }
}

/// The file of what runs on this machine learned of a model.
fn learned(dir: &Path) -> anyhow::Result<PathBuf> {
    match Model::open(dir)?.learned_file() {
        Some(file) if file.is_file() => Ok(file),
        _ => bail!(
            "no run on this machine has learned anything of `{}`; run it first, or leave out --learned",
            dir.display()
        ),
    }
}
