//! Serves the files of a directory as a model of a hub on loopback, for other clients to try:
//! `cargo run -p sws-testing --example hub -- OWNER/NAME DIR`, then `HF_ENDPOINT=... hf download`.

use std::io::Write;
use std::path::Path;

use sws_testing::hub::Hub;

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [id, dir] = args.as_slice() else { anyhow::bail!("expected OWNER/NAME and a directory") };
    let hub = Hub::of_dir(id, Path::new(dir))?;
    writeln!(std::io::stdout(), "{}", hub.endpoint())?;
    // Until standard input ends.
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    Ok(())
}
