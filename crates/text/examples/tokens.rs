//! The tokens of a text, one id a line, by the tokenizer in a GGUF file.
//!
//! ```sh
//! cargo run --release -p sws-text --example tokens -- FILE.gguf < TEXT
//! ```

use std::error::Error;
use std::io::{self, Write};

use sws_text::gguf::{GgufTextError, tokenizer};

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: tokens FILE.gguf < TEXT")?;
    let found = tokenizer::<GgufTextError>(&std::fs::read(path)?, |_| Ok(()))?;
    let tokenizer = found.ok_or("the file has no tokenizer")?;
    let text = io::read_to_string(io::stdin())?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    for id in tokenizer.encode(&text, false)? {
        writeln!(out, "{id}")?;
    }
    Ok(out.flush()?)
}
