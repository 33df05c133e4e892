//! Shows generated text on the terminal.

use std::sync::Arc;

use sws::{Generate, Generated, Piece, Progress};

use crate::interrupt::Interrupt;
use crate::live::Live;
use crate::progress::{Meter, Unit};

/// Shows a text while it is generated, until it ends or Ctrl-C ends it.
pub(crate) fn follow(
    generate: Generate<'_>,
    interrupt: &Interrupt,
    mut live: Live,
    show: &mut dyn FnMut(&Piece) -> anyhow::Result<()>,
) -> anyhow::Result<Generated> {
    let meter = Arc::new(Meter::quiet("reading the prompt", Unit::Work));
    let shown = Arc::clone(&meter);
    let report = move |progress: Progress| {
        if progress.done < progress.total {
            shown.show(progress);
        }
    };
    let mut generate = generate.cancelled_by(interrupt.cancel()).reporting(report);
    let mut next = generate.next();
    meter.finish();
    while let Some(piece) = next {
        let piece = piece?;
        if !(piece.text.is_empty() && piece.thought.is_empty()) {
            live.clear();
            show(&piece)?;
        }
        if piece.token.is_some() {
            live.tick();
        }
        next = generate.next();
    }
    live.clear();
    Ok(generate.finish())
}
