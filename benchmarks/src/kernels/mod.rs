//! The kernel table: our matmul in every encoding and tier, next to a plain sum over the same
//! bytes, candle, and the `gemm` crate, alternating within one run.

pub mod attention;
mod measure;
pub mod peers;
mod report;
pub mod weights;

use std::io::BufRead;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::str::FromStr;

use anyhow::{Context, Result, ensure};
use sws_kernels::{Encoding, Fp8Scales, GgufBlocks, MatmulScratch, Matrix, Tier, matmul};

use crate::size::parse_size;
use measure::{Contender, alternate};
use peers::{CandleFormat, CandleSet, gemm_f32, parallel_sum};
pub use report::Record;
use weights::{Encoded, MAX_COPIES, WorkingSet, random_weights, widen};

/// Odd, so that a median is one of the rounds.
const ROUNDS: usize = 9;

/// Options of `sws-bench kernels`.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Encodings (default: all)
    #[arg(long, value_delimiter = ',', value_parser = Encoding::from_str)]
    encodings: Vec<Encoding>,
    /// Kernel tiers (default: the vector tiers that this CPU supports)
    #[arg(long, value_delimiter = ',', value_parser = Tier::from_str)]
    tiers: Vec<Tier>,
    /// Numbers of tokens
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 64, 512])]
    tokens: Vec<usize>,
    /// Numbers of threads; each is measured in its own process
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2])]
    threads: Vec<usize>,
    /// Rows of each matrix
    #[arg(long, default_value_t = 6144)]
    rows: usize,
    /// Columns of each matrix
    #[arg(long, default_value_t = 2048)]
    cols: usize,
    /// Size of the working set of weights; should be far larger than the last-level cache
    #[arg(long, value_parser = parse_size, default_value = "512MiB", value_name = "SIZE")]
    weights: u64,
    /// Time per contender and cell
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS")]
    seconds_per_cell: f64,
    /// Leave out candle and gemm
    #[arg(long)]
    no_peers: bool,
    /// Write one line of JSON per cell and contender
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Measure in this process and print JSON: used by the command itself
    #[arg(long, hide = true)]
    worker: bool,
}

/// Measures and prints; see `sws-bench kernels --help`.
pub fn run(mut options: Options) -> Result<()> {
    let cells = options.rows.saturating_mul(options.cols);
    ensure!((1..=1 << 28).contains(&cells), "--rows times --cols must be between 1 and 2^28");
    ensure!(options.weights <= 1 << 34, "--weights must be at most 16GiB");
    ensure!(
        options.tokens.iter().all(|t| (1..=1 << 16).contains(t)),
        "--tokens must be between 1 and 65536"
    );
    ensure!(
        options.threads.iter().all(|t| (1..=1024).contains(t)),
        "--threads must be between 1 and 1024"
    );
    ensure!(
        (0.0..1e4).contains(&options.seconds_per_cell),
        "--seconds-per-cell must be between 0 and 10000"
    );
    if let Some(path) = &options.json {
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
        ensure!(
            dir.is_none_or(|dir| dir.is_dir()) && !path.is_dir(),
            "`{}` can not be written; choose another --json",
            path.display()
        );
    }
    if options.encodings.is_empty() {
        options.encodings = Encoding::ALL.to_vec();
    }
    if options.tiers.is_empty() {
        options.tiers = Tier::available();
        options.tiers.retain(|tier| !is_slow(tier));
        if options.tiers.is_empty() {
            options.tiers.push(Tier::PORTABLE);
        }
    }
    if options.worker {
        for &encoding in &options.encodings {
            measure_encoding(encoding, &options)?;
        }
        return Ok(());
    }
    let mut records = Vec::new();
    for &threads in &options.threads {
        records.extend(in_worker(threads, &options)?);
    }
    if let Some(path) = &options.json {
        let lines: Result<String> =
            records.iter().map(|record| Ok(serde_json::to_string(record)? + "\n")).collect();
        std::fs::write(path, lines?)
            .with_context(|| format!("cannot write `{}`", path.display()))?;
    }
    println!("{}", report::table(&records));
    println!("{}", report::summary(&records));
    println!("{}", report::targets(&records));
    Ok(())
}

/// Candle sizes its thread pools once per process, from the environment, so every number of threads
/// gets its own process.
fn in_worker(threads: usize, options: &Options) -> Result<Vec<Record>> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["kernels", "--worker"])
        .args(["--encodings", &joined(&options.encodings)])
        .args(["--tiers", &joined(&options.tiers)])
        .args(["--tokens", &joined(&options.tokens)])
        .args(["--threads", &threads.to_string()])
        .args(["--rows", &options.rows.to_string(), "--cols", &options.cols.to_string()])
        .args(["--weights", &options.weights.to_string()])
        .args(["--seconds-per-cell", &options.seconds_per_cell.to_string()])
        .args(options.no_peers.then_some("--no-peers"))
        .env("RAYON_NUM_THREADS", threads.to_string())
        .env("CANDLE_NUM_THREADS", threads.to_string())
        .stdout(Stdio::piped());
    let mut worker = command.spawn().context("cannot start the measuring process")?;
    let lines = std::io::BufReader::new(worker.stdout.take().context("its output is piped")?);
    let mut records = Vec::new();
    for line in lines.lines() {
        let record: Record = serde_json::from_str(&line?).context("from the measuring process")?;
        eprintln!("{}", record.line());
        records.push(record);
    }
    ensure!(worker.wait()?.success(), "the measuring process failed");
    Ok(records)
}

