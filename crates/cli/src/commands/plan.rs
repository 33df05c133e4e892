//! `sws plan`.

mod ledger;
mod prompts;
pub(crate) mod vram;
pub(crate) mod why;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;
use serde_json::json;
use sws::{
    Computing, Dry, Footprint, Format, Model, Needs, Others, Outline, Planning, SequenceBytes,
    TextCodec, Threads, VramPlan,
};
use sws_engine::{MemoryUse, PerToken, Plan, PlanOptions, Planner, RamBudget};
use sws_format::{Dtype, Manifest, PieceKind};
use sws_kernels::{Activations, Encoding};
use sws_model::Inventory;
use sws_store::{PieceLayout, Read};

use super::doctor;
use super::machine::{Machine, about, digits};
use super::outline::formats::{self, Timed};
use super::outline::{self, PlanSubject};
use super::remote::{self, Remote, RemoteModel};
use super::{print, print_json, size};
use crate::table::{table, wrapped};
use crate::terminal::{Meanwhile, note};
use crate::{args, limits, model, process};
use prompts::{first_tokens, long, prompts};
use vram::VramEstimate;

/// Maximum number of steps between the smallest budget and one that is large enough.
const STEPS: u64 = 6;
const GIB: u64 = 1 << 30;
/// Said on a terminal meanwhile.
const MEASURING: &str = "measuring disk and memory";

/// The plan for one budget.
#[derive(Debug, Serialize)]
struct PlanRow {
    budget: u64,
    pinned_bytes: u64,
    ring_bytes: u64,
    slots: usize,
    lent: usize,
    chunk: usize,
    context: usize,
    /// Estimated, as are the following fields.
    hit_rate: Option<f64>,
    read_bytes_per_token: u64,
    tokens_per_second: Option<f64>,
}

pub(crate) fn run(args: &args::PlanArgs) -> anyhow::Result<ExitCode> {
    let described = args.describe.as_deref().map(Machine::described).transpose()?;
    let threads = described.and_then(|machine| machine.threads);
    let threads = limits::threads(args.threads.or(threads))?;
    let machine = |model: Option<&Model>| {
        let machine = match described {
            Some(machine) => machine,
            None if args.no_probe => Machine::unmeasured(&threads),
            None => Machine::measure(model, args.reader, &threads),
        };
        // Each drive may be read at this rate.
        let drives = model.map_or(1, |model| 1 + model.mirrors().len() as u64);
        machine.kept_to(args.max_disk_rate.map(|rate| rate.saturating_mul(drives)))
    };
    let measures = (described.is_none() && !args.no_probe).then_some(&threads);
    let (found, remote) = match (model::open(args.model.as_deref()), &args.model) {
        (Err(error), Some(name)) => found(error.downcast()?, name)?,
        (opened, _) => {
            let mut model = opened?;
            model::spread(&mut model, &args.also)?;
            let planned = PlannedModel { machine: &machine, described, measures, remote: None };
            return with_weights(args, &model, planned, &threads);
        }
    };
    let remote = if described.is_some() { remote.map(Remote::elsewhere) } else { remote };
    match found {
        RemoteModel::Outline(outline, named) => {
            let measuring = measures.map(|_| Meanwhile::new(MEASURING));
            let machine = machine(None);
            drop(measuring);
            let asked = PlanSubject { machine, threads: measures, ram: None, args: None, remote };
            without_weights(args, &outline, named, asked, &threads)
        }
        RemoteModel::Sketch(sketch) => {
            let planned = PlannedModel { machine: &machine, described, measures, remote };
            Model::open_counted(&sketch.path, None, process::heap)
                .map_err(anyhow::Error::from)
                .and_then(|model| with_weights(args, &model, planned, &threads))
                .map_err(|error| sketch.explained(error))
        }
    }
}

/// The subject of a plan with weights, besides the model.
struct PlannedModel<'t> {
    /// Returns the machine, measured with a model whose weights are here.
    machine: &'t dyn Fn(Option<&Model>) -> Machine,
    /// The machine of `--describe`.
    described: Option<Machine>,
    /// Threads on which to measure how long tokens are computed, if this is the machine.
    measures: Option<&'t Threads>,
    /// The model's repository, if its weights are not on this machine.
    remote: Option<Remote>,
}

