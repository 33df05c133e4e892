//! Random reads of whole pieces through the store and with fio, alternating, from the same files.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use sws_format::{
    Clock, Extent, FileEntry, Manifest, ModelIdentity, Piece, PieceId, PieceKind, Tensor,
    check_len, checksum,
};
use sws_store::{Arena, NVMeWeightStore, Priority, Read, ReaderKind, Slot, StoreOptions};

use crate::paired::median;
use crate::size::parse_size;

/// Options of `sws-bench store`.
#[derive(clap::Args)]
pub struct StoreArguments {
    /// Directory for the pieces, which are reused by later runs; on a file system that supports
    /// direct reads
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Sizes of the pieces
    #[arg(long, value_parser = parse_size, value_delimiter = ',', value_name = "SIZES",
          default_value = "1MiB,5MiB,20MiB,350MiB")]
    sizes: Vec<u64>,
    /// Bytes to read in one run
    #[arg(long, value_parser = parse_size, value_name = "SIZE", default_value = "2GiB")]
    total: u64,
    /// Runs of each contender
    #[arg(long, default_value_t = 7)]
    pairs: usize,
    /// Reads in flight, for both contenders
    #[arg(long, default_value_t = 4)]
    depth: usize,
    /// Bytes per read, for both contenders
    #[arg(long, value_parser = parse_size, value_name = "SIZE", default_value = "1MiB")]
    chunk: u64,
    /// Reader under test
    #[arg(long, default_value = "direct")]
    reader: ReaderKind,
    /// Compare with another reader of the store instead of fio
    #[arg(long)]
    against: Option<ReaderKind>,
    /// Further options for fio, for instance `--fio-option=--iomem=mmaphuge`
    #[arg(long, value_name = "OPTION")]
    fio_option: Vec<String>,
    /// File for the figures of every run
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// One run.
#[derive(Clone, Copy, Debug, Serialize)]
struct Run {
    bytes_per_second: f64,
    /// User and system time divided by elapsed time.
    cpu: f64,
    /// Time of checksums divided by elapsed time.
    checksum: f64,
}

/// All runs of one size.
#[derive(Serialize)]
struct Row {
    piece_bytes: u64,
    pieces: u64,
    depth: usize,
    chunk: u64,
    store: Vec<Run>,
    other: Vec<Run>,
    /// Median over pairs of the store's speed relative to the other's.
    ratio: f64,
}

/// Measures and prints the table.
pub fn run(arguments: &StoreArguments) -> Result<()> {
    ensure!(arguments.pairs > 0 && arguments.depth > 0, "--pairs and --depth must be at least 1");
    let other = arguments.against.map_or("fio", ReaderKind::name);
    println!(
        "{} against {other}: depth {}, {} KiB a read, median of {} pairs",
        arguments.reader,
        arguments.depth,
        arguments.chunk >> 10,
        arguments.pairs
    );
    println!("   piece  pieces   store MB/s  cpu %  xxh3 %   {other:>6} MB/s  cpu %   ratio");
    let mut rows = Vec::new();
    for &size in &arguments.sizes {
        let row = measure(arguments, size)?;
        let median = |runs: &[Run], of: fn(&Run) -> f64| median(runs.iter().map(of));
        println!(
            "{:>5} MiB  {:>6}  {:>11.0}  {:>5.1}  {:>6.1}  {:>11.0}  {:>5.1}  {:>6.3}",
            size >> 20,
            row.pieces,
            median(&row.store, |run| run.bytes_per_second / 1e6),
            median(&row.store, |run| run.cpu * 100.0),
            median(&row.store, |run| run.checksum * 100.0),
            median(&row.other, |run| run.bytes_per_second / 1e6),
            median(&row.other, |run| run.cpu * 100.0),
            row.ratio,
        );
        rows.push(row);
    }
    if let Some(path) = &arguments.json {
        let file = File::create(path).with_context(|| format!("creating {}", path.display()))?;
        serde_json::to_writer_pretty(file, &rows)?;
    }
    Ok(())
}

