//! Reads a model's files with a custom reader, which here counts the bytes. Another one could fetch
//! them from a network or from memory.
//!
//! ```text
//! cargo run --release -p sws --example reader -- [SHARDS]
//! ```

use std::error::Error;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sws::{Model, Request, ShardReader};

/// Reader of a model's files that counts the bytes read.
struct Counting {
    files: Vec<File>,
    bytes: AtomicU64,
}

impl Counting {
    /// Opens the files in the order of the manifest, which identifies them by index.
    fn open(model: &Model) -> io::Result<Counting> {
        let files = model.manifest().files.iter();
        let files = files.map(|file| File::open(model.dir().join(&file.path)));
        Ok(Counting { files: files.collect::<io::Result<_>>()?, bytes: AtomicU64::new(0) })
    }
}

impl ShardReader for Counting {
    fn name(&self) -> &'static str {
        "counting"
    }

    /// A read may extend beyond the end of the file, and then returns fewer bytes.
    fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < into.len() {
            match self.files[file as usize].read_at(&mut into[done..], offset + done as u64)? {
                0 => break,
                read => done += read,
            }
        }
        self.bytes.fetch_add(done as u64, Ordering::Relaxed);
        Ok(done)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args().nth(1).unwrap_or("shards/tales-moe".to_owned());
    let opened = Model::open(name)?;
    let reader = Arc::new(Counting::open(&opened)?);
    let mut model = opened.ram("min").reader(reader.clone()).load()?;
    let mut generate = model.generate(Request::from("The fox").max_new_tokens(40))?;
    let text = generate.by_ref().map(|piece| Ok(piece?.text)).collect::<sws::Result<String>>()?;
    let bytes = reader.bytes.load(Ordering::Relaxed);
    writeln!(io::stdout(), "{text}\n{bytes} bytes were read, each of them verified")?;
    Ok(())
}
