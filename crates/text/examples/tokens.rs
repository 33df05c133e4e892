//! The tokens of a text, one id a line, by the tokenizer in a GGUF file.
//!
//! ```sh
//! cargo run --release -p sws-text --example tokens -- FILE.gguf < TEXT
//! ```

use std::error::Error;
use std::io::{self, Write};

use sws_text::Tokenizer;
use sws_text::gguf::tokenizer_json;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: tokens FILE.gguf < TEXT")?;
    let json = tokenizer_json(&std::fs::read(path)?)?.ok_or("the file has no tokenizer")?;
    let text = io::read_to_string(io::stdin())?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    for id in Tokenizer::from_bytes(&json)?.encode(&text, false)? {
        writeln!(out, "{id}")?;
    }
    Ok(out.flush()?)
}
