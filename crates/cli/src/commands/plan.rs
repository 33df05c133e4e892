//! `sws plan`.

use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;
use serde_json::json;
use sws::{Model, Needs, Options, Outline, Planning, SequenceBytes, Text, Threads};
use sws_engine::{MemoryUse, PerToken, Plan, PlanOptions, Planner};
use sws_kernels::Tier;
use sws_model::Inventory;
use sws_store::{Arena, Clock, Manifest, Memory, PieceKind, PieceLayout, Read, probe};

use super::{count, outline, print, print_json, size};
use crate::table::table;
use crate::{args, limits, model};

/// Maximum number of rows in the table of budgets.
const STEPS: u64 = 16;
const GIB: u64 = 1 << 30;
/// Bytes read to measure the speed of memory: more than caches hold.
const MEMORY_PROBE: usize = 128 << 20;

/// Measured speeds of the machine.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Machine {
    disk_bytes_per_second: Option<f64>,
    memory_bytes_per_second: Option<f64>,
}

impl Machine {
    fn measure(model: &Model, args: &args::Plan, threads: &Threads) -> Machine {
        let clock = Clock::real();
        let disk = probe(model.manifest(), model.dir(), &clock, Some(args.reader));
        let speeds = disk.figures.iter().map(|figure| figure.bytes_per_second);
        Machine {
            disk_bytes_per_second: speeds.max_by(f64::total_cmp),
            memory_bytes_per_second: threads.run(|| memory_speed(&clock)),
        }
    }
}

