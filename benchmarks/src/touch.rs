//! First touch of memory: what it costs, and runs of a command in memory for which a hypervisor takes
//! no more time.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use sws_format::{Clock, ShardReader};
use sws_store::{DirectReader, SLOT_ALIGN, Slot};

use crate::paired::median;
use crate::size::parse_size;
use crate::store_bench::cpu_time;

/// Options of `sws-bench touch`.
#[derive(clap::Args)]
pub struct TouchArguments {
    /// Bytes to touch
    #[arg(long, value_parser = parse_size, value_name = "SIZE", default_value = "2GiB")]
    bytes: u64,
    /// A file of at least 1 MiB, to read into memory with O_DIRECT as well
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Seconds after which the hypervisor has taken memory that was freed
    #[arg(long, default_value_t = 12)]
    rest: u64,
    /// Runs of each way
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// Run a command instead, in memory that was touched just before: all that is free, which is given
    /// back as the command takes some
    #[arg(last = true)]
    command: Vec<OsString>,
}

/// Bytes of a read, and reads in flight, as the store has them.
const CHUNK: usize = 1 << 20;
const DEPTH: usize = 4;

/// Bytes of memory that is freed at once, and that are free while a command runs: enough for what it
/// takes between two looks.
const BLOCK: usize = 128 << 20;
const FREE: u64 = 1280 << 20;
const LOOK: Duration = Duration::from_millis(2);

/// Prints the cost of a first touch, or runs the command.
pub fn run(arguments: &TouchArguments) -> Result<()> {
    match arguments.command.split_first() {
        Some((program, arguments)) => hold(program, arguments),
        None => table(arguments),
    }
}

/// Seconds that passed, and of processors.
#[derive(Clone, Copy)]
struct Took {
    wall: f64,
    cpu: f64,
}

fn timed(work: impl FnOnce() -> Result<()>) -> Result<Took> {
    let clock = Clock::real();
    let started = clock.now();
    let cpu = cpu_time();
    work()?;
    let wall = (clock.now() - started).as_secs_f64();
    Ok(Took { wall, cpu: (cpu_time() - cpu).as_secs_f64() })
}

fn table(arguments: &TouchArguments) -> Result<()> {
    let bytes = usize::try_from(arguments.bytes)?;
    let source = arguments.file.clone().map(|path| Source::open(path, bytes)).transpose()?;
    let mut rows = Vec::new();
    for _ in 0..arguments.rounds {
        for source in std::iter::once(None).chain(source.iter().map(Some)) {
            Clock::real().sleep(Duration::from_secs(arguments.rest));
            for memory in ["freed long ago", "freed just now"] {
                let mut slot = Slot::alone(bytes)?;
                match source {
                    None => add(&mut rows, memory, "write", timed(|| touch(&mut slot))?),
                    Some(source) => {
                        add(&mut rows, memory, "read", timed(|| source.read(&mut slot))?);
                        add(&mut rows, "touched", "read", timed(|| source.read(&mut slot))?);
                    }
                }
            }
        }
    }
    println!(
        "| memory | touched by | GB/s | seconds of processors for a GB |\n|---|---|---:|---:|"
    );
    for Row { memory, way, took } in rows {
        let gb = bytes as f64 / 1e9;
        let wall = median(took.iter().map(|it| it.wall));
        let cpu = median(took.iter().map(|it| it.cpu));
        println!("| {memory} | {way} | {:.2} | {:.2} |", gb / wall, cpu / gb);
    }
    Ok(())
}

/// The measurements of one way to touch memory.
struct Row {
    memory: &'static str,
    way: &'static str,
    took: Vec<Took>,
}

/// Adds a measurement to the row that it belongs to.
fn add(rows: &mut Vec<Row>, memory: &'static str, way: &'static str, took: Took) {
    for row in &mut *rows {
        if row.memory == memory && row.way == way {
            row.took.push(took);
            return;
        }
    }
    rows.push(Row { memory, way, took: vec![took] });
}

/// Writes to every page.
fn touch(memory: &mut [u8]) -> Result<()> {
    for byte in memory.iter_mut().step_by(SLOT_ALIGN) {
        *byte = 1;
    }
    Ok(())
}

/// A file that reads come from.
struct Source {
    reader: DirectReader,
    chunks: usize,
}

impl Source {
    fn open(path: PathBuf, bytes: usize) -> Result<Source> {
        let len = std::fs::metadata(&path)
            .with_context(|| format!("reading `{}`", path.display()))?
            .len();
        let chunks = (usize::try_from(len)? / CHUNK).min(bytes / CHUNK);
        ensure!(chunks > 0, "`{}` is shorter than 1 MiB; choose a larger file", path.display());
        Ok(Source { reader: DirectReader::of(vec![path]), chunks })
    }

    /// Fills memory with chunks of the file, several at a time.
    fn read(&self, memory: &mut [u8]) -> Result<()> {
        let next = AtomicUsize::new(0);
        let chunks: Vec<_> = memory.chunks_exact_mut(CHUNK).map(Mutex::new).collect();
        let lane = || -> std::io::Result<()> {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some(into) = chunks.get(number) else { return Ok(()) };
                let mut into = into.lock().unwrap_or_else(PoisonError::into_inner);
                let offset = number % self.chunks * CHUNK;
                self.reader.read_at(0, offset as u64, &mut into)?;
            }
        };
        std::thread::scope(|scope| {
            let lanes: Vec<_> = (0..DEPTH).map(|_| scope.spawn(lane)).collect();
            lanes.into_iter().try_for_each(|lane| match lane.join() {
                Ok(read) => Ok(read?),
                Err(_) => bail!("a thread that reads has panicked"),
            })
        })
    }
}

/// Touches all memory that is free, runs the command, and frees the memory again as fast as it takes
/// some.
fn hold(program: &OsString, arguments: &[OsString]) -> Result<()> {
    let mut held = Vec::new();
    while free_memory()? > FREE + BLOCK as u64 {
        let mut slot = Slot::alone(BLOCK)?;
        touch(&mut slot)?;
        held.push(slot);
    }
    let mut child = Command::new(program)
        .args(arguments)
        .spawn()
        .with_context(|| format!("starting `{}`", program.display()))?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        match free_memory()? < FREE && !held.is_empty() {
            true => drop(held.pop()),
            false => Clock::real().sleep(LOOK),
        }
    };
    ensure!(status.success(), "`{}` ended with {status}", program.display());
    Ok(())
}

/// Bytes of memory that nothing uses, not even as a cache.
fn free_memory() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemFree:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kib.context("`/proc/meminfo` has no line MemFree")? << 10)
}
