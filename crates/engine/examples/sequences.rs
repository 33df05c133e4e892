//! Several texts through shared passes: each expert is read once a pass, for all of them.
//!
//! ```text
//! cargo run --release -p sws-engine --example sequences
//! ```

use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use sws_engine::{Options, SpeculativeWeightStreamer};
use sws_format::Manifest;
use sws_kernels::functional::argmax;
use sws_model::{Chunk, ForwardPass, ModelSpec, StepOutcome};
use sws_store::{NVMeWeightStore, StoreOptions};
use sws_text::Tokenizer;

const PROMPTS: [&str; 3] = ["The wolf", "Once upon a time", "A little boat"];
const TOKENS: usize = 40;

fn main() -> Result<(), Box<dyn Error>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shards/tales-moe");
    let manifest = Arc::new(Manifest::load(&dir)?);
    let file = |name| manifest.read_small(&dir, name, None)?.ok_or(format!("no {name}").into());
    let file = |name| -> Result<Vec<u8>, Box<dyn Error>> { file(name) };
    let spec = ModelSpec::parse(&file("config.json")?)?;
    let tokenizer = Tokenizer::from_bytes(&file("tokenizer.json")?)?;
    let store = NVMeWeightStore::open(Arc::clone(&manifest), &dir, StoreOptions::default())?;
    let options = Options {
        ram_budget: "64MiB".parse()?,
        context: Some(128),
        sequences: PROMPTS.len(),
        ..Options::default()
    };
    let mut model =
        SpeculativeWeightStreamer::new(ForwardPass::new(spec), Arc::new(store), options)?;

    // The first sequence is there; each text has its tokens and what its next chunk is.
    let mut sequences = vec![0];
    while sequences.len() < PROMPTS.len() {
        sequences.push(model.add_sequence().ok_or("the plan has room for each")?);
    }
    let mut texts = PROMPTS
        .map(|prompt| tokenizer.encode(prompt, true))
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?;
    let mut done = vec![0; texts.len()];
    let mut step = StepOutcome::default();
    for _ in 0..TOKENS {
        let chunks: Vec<Chunk<'_>> = sequences
            .iter()
            .zip(texts.iter().zip(&done))
            .map(|(&sequence, (text, &done))| Chunk { sequence, tokens: &text[done..] })
            .collect();
        model.step(&chunks, &mut (), &mut step);
        for (number, (text, done)) in texts.iter_mut().zip(&mut done).enumerate() {
            *done = text.len();
            let likeliest = argmax(step.logits(number).map_err(ToString::to_string)?);
            text.push(likeliest.ok_or("no logits")? as u32);
        }
    }
    for text in &texts {
        writeln!(std::io::stdout(), "{}\n", tokenizer.decode(text, true))?;
    }
    Ok(())
}
