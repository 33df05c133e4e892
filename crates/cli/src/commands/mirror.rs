//! `sws mirror`, and copies that other commands make of their shards.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::json;
use sws::Model;
use sws_shard::{MirrorOptions, Mirrored, mirror};

use super::{count, print, print_json, shards, size};
use crate::args;
use crate::interrupt::Ending;
use crate::progress::ProgressStage;
use crate::terminal::note;

pub(crate) fn run(args: &args::MirrorArgs) -> anyhow::Result<ExitCode> {
    let dir = shards(&args.model)?;
    let _ending = Ending::at_a_signal("interrupted; the same command goes on where it stopped")?;
    // Shards of a model that cannot be run have no order of use.
    let first = match args.size {
        Some(_) => Model::open(&dir).map(|model| model.experts_by_use()).unwrap_or_default(),
        None => Vec::new(),
    };
    let done = copy(&dir, &args.to, &MirrorOptions { most: args.size, first: &first })?;
    let Mirrored { shards, of, bytes, copied, damaged } = done;
    if args.json {
        print_json(&json!({
            "out": args.to,
            "shards": shards,
            "of": of,
            "bytes": bytes,
            "copied": copied,
            "damaged": damaged,
        }))?;
    } else {
        let mended = match damaged {
            0 => String::new(),
            n => format!(", {} among them damaged before", count(n as u64, "shard")),
        };
        let out = args.to.display();
        print(&format!(
            "{shards} of {of} shards in {out}, {}; copied now: {copied}{mended}\nsws run {} --also {out}\n",
            size(bytes),
            args.model.display(),
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Copies all shards of a directory to others, for `--also`.
pub(super) fn copies(dir: &Path, to: &[PathBuf]) -> anyhow::Result<()> {
    for to in to {
        let Mirrored { shards, .. } = copy(dir, to, &MirrorOptions::default())?;
        note!("sws: {shards} shards are in `{}` as well", to.display());
    }
    Ok(())
}

fn copy(dir: &Path, to: &Path, options: &MirrorOptions<'_>) -> anyhow::Result<Mirrored> {
    let kept = ProgressStage::new("verifying");
    let made = ProgressStage::new("copying");
    let done = mirror(dir, to, options, &|p| kept.show(p), &|p| made.show(p));
    kept.finish();
    made.finish();
    Ok(done?)
}
