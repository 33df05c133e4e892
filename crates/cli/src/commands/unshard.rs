//! `sws unshard`.

use std::process::ExitCode;

use serde_json::json;
use sws_shard::unshard;

use super::{count, print, print_json, shards, size};
use crate::args;
use crate::progress::ProgressMeter;

pub(crate) fn run(args: &args::Unshard) -> anyhow::Result<ExitCode> {
    let dir = shards(&args.dir)?;
    let meter = ProgressMeter::new("unsharding");
    let threads = args.threads.map(usize::from);
    let done = unshard(&dir, &args.out, args.lossy, threads, &|p| meter.show(p));
    meter.finish();
    let done = done?;
    if args.json {
        print_json(&json!({
            "out": args.out,
            "files": done.files,
            "tensors": done.tensors,
            "bytes": done.bytes,
            "lossy": done.lossy,
        }))?;
    } else {
        let exact = match done.lossy {
            0 => "bit for bit as they were".to_owned(),
            n => format!("{n} of them decoded from a lossy encoding"),
        };
        print(&format!(
            "{} in {} in {}, {}: {exact}\n",
            count(done.tensors, "tensor"),
            count(done.files, "file"),
            args.out.display(),
            size(done.bytes),
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}
