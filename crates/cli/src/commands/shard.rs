//! `sws shard`.

use std::process::ExitCode;

use serde_json::json;
use sws_store::shard::{ShardOptions, shard};
use sws_store::{open_checkpoint, user_cache};

use super::{print, print_json, size};
use crate::args;
use crate::progress::Meter;

pub(crate) fn run(args: &args::Shard) -> anyhow::Result<ExitCode> {
    let checkpoint = open_checkpoint(&args.checkpoint, user_cache().as_deref())?;
    let naming = sws_model::naming(checkpoint.config())?;
    let options = ShardOptions {
        encoding: args.encoding,
        stand_ins: args.stand_ins,
        threads: args.threads.map(usize::from),
    };
    let meter = Meter::new("sharding");
    let done = shard(&*checkpoint, &*naming, &args.out, &options, &|p| meter.show(p));
    meter.finish();
    let done = done?;
    if args.json {
        print_json(&json!({
            "out": args.out,
            "encoding": args.encoding.name(),
            "shards": done.shards,
            "found": done.found,
            "source_bytes": done.source_bytes,
            "stored_bytes": done.stored_bytes,
        }))?;
    } else {
        let before = match done.found {
            0 => String::new(),
            n if n == done.shards => ", all there before".to_owned(),
            n => format!(", {n} of them there before"),
        };
        print(&format!(
            "{} shards in {}{before}: {} from {}, {:.1} %\n",
            done.shards,
            args.out.display(),
            size(done.stored_bytes),
            size(done.source_bytes),
            100.0 * done.stored_bytes as f64 / done.source_bytes.max(1) as f64,
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}
