//! `sws verify`.

use std::process::ExitCode;

use serde_json::json;
use sws_shard::verify;

use super::{print, print_json, shards, size};
use crate::args;
use crate::exit::FAILED;
use crate::progress::ProgressMeter;
use crate::terminal::note;

pub(crate) fn run(args: &args::Verify) -> anyhow::Result<ExitCode> {
    let dir = shards(&args.dir)?;
    let meter = ProgressMeter::new("verifying");
    let verified = verify(&dir, &|p| meter.show(p));
    meter.finish();
    let verified = verified?;
    let good = verified.damage.is_empty();
    if args.json {
        let mut damage = Vec::new();
        for place in &verified.damage {
            let piece = place.piece.as_ref().map(ToString::to_string);
            damage.push(json!({ "file": place.file, "piece": piece, "what": place.what }));
        }
        print_json(&json!({
            "good": good,
            "shards": verified.shards,
            "bytes": verified.bytes,
            "damage": damage,
        }))?;
    } else if good {
        let shards = verified.shards;
        let bytes = size(verified.bytes);
        print(&format!("{shards} shards, {bytes}: every byte is as it was written\n"))?;
    } else {
        for damage in &verified.damage {
            let piece = match damage.piece {
                Some(piece) => format!("{piece}: "),
                None => String::new(),
            };
            print(&format!("{piece}{} {}\n", dir.join(&damage.file).display(), damage.what))?;
        }
        let places = verified.damage.len();
        let plural = if places == 1 { "place is" } else { "places are" };
        note!(
            "sws: {places} {plural} damaged in `{}`; copy the files named above again, or repeat the `sws shard` that made them, which makes anew what is damaged; a pulled model is removed by `sws rm` and pulled again",
            dir.display()
        );
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}
