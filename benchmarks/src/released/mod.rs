//! Runs of released models' layers, one model after the other: written with random weights in the
//! format in which they were released, run within a budget in a control group, and deleted.

mod report;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::published::Published;
use crate::random::write_random;
use crate::size::parse_size;
use crate::stream::child::{Holding, Known, Task};
use crate::stream::{Run, senseless};
use report::{Report, Row, line};

/// Options of `sws-bench shapes`, a field each.
#[derive(Debug, clap::Args)]
pub struct ShapesArguments {
    /// New directory on the device under test, for one model at a time; deleted afterwards
    #[arg(long, value_name = "DIR", required_unless_present = "from")]
    scratch: Option<PathBuf>,
    /// Shapes to run [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    only: Vec<String>,
    /// Budget of the larger runs
    #[arg(long, value_parser = parse_size, value_name = "SIZE", default_value = "8GiB")]
    ram: u64,
    /// Share of the experts that the smaller runs cache, in percent
    #[arg(long, default_value_t = 3.0)]
    share: f64,
    /// Tokens to generate
    #[arg(long, default_value_t = 48, value_parser = clap::value_parser!(u32).range(2..=4096))]
    tokens: u32,
    /// Runs of each row
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// The `sws` to measure [default: the one in the directory of this program]
    #[arg(long, value_name = "PROGRAM")]
    sws: Option<PathBuf>,
    /// File for the results
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Print the table of such a file, and run nothing
    #[arg(long, value_name = "FILE", conflicts_with = "scratch")]
    from: Option<PathBuf>,
}

/// A released model, cut to what a disk has room for.
struct Shape {
    name: &'static str,
    /// File in `configs`.
    config: &'static str,
    /// Layers kept.
    layers: usize,
    /// Other entries that are changed.
    changes: &'static [&'static str],
}

/// Only layers with experts, at least two, and so as many experts as 12 GB hold: those of a layer of
/// GLM-5.2 in bf16 take 19 GB. Matrices have their sizes, whatever their number.
const SHAPES: &[Shape] = &[
    Shape {
        name: "glm-5.2",
        config: "glm-5.2",
        layers: 2,
        changes: &["first_k_dense_replace=0", "n_routed_experts=64"],
    },
    Shape {
        name: "glm-5.2-fp8",
        config: "glm-5.2",
        layers: 2,
        changes: &[
            "first_k_dense_replace=0",
            "n_routed_experts=128",
            r#"quantization_config={"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}"#,
        ],
    },
    Shape {
        name: "deepseek-v3",
        config: "deepseek-v3",
        layers: 2,
        changes: &["first_k_dense_replace=0", "n_routed_experts=120"],
    },
    Shape {
        name: "deepseek-v4-flash",
        config: "deepseek-v4-flash",
        layers: 6,
        changes: &["n_routed_experts=128"],
    },
    Shape {
        name: "qwen3.5-397b-a17b",
        config: "qwen3.5-397b-a17b",
        layers: 4,
        changes: &["num_experts=96"],
    },
    Shape { name: "gpt-oss-120b", config: "gpt-oss-120b", layers: 6, changes: &[] },
    Shape {
        name: "kimi-k2-thinking",
        config: "kimi-k2-thinking",
        layers: 2,
        changes: &["first_k_dense_replace=0", "n_routed_experts=192"],
    },
];

/// Entries of the vocabulary of every shape.
const VOCAB: &str = "vocab_size=8192";

/// Maximum size of a file of a model.
const FILE_BYTES: u64 = 5_000_000_000;

/// Tokens of the prompt, enough to use all experts once, which fills the cache: a slot's first use takes
/// longer, as the system clears its memory.
const PROMPT: u32 = 256;

