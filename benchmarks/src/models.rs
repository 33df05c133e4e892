//! The page of published models: their sizes and memory, from their configurations alone.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use sws::{Footprint, Format, Outline, Size};
use sws_engine::PlanOptions;
use sws_kernels::{Encoding, Tier};
use sws_store::read_config;

/// Budgets of common machines, in GiB.
const MACHINES: [u64; 3] = [16, 32, 64];

/// Threads of the plans, so that the page is the same from any machine.
const THREADS: usize = 8;

const OPENING: &str = "\
# Published models

Sizes of models, and how much each token reads from disk. They follow from the configurations in
[configs](../configs), which have only the entries that matter here: nothing on this page was measured. `sws plan
configs/NAME.json` prints more of one of them, and takes the `config.json` of any other model.

`sws-bench models > docs/models.md` writes this page, and a test fails when it is not up to date.

- Of multimodal models the text model counts. Layers of multi-token prediction are left out.
- `bf12` is lossless, and the default of `sws shard`. `as published` is the checkpoint itself, where it is quantised and
  its format can be read.
- The smallest `--ram` and the reads assume up to 4096 positions, eight threads, and the memory of a typical process. The share of
  experts found in memory is the one measured for DeepSeek-V2-Lite.
";

/// One model.
struct Entry {
    /// Identity on the hub.
    name: String,
    /// Origin of the figures.
    source: String,
    outline: Outline,
}

/// Writes the page for all configurations in `dir`.
pub fn page(dir: &Path) -> Result<String> {
    let (supported, others): (Vec<Entry>, Vec<Entry>) =
        entries(dir)?.into_iter().partition(|entry| entry.outline.spec().is_some());
    let mut page = OPENING.to_owned();
    page += "\n## Sizes\n\n";
    page += &sizes(&supported)?;
    page += "\n## Memory\n\nOf each model the lossless format, or the published one, and `q4`. A dash: the budget is too small.\n\n";
    page += &memory(&supported)?;
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
        entries.push(Entry { name, source, outline: Outline::read(&path)? });
    }
    entries.sort_by_cached_key(|entry| {
        let [parameters, _] = entry.outline.spec().map_or([0; 2], |spec| spec.parameters());
        (parameters, entry.name.to_lowercase())
    });
    Ok(entries)
}

fn footprint(outline: &Outline, format: Format) -> Result<Footprint> {
    let options = PlanOptions { tier: Tier::Portable, threads: THREADS, ..PlanOptions::default() };
    Ok(outline.footprint(format, options)?)
}

fn sizes(entries: &[Entry]) -> Result<String> {
    let mut table = "| model | family | layers | experts | parameters | a token | bf16 | bf12 | q8 | q4 | as published |\n\
        |---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n"
        .to_owned();
    for Entry { name, outline, .. } in entries {
        let Some(spec) = outline.spec() else { continue };
        let [all, active] = spec.parameters();
        let experts = spec.moes().map(|moe| moe.experts).max();
        let experts = experts.map_or(String::new(), |n| format!("{} of {n}", spec.max_top_k()));
        let mut cells = Vec::new();
        let mut published = String::new();
        for format in outline.formats() {
            let bytes = Size(footprint(outline, format)?.bytes).to_string();
            match format {
                Format::Shards(_) => cells.push(bytes),
                Format::AsPublished { encoding, .. } => published = format!("{bytes} ({encoding})"),
            }
        }
        if published.is_empty()
            && let Some(method) = &outline.description().quantised
        {
            published = format!("({method})");
        }
        writeln!(
            table,
            "| {name} | {} | {} | {experts} | {} | {} | {} | {published} |",
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
    let mut table =
        "| model | format | weights | every token needs | smallest `--ram` |".to_owned();
    for machine in MACHINES {
        write!(table, " a token at {machine} GiB |")?;
    }
    table += "\n|---|---|---:|---:|---:|---:|---:|---:|\n";
    for Entry { name, outline, .. } in entries {
        let formats = outline.exact().into_iter().chain([Format::Shards(Encoding::Q4)]);
        for format in formats {
            let footprint = footprint(outline, format)?;
            write!(
                table,
                "| {name} | {format} | {} | {} | {} MiB |",
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