fn measure(arguments: &StoreArguments, size: u64) -> Result<Row> {
    ensure!(size > 0 && size.is_multiple_of(4096), "sizes must be multiples of 4096");
    let pieces = (arguments.total / size).max(4);
    let dir = arguments.dir.join(format!("{size}"));
    let manifest = Arc::new(prepare(&dir, size, pieces)?);
    // The device pins slots again and again, as it does in an engine; fresh ones would measure page
    // faults.
    let waiting = 2.max((arguments.depth as u64 + 2) * arguments.chunk / size + 1);
    let arena = Arena::new(usize::try_from(waiting.min(pieces) * size)?)?;
    arena.take(arena.bytes()).context("an empty arena")?.fill(1);
    let mut row = Row {
        piece_bytes: size,
        pieces,
        depth: arguments.depth,
        chunk: arguments.chunk,
        store: Vec::new(),
        other: Vec::new(),
        ratio: 0.0,
    };
    let mut order: Vec<u32> = (0..u32::try_from(pieces)?).collect();
    for pair in 0..arguments.pairs {
        shuffle(&mut order, pair as u64 + 1);
        let store = |kind| run_store(arguments, kind, &manifest, &dir, &arena, &order);
        let other = || match arguments.against {
            Some(kind) => store(kind),
            None => run_fio(arguments, &dir, size, pieces, pair as u64 + 1),
        };
        // The contender that goes first alternates too.
        if pair % 2 == 0 {
            row.store.push(store(arguments.reader)?);
            row.other.push(other()?);
        } else {
            row.other.push(other()?);
            row.store.push(store(arguments.reader)?);
        }
    }
    let pairs = row.store.iter().zip(&row.other);
    row.ratio = median(pairs.map(|(a, b)| a.bytes_per_second / b.bytes_per_second));
    Ok(row)
}

fn run_store(
    arguments: &StoreArguments,
    kind: ReaderKind,
    manifest: &Arc<Manifest>,
    dir: &Path,
    arena: &Arena,
    order: &[u32],
) -> Result<Run> {
    let clock = Clock::real();
    let reader = kind.open(manifest, dir, arguments.depth)?;
    // fio opens its files before it starts its clock.
    let mut page = Slot::alone(1)?;
    for &file in order {
        reader.read_at(file, 0, &mut page)?;
    }
    let options = StoreOptions {
        reader: Some(reader),
        depth: arguments.depth,
        chunk: usize::try_from(arguments.chunk)?,
        cache: None,
        clock: clock.clone(),
        ..StoreOptions::default()
    };
    let store = NVMeWeightStore::open(Arc::clone(manifest), dir, options)?;
    let started = clock.now();
    let cpu = cpu_time();
    let mut waiting = order.iter().copied().peekable();
    let mut under_way = 0;
    let mut bytes = 0;
    loop {
        while let Some(&expert) = waiting.peek() {
            let layout = store.layout(Read::Piece(PieceId::expert(0, expert)))?;
            let Some(slot) = arena.take(layout.slot_len()) else { break };
            store.fetch(layout, Priority::Demanded, slot)?;
            waiting.next();
            under_way += 1;
        }
        if under_way == 0 {
            break;
        }
        let done = store.completions().recv()?;
        done.result?;
        bytes += done.layout.slot_len() as u64;
        under_way -= 1;
    }
    let elapsed = (clock.now() - started).as_secs_f64();
    Ok(Run {
        bytes_per_second: bytes as f64 / elapsed,
        cpu: (cpu_time() - cpu).as_secs_f64() / elapsed,
        checksum: store.stats().checksum.as_secs_f64() / elapsed,
    })
}