/// The plan for one budget.
#[derive(Debug, Serialize)]
struct Row {
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

pub(crate) fn run(args: &args::Plan) -> anyhow::Result<ExitCode> {
    let threads = limits::threads(args.threads)?;
    let model = match (model::open(args.model.as_deref()), &args.model) {
        (Err(error), Some(name)) => return without_weights(args, error, name, &threads),
        (opened, _) => opened?,
    };
    let tools = Text::open(&model)?;
    // Chat messages are encoded while the model is loaded, so the budget must include memory for
    // that.
    let chats = tools.tokenizer().is_some() && model.chat_template().is_ok();
    let tools = if chats { tools.while_loaded(None) } else { tools };
    let needs = Needs { texts: args.batch.into(), ..Needs::default() };
    let loader = model.with(args.options()).needs(needs).text(tools).threads(&threads);
    let Planning { planner, ram, total, .. } = loader.planning()?;
    let inventory = Inventory::new(model.spec(), model.manifest()).map_err(|e| model.error(e))?;
    let plan = planner.plan(ram).map_err(|e| model.error(e))?;

    let machine =
        if args.no_probe { Machine::default() } else { Machine::measure(&model, args, &threads) };
    let most = total.max(ram);
    let rows: Vec<Row> = budgets(&planner, ram, most)
        .into_iter()
        .filter_map(|ram| Some(row(&planner.plan(ram).ok()?, machine)))
        .collect();
    let sequence = SequenceBytes::of(model.spec(), args.kv);
    if args.json {
        let ledger: serde_json::Map<_, _> = plan
            .ledger
            .lines()
            .map(|(what, bytes)| (what.name().to_owned(), bytes.into()))
            .collect();
        print_json(&json!({
            "model": model.dir(),
            "weight_bytes": planner.weights(),
            "smallest_budget": planner.smallest(),
            "budget": ram,
            "ledger": ledger,
            "kv_bytes_per_position": sequence.position,
            "kv_fixed_bytes": sequence.fixed,
            "experts_stream": plan.experts_stream,
            "pinned_pieces": plan.pinned.len(),
            "reads_per_expert": reads_per_expert(model.manifest()),
            "plan": row(&plan, machine),
            "machine": machine,
            "budgets": rows,
        }))?;
    } else {
        let text = text(&model, &planner, &plan, &inventory, machine, &rows);
        print(&format!("{text}\n{}", outline::sequence(sequence)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Plans the model of a configuration without weights.
fn without_weights(
    args: &args::Plan,
    error: anyhow::Error,
    name: &Path,
    threads: &Threads,
) -> anyhow::Result<ExitCode> {
    let outline = Outline::instead(error.downcast()?, &sws::locate(name)?)?.supported()?;
    let Options { context, kv, tier, .. } = args.options();
    let options = PlanOptions {
        context,
        kv,
        batch: args.batch.into(),
        tier: tier.unwrap_or(Tier::best()),
        threads: threads.count(),
        ..PlanOptions::default()
    };
    let memory = Memory::now().map(|memory| args.ram.resolve(memory.total, memory.available, 0));
    outline::print(&outline, options, memory.filter(|&ram| ram > 0), args.json)
}

/// The most reads that the first expert of a layer takes; none without experts.
fn reads_per_expert(manifest: &Manifest) -> Option<usize> {
    let first = manifest.pieces.iter().filter(|piece| piece.id.kind() == PieceKind::Expert(0));
    let reads = |read| Some(PieceLayout::new(manifest, read).ok()?.segments().len());
    first.filter_map(|piece| reads(Read::Piece(piece.id))).max()
}

fn row(plan: &Plan, machine: Machine) -> Row {
    let PerToken { experts, hit_rate, .. } = plan.per_token;
    Row {
        budget: plan.ledger.budget(),
        pinned_bytes: plan.ledger.get(MemoryUse::Pinned),
        ring_bytes: plan.ledger.get(MemoryUse::Ring),
        slots: plan.slots.iter().map(|class| class.count).sum(),
        lent: plan.lent.iter().map(|class| class.count).sum(),
        chunk: plan.chunk,
        context: plan.context,
        hit_rate: (experts > 0).then_some(hit_rate),
        read_bytes_per_token: plan.per_token.read(),
        tokens_per_second: pace(&plan.per_token, machine),
    }
}

/// Tokens per second if reads and computation overlap, and computation is bound by memory
/// bandwidth.
fn pace(token: &PerToken, machine: Machine) -> Option<f64> {
    let reading = token.read() as f64 / machine.disk_bytes_per_second?;
    let computing = token.active as f64 / machine.memory_bytes_per_second?;
    Some(1.0 / reading.max(computing))
}

/// Budgets for the table: the smallest, the requested one, and whole GiB from there to more than
/// enough, or every second or fourth of them. Smaller steps for small models.
fn budgets(planner: &Planner, asked: u64, most: u64) -> Vec<u64> {
    let smallest = planner.smallest();
    let weights = planner.weights();
    let end = most.min(smallest + weights + weights / 4 + GIB.min(weights)).max(smallest);
    let mut step = if weights < GIB { 16 << 20 } else { GIB };
    while (end - smallest) / step > STEPS {
        step *= 2;
    }
    let first = (smallest + 1).next_multiple_of(step);
    let mut budgets: Vec<u64> = (first..=end).step_by(step as usize).collect();
    budgets.extend([smallest, asked]);
    budgets.sort_unstable();
    budgets.dedup();
    budgets
}

fn text(
    model: &Model,
    planner: &Planner,
    plan: &Plan,
    inventory: &Inventory,
    machine: Machine,
    rows: &[Row],
) -> String {
    let rate = |speed: Option<f64>| {
        speed.map_or("unknown".to_owned(), |speed| format!("{}/s", size(speed as u64)))
    };
    let ledger: Vec<Vec<String>> = plan
        .ledger
        .lines()
        .filter(|&(_, bytes)| bytes > 0)
        .map(|(what, bytes)| {
            vec![what.words().to_owned(), size(bytes), note(plan, inventory, what)]
        })
        .chain([vec!["total".to_owned(), size(plan.ledger.budget()), String::new()]])
        .collect();
    let mut text = format!(
        "{}: {} of weights; the smallest --ram that works is {}MiB (`min` takes the {} that are needed now)\n\n",
        model.dir().display(),
        size(planner.weights()),
        planner.smallest() >> 20,
        size(planner.least()),
    );
    text += &table(&["memory", "bytes", "<"], &ledger);
    text += &format!(
        "\ndisk {}, memory {}; estimates assume the hit rates of DeepSeek-V2-Lite, and that reads and computation overlap\n\n",
        rate(machine.disk_bytes_per_second),
        rate(machine.memory_bytes_per_second),
    );
    if let Some(reads @ 2..) = reads_per_expert(model.manifest()) {
        text += &format!(
            "an expert takes up to {reads} reads, as its parts lie apart; `sws shard` gathers them into one\n\n"
        );
    }
    let asked = plan.ledger.budget();
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            vec![
                size(row.budget),
                size(row.pinned_bytes),
                match row.lent {
                    0 => row.slots.to_string(),
                    lent => format!("{}+{lent}", row.slots),
                },
                row.chunk.to_string(),
                row.context.to_string(),
                row.hit_rate.map_or("-".to_owned(), |rate| format!("{:.0} %", 100.0 * rate)),
                size(row.read_bytes_per_token),
                row.tokens_per_second.map_or("-".to_owned(), |pace| format!("{pace:.1}")),
                if row.budget == asked { "this plan".to_owned() } else { String::new() },
            ]
        })
        .collect();
    let heading =
        ["--ram", "pinned", "slots", "chunk", "context", "hits", "read/token", "tok/s", "<"];
    text + &table(&heading, &rows)
}

/// Remark on a line of the ledger.
fn note(plan: &Plan, inventory: &Inventory, what: MemoryUse) -> String {
    let experts = inventory.pieces().filter(|id| matches!(id.kind(), PieceKind::Expert(_))).count();
    match what {
        MemoryUse::KvCache => format!("{} positions", plan.context),
        MemoryUse::Activations => {
            let lent: usize = plan.lent.iter().map(|class| class.count).sum();
            let also = match lent {
                0 => String::new(),
                n => format!("; {} while tokens come one at a time", count(n, "more slot")),
            };
            format!("{} of a prompt at once{also}", count(plan.chunk, "token"))
        }
        MemoryUse::Pinned => {
            format!("{} of {} pieces", plan.pinned.len(), inventory.pieces().count() - experts)
        }
        MemoryUse::Ring if plan.experts_stream => "experts too".to_owned(),
        MemoryUse::Slots => {
            let slots: usize = plan.slots.iter().map(|class| class.count).sum();
            format!("{slots} for {experts} experts")
        }
        _ => String::new(),
    }
}

/// Speed at which all threads together read memory, in bytes per second.
fn memory_speed(clock: &Clock) -> Option<f64> {
    use rayon::prelude::*;
    let arena = Arena::new(MEMORY_PROBE).ok()?;
    let mut slot = arena.take(MEMORY_PROBE)?;
    slot.fill(1);
    let part = slot.len() / rayon::current_num_threads();
    let once = || {
        let started = clock.now();
        let sum: u64 = slot
            .par_chunks(part)
            .map(|bytes| {
                let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
                words.fold(0, u64::wrapping_add)
            })
            .reduce(|| 0, u64::wrapping_add);
        std::hint::black_box(sum);
        slot.len() as f64 / (clock.now() - started).as_secs_f64()
    };
    (0..5).map(|_| once()).max_by(f64::total_cmp)
}