fn is_slow(tier: &Tier) -> bool {
    matches!(*tier, Tier::SCALAR | Tier::PORTABLE)
}

/// Values as one word of a command line.
fn joined(values: &[impl ToString]) -> String {
    values.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// All cells of one encoding.
fn measure_encoding(encoding: Encoding, options: &Options) -> Result<()> {
    let shape @ (rows, cols) = (options.rows, options.cols);
    let plain = random_weights(rows, cols);
    let set = |encoding| -> Result<WorkingSet> {
        WorkingSet::new(&Encoded::new(encoding, shape, &plain)?, options.weights as usize)
    };
    let own = set(encoding)?;
    let matrices = own.matrices()?;
    // The gains of bf12 and bf11, and the rate of batches, are measured against bf16 in the same run.
    let is_compared = |tokens: usize| tokens > 1 || encoding.has_patches();
    let compared = encoding != Encoding::Bf16 && options.tokens.iter().any(|&t| is_compared(t));
    let bf16 = compared.then(|| set(Encoding::Bf16)).transpose()?;
    let bf16 = bf16.as_ref().map(WorkingSet::matrices).transpose()?;

    let wide = widen(&plain);
    let copies = |bits: f64| {
        let copies = options.weights as f64 * 8.0 / bits / wide.len() as f64;
        copies.clamp(1.0, MAX_COPIES as f64) as usize
    };
    let format = candle_format(encoding).filter(|f| {
        // Q4_K has blocks of 256 columns, Q8_0 of 32.
        !options.no_peers && (*f != CandleFormat::Q4K || cols % 256 == 0) && cols % 32 == 0
    });
    let mut candle =
        format.map(|f| CandleSet::new(f, &wide, shape, copies(f.bits()))).transpose()?;
    let gemm: Vec<Vec<f32>> = match options.no_peers {
        true => Vec::new(),
        false => vec![wide.clone(); copies(32.0)],
    };

    for &tokens in &options.tokens {
        let x: Vec<f32> = widen(&random_weights(tokens, cols));
        let mut y = vec![0f32; tokens * rows];
        let weights = (rows * cols) as f64;
        let mut contenders = vec![Contender {
            name: "sum".to_owned(),
            bytes: own.bytes(0).len() as f64,
            weights,
            call: Box::new(|i| {
                std::hint::black_box(parallel_sum(own.bytes(i % own.copies())));
                Ok(())
            }),
        }];
        for &tier in &options.tiers {
            contenders.push(ours(tier.to_string(), tier, &matrices, &x, tokens));
        }
        for &tier in options.tiers.iter().filter(|_| is_compared(tokens)) {
            let Some(bf16) = &bf16 else { break };
            contenders.push(ours(format!("bf16 {tier}"), tier, bf16, &x, tokens));
        }
        if let Some(format) = format
            && let Some(candle) = &mut candle
        {
            candle.activations(&x, tokens)?;
            contenders.push(Contender {
                name: format.name().to_owned(),
                bytes: weights * format.bits() / 8.0,
                weights,
                call: Box::new(|i| {
                    std::hint::black_box(candle.run(i)?);
                    Ok(())
                }),
            });
        }
        if !gemm.is_empty() {
            contenders.push(Contender {
                name: "gemm f32".to_owned(),
                bytes: weights * 4.0,
                weights,
                call: Box::new(|i| {
                    gemm_f32(&gemm[i % gemm.len()], rows, cols, &x, tokens, &mut y);
                    std::hint::black_box(&y);
                    Ok(())
                }),
            });
        }
        let timings = alternate(&mut contenders, ROUNDS, options.seconds_per_cell)?;
        let cell = report::Cell { encoding, tokens, threads: options.threads[0], rows, cols };
        for record in report::records(&cell, &contenders, &timings) {
            println!("{}", serde_json::to_string(&record)?);
        }
    }
    Ok(())
}

fn ours<'a>(
    name: String,
    tier: Tier,
    matrices: &'a [Matrix<'a>],
    x: &'a [f32],
    tokens: usize,
) -> Contender<'a> {
    let first = &matrices[0];
    let mut y = vec![0f32; tokens * first.row_count()];
    let mut scratch = MatmulScratch::default();
    Contender {
        name,
        bytes: first.bytes() as f64,
        weights: (first.row_count() * first.cols()) as f64,
        call: Box::new(move |i| {
            matmul(tier, &matrices[i % matrices.len()], x, tokens, &mut y, &mut scratch);
            std::hint::black_box(&y);
            Ok(())
        }),
    }
}

/// Candle's nearest format, if there is one.
fn candle_format(encoding: Encoding) -> Option<CandleFormat> {
    match encoding {
        Encoding::F32 => Some(CandleFormat::F32),
        Encoding::Bf16 | Encoding::Bf12 | Encoding::Bf11 | Encoding::Nested => {
            Some(CandleFormat::Bf16)
        }
        Encoding::Q8 | Encoding::Fp8(Fp8Scales::Squares) | Encoding::Gguf(GgufBlocks::Q8_0) => {
            Some(CandleFormat::Q80)
        }
        Encoding::Q4 | Encoding::Mxfp4 | Encoding::Gguf(GgufBlocks::Q4K) => Some(CandleFormat::Q4K),
        Encoding::Fp7(_) => Some(CandleFormat::Q80),
        _ => None,
    }
}
