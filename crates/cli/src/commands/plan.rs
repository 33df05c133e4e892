//! `sws plan`.

mod ledger;
mod prompts;
mod rows;
pub(crate) mod vram;
pub(crate) mod why;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::json;
use sws::{
    Dry, Footprint, Format, Model, Needs, Others, Outline, Planning, SequenceBytes, TextCodec,
    Threads, VramPlan,
};
use sws_engine::{PlanOptions, RamBudget};
use sws_format::{Dtype, Manifest, PieceKind};
use sws_kernels::{Activations, Encoding};
use sws_model::Inventory;
use sws_store::{PieceLayout, Read};

use super::doctor;
use super::machine::Machine;
use super::outline::formats::{self, Timed};
use super::outline::{self, PlanSubject};
use super::remote::{self, Remote, RemoteModel};
use super::{both, print, print_json};
use crate::table::wrapped;
use crate::terminal::{Meanwhile, note};
use crate::{args, limits, model, process};
use prompts::{first_tokens, long, prompts};
use rows::{budgets, row};
use vram::VramEstimate;

/// Said on a terminal meanwhile.
const MEASURING: &str = "measuring disk and memory";

pub(crate) fn run(args: &args::PlanArgs) -> anyhow::Result<ExitCode> {
    let described = args.describe.as_deref().map(Machine::described).transpose()?;
    let threads = described.unwrap_or_default().threads;
    let threads = limits::threads(args.threads.or(threads))?;
    let measures = (described.is_none() && !args.no_probe).then_some(&threads);
    let (found, remote) = match (model::open(args.model.as_deref()), &args.model) {
        (Err(error), Some(name)) => found(error.downcast()?, name)?,
        (opened, _) => {
            let mut model = opened?;
            model::spread(&mut model, &args.also)?;
            let planned = PlannedModel { described, measures, remote: None };
            return with_weights(args, &model, planned, &threads);
        }
    };
    let remote = if described.is_some() { remote.map(Remote::elsewhere) } else { remote };
    match found {
        RemoteModel::Outline(outline, named) => {
            let measuring = measuring(measures);
            let machine = machine(args, None, described, &threads);
            drop(measuring);
            let asked = PlanSubject { machine, threads: measures, ram: None, args: None, remote };
            without_weights(args, &outline, named, asked, &threads)
        }
        RemoteModel::Sketch(sketch) => {
            let planned = PlannedModel { described, measures, remote };
            let done = match Model::open_counted(&sketch.path, None, process::heap) {
                Ok(model) => with_weights(args, &model, planned, &threads),
                Err(error) => Err(error.into()),
            };
            match done {
                Err(error) => Err(sketch.explained(error)),
                done => done,
            }
        }
    }
}

/// The machine of a plan: the described one, or this one, measured with a model whose weights are here.
fn machine(
    args: &args::PlanArgs,
    model: Option<&Model>,
    described: Option<Machine>,
    threads: &Threads,
) -> Machine {
    let machine = match described {
        Some(machine) => machine,
        None if args.no_probe => Machine::unmeasured(threads),
        None => Machine::measure(model, args.reader, threads),
    };
    // Each drive may be read at this rate.
    let drives = match model {
        Some(model) => 1 + model.mirrors().len() as u64,
        None => 1,
    };
    machine.kept_to(args.max_disk_rate.map(|rate| rate.saturating_mul(drives)))
}

/// Says on a terminal that something is measured, if it is.
fn measuring(measures: Option<&Threads>) -> Option<Meanwhile> {
    measures.map(|_| Meanwhile::new(MEASURING))
}

/// The subject of a plan with weights, besides the model.
struct PlannedModel<'t> {
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
    let PlannedModel { described, measures, remote } = planned;
    let measuring = measuring(measures);
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
    let mut machine = machine(args, on_disk.then_some(model), described, threads);
    let mut computing = None;
    let mut of_prompt = None;
    if let Some(threads) = measures
        && let Some(mut dry) = Dry::new(args.options().kernels(), threads)
    {
        computing = dry.token(model.spec(), model.manifest());
        of_prompt = dry.prompt(model.spec(), model.manifest());
    }
    if measures.is_some() {
        machine.others_share = others.as_ref().and_then(Others::share);
    }
    let prompts = prompts(&plan, machine, of_prompt.as_ref());
    let mut rows = Vec::new();
    for ram in budgets(&planner, ram, total.max(ram)) {
        if let Ok(plan) = planner.plan(ram) {
            rows.push(row(&plan, machine, computing));
        }
    }
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
            let [name, mut because] = why::encoding(model.manifest().encoding, planner.weights());
            let at = formats::column(&formats_at, ram);
            if let Some(rows) = &formats
                && let Some(best) = formats::best(rows, at, None)
            {
                because += &format!("; shards: {}", formats::reason(rows, best, ram, at));
            }
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
                encoding: [name, because],
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
        let mut ledger = serde_json::Map::new();
        for (what, bytes) in plan.ledger.lines() {
            ledger.insert(what.name().to_owned(), bytes.into());
        }
        let [table_bytes, table_row_bytes] = both(tables);
        print_json(&json!({
            "model": shown,
            "weight_bytes": planner.weights(),
            "table_bytes": table_bytes,
            "table_row_bytes": table_row_bytes,
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
            "plan": row(&plan, machine, computing),
            "vram": card,
            "why": reasons,
            "hits_of_tokens": hits.tokens(),
            "machine": machine,
            "hub": remote,
            "first_token_seconds": long(&prompts).map(|prompt| prompt.first_token_seconds),
            "prompts": prompts,
            "budgets": rows,
            "formats_at": formats.is_some().then_some(formats_at),
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
        let mut text = rows::text(shown, &planner, ram, machine, &rows, &first);
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
            let at = formats::column(&formats_at, ram);
            if let Some(best) = formats::best(rows, at, None) {
                let reason = formats::reason(rows, best, ram, at);
                text += &wrapped(&format!("\n`sws shard --encoding auto` makes {reason}\n"));
            }
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
    for piece in &manifest.pieces {
        for tensor in &piece.tensors {
            all = all.saturating_add(tensor.stored_bytes());
            if matches!(tensor.dtype, Dtype::F16 | Dtype::F32) {
                others = others.saturating_add(tensor.stored_bytes());
            }
        }
    }
    others > all / 2
}

/// The most reads that the first expert of a layer takes; none without experts.
fn reads_per_expert(manifest: &Manifest) -> Option<usize> {
    let mut most: Option<usize> = None;
    for piece in &manifest.pieces {
        if piece.id.kind() == PieceKind::Expert(0)
            && let Ok(layout) = PieceLayout::new(manifest, Read::Piece(piece.id))
        {
            most = most.max(Some(layout.segments().len()));
        }
    }
    most
}
