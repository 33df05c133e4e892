//! Plans of models whose weights, or their headers at least, are here.

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::{Map, Value, json};
use sws::{
    Computing, Dry, Footprint, Model, Needs, Others, Planning, PromptComputing, SequenceBytes,
    TextCodec, Threads, VramPlan,
};
use sws_engine::{Plan, PlanOptions, Planner};
use sws_format::{Manifest, PieceKind};
use sws_kernels::Activations;
use sws_model::Inventory;
use sws_store::{PieceLayout, Read};

use super::other_formats::OtherFormats;
use super::prompts::{PromptEstimate, first_tokens, long, prompts};
use super::rows::{self, PlanRow, budgets, row};
use super::vram::{Card, TierExpectation, VramEstimate};
use super::why::{self, PlanSettings, SettingReason};
use super::{PlannedModel, ledger, machine, measuring, plan_options};
use crate::args::PlanArgs;
use crate::commands::machine::Machine;
use crate::commands::outline::formats::Timed;
use crate::commands::remote::Remote;
use crate::commands::{both, doctor, outline, print, print_json};
use crate::table::wrapped;

/// Plans a model, and prints the plan.
pub(super) fn with_weights(
    args: &PlanArgs,
    model: &Model,
    planned: PlannedModel<'_>,
    threads: &Threads,
) -> anyhow::Result<ExitCode> {
    let measuring = measuring(planned.measures);
    let report = WeightsReport::of(args, model, planned, threads)?;
    drop(measuring);
    match &report.reasons {
        _ if args.json => print_json(&report.json())?,
        Some(reasons) => print(&report.reasons_text(reasons))?,
        None => print(&report.text())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Everything that is said of a plan.
struct WeightsReport<'a> {
    args: &'a PlanArgs,
    model: &'a Model,
    /// The model as it was typed: a GGUF file and not its directory, an id and not a snapshot.
    shown: PathBuf,
    divided: DividedMemory,
    measured: Measured,
    prompts: Vec<PromptEstimate>,
    rows: Vec<PlanRow>,
    formats: Option<OtherFormats>,
    reasons: Option<Vec<SettingReason>>,
    remote: Option<Remote>,
}

/// A budget and its division.
struct DividedMemory {
    planner: Planner,
    plan: Plan,
    ram: u64,
    /// Memory of the machine.
    total: u64,
    inventory: Inventory,
    card: Option<Card>,
    /// Experts on the card.
    vram: Option<VramEstimate>,
    /// The machine's memory beside the card.
    device: u64,
    is_draft_trained: Option<bool>,
}

/// Speeds of a machine, measured or described.
struct Measured {
    machine: Machine,
    computing: Option<Computing>,
    of_prompt: Option<PromptComputing>,
}

impl<'a> WeightsReport<'a> {
    fn of(
        args: &'a PlanArgs,
        model: &'a Model,
        planned: PlannedModel<'_>,
        threads: &Threads,
    ) -> anyhow::Result<WeightsReport<'a>> {
        let PlannedModel { described, measures, remote } = planned;
        let supplier = model.supplier().map(PathBuf::from);
        let on_disk = remote.is_none() && supplier.is_none();
        let typed = args.model.clone();
        let shown = supplier.or(typed).unwrap_or_else(|| model.dir().to_owned());
        let divided = DividedMemory::of(args, model, described.as_ref(), threads)?;
        // Only now, as measuring takes memory that would count as this process's.
        let others = Others::begin();
        let machine = machine(args, on_disk.then_some(model), described, threads);
        let mut measured = Measured::of(args, model, machine, measures);
        if measures.is_some() {
            measured.machine.others_share = others.as_ref().and_then(Others::share);
        }
        let Measured { machine, computing, of_prompt } = &measured;
        let prompts = prompts(&divided.plan, *machine, of_prompt.as_ref());
        let rows = divided.rows(*machine, *computing);
        let timed = Timed { machine: Some(*machine), threads: measures };
        let options = plan_options(args, threads);
        let formats = OtherFormats::of(model, divided.ram, options, timed, divided.card)?;
        let mut report = WeightsReport {
            args,
            model,
            shown,
            divided,
            measured,
            prompts,
            rows,
            formats,
            reasons: None,
            remote,
        };
        if args.why {
            report.reasons = Some(report.reasons(threads, measures.is_some() && on_disk)?);
        }
        Ok(report)
    }

    /// Why each setting is what it is.
    fn reasons(
        &self,
        threads: &Threads,
        tries_readers: bool,
    ) -> anyhow::Result<Vec<SettingReason>> {
        let WeightsReport { args, model, divided, .. } = self;
        let DividedMemory { planner, plan, ram, device, .. } = divided;
        let [name, mut because] = why::encoding(model.manifest().encoding, planner.weights());
        if let Some(reason) = self.formats.as_ref().and_then(|formats| formats.best(*ram)) {
            because += &format!("; shards: {reason}");
        }
        let options = PlanOptions { device: *device, ..plan_options(args, threads) };
        let settings = PlanSettings {
            args,
            spec: model.spec(),
            plan,
            machine: self.measured.machine,
            computing: self.measured.computing,
            weights: planner.weights(),
            other: &|ram| planner.plan(ram).ok(),
            smallest: planner.smallest(),
            in_memory: Footprint::of(model, options)?.in_memory(),
            encoding: [name, because],
            readers: if tries_readers { doctor::readers(model) } else { Vec::new() },
            draft: Some(divided.is_draft_trained),
        };
        Ok(settings.reasons())
    }

    fn json(&self) -> Value {
        let WeightsReport { args, model, divided, measured, prompts, formats, .. } = self;
        let DividedMemory { planner, plan, .. } = divided;
        let Measured { machine, computing, .. } = measured;
        let mut ledger = Map::new();
        for (what, bytes) in plan.ledger.lines() {
            ledger.insert(what.name().to_owned(), bytes.into());
        }
        let sequence = SequenceBytes::of(model.spec(), args.kv);
        let [table_bytes, table_row_bytes] = both(planner.layer_tables());
        json!({
            "model": self.shown,
            "weight_bytes": planner.weights(),
            "table_bytes": table_bytes,
            "table_row_bytes": table_row_bytes,
            "smallest_budget": planner.smallest(),
            "budget": divided.ram,
            "activations": args.activations.name(),
            "kv": args.kv.name(),
            "ledger": ledger,
            "kv_bytes_per_position": sequence.position,
            "kv_fixed_bytes": sequence.fixed,
            "experts_stream": plan.experts_stream,
            "pinned_pieces": plan.pinned.len(),
            "reads_per_expert": reads_per_expert(model.manifest()),
            "plan": row(plan, *machine, *computing),
            "vram": divided.vram,
            "why": self.reasons,
            "hits_of_tokens": planner.hits().tokens(),
            "machine": machine,
            "hub": self.remote,
            "first_token_seconds": long(prompts).map(|prompt| prompt.first_token_seconds),
            "prompts": prompts,
            "budgets": self.rows,
            "formats_at": formats.as_ref().map(|formats| &formats.at),
            "formats": formats.as_ref().map(|formats| &formats.rows),
        })
    }

    /// When prompts have their first tokens, in a line.
    fn first_tokens(&self) -> String {
        first_tokens(&self.prompts, self.measured.of_prompt.is_some())
    }

    /// The reasons, in place of other budgets and formats.
    fn reasons_text(&self, reasons: &[SettingReason]) -> String {
        let DividedMemory { planner, plan, ram, vram, .. } = &self.divided;
        let Measured { machine, computing, .. } = self.measured;
        let pace = machine.pace(&plan.per_token, computing);
        let mut text = machine.answer("", *ram, [pace, None]) + &self.first_tokens();
        text += &format!("{}\n\n", machine.line());
        text = wrapped(&text) + &why::text(reasons);
        text.extend(vram.map(|vram| wrapped(&format!("\n{}", vram.text()))));
        format!("{text}\n{}", outline::estimates(planner.hits()))
    }

    fn text(&self) -> String {
        let WeightsReport { args, model, divided, measured, .. } = self;
        let DividedMemory { planner, plan, ram, inventory, vram, .. } = divided;
        let Measured { machine, .. } = measured;
        let first = self.first_tokens();
        let mut text = rows::text(&self.shown, planner, *ram, *machine, &self.rows, &first);
        text.extend(vram.map(|vram| wrapped(&vram.text())));
        text += &outline::estimates(planner.hits());
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
        text += &outline::sequence(SequenceBytes::of(model.spec(), args.kv));
        text.extend(planner.layer_tables().map(outline::layer_tables));
        if let Some(remote) = &self.remote {
            text += &format!("{}{}", remote.line(), remote.next(None));
        }
        if let Some(formats) = &self.formats {
            text += &formats.text(machine, *ram);
        }
        if args.memory {
            text += &format!("\n{}", ledger::text(plan, inventory));
        }
        text
    }
}