/// CPU time used by this process.
pub(crate) fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Lets fio read each file once from start to end, in blocks of the same size, the files in random
/// order.
fn run_fio(
    arguments: &StoreArguments,
    dir: &Path,
    size: u64,
    pieces: u64,
    seed: u64,
) -> Result<Run> {
    let block = arguments.chunk.min(size);
    let output = Command::new("fio")
        .args(["--name=pieces", "--ioengine=io_uring", "--direct=1", "--rw=read", "--invalidate=1"])
        .args(["--filename_format=piece.$filenum", "--output-format=json"])
        .arg(format!("--directory={}", dir.display()))
        .arg(format!("--nrfiles={pieces}"))
        .arg(format!("--filesize={size}"))
        .arg(format!("--bs={block}"))
        .arg(format!("--iodepth={}", arguments.depth))
        .arg(format!("--file_service_type=random:{}", size.div_ceil(block)))
        .arg(format!("--randseed={seed}"))
        .args(&arguments.fio_option)
        .output()
        .context("fio can not be run; install it with `apt install fio`")?;
    ensure!(output.status.success(), "fio: {}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let job = &report["jobs"][0];
    ensure!(
        number(&job["read"]["io_bytes"])? == (size * pieces) as f64,
        "fio did not read every piece once"
    );
    Ok(Run {
        bytes_per_second: number(&job["read"]["bw_bytes"])?,
        cpu: (number(&job["usr_cpu"])? + number(&job["sys_cpu"])?) / 100.0,
        checksum: 0.0,
    })
}

fn number(value: &serde_json::Value) -> Result<f64> {
    value.as_f64().context("fio's report has changed")
}

/// Describes the pieces, and writes those that are missing or of another size.
fn prepare(dir: &Path, size: u64, pieces: u64) -> Result<Manifest> {
    fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
    let mut manifest = Manifest {
        model: ModelIdentity { model_type: "bench".into(), fingerprint: String::new() },
        encoding: None,
        files: Vec::new(),
        pieces: Vec::new(),
        copies: Vec::new(),
    };
    // All pieces have the same random bytes, except for eight bytes at the start of every
    // checksummed block.
    let mut bytes = Vec::with_capacity(usize::try_from(size)?);
    let mut state = 1u64;
    while bytes.len() < bytes.capacity() {
        bytes.extend_from_slice(&random(&mut state).to_le_bytes());
    }
    let rows = size / 4096;
    // Gate, up and down.
    let cuts = [0, rows / 3, rows * 2 / 3, rows];
    for n in 0..pieces {
        let file = u32::try_from(n)?;
        let mut tensors = Vec::new();
        for (name, cut) in ["gate", "up", "down"].into_iter().zip(cuts.windows(2)) {
            let check_len = check_len(4096, cut[1] - cut[0], PieceKind::Expert(file));
            let range = usize::try_from(cut[0] * 4096)?..usize::try_from(cut[1] * 4096)?;
            let mut checks = Vec::new();
            for block in bytes[range.clone()].chunks_mut(usize::try_from(check_len)?) {
                block[..8].copy_from_slice(&n.to_le_bytes());
                checks.push(checksum(block));
            }
            tensors.push(Tensor {
                name: name.into(),
                dtype: sws_format::Dtype::U8,
                shape: vec![cut[1] - cut[0], 4096],
                transposed: false,
                packing: None,
                slice: None,
                source: String::new(),
                encoding: None,
                parts: vec![Extent {
                    file,
                    offset: range.start as u64,
                    len: range.len() as u64,
                    check_len,
                    checks,
                }],
                origins: Vec::new(),
                error: None,
            });
        }
        let path = format!("piece.{n}");
        let place = dir.join(&path);
        if fs::metadata(&place).map_or(0, |stat| stat.len()) != size {
            let mut file = File::create(&place)?;
            file.write_all(&bytes)?;
            file.sync_all().with_context(|| format!("writing {}", place.display()))?;
        }
        manifest.files.push(FileEntry { path, len: size });
        manifest.pieces.push(Piece { id: PieceId::expert(0, file), tensors, stand_in: None });
    }
    Ok(manifest)
}

fn shuffle(order: &mut [u32], seed: u64) {
    let mut state = seed;
    for n in (1..order.len()).rev() {
        let other = random(&mut state) % (n as u64 + 1);
        order.swap(n, other as usize);
    }
}

/// splitmix64.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
