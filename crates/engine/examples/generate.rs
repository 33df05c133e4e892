//! Continues a few tokens with a model that is larger than its memory budget.
//!
//! ```text
//! cargo run --release -p sws-engine --example generate -- [SHARDS [RAM]]
//! ```

use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use sws_engine::{Options, SpeculativeWeightStreamer};
use sws_model::{Model, ModelSpec};
use sws_store::{Manifest, NVMeWeightStore, StoreOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().unwrap_or("shards/tales-moe".to_owned()));
    let ram_budget = args.next().as_deref().unwrap_or("min").parse()?;

    let manifest = Arc::new(Manifest::load(&dir)?);
    let config = manifest.read_small(&dir, "config.json", None)?.ok_or("no config.json")?;
    let model = Model::new(ModelSpec::parse(&config)?);
    let store = Arc::new(NVMeWeightStore::open(manifest, &dir, StoreOptions::default())?);
    let options = Options { ram_budget, ..Options::default() };
    let mut streamer = SpeculativeWeightStreamer::new(model, store, options)?;

    let tokens = streamer.generate(&[1, 2, 3, 4], 32)?;
    let metrics = streamer.aggregate_metrics();
    let read: f64 = metrics.bytes_per_token.values().sum();
    writeln!(
        std::io::stdout(),
        "{tokens:?}\n{} tokens at {:.1} tok/s, {:.0} bytes read for each",
        metrics.tokens,
        metrics.tokens_per_second,
        read,
    )?;
    Ok(())
}
