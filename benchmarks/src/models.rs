//! The page of published models: their sizes and memory, from their configurations alone.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use rayon::prelude::*;
use sws::{Footprint, Format, KvPrecision, Outline, SUGGESTIONS, SequenceBytes, Size};
use sws_engine::PlanOptions;
use sws_kernels::{Encoding, Tier};
use sws_model::ForwardState;
use sws_store::read_config;

/// Budgets of common machines, in GiB.
const MACHINES: [u64; 3] = [16, 32, 64];

/// Bytes per second that the machines of the table of speeds read from disk and from memory.
const SPEEDS: [f64; 2] = [3.5e9, 5e10];

/// Threads of the plans, so that the page is the same from any machine.
const THREADS: usize = 8;

const OPENING: &str = "\
# Published models

Sizes of models, and how much each token reads from disk. They follow from the configurations in
[configs](../configs), which have only the entries that matter here: nothing on this page was measured, its speeds are
planned. `sws plan configs/NAME.json` prints more of one of them, and takes the `config.json` of any other model of these
families.

`sws-bench models > docs/models.md` writes this page, and a test fails when it is not up to date.

- Of multimodal models the text model counts. Layers of multi-token prediction are left out.
- `bf16` is the checkpoint itself. `bf12` is lossless, and the default of `sws shard`; so is `bf11`, which is for models
  that are read from disk. Its size depends on the weights: here it is that of 10.9 bits, and Gaussian ones have 10.75.
- Of a model that is published quantised, these columns and `q4` differ in the other weights alone: `sws shard` leaves
  quantised ones as they are, except that `bf11` packs fp8, here into 6.9 bits.
- The smallest `--ram` and the reads assume the default context, eight threads, and the memory of a typical process. The
  share of experts found in memory is the one measured for DeepSeek-V2-Lite; with up to 16 experts in a layer, for
  Mixtral-8x7B.
";

