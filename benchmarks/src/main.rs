//! The `sws-bench` command.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, anyhow, ensure};
use clap::{Parser, Subcommand};
use sws_benchmarks::bits::{self, BitsArguments};
use sws_benchmarks::clients::{self, ClientsArguments};
use sws_benchmarks::inflate::{Neurons, inflate};
use sws_benchmarks::kernels::{self, attention::AttentionArguments};
use sws_benchmarks::measured;
use sws_benchmarks::mixers::{self, MixersArguments};
use sws_benchmarks::models;
use sws_benchmarks::plans::{self, PlansArguments};
use sws_benchmarks::published::{self, Published};
use sws_benchmarks::random::write_random;
use sws_benchmarks::released::{self, ShapesArguments};
use sws_benchmarks::replicas::{self, ReplicasArguments};
use sws_benchmarks::report;
use sws_benchmarks::resident::{self, ResidentArguments};
use sws_benchmarks::shapes::Shape;
use sws_benchmarks::sharding::{Settings, measure};
use sws_benchmarks::size::parse_size;
use sws_benchmarks::speculation::{self, SpeculationArguments};
use sws_benchmarks::store_bench::{self, StoreArguments};
use sws_benchmarks::stream::{self, StreamArguments};
use sws_benchmarks::timeline::{self, TimelineArguments};
use sws_benchmarks::touch::{self, TouchArguments};
use sws_benchmarks::versions::{self, VersionsArguments};
use sws_kernels::Encoding;

