//! Continues a text with a model larger than its memory budget.
//!
//! ```text
//! cargo run --release -p sws --example generate -- [MODEL [RAM [TEXT]]]
//! ```

use std::error::Error;
use std::io::Write;

use sws::Model;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let mut next = |default: &str| args.next().unwrap_or(default.to_owned());
    let name = next("shards/tales-moe");
    let ram = next("min");
    let text = next("The wolf");

    let mut model = Model::open(name)?.ram(&ram).load()?;
    let mut out = std::io::stdout();
    let mut generate = model.generate(text)?;
    for piece in &mut generate {
        write!(out, "{}", piece?)?;
        out.flush()?;
    }
    let made = generate.finish();
    let metrics = model.metrics(&made);
    let read: f64 = metrics.cost.map_or(0.0, |cost| cost.generation.bytes_per_token.values().sum());
    writeln!(
        out,
        "\n{} tokens at {:.1} tok/s, {read:.0} bytes read for each",
        made.tokens.len(),
        metrics.generation.tokens_per_second,
    )?;
    Ok(())
}
