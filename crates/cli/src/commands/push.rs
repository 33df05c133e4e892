//! `sws push`.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::json;
use sws::Progress;
use sws_far::{Origin, Pushed, push};
use sws_store::Manifest;

use super::{print, print_json, shards, size};
use crate::args;
use crate::interrupt::Ending;
use crate::progress::Meter;

pub(crate) fn run(args: &args::Push) -> anyhow::Result<ExitCode> {
    let dir = shards(&args.dir)?;
    let to = Origin::new(args.to.clone())?;
    let total = Manifest::load(&dir)?.files.iter().map(|file| file.len).sum();
    let done = AtomicU64::new(0);
    let pushed = {
        let _ending = Ending::at_a_signal("interrupted; the same command begins anew")?;
        let meter = Meter::new("pushing");
        let moved = |bytes| {
            let done = done.fetch_add(bytes, Ordering::Relaxed) + bytes;
            meter.show(Progress { done: done.min(total), total });
        };
        let pushed = push(&dir, &to, &moved);
        meter.finish();
        pushed?
    };
    let Pushed { files, bytes, there } = pushed;
    let address = to.address().to_string();
    if args.json {
        print_json(&json!({ "address": address, "files": files, "bytes": bytes, "there": there }))?;
    } else {
        let how = if there { "there already" } else { "pushed" };
        print(&format!("{files} files, {}, {how}: {address}\nsws run {address}\n", size(bytes)))?;
    }
    Ok(ExitCode::SUCCESS)
}