const SPEED: &str = "\
Tokens per second of a machine that reads 3.5 GB/s from disk and 50 GB/s from memory: **planned, not measured**, as `sws
plan --describe` plans (its [assumptions](design/budget.md#estimates)). The last columns are values of `--ram`, so less
than the machine's memory. The costs of a token besides bytes are those of another machine, of two threads.
[Plans](benchmarks/plans.md) has such estimates next to runs.

";

const CONTEXT: &str = "\
Keys and values, or latents and keys of indexers, of one sequence in f32; `--kv bf16` halves them, and `--kv q8` leaves
17 of 64 parts. Windows and recurrent states take the same memory for any number of positions.

";

/// One model.
struct Entry {
    /// Identity on the hub.
    name: String,
    /// Origin of the figures.
    source: String,
    /// False if the number of positions is unknown.
    has_context: bool,
    outline: Outline,
    /// What it takes in each of the [`COLUMNS`] that it can have, if it is supported.
    footprints: Vec<(Encoding, Format, Footprint)>,
}

/// Formats of the weights that are not quantised.
const COLUMNS: [Encoding; 5] =
    [Encoding::Bf16, Encoding::Bf12, Encoding::Bf11, Encoding::Q8, Encoding::Q4];

impl Entry {
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
    page += "\n## Models to begin with\n\nThey answer questions, and `sws pull` lists them.\n\n";
    page += &suggestions(&supported)?;
    page += "\n## Sizes\n\n";
    page += &sizes(&supported)?;
    page += "\n## Memory\n\nOf each model the default of `sws shard`, which is lossless, and `q4`. Every token needs what is not of experts, but for the embedding, \
        of which it reads a row. A dash: the budget is too small.\n\n";
    page += &memory(&supported)?;
    page += "\n## Speed\n\n";
    page += SPEED;
    page += &speed(&supported)?;
    page += "\n## Context\n\n";
    page += CONTEXT;
    page += &context(&supported);
    page += "\n## Families that are not supported\n\n`sws inspect` shows as much of any configuration. An empty cell is not known.\n\n";
    page += &rest(&others);
    page += "\n## Sources\n\n| source | models |\n|---|---|\n";
    let mut sources: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for entry in supported.iter().chain(&others) {
        sources.entry(&entry.source).or_default().push(&entry.name);
    }
    for (source, mut names) in sources {
        names.sort_unstable();
        writeln!(page, "| {source} | {} |", names.join(", "))?;
    }
    Ok(page)
}

fn suggestions(entries: &[Entry]) -> Result<String> {
    let mut table = "| memory | command | disk | smallest `--ram` | a token reads |\n|---:|---|---:|---:|---:|\n"
        .to_owned();
    for suggestion in SUGGESTIONS {
        let found = entries.iter().find(|entry| entry.name == suggestion.id);
        let entry = found.with_context(|| format!("{} is not in configs", suggestion.id))?;
        let encoding = suggestion.encoding.map_or(Ok(Encoding::Bf12), str::parse)?;
        let format = entry.footprint(encoding);
        let (_, footprint) =
            format.with_context(|| format!("{} has no known format", suggestion.id))?;
        let read = footprint.plan(suggestion.ram << 30).map(|plan| plan.per_token.read());
        writeln!(
            table,
            "| {} GiB | `{}` | {} | {} MiB | {} |",
            suggestion.ram,
            suggestion.command(),
            Size(footprint.bytes),
            footprint.smallest() >> 20,
            read.map_or("–".to_owned(), |read| Size(read).to_string()),
        )?;
    }
    Ok(table)
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
        let (name, source) = (word("_name_or_path")?, word("_source")?);
        let context = config.entries.get("max_position_embeddings");
        let has_context = context.is_none_or(|context| !context.is_null());
        let (outline, footprints) = (Outline::read(&path)?, Vec::new());
        entries.push(Entry { name, source, has_context, outline, footprints });
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

fn sizes(entries: &[Entry]) -> Result<String> {
    let mut table = "| model | family | layers | experts | parameters | a token | published in | bf16 | bf12 | bf11 | q8 | q4 |\n\
        |---|---|---:|---:|---:|---:|---|---:|---:|---:|---:|---:|\n"
        .to_owned();
    for entry in entries {
        let Entry { name, outline, .. } = entry;
        let Some(spec) = outline.spec() else { continue };
        let [all, active] = spec.parameters();
        let experts = spec.moes().map(|moe| moe.experts).max();
        let experts = experts.map_or(String::new(), |n| format!("{} of {n}", spec.max_top_k()));
        let footprints = COLUMNS.into_iter().filter_map(|plain| entry.footprint(plain));
        let mut cells: Vec<_> =
            footprints.map(|(_, footprint)| Size(footprint.bytes).to_string()).collect();
        cells.resize(5, String::new());
        let format = outline.format(Encoding::Bf16);
        let published = match format.map(|format| format.quantised) {
            Some(None) => "bf16".to_owned(),
            Some(Some((encoding, _))) => encoding.to_string(),
            None => outline.description().quantised.clone().unwrap_or_default(),
        };
        writeln!(
            table,
            "| {name} | {} | {} | {experts} | {} | {} | {published} | {} |",
            spec.model_type,
            spec.layers.len(),
            billions(all),
            billions(active),
            cells.join(" | "),
        )?;
    }
    Ok(table)
}

fn memory(entries: &[Entry]) -> Result<String> {
    let mut table = "| model | format | weights | not of experts | smallest `--ram` |".to_owned();
    for machine in MACHINES {
        write!(table, " a token at {machine} GiB |")?;
    }
    table += "\n|---|---|---:|---:|---:|---:|---:|---:|\n";
    for entry in entries {
        for (format, footprint) in
            [Encoding::Bf12, Encoding::Q4].into_iter().filter_map(|plain| entry.footprint(plain))
        {
            write!(
                table,
                "| {} | {format} | {} | {} | {} MiB |",
                entry.name,
                Size(footprint.bytes),
                Size(footprint.infrastructure),
                footprint.smallest() >> 20,
            )?;
            for machine in MACHINES {
                let read = footprint.plan(machine << 30).map(|plan| plan.per_token.read());
                write!(table, " {} |", read.map_or("–".to_owned(), |read| Size(read).to_string()))?;
            }
            table.push('\n');
        }
    }
    Ok(table)
}

fn speed(entries: &[Entry]) -> Result<String> {
    let mut table = "| model | format | exact | disk |".to_owned();
    for machine in MACHINES {
        write!(table, " {machine} GiB |")?;
    }
    table += "\n|---|---|---|---:|---:|---:|---:|\n";
    let [disk, memory] = SPEEDS;
    for entry in entries {
        for plain in [Encoding::Bf12, Encoding::Q4] {
            let Some((format, footprint)) = entry.footprint(plain) else { continue };
            let (name, exact) = (&entry.name, if plain == Encoding::Q4 { "no" } else { "yes" });
            write!(table, "| {name} | {format} | {exact} | {} |", Size(footprint.bytes))?;
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

fn context(entries: &[Entry]) -> String {
    let mut table =
        "| model | positions | a position | besides | at 4,096 | at 32,768 | at all |\n\
        |---|---:|---:|---:|---:|---:|---:|\n"
            .to_owned();
    for Entry { name, outline, has_context, .. } in entries {
        let Some(mut spec) = outline.spec().cloned() else { continue };
        if !has_context {
            spec.context = 1 << 32;
        }
        let SequenceBytes { position, fixed } = SequenceBytes::of(&spec, KvPrecision::F32);
        let at = |positions| Size(ForwardState::cache_bytes(&spec, positions, KvPrecision::F32));
        let _ = writeln!(
            table,
            "| {name} | {} | {} | {} | {} | {} | {} |",
            if *has_context { spec.context.to_string() } else { String::new() },
            Size(position),
            Size(fixed),
            at(4096),
            at(32_768),
            if *has_context { at(spec.context).to_string() } else { String::new() },
        );
    }
    table
}

fn rest(entries: &[Entry]) -> String {
    let mut table = "| model | family | layers | hidden state | experts | width of one |\n\
        |---|---|---:|---:|---:|---:|\n"
        .to_owned();
    for Entry { name, outline, .. } in entries {
        let description = outline.description();
        let number = |n: Option<u64>| n.map_or(String::new(), |n| n.to_string());
        let experts = match (description.top_k, description.experts) {
            (Some(top_k), Some(experts)) => format!("{top_k} of {experts}"),
            (_, experts) => number(experts),
        };
        let _ = writeln!(
            table,
            "| {name} | {} | {} | {} | {experts} | {} |",
            description.model_type.as_deref().unwrap_or_default(),
            number(description.layers),
            number(description.hidden),
            number(description.expert_width),
        );
    }
    table
}

fn billions(number: u64) -> String {
    match number as f64 / 1e9 {
        small if small < 10.0 => format!("{small:.2} B"),
        large => format!("{large:.1} B"),
    }
}
