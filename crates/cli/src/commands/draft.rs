//! `sws draft`.

mod choice;
mod pairs;
mod score;
mod states;
mod train;

use std::process::ExitCode;

use anyhow::anyhow;
use states::{RecordedSequence, RecordedStates};
use sws::Model;
use sws::draft::shape;
use sws_draft::DraftShape;
use sws_engine::RouterSet;
use sws_store::ReaderKind;

use crate::args;
use crate::interrupt::{Interrupt, Interrupted};
use crate::model;

pub(crate) fn run(args: &args::DraftArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        args::DraftCommand::Score(args) => score::run(args),
        args::DraftCommand::Train(args) => train::run(args),
    }
}

/// Model and recordings that both subcommands work on.
struct DraftInput {
    model: Model,
    shape: DraftShape,
    routers: RouterSet,
    files: Vec<RecordedStates>,
}

impl DraftInput {
    fn open(args: &args::RecordedArgs) -> anyhow::Result<DraftInput> {
        let model = model::open(Some(&args.model))?;
        let Some(shape) = shape(model.spec()) else {
            return Err(model.error("it has no experts, or its layers differ in them, or a token visits some several times, so that no draft is possible; give a mixture of experts").into());
        };
        let layers = model.spec().layers.len();
        let mut files = Vec::new();
        for path in &args.traces {
            files.push(RecordedStates::open(path, &shape, layers)?);
        }
        let store = model.store(ReaderKind::Direct)?;
        let routers = RouterSet::open(model.spec(), &store).map_err(|e| model.error(e))?;
        if files.is_empty() {
            return Err(anyhow!("there are no recordings; name some with --traces"));
        }
        Ok(DraftInput { model, shape, routers, files })
    }

    /// All sequences, in file order.
    fn sequences(&self) -> Vec<RecordedSequence> {
        let mut sequences = Vec::new();
        for (file, states) in self.files.iter().enumerate() {
            for tokens in states.trace.sequences() {
                sequences.push(RecordedSequence { file, tokens });
            }
        }
        sequences
    }
}

/// Number of tokens of some sequences.
fn tokens(sequences: &[RecordedSequence]) -> usize {
    sequences.iter().map(|sequence| sequence.tokens.len()).sum()
}

/// Memory limit of a draft, as it was typed.
fn limit_of(typed: Option<u64>) -> usize {
    match typed {
        Some(size) => size as usize,
        None => usize::MAX,
    }
}

/// Fails if the user interrupted. Recordings may be far larger than memory, and reading them takes
/// long.
fn check_interrupt(interrupt: &Interrupt) -> anyhow::Result<()> {
    if interrupt.is_requested() { Err(stopped()) } else { Ok(()) }
}

fn stopped() -> anyhow::Error {
    Interrupted("nothing was written").into()
}