/// Plans a model whose weights, or their headers at least, are here.
fn with_weights(
    args: &args::PlanArgs,
    model: &Model,
    planned: PlannedModel<'_>,
    threads: &Threads,
) -> anyhow::Result<ExitCode> {
    let PlannedModel { machine, described, measures, remote } = planned;
    let measuring = measures.map(|_| Meanwhile::new(MEASURING));
    // What finds it, where that was typed: a GGUF file and not its directory, an id and not a snapshot.
    let supplier = model.supplier().map(PathBuf::from);
    let shown = supplier.as_deref().or(args.model.as_deref()).unwrap_or(model.dir());
    let tools = TextCodec::open(model)?;
    // Chat messages are encoded while the model is loaded, so the budget must include memory for
    // that.
    let chats = tools.tokenizer().is_some() && model.chat_template().is_ok();
    let tools = if chats { tools.while_loaded(None) } else { tools };
    let needs = Needs { texts: args.batch.into(), ..Needs::default() };
    let card = vram::planned(args, |limit| VramPlan::of(model, limit, args.activations))?;
    let loader = model.with(args.options()).needs(needs).text(tools).threads(threads);
    let planning = loader.beside_vram(card.map_or(0, |card| card.host_bytes)).planning()?;
    let draft = planning.is_draft_trained();
    let Planning { mut planner, ram, total, .. } = planning;
    if let Some(hits) = model.earlier_hits() {
        planner.set_hits(hits);
    }
    let hits = planner.hits();
    let (ram, total) = match &described {
        Some(machine) => (machine.budget(args.ram, planner.minimum()), machine.ram_bytes),
        None => (ram, total),
    };
    let inventory = Inventory::new(model.spec(), model.manifest()).map_err(|e| model.error(e))?;
    let plan = planner.plan(ram).map_err(|e| model.error(e))?;
    let card = card.map(|card| VramEstimate::new(card, planner.tier_hits(&plan, card.slots)));

    // Only now, as measuring takes memory that would count as this process's.
    let others = Others::begin();
    let on_disk = remote.is_none() && supplier.is_none();
    let mut machine = machine(on_disk.then_some(model));
    let tier = args.options().kernels();
    let mut dry = measures.and_then(|threads| Dry::new(tier, threads));
    let computing = dry.as_mut().and_then(|dry| dry.token(model.spec(), model.manifest()));
    let of_prompt = dry.as_mut().and_then(|dry| dry.prompt(model.spec(), model.manifest()));
    drop(dry);
    if measures.is_some() {
        machine.others_share = others.and_then(|others| others.share());
    }
    let prompts = prompts(&plan, machine, of_prompt.as_ref());
    let row = |plan: &Plan| row(plan, machine, computing);
    let rows: Vec<PlanRow> = budgets(&planner, ram, total.max(ram))
        .into_iter()
        .filter_map(|ram| Some(row(&planner.plan(ram).ok()?)))
        .collect();
    let formats_at = formats::budgets(Some(ram));
    let formats = match formats_of(model) {
        None => None,
        Some((outline, formats)) => {
            let options = plan_options(args, threads);
            let timed = Timed { machine: Some(machine), threads: measures };
            Some(formats::rows(&outline, &formats, options, timed, &formats_at)?)
        }
    };
    let reasons = match args.why {
        false => None,
        true => {
            let made = formats.as_ref().and_then(|rows| {
                let at = formats_at.iter().position(|&budget| budget == ram);
                let best = formats::best(rows, at, &|_| true)?;
                Some(format!("; shards: {}", formats::reason(rows, best, ram, at)))
            });
            let [name, because] = why::encoding(model.manifest().encoding, planner.weights());
            let choices = why::PlanSettings {
                args,
                spec: model.spec(),
                plan: &plan,
                machine,
                computing,
                weights: planner.weights(),
                other: &|ram| planner.plan(ram).ok(),
                smallest: planner.smallest(),
                in_memory: Footprint::of(model, plan_options(args, threads))?.in_memory(),
                encoding: [name, because + &made.unwrap_or_default()],
                readers: match measures {
                    Some(_) if on_disk => doctor::readers(model),
                    _ => Vec::new(),
                },
                draft: Some(draft),
            };
            Some(choices.reasons())
        }
    };
    let sequence = SequenceBytes::of(model.spec(), args.kv);
    let tables = planner.layer_tables();
    drop(measuring);
    if args.json {
        let ledger: serde_json::Map<_, _> = plan
            .ledger
            .lines()
            .map(|(what, bytes)| (what.name().to_owned(), bytes.into()))
            .collect();
        print_json(&json!({
            "model": shown,
            "weight_bytes": planner.weights(),
            "table_bytes": tables.map(|[bytes, _]| bytes),
            "table_row_bytes": tables.map(|[_, rows]| rows),
            "smallest_budget": planner.smallest(),
            "budget": ram,
            "activations": args.activations.name(),
            "kv": args.kv.name(),
            "ledger": ledger,
            "kv_bytes_per_position": sequence.position,
            "kv_fixed_bytes": sequence.fixed,
            "experts_stream": plan.experts_stream,
            "pinned_pieces": plan.pinned.len(),
            "reads_per_expert": reads_per_expert(model.manifest()),
            "plan": row(&plan),
            "vram": card,
            "why": reasons,
            "hits_of_tokens": hits.tokens(),
            "machine": machine,
            "hub": remote,
            "first_token_seconds": long(&prompts).map(|prompt| prompt.first_token_seconds),
            "prompts": prompts,
            "budgets": rows,
            "formats_at": formats.as_ref().map(|_| formats_at),
            "formats": formats,
        }))?;
    } else {
        let first = first_tokens(&prompts, of_prompt.is_some());
        if let Some(reasons) = &reasons {
            let pace = machine.pace(&plan.per_token, computing);
            let mut text = machine.answer("", ram, [pace, None]) + &first;
            text += &format!("{}\n\n", machine.line());
            text = wrapped(&text) + &why::text(reasons);
            text.extend(card.map(|card| wrapped(&format!("\n{}", card.text()))));
            print(&format!("{text}\n{}", outline::estimates(hits)))?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut text = text(shown, &planner, ram, machine, &rows, &first);
        text.extend(card.map(|card| wrapped(&card.text())));
        text += &outline::estimates(hits);
        if let Some(reads @ 2..) = reads_per_expert(model.manifest()) {
            text += &wrapped(&format!(
                "an expert takes up to {reads} reads, as its parts lie apart; `sws shard` gathers them into one\n"
            ));
        }
        if args.activations == Activations::Int8 {
            text += &wrapped(
                "with --activations int8, which rounds activations and is inexact, where weights have a kernel for it\n",
            );
        }
        text += &outline::sequence(sequence);
        text.extend(tables.map(outline::layer_tables));
        if let Some(remote) = &remote {
            text += &format!("{}{}", remote.line(), remote.next(None));
        }
        if let Some(rows) = &formats {
            let paced = formats::paced(Some(&machine));
            let lead =
                "\n`sws shard` makes other formats, whose sizes follow from the configuration. ";
            text += &wrapped(&format!("{lead}{}", formats::heading(paced)));
            text += &formats::table(rows, &formats_at, paced);
            let at = formats_at.iter().position(|&budget| budget == ram);
            text.extend(formats::best(rows, at, &|_| true).map(|best| {
                let reason = formats::reason(rows, best, ram, at);
                wrapped(&format!("\n`sws shard --encoding auto` makes {reason}\n"))
            }));
        }
        if args.memory {
            text += &format!("\n{}", ledger::text(&plan, &inventory));
        }
        print(&text)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What there is of a model that cannot be opened: its configuration, or what the hub has of it.
fn found(error: sws::Error, name: &Path) -> anyhow::Result<(RemoteModel, Option<Remote>)> {
    if let Some(found) = remote::found(&error)? {
        return Ok(found);
    }
    Ok((RemoteModel::Outline(Box::new(Outline::instead(error, &sws::locate(name)?)?), None), None))
}

/// Plans the model of a configuration without weights.
fn without_weights(
    args: &args::PlanArgs,
    outline: &Outline,
    named: Option<Encoding>,
    asked: PlanSubject<'_>,
    threads: &Threads,
) -> anyhow::Result<ExitCode> {
    let machine = asked.machine;
    let ram = match machine.budget(args.ram, 0) {
        _ if args.ram == RamBudget::Min => None,
        // Less than what the system keeps for itself.
        0 => Some(machine.ram_bytes),
        ram => Some(ram),
    };
    if args.memory {
        note!("sws: --memory needs the weights, and is left out");
    }
    let options = plan_options(args, threads);
    let subject = PlanSubject { ram, args: Some(args), ..asked };
    outline::print(outline, named, options, Some(subject), args.json)
}

fn plan_options(args: &args::PlanArgs, threads: &Threads) -> PlanOptions {
    let options = args.options();
    PlanOptions {
        context: options.context,
        kv: options.kv,
        batch: args.batch.into(),
        tier: options.kernels(),
        threads: threads.count(),
        ..PlanOptions::default()
    }
}

/// The formats that `sws shard` can make of a checkpoint that is published in bf16 or quantised.
/// Sizes of others do not follow from the configuration.
fn formats_of(model: &Model) -> Option<(Outline, Vec<Format>)> {
    let is_gguf = model.manifest().files.iter().any(|file| file.path.ends_with(".gguf"));
    if model.is_sharded() || is_gguf || is_in_other_floats(model.manifest()) {
        return None;
    }
    let outline = Outline::read(model.dir()).ok()?;
    let mut formats = outline.formats();
    formats.retain(|format| format.plain != Encoding::Bf16);
    (!formats.is_empty()).then_some((outline, formats))
}

/// True if most bytes of the weights are floats of another type than bf16.
fn is_in_other_floats(manifest: &Manifest) -> bool {
    let mut all: u64 = 0;
    let mut others: u64 = 0;
    for tensor in manifest.pieces.iter().flat_map(|piece| &piece.tensors) {
        all = all.saturating_add(tensor.stored_bytes());
        if matches!(tensor.dtype, Dtype::F16 | Dtype::F32) {
            others = others.saturating_add(tensor.stored_bytes());
        }
    }
    others > all / 2
}

/// The most reads that the first expert of a layer takes; none without experts.
fn reads_per_expert(manifest: &Manifest) -> Option<usize> {
    let first = manifest.pieces.iter().filter(|piece| piece.id.kind() == PieceKind::Expert(0));
    let reads = |read| Some(PieceLayout::new(manifest, read).ok()?.segments().len());
    first.filter_map(|piece| reads(Read::Piece(piece.id))).max()
}

fn row(plan: &Plan, machine: Machine, computing: Option<Computing>) -> PlanRow {
    let PerToken { experts, hit_rate, .. } = plan.per_token;
    PlanRow {
        budget: plan.ledger.budget(),
        pinned_bytes: plan.ledger.get(MemoryUse::Pinned),
        ring_bytes: plan.ledger.get(MemoryUse::Ring),
        slots: plan.slots.iter().map(|class| class.count).sum(),
        lent: plan.lent.iter().map(|class| class.count).sum(),
        chunk: plan.chunk,
        context: plan.context,
        hit_rate: (experts > 0).then_some(hit_rate),
        read_bytes_per_token: plan.per_token.read(),
        tokens_per_second: machine.pace(&plan.per_token, computing),
    }
}

/// Budgets for the table: the smallest, the requested one, those of common machines, and steps in
/// between, up to more than enough.
fn budgets(planner: &Planner, asked: u64, most: u64) -> Vec<u64> {
    let smallest = planner.smallest();
    let weights = planner.weights();
    let enough = smallest + weights + weights / 4 + GIB.min(weights);
    let end = most.min(enough).max(smallest);
    let mut step = if weights < GIB { 16 << 20 } else { GIB };
    while (end - smallest) / step > STEPS {
        step *= 2;
    }
    let first = (smallest + 1).next_multiple_of(step);
    let mut budgets: Vec<u64> = (first..=end).step_by(step as usize).collect();
    budgets.extend(outline::BUDGETS.into_iter().filter(|&budget| budget < enough));
    budgets.extend([smallest, asked]);
    budgets.sort_unstable();
    budgets.dedup();
    budgets
}

fn text(
    model: &Path,
    planner: &Planner,
    asked: u64,
    machine: Machine,
    rows: &[PlanRow],
    first_tokens: &str,
) -> String {
    let pace = rows.iter().find(|row| row.budget == asked).and_then(|row| row.tokens_per_second);
    let mut text = machine.answer("", asked, [pace, None]);
    text += first_tokens;
    text += &format!(
        "{}: {} of weights\nthe smallest --ram is {}MiB (`min` takes the {} that are needed now)\n{}\n\n",
        model.display(),
        size(planner.weights()),
        planner.smallest() >> 20,
        size(planner.minimum()),
        machine.line(),
    );
    let mut cells = Vec::new();
    for row in rows {
        cells.push(vec![
            size(row.budget),
            row.context.to_string(),
            row.hit_rate.map_or("-".to_owned(), |rate| format!("{:.0} %", 100.0 * rate)),
            about(row.read_bytes_per_token),
            row.tokens_per_second.map_or("-".to_owned(), digits),
            if row.budget == asked { "this plan".to_owned() } else { String::new() },
        ]);
    }
    text = wrapped(&text);
    text += &table(&["--ram", "context", "hits", "read/token", "tok/s", "<"], &cells);
    text + "\n"
}
