//! A server whose reads fail now and then, for tests/load.py and tests/soak.py.
//!
//! ```text
//! cargo run --release -p sws-serve --example flaky -- MODEL BYTES PER_MILLE
//! ```
//!
//! BYTES is its budget; 0 prints the smallest one, and ends. Of a thousand reads PER_MILLE fail once it is
//! ready; a number on standard input is another PER_MILLE. Each line is answered with the bytes on the heap and
//! the number of reads that have failed; the end of the input ends it.

use std::alloc::System;
use std::error::Error;
use std::io::{self, BufRead, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cap::Cap;
use sws::{Model, Needs, Options, RamBudget, ReaderKind, ShardReader, Streaming, TextCodec};
use sws_serve::{ModelNames, Server, ServerConfig, ServerLimits, listening, structured};
use sws_store::StoreOptions;
use sws_testing::readers::Flaky;

#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

/// Texts at a time.
const TEXTS: usize = 4;
/// Of the reads that fail.
const SEED: u64 = 16;

fn heap() -> u64 {
    HEAP.allocated() as u64
}

/// Tells the script something.
fn tell(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [dir, bytes, per_mille] = &args[..] else {
        return Err(
            "give a model, the bytes of its budget, and the reads of a thousand that fail".into()
        );
    };
    let bytes: u64 = bytes.parse()?;
    let per_mille: u32 = per_mille.parse()?;
    let model = Model::open_counted(dir, None, heap)?;
    let text = TextCodec::open(&model)?.while_loaded(model.chat_template().ok());
    let stop = Arc::new(AtomicBool::new(false));
    let limits = ServerLimits::default();
    let server = Server::start(config(limits, &stop))?;
    let ram = match bytes {
        0 => RamBudget::Min,
        bytes => RamBudget::Bytes(bytes),
    };
    let streaming = Streaming { warm_start: false, ..Streaming::default() };
    let spec = model.spec();
    let heap_of_server = limits.heap() + listening(spec);
    let structured = structured(spec.vocab, TEXTS);
    let needs = Needs { texts: TEXTS, heap: heap_of_server, structured, ..Needs::default() };
    let options = Options { ram, streaming, ..Options::default() };
    let loader = model.with(options).needs(needs).text(text);
    if bytes == 0 {
        tell(&loader.planning()?.planner.smallest().to_string())?;
        return Ok(());
    }
    let depth = StoreOptions::default().depth;
    let inner = ReaderKind::Direct.open(model.manifest(), model.dir(), depth)?;
    let flaky = Arc::new(Flaky::new(inner, SEED));
    let mut loaded = loader.reader(Arc::clone(&flaky) as Arc<dyn ShardReader>).load()?;
    let counted = Arc::clone(&flaky);
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            if let Ok(Ok(per_mille)) = line.as_ref().map(|line| line.parse()) {
                counted.fail(per_mille);
            }
            let told = tell(&format!("{} {}", heap(), counted.failed()));
            if line.is_err() || told.is_err() {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    let address = server.address();
    let ready = || {
        flaky.fail(per_mille);
        // The script finds out that nobody reads, too.
        let _ = tell(&format!("listening on http://{address}"));
    };
    server.run(&mut loaded, needs, ready)?;
    Ok(())
}

fn config(limits: ServerLimits, stop: &Arc<AtomicBool>) -> ServerConfig {
    let stop = Arc::clone(stop);
    ServerConfig {
        address: ([127, 0, 0, 1], 0).into(),
        models: vec![ModelNames { id: "flaky".to_owned(), aliases: Vec::new() }],
        keys: Vec::new(),
        hosts: Vec::new(),
        origins: Vec::new(),
        open: false,
        open_metrics: false,
        limits,
        stop: Arc::new(move || stop.load(Ordering::Relaxed)),
        log: Arc::new(|_| ()),
    }
}
