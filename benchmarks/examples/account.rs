//! Time saved by speculation, by the clock and by its account. Speculation is not governed, time is
//! virtual, and drafts name each expert of a layer with a given recall.
//!
//! ```text
//! cargo run --release -p sws-benchmarks --example account
//! ```

use std::io::{Result, Write};

use sws_testing::virtual_time::run;

fn main() -> Result<()> {
    let mut out = std::io::stdout();
    writeln!(
        out,
        "| cached | disk MB/s | recall | time saved, clock | account | useful of issued |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|")?;
    for share in [0.25, 0.5] {
        for mb_per_second in [30, 100, 200, 400, 1000] {
            let (without, _) = run(mb_per_second, share, None, false);
            for recall in [0.6, 0.75, 0.95] {
                let (with, said) = run(mb_per_second, share, Some(recall), false);
                let percent = |time: f64| 100.0 * time / without;
                writeln!(
                    out,
                    "| {:.0} % | {mb_per_second} | {recall} | {:.2} % | {:.2} % | {} of {} |",
                    100.0 * share,
                    percent(without - with),
                    percent(said.balance_ns()),
                    said.useful,
                    said.issued
                )?;
            }
        }
    }
    Ok(())
}