/// Runs all shapes and prints the table.
pub fn run(arguments: &ShapesArguments) -> Result<()> {
    if let Some(file) = &arguments.from {
        print!("{}", Report::read(file)?.text());
        return Ok(());
    }
    ensure!((0.0..=100.0).contains(&arguments.share), "--share is a percentage");
    let names: Vec<&str> = SHAPES.iter().map(|shape| shape.name).collect();
    if let Some(name) = arguments.only.iter().find(|name| !names.contains(&name.as_str())) {
        bail!("`{name}` is no shape; choose some of {}", names.join(", "));
    }
    let scratch = arguments.scratch.as_ref().context("--scratch names a directory")?;
    let beside = std::env::current_exe()?.with_file_name("sws");
    let program = arguments.sws.as_ref().unwrap_or(&beside);
    let mut report = Report::default();
    for shape in SHAPES {
        if !arguments.only.is_empty() && !arguments.only.iter().any(|name| name == shape.name) {
            continue;
        }
        let model = Written::new(shape, &scratch.join(shape.name))?;
        let known = Known::new(program, &model.0)?;
        report.rows.extend(measure(arguments, shape, &known)?);
        if let Some(path) = &arguments.json {
            report.write(path)?;
        }
    }
    // Refused if it had something in it before.
    let _ = std::fs::remove_dir(scratch);
    print!("{}", report.text());
    Ok(())
}

/// A written model, deleted on drop.
struct Written(PathBuf);

impl Written {
    fn new(shape: &Shape, out: &Path) -> Result<Written> {
        let mut published = Published::named(shape.config)?
            .with_context(|| format!("`configs` lacks {}.json", shape.config))?;
        published.keep_layers(shape.layers)?;
        for change in shape.changes.iter().chain([&VOCAB]) {
            published.set(change)?;
        }
        if let Some(parent) = out.parent() {
            std::fs::create_dir_all(parent)
                .with_context(|| format!("cannot create `{}`", parent.display()))?;
        }
        let configs = [("config.json", published.config())];
        write_random(&configs, &published.tensors()?, out, FILE_BYTES, 0)?;
        Ok(Written(out.to_owned()))
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        // A second attempt at a failed run names the leftover directory.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs one model with a small cache, on demand and as shipped, and within the larger budget.
fn measure(arguments: &ShapesArguments, shape: &Shape, known: &Known) -> Result<Vec<Row>> {
    let task = Task {
        prompt: vec!["--tokens".into(), senseless(PROMPT)],
        tokens: arguments.tokens,
        context: 512,
        threads: 2,
    };
    // Slots, and with them a draft, come in steps, and the smallest such budget ends in the middle of one.
    let least = known.budget(arguments.share / 100.0, &task)?;
    let small = (least + least / 50) >> 20 << 20;
    ensure!(
        small <= arguments.ram,
        "`{}` needs {} MiB for {} % of its experts, more than --ram; lower --share",
        shape.name,
        small >> 20,
        arguments.share
    );
    let holdings = [
        ("small, on demand", Holding::Budget(small, "expected")),
        ("small, as shipped", Holding::Shipped(small)),
        ("large, as shipped", Holding::Shipped(arguments.ram)),
    ];
    let mut rows = holdings.map(|(what, holding)| Row {
        shape: shape.name.to_owned(),
        disk: known.bytes,
        what: what.to_owned(),
        budget: holding.budget().unwrap_or(0),
        speculation: Value::Null,
        layers: Value::Null,
        runs: Vec::new(),
    });
    let mut expected = None;
    for round in 0..arguments.rounds as usize {
        for turn in 0..rows.len() {
            let at = if round % 2 == 0 { turn } else { rows.len() - 1 - turn };
            let (what, holding) = holdings[at];
            let told = known.run(&task, holding)?;
            ensure!(
                told.group_peak.is_some(),
                "no control group that limits memory can be made here; run as root"
            );
            let tokens = expected.get_or_insert_with(|| told.tokens.clone());
            ensure!(
                *tokens == told.tokens,
                "`{}` ({what}) generates other tokens than its first run did",
                shape.name
            );
            let run = Run::of(&told)?;
            eprintln!("{} {what}: {}", shape.name, line(&run));
            rows[at].speculation = told.metrics["cost"]["generation"]["speculation"].clone();
            rows[at].layers = told.metrics["cost"]["generation"]["experts"]["layers"].clone();
            rows[at].runs.push(run);
        }
    }
    Ok(rows.into())
}