/// Benchmarks of SWS, and the checkpoints they need.
#[derive(Parser)]
#[command(name = "sws-bench", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Enlarge the experts of a trained checkpoint without changing their function
    ///
    /// Each expert gets further inner neurons, scattered among the trained ones, with random rows
    /// of gate and up and zero columns of down.
    Inflate {
        /// A bf16 checkpoint directory of the Mixtral, Qwen-MoE or OLMoE family
        checkpoint: PathBuf,
        /// Target size of an expert, for instance 14MiB; its width becomes the smallest multiple of
        /// 64 that reaches it
        #[arg(long, value_parser = parse_size, value_name = "SIZE")]
        expert_bytes: u64,
        /// Keep 64 neighbouring neurons together, so that stand-ins of the enlarged experts are as
        /// inexact as those of the trained ones
        #[arg(long)]
        by_group: bool,
        #[command(flatten)]
        output: OutputArguments,
    },
    /// Write a checkpoint of random weights in the shape of a real or a tiny model
    Random {
        /// Name of a shape, or of a file in `configs`; an unknown one lists them all
        #[arg(long)]
        shape: String,
        /// Number of layers, if not that of the shape
        #[arg(long)]
        layers: Option<usize>,
        /// Change an entry of a file in `configs`, for instance n_routed_experts=32
        #[arg(long, value_name = "KEY=VALUE")]
        set: Vec<String>,
        /// Write bf16, in whatever format the model was published
        #[arg(long)]
        plain: bool,
        #[command(flatten)]
        output: OutputArguments,
    },
    /// Measure a resident model against the kernel alone on the same weights, and against llama.cpp
    Resident(ResidentArguments),
    /// Measure a streaming model at several budgets, against llama.cpp and fio
    Stream(StreamArguments),
    /// Show when and why the disk is idle while a model generates text
    Timeline(TimelineArguments),
    /// Run layers of released models with random weights, one model after the other
    Shapes(ShapesArguments),
    /// Measure the gain of speculation and of each mechanism around it, over budgets and disks
    Speculation(SpeculationArguments),
    /// One run of `speculation`: used by the command itself
    #[command(hide = true)]
    SpeculationChild,
    /// Measure several clients of one model: one after the other, in shared passes, as the server decides
    Clients(ClientsArguments),
    /// Simulate replicas of the server behind a router, in virtual time, on recorded routes
    Replicas(ReplicasArguments),
    /// Compare random reads of whole pieces through the store with fio's
    Store(StoreArguments),
    /// Read experts of a model through the store without computing, and print bytes a second
    Alone {
        /// Checkpoint or shards
        model: PathBuf,
        /// Bytes to read in all
        #[arg(long, value_parser = parse_size, value_name = "SIZE")]
        bytes: u64,
    },
    /// Measure the sharder against a plain copy of the same number of bytes
    Sharding {
        /// A checkpoint, preferably of 2 GB or more
        checkpoint: PathBuf,
        /// New directory on the device under test, deleted afterwards
        #[arg(long, value_name = "DIR")]
        scratch: PathBuf,
        /// Encoding of the shards
        #[arg(long, default_value = "bf12", value_parser = |word: &str| word.parse::<Encoding>())]
        encoding: Encoding,
        /// Number of copies and shardings
        #[arg(long, default_value_t = 5)]
        pairs: usize,
        /// Let the copy use huge pages, as the sharder does
        #[arg(long)]
        huge_pages: bool,
        /// Print JSON instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Measure the first touch of memory, or run a command in memory that was touched before
    Touch(TouchArguments),
    /// Compare two builds of `sws` in alternating runs, and exit with 1 if the new one is slower
    Versions(VersionsArguments),
    /// Compare the estimates of `sws plan` with runs, on a grid of models, encodings and budgets
    Plans(PlansArguments),
    /// One run of `plans`: used by the command itself
    #[command(hide = true)]
    PlansChild,
    /// Compare recurrent layers with attention of the same width, on prompts
    Mixers(MixersArguments),
    /// Print the page of published models, docs/models.md
    Models,
    /// Print the page of measurements, docs/measured.md
    Measured {
        /// Files of `sws bench` [default: benchmarks/measured]
        #[arg(long, value_name = "DIR")]
        files: Option<PathBuf>,
    },
    /// Draw the figures of docs/evidence.md
    Report {
        /// Results to draw [default: benchmarks/results]
        #[arg(long, value_name = "DIR")]
        results: Option<PathBuf>,
        /// Directory for the figures [default: docs/figures]
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
    /// Print bits of a weight in the lossless encodings of bf16
    Bits(BitsArguments),
    /// Print the kernel table: every encoding and tier next to a plain sum, candle and gemm
    Kernels(kernels::Options),
    /// Print the speed of one token's attention over long caches, next to a plain sum
    Attention(AttentionArguments),
}

#[derive(clap::Args)]
struct OutputArguments {
    /// New directory for the checkpoint
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Maximum file size; a larger checkpoint is split into several files with an index
    #[arg(long, value_parser = parse_size, value_name = "SIZE", default_value = "5GB")]
    sharded: u64,
    /// Seed of the random weights
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Runs a command. Returns false if a criterion was missed.
fn run(command: Command) -> Result<bool> {
    match command {
        Command::Inflate { checkpoint, expert_bytes, by_group, output } => {
            let neurons = if by_group { Neurons::ByGroup } else { Neurons::Scattered };
            let how = (output.seed, neurons);
            inflate(&checkpoint, expert_bytes, &output.out, output.sharded, how)?;
        }
        Command::Random { shape, layers, set, plain, output } => {
            ensure!(
                layers.is_none_or(|layers| (1..=1000).contains(&layers)),
                "--layers must be between 1 and 1000"
            );
            random(&shape, layers, &set, plain, &output)?;
        }
        Command::Resident(arguments) => resident::run(&arguments)?,
        Command::Stream(arguments) => stream::run(&arguments)?,
        Command::Timeline(arguments) => timeline::run(&arguments)?,
        Command::Clients(arguments) => clients::run(&arguments)?,
        Command::Replicas(arguments) => replicas::run(&arguments)?,
        Command::Shapes(arguments) => released::run(&arguments)?,
        Command::Speculation(arguments) => speculation::run(&arguments)?,
        Command::SpeculationChild => speculation::child()?,
        Command::Alone { model, bytes } => println!("{:.0}", stream::alone::read(&model, bytes)?),
        Command::Store(arguments) => store_bench::run(&arguments)?,
        Command::Sharding { checkpoint, scratch, encoding, pairs, huge_pages, json } => {
            let settings = Settings { checkpoint, scratch, encoding, pairs, huge_pages };
            let report = measure(&settings)?;
            match json {
                true => println!("{}", serde_json::to_string_pretty(&report)?),
                false => print!("{}", report.table()),
            }
        }
        Command::Touch(arguments) => touch::run(&arguments)?,
        Command::Versions(arguments) => return versions::run(&arguments),
        Command::Plans(arguments) => plans::run(&arguments)?,
        Command::PlansChild => plans::child()?,
        Command::Mixers(arguments) => mixers::run(&arguments)?,
        Command::Models => print!("{}", models::page(&published::configs())?),
        Command::Measured { files } => {
            print!("{}", measured::page(&files.unwrap_or_else(measured::files))?);
        }
        Command::Report { results, out } => {
            let results = results.unwrap_or_else(report::results);
            report::write(&results, &out.unwrap_or_else(report::figures))?;
        }
        Command::Bits(arguments) => print!("{}", bits::table(&arguments)?),
        Command::Kernels(options) => kernels::run(options)?,
        Command::Attention(arguments) => kernels::attention::run(&arguments)?,
    }
    Ok(true)
}

fn random(
    name: &str,
    layers: Option<usize>,
    set: &[String],
    plain: bool,
    output: &OutputArguments,
) -> Result<()> {
    let OutputArguments { out, sharded, seed } = output;
    let Some(mut published) = Published::named(name)? else {
        let mut shape = Shape::named(name).map_err(|shapes| {
            let more = Published::names().unwrap_or_default().join(", ");
            anyhow!("{shapes}, or of configs: {more}")
        })?;
        ensure!(set.is_empty(), "--set changes files in `configs`, and `{name}` is none of them");
        shape.layers = layers.unwrap_or(shape.layers);
        let config = shape.config();
        let generation = shape.generation_config();
        let configs = [("config.json", &config), ("generation_config.json", &generation)];
        return write_random(&configs, &shape.tensors(), out, *sharded, *seed);
    };
    if let Some(layers) = layers {
        published.keep_layers(layers)?;
    }
    for change in set {
        published.set(change)?;
    }
    if plain {
        published.make_plain();
    }
    let configs = [("config.json", published.config())];
    write_random(&configs, &published.tensors()?, out, *sharded, *seed)
}
