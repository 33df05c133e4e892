//! The page of published models: their sizes and memory, from their configurations alone.

mod laptops;

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use rayon::prelude::*;
use sws::{Footprint, Format, Outline};
use sws_engine::PlanOptions;
use sws_format::read_config;
use sws_kernels::{Encoding, Tier};

/// Budgets of common machines, in GiB.
const MACHINES: [u64; 4] = [8, 16, 32, 64];

/// Bytes per second that the machines of the table of speeds read from disk and from memory.
const SPEEDS: [f64; 2] = [3.5e9, 5e10];

/// Threads of the plans, so that the page is the same from any machine.
const THREADS: usize = 8;

const OPENING: &str = "\
# Published models

How much of a disk published models take, the smallest `--ram` that runs them, and planned tokens per second. No speed
of `sws` on this page was measured: it follows from the configurations in [configs](../configs), which name their
sources, and from the costs that `sws plan` plans with ([estimates](design/budget.md#estimates)). `sws plan
configs/NAME.json` prints more of one of them, and takes the `config.json` of any other model of these families.

`sws-bench models > docs/models.md` writes this page, and a test fails when it is not up to date.
";

const MODELS: &str = "\
Tokens per second of a machine that reads 3.5 GB/s from disk and 50 GB/s from memory, with values of `--ram`, eight
threads and the default context. A model has a row in the format that `sws shard` makes by default, which is lossless,
and one in `q4`, which is not, unless it is published quantised. A dash: the budget is too small.

";

const UNSUPPORTED: &str = "
## Families that are not supported

Transformers 5.24 has no code by the names of Kimi K3.1, MiMo 2.6 and Nemotron 3.5. What the other known families have
and this program does not:

| `model_type` | what it has |
|---|---|
";

/// One model.
struct Entry {
    /// Identity on the hub.
    name: String,
    outline: Outline,
    /// What it takes in each of the [`COLUMNS`] that it can have, if it is supported.
    footprints: Vec<(Encoding, Format, Footprint)>,
}

/// Formats of the weights that are not quantised.
const COLUMNS: [Encoding; 2] = [Encoding::Bf12, Encoding::Q4];

impl Entry {
    fn of<'e>(entries: &'e [Entry], name: &str) -> Result<&'e Entry> {
        let found = entries.iter().find(|entry| entry.name == name);
        found.with_context(|| format!("{name} is not in configs"))
    }

    fn footprint(&self, plain: Encoding) -> Option<(Format, &Footprint)> {
        let found = self.footprints.iter().find(|(column, ..)| *column == plain);
        found.map(|(_, format, footprint)| (*format, footprint))
    }
}

/// Writes the page for all configurations in `dir`.
pub fn page(dir: &Path) -> Result<String> {
    let (supported, others): (Vec<Entry>, Vec<Entry>) =
        entries(dir)?.into_iter().partition(|entry| entry.outline.spec().is_some());
    let mut page = OPENING.to_owned();
    page += laptops::BEGINNING;
    page += &laptops::suggestions(&supported)?;
    page += laptops::BESIDE;
    page += &laptops::beside(&supported)?;
    page += "\n## Models\n\n";
    page += MODELS;
    page += &models(&supported)?;
    page += UNSUPPORTED;
    for (types, lacking) in sws_model::LACKING {
        writeln!(page, "| {} | {lacking} |", types[0])?;
    }
    let names: Vec<&str> = others.iter().map(|entry| entry.name.as_str()).collect();
    if !names.is_empty() {
        writeln!(page, "\nDescribed by `sws inspect` all the same: {}.", names.join(", "))?;
    }
    Ok(page)
}

/// All models, smallest first.
fn entries(dir: &Path) -> Result<Vec<Entry>> {
    let told = || format!("cannot read the directory `{}`", dir.display());
    let mut entries = Vec::new();
    for file in dir.read_dir().with_context(told)? {
        let path = file.with_context(told)?.path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let config = read_config(&path)?;
        let word = |key: &str| {
            let value = config.entries.get(key).and_then(|value| value.as_str());
            value.map(str::to_owned).with_context(|| format!("`{}` has no `{key}`", path.display()))
        };
        let name = word("_name_or_path")?;
        // Each names where its figures come from.
        word("_source")?;
        let outline = Outline::read(&path)?;
        entries.push(Entry { name, outline, footprints: Vec::new() });
    }
    let supported = entries.par_iter_mut().filter(|entry| entry.outline.spec().is_some());
    supported.try_for_each(|entry| -> Result<()> {
        for plain in COLUMNS {
            let Some(format) = entry.outline.format(plain) else { continue };
            entry.footprints.push((plain, format, footprint(&entry.outline, format)?));
        }
        Ok(())
    })?;
    entries.sort_by_cached_key(|entry| {
        let [parameters, _] = entry.outline.spec().map_or([0; 2], |spec| spec.parameters());
        (parameters, entry.name.to_lowercase())
    });
    Ok(entries)
}

fn footprint(outline: &Outline, format: Format) -> Result<Footprint> {
    let options = PlanOptions { tier: Tier::PORTABLE, threads: THREADS, ..PlanOptions::default() };
    Ok(outline.footprint(format, options)?)
}

fn models(entries: &[Entry]) -> Result<String> {
    let mut table = "| model | format | disk, GiB | smallest `--ram`, MiB |".to_owned();
    for machine in MACHINES {
        write!(table, " {machine} GiB |")?;
    }
    table += "\n|---|---|---:|---:|---:|---:|---:|---:|\n";
    let [disk, memory] = SPEEDS;
    for entry in entries {
        for plain in COLUMNS {
            let Some((format, footprint)) = entry.footprint(plain) else { continue };
            if plain == Encoding::Q4 && format.quantised.is_some() {
                continue;
            }
            let size = footprint.bytes as f64 / f64::from(1 << 30);
            let smallest = footprint.smallest() >> 20;
            write!(table, "| {} | {format} | {size:.2} | {smallest} |", entry.name)?;
            for machine in MACHINES {
                let plan = footprint.plan(machine << 30);
                let pace = plan.map(|plan| two_digits(plan.per_token.pace(disk, memory)));
                write!(table, " {} |", pace.unwrap_or("–".to_owned()))?;
            }
            table.push('\n');
        }
    }
    Ok(table)
}

/// An estimate has no more digits that count.
fn two_digits(number: f64) -> String {
    let decimals = match number {
        _ if number >= 9.95 => 0,
        _ if number >= 0.995 => 1,
        _ if number >= 0.0995 => 2,
        _ => 3,
    };
    format!("{number:.decimals$}")
}
