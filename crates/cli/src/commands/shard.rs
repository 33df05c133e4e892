//! `sws shard`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::bail;
use serde_json::json;
use sws::Outline;
use sws_hub::{Library, ModelName, form};
use sws_kernels::Encoding;
use sws_shard::{ShardOptions, Sharded, encoding_in, resume};
use sws_store::user_cache;

use super::{choice, in_place, mirror, note_unused, print, print_json, size};
use crate::args::{self, EncodingChoice};
use crate::interrupt::Ending;
use crate::progress::ProgressStage;
use crate::terminal::note;

pub(crate) fn run(args: &args::ShardArgs) -> anyhow::Result<ExitCode> {
    let path = checkpoint(&args.checkpoint)?;
    let _ending = Ending::at_a_signal("interrupted; the same command goes on where it stopped")?;
    #[cfg(feature = "pull")]
    super::pull::check_blobs(&path)?;
    let checkpoint = sws::checkpoint(&path, user_cache().as_deref())?;
    let naming = match sws_model::naming(checkpoint.config()) {
        Ok(naming) => naming,
        Err(why) => bail!("`{}`: {why}", args.checkpoint.display()),
    };
    let encoding = match args.encoding {
        EncodingChoice::Made(encoding) => encoding,
        // The same command goes on with what it began.
        EncodingChoice::Auto => match args.out.as_deref().and_then(encoding_in) {
            Some(encoding) => encoding,
            None => choice::encoding(&Outline::of(&path, checkpoint.config())?, args.ram)?,
        },
    };
    let (out, recorded) = out(args, &path, encoding)?;
    note_unused(&*checkpoint, &in_place(&*checkpoint)?);
    let options = ShardOptions {
        encoding,
        stand_ins: args.stand_ins,
        threads: args.threads.map(usize::from),
    };
    let kept = ProgressStage::new("verifying");
    let made = ProgressStage::new("sharding");
    let kept_so_far = |p| kept.show(p);
    let so_far = |p| made.show(p);
    let done = resume(&*checkpoint, &*naming, &out, &options, &kept_so_far, &so_far);
    kept.finish();
    made.finish();
    let done = done?;
    if let Some((library, name)) = recorded {
        // The shards are there, and can be used by their path.
        let form = form(encoding.name(), name.revision.as_deref());
        if let Err(error) = library.record(&name.id, &form, &out) {
            note!("sws: `{}` will not find these shards: {error}", name.id);
        }
    }
    mirror::copies(&out, &args.also)?;
    if args.json {
        print_json(&json!({
            "out": out,
            "encoding": encoding.name(),
            "shards": done.shards,
            "found": done.found,
            "damaged": done.damaged,
            "source_bytes": done.source_bytes,
            "stored_bytes": done.stored_bytes,
        }))?;
    } else {
        print(&format!(
            "{} shards in {}{}: {} from {}, {:.1} %\n",
            done.shards,
            out.display(),
            before(&done),
            size(done.stored_bytes),
            size(done.source_bytes),
            100.0 * done.stored_bytes as f64 / done.source_bytes.max(1) as f64,
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Words for what an earlier command left of the shards, with a comma first.
pub(super) fn before(done: &Sharded) -> String {
    let kept = match done.found {
        0 => String::new(),
        n if n == done.shards => ", all there before and verified".to_owned(),
        n => format!(", {n} of them there before and verified"),
    };
    let healed = match done.damaged {
        0 => String::new(),
        1 => ", a damaged file made anew".to_owned(),
        n => format!(", {n} damaged files made anew"),
    };
    kept + &healed
}

/// Path of the checkpoint that was typed. An id never means the shards that it may have already.
fn checkpoint(typed: &Path) -> anyhow::Result<PathBuf> {
    crate::far::refuse(typed)?;
    match sws::locate_checkpoint(typed) {
        // The checkpoint itself says what is wrong with its path.
        Err(sws::Error::NoPath { path }) => Ok(path),
        Err(sws::Error::NotHere { name, .. }) if sws::locate(typed).is_ok() => bail!(
            "of `{name}` only shards are here, not the checkpoint that other shards need; `sws pull {} --as ENCODING` makes them from the hub",
            name.id
        ),
        found => Ok(found?),
    }
}

/// Directory of the shards. For a checkpoint that was given by its id, also the library that records
/// them.
fn out(
    args: &args::ShardArgs,
    found: &Path,
    encoding: Encoding,
) -> anyhow::Result<(PathBuf, Option<(Library, ModelName)>)> {
    let recorded = Library::of_process().zip(typed_name(&args.checkpoint, found));
    match (&args.out, &recorded) {
        (Some(out), _) => Ok((out.clone(), recorded)),
        (None, Some((library, name))) => {
            let form = form(encoding.name(), name.revision.as_deref());
            Ok((library.place(&name.id, &form)?, recorded))
        }
        (None, None) => bail!("there is no default directory for shards of a path; give --out DIR"),
    }
}

/// The name that was typed, unless that was the path itself.
fn typed_name(typed: &Path, found: &Path) -> Option<ModelName> {
    if typed == found { None } else { typed.to_str()?.parse().ok() }
}
