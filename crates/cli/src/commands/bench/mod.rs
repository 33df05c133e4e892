//! `sws bench`: rounds of a fixed text in processes of their own, as a board of numbers.

mod board;
mod rounds;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use sws::{Model, TextCodec};
use sws_format::Progress;
use sws_store::ReaderKind;

use super::{print, print_json};
use crate::atomic_file::AtomicFile;
use crate::input::read_beginning;
use crate::interrupt::{Interrupt, Interrupted};
use crate::progress::{ProgressMeter, ProgressUnit};
use crate::{args, limits, model};

use super::machine::Machine;
use board::{BenchBoard, BoardMachine, BoardModel};
use rounds::{BenchStart, Continuing};

/// The text that is continued: of several topics, so that its tokens need different experts.
const TEXT: &str = "The harbour was quiet before dawn. Nets hung along the wall, and a boat came in with its \
    lamp still lit. In the kitchen of the inn somebody had left flour, two eggs and a pinch of salt on the \
    table; the recipe lay beside them. A child asked why the moon follows a train, and the answer was that \
    what is far away seems to stand still. Later that day the clerk added three columns of numbers, found an \
    error of 42 in the second, and began again from the top. This is what happened next:";
/// Token ids of a model without a tokenizer.
const IDS: u32 = 96;
/// Size limit of a board. One of 4,096 tokens is smaller.
const MAX_BYTES: u64 = 64 << 20;

pub(crate) fn run(args: &args::BenchArgs) -> anyhow::Result<ExitCode> {
    let mut model = model::open(args.model.as_deref())?;
    model::spread(&mut model, &args.also)?;
    if model.supplier().is_some() {
        bail!("the shards of this model are not on this machine; give a model that is");
    }
    match &args.check {
        Some(file) => check(args, &model, file),
        None => measure(args, &model),
    }
}

/// Measures, and prints or writes the board.
fn measure(args: &args::BenchArgs, model: &Model) -> anyhow::Result<ExitCode> {
    let threads = limits::threads(args.threads)?;
    let out = args.out.as_deref().map(AtomicFile::create).transpose()?;
    let prompt = prompt(model)?;
    let interrupt = Interrupt::of_the_program()?;
    let machine = Machine::measure(Some(model), ReaderKind::Direct, &threads);
    let continuing = Continuing::new(model, &prompt, args)?;

    let total = u64::from(args.rounds) * args.ram.len() as u64 * 2 + 1;
    let meter = ProgressMeter::quiet("rounds", ProgressUnit::Work);
    let mut done = 0;
    let mut next = || {
        if interrupt.is_requested() {
            return Err(Interrupted("nothing was written"));
        }
        meter.show(Progress { done, total });
        done += 1;
        Ok(())
    };
    next()?;
    // A process that was interrupted as well has no reason to tell.
    let told = |error| match interrupt.is_requested() {
        true => Interrupted("nothing was written").into(),
        false => error,
    };
    let certified = continuing.certified(args.ram[0]).map_err(told)?;
    let mut measured = Vec::new();
    for round in 1..=args.rounds {
        for &ram in &args.ram {
            let learned = tempfile::tempdir().context("a directory for what a round learns")?;
            for start in [BenchStart::Cold, BenchStart::Warm] {
                next()?;
                let round = continuing.round(round, ram, start, learned.path(), &certified);
                measured.push(round.map_err(told)?);
            }
        }
    }
    meter.finish();

    let board = BenchBoard {
        format: board::FORMAT.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        model: BoardModel::of(model),
        machine: BoardMachine::of(machine),
        prompt_tokens: prompt.len(),
        new_tokens: certified.tokens.len(),
        rounds: measured,
        certificate: certified.certificate,
    };
    if let Some(mut out) = out {
        out.write((serde_json::to_string_pretty(&board)? + "\n").as_bytes())?;
        out.publish()?;
    }
    match args.json {
        true => print_json(&board)?,
        false => print(&board.text())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The tokens of the text, or some ids of a model without a tokenizer.
fn prompt(model: &Model) -> anyhow::Result<Vec<u32>> {
    let text: TextCodec = model.with(sws::Options::default()).read_text()?;
    let mut tokens = match text.tokenizer() {
        Some(_) => text.encode_first(model, TEXT)?,
        None => {
            let vocab = u32::try_from(model.spec().vocab).unwrap_or(u32::MAX).max(2);
            (1..=IDS).map(|number| number.wrapping_mul(7919) % vocab).collect()
        }
    };
    // A short context has room for new tokens, too.
    tokens.truncate((model.spec().context / 2).max(1));
    model.check(&tokens)?;
    Ok(tokens)
}

/// Recomputes the certificate of a board.
fn check(args: &args::BenchArgs, model: &Model, file: &Path) -> anyhow::Result<ExitCode> {
    let board = read(file)?;
    let shown = file.display();
    if let Err(why) = board.check_text(model, &prompt(model)?) {
        bail!("`{shown}` proves nothing about this model ({why}); give the model that it names");
    }
    let dir = tempfile::tempdir().context("a directory for the certificate")?;
    // By this name, which the outcome tells.
    let certificate = dir.path().join(file.file_name().unwrap_or("board".as_ref()));
    std::fs::write(&certificate, board.certificate.to_string())
        .context("a file for the certificate")?;
    if !args.json {
        print(&format!("{}\nThe file says so; its text is computed again:\n", board.text()))?;
    }
    rounds::certify(model, &certificate, args)
}

fn read(path: &Path) -> anyhow::Result<BenchBoard> {
    const REMEDY: &str = "give the file that `sws bench --out` wrote";
    let shown = path.display();
    let bytes = match read_beginning(path, MAX_BYTES + 1) {
        Ok(bytes) => bytes,
        Err(e) => bail!("`{shown}` cannot be read: {e}; {REMEDY}"),
    };
    if bytes.len() as u64 > MAX_BYTES {
        bail!("`{shown}` has more than {MAX_BYTES} bytes and is not a board; {REMEDY}");
    }
    match BenchBoard::parse(&bytes) {
        Ok(board) => Ok(board),
        Err(why) => bail!("`{shown}` is not a board ({why}); {REMEDY}"),
    }
}