impl DividedMemory {
    /// Divides the budget of this machine, or of a described one.
    fn of(
        args: &PlanArgs,
        model: &Model,
        described: Option<&Machine>,
        threads: &Threads,
    ) -> anyhow::Result<DividedMemory> {
        let tools = TextCodec::open(model)?;
        // Chat messages are encoded while the model is loaded, so the budget must include memory for
        // that.
        let chats = tools.tokenizer().is_some() && model.chat_template().is_ok();
        let tools = if chats { tools.while_loaded(None) } else { tools };
        let needs = Needs { texts: args.batch.into(), ..Needs::default() };
        let card = Card::of(args)?;
        let held = match card {
            Some(card) => card.holds(|limit| VramPlan::of(model, limit, args.activations))?,
            None => None,
        };
        let device = held.map_or(0, |held| held.host_bytes);
        let loader = model.with(args.options()).needs(needs).text(tools).threads(threads);
        let planning = loader.beside_vram(device).planning()?;
        let is_draft_trained = planning.is_draft_trained();
        let Planning { mut planner, ram, total, .. } = planning;
        if let Some(hits) = model.earlier_hits() {
            planner.set_hits(hits);
        }
        let (ram, total) = match described {
            Some(machine) => (machine.budget(args.ram, planner.minimum()), machine.ram_bytes),
            None => (ram, total),
        };
        let inventory =
            Inventory::new(model.spec(), model.manifest()).map_err(|e| model.error(e))?;
        let plan = planner.plan(ram).map_err(|e| model.error(e))?;
        let vram = held.map(|held| {
            let expected = TierExpectation::of(planner.tier_hits(&plan, held.slots));
            VramEstimate::new(held, expected)
        });
        Ok(DividedMemory {
            planner,
            plan,
            ram,
            total,
            inventory,
            card,
            vram,
            device,
            is_draft_trained,
        })
    }

    /// The plans of this and other budgets.
    fn rows(&self, machine: Machine, computing: Option<Computing>) -> Vec<PlanRow> {
        let mut rows = Vec::new();
        for ram in budgets(&self.planner, self.ram, self.total.max(self.ram)) {
            if let Ok(plan) = self.planner.plan(ram) {
                rows.push(row(&plan, machine, computing));
            }
        }
        rows
    }
}

impl Measured {
    /// Measures how long tokens are computed on these threads, if there are any.
    fn of(
        args: &PlanArgs,
        model: &Model,
        machine: Machine,
        measures: Option<&Threads>,
    ) -> Measured {
        let mut measured = Measured { machine, computing: None, of_prompt: None };
        if let Some(threads) = measures
            && let Some(mut dry) = Dry::new(args.options().kernels(), threads)
        {
            measured.computing = dry.token(model.spec(), model.manifest());
            measured.of_prompt = dry.prompt(model.spec(), model.manifest());
        }
        measured
    }
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
