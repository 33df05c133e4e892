//! `sws draft`.

mod choice;
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
        let shape = shape(model.spec()).ok_or_else(|| {
            model.error("it has no experts, or its layers differ in them, or a token visits some several times, so that no draft is possible; give a mixture of experts")
        })?;
        let layers = model.spec().layers.len();
        let files = args.traces.iter().map(|path| RecordedStates::open(path, &shape, layers));
        let files = files.collect::<anyhow::Result<Vec<_>>>()?;
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

/// Fails if the user interrupted. Recordings may be far larger than memory, and reading them takes
/// long.
fn check_interrupt(interrupt: &Interrupt) -> anyhow::Result<()> {
    if interrupt.is_requested() { Err(stopped()) } else { Ok(()) }
}

fn stopped() -> anyhow::Error {
    Interrupted("nothing was written").into()
}
