//! Compares what `sws plan` estimates with runs, on a grid of models, encodings and shares of the
//! experts in memory.

mod fit;
mod grid;
mod point;
mod table;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

pub use fit::fit;
pub use point::{Point, main as child};
pub use table::{Judged, judged, page};

use point::{Room, Task};

use crate::size::parse_size;

/// Share of the experts in memory, in percent.
const SHARES: [u32; 3] = [25, 50, 100];

/// Options of `sws-bench plans`.
#[derive(clap::Args, Clone, Debug)]
pub struct PlansArguments {
    /// Directory for the models; those that are missing are made, 17 GB
    #[arg(long, value_name = "DIR", required_unless_present = "from")]
    scratch: Option<PathBuf>,
    /// Measure this model in place of the grid, at the budgets of --budgets; it takes the tokens of
    /// `tales-moe`
    #[arg(long, value_name = "MODEL", requires = "budgets", conflicts_with_all = ["from", "prepare"])]
    model: Option<PathBuf>,
    /// Budgets for --model
    #[arg(long, value_parser = parse_size, value_delimiter = ',', value_name = "SIZES", requires = "model")]
    budgets: Vec<u64>,
    /// Only make the models
    #[arg(long)]
    prepare: bool,
    /// Print the points of this file, which --json wrote, instead of measuring
    #[arg(long, value_name = "FILE", conflicts_with_all = ["scratch", "prepare", "json"])]
    from: Option<PathBuf>,
    /// Tokens to generate at each point
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(2..=1024))]
    tokens: u32,
    /// Tokens before those, which fill the cache
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(0..=1024))]
    warm: u32,
    /// Runs of each point, of which the medians count
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// File for the results
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Measures the grid and prints the comparison.
pub fn run(arguments: &PlansArguments) -> Result<()> {
    let points = match (&arguments.from, &arguments.scratch) {
        (Some(file), _) => read(file)?,
        (None, Some(scratch)) => {
            std::fs::create_dir_all(scratch).with_context(|| format!("`{}`", scratch.display()))?;
            let models = match &arguments.model {
                Some(path) => vec![grid::Model::given(path)?],
                None => grid::models(scratch)?,
            };
            if arguments.prepare {
                return Ok(());
            }
            measure(arguments, &models, &scratch.canonicalize()?.join("learned"))?
        }
        (None, None) => unreachable!("required by the options"),
    };
    print!("{}", page(&points)?);
    Ok(())
}

/// Reads the points that a run has written.
pub fn read(file: &Path) -> Result<Vec<Point>> {
    let json = std::fs::read(file).with_context(|| format!("reading `{}`", file.display()))?;
    serde_json::from_slice(&json).with_context(|| {
        format!(
            "`{}` was not written by `sws-bench plans --json`; choose another file",
            file.display()
        )
    })
}

/// Measures all points, in rounds over the grid. The earlier runs keep what they learn in `cache`.
fn measure(arguments: &PlansArguments, models: &[grid::Model], cache: &Path) -> Result<Vec<Point>> {
    let warm = arguments.warm as usize;
    let texts = grid::tokens(warm + arguments.tokens as usize)?;
    let earlier = grid::earlier_tokens(&texts)?;
    if cache.exists() {
        std::fs::remove_dir_all(cache)?;
    }
    let task = |model: &grid::Model, room, [prompt, text]: &[Vec<u32>; 2], learns| Task {
        model: model.name.clone(),
        encoding: model.encoding.clone(),
        dir: model.dir.clone(),
        room,
        prompt: prompt.clone(),
        text: text.clone(),
        warm,
        learns,
    };
    let rooms: Vec<Room> = match &arguments.budgets[..] {
        [] => SHARES.map(Room::Share).to_vec(),
        budgets => budgets.iter().map(|&ram| Room::Budget(ram)).collect(),
    };
    for model in models {
        // With half of the experts in memory, or the middle one of the budgets.
        let room = rooms[rooms.len() / 2];
        task(model, room, &earlier, true).run(cache)?;
    }
    let all: Vec<_> =
        models.iter().flat_map(|model| rooms.iter().map(move |&room| (model, room))).collect();
    let mut runs = vec![Vec::new(); all.len()];
    for _ in 0..arguments.rounds {
        for (runs, &(model, room)) in runs.iter_mut().zip(&all) {
            let point = task(model, room, &texts, false).run(cache)?;
            let point = point.context("an earlier run is not a point")?;
            eprintln!("{point:?}");
            runs.push(point);
        }
    }
    let points: Vec<Point> = runs.iter().map(|runs| Point::of(runs)).collect();
    if let Some(path) = &arguments.json {
        let lines: Result<Vec<String>, _> = points.iter().map(serde_json::to_string).collect();
        let json = format!("[\n {}\n]\n", lines?.join(",\n "));
        std::fs::write(path, json).with_context(|| format!("writing `{}`", path.display()))?;
    }
    Ok(points)
}
