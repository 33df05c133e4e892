//! Shows generated text on the terminal.

use std::io::IsTerminal;

use sws::{Generate, Generated, Piece, Progress};

use crate::interrupt::Interrupt;
use crate::live::Live;
use crate::prompt::PromptProgress;
use crate::watch::Watcher;

/// Shows a text while it is generated, until it ends or Ctrl-C ends it. Text that a screen covers is
/// shown at the end.
pub(crate) fn follow(
    generate: Generate<'_>,
    interrupt: &Interrupt,
    mut live: Live,
    watcher: &mut Option<Watcher>,
    show: &mut dyn FnMut(&Piece) -> anyhow::Result<()>,
) -> anyhow::Result<Generated> {
    if let Some(watcher) = watcher
        && watcher.covers()
    {
        return covered(generate, interrupt, watcher, show);
    }
    let mut prompt = PromptProgress::new(generate.layers(), live.gauge().cloned());
    let meter = prompt.meter();
    let report = move |progress: Progress| prompt.show(progress);
    let mut generate = generate.cancelled_by(interrupt.cancel()).reporting(report);
    let mut next = generate.next();
    if let Some(meter) = &meter {
        meter.finish();
    }
    // Above the line, text that comes within a moment is shown together.
    let mut held = NOTHING;
    let mut shown: anyhow::Result<()> = Ok(());
    while let Some(piece) = next {
        let piece = match piece {
            Ok(piece) => piece,
            Err(error) => {
                shown = Err(error.into());
                break;
            }
        };
        if let Some(watcher) = watcher {
            watcher.piece(&piece);
        }
        let Piece { token, text, reasoning } = piece;
        if token.is_some() {
            live.count();
        }
        if !(reasoning.is_empty() || held.text.is_empty()) {
            show_all(&mut held, &mut live, show)?;
        }
        held.text.push_str(&text);
        held.reasoning.push_str(&reasoning);
        let is_due = live.is_due();
        if is_due || !live.is_below_text() {
            show_all(&mut held, &mut live, show)?;
        }
        if is_due {
            live.show();
        }
        next = generate.next();
    }
    show_all(&mut held, &mut live, show)?;
    live.clear();
    shown?;
    Ok(generate.finish())
}

const NOTHING: Piece = Piece { token: None, text: String::new(), reasoning: String::new() };

/// Shows what was held back.
fn show_all(
    held: &mut Piece,
    live: &mut Live,
    show: &mut dyn FnMut(&Piece) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let piece = std::mem::replace(held, NOTHING);
    if piece.text.is_empty() && piece.reasoning.is_empty() {
        return Ok(());
    }
    if live.is_below_text() {
        live.clear();
    }
    show(&piece)
}

/// Follows a text under a screen. Standard output gets it at once only where that is not covered.
fn covered(
    generate: Generate<'_>,
    interrupt: &Interrupt,
    watcher: &mut Watcher,
    show: &mut dyn FnMut(&Piece) -> anyhow::Result<()>,
) -> anyhow::Result<Generated> {
    let is_covered = std::io::stdout().is_terminal();
    let mut later = Vec::new();
    let mut generate = generate.cancelled_by(interrupt.cancel()).reporting(watcher.prompt());
    let mut result = Ok(());
    for piece in generate.by_ref() {
        let piece = match piece {
            Ok(piece) => piece,
            Err(error) => {
                result = Err(error.into());
                break;
            }
        };
        watcher.piece(&piece);
        match is_covered {
            true => later.push(piece),
            false => result = show(&piece),
        }
        if result.is_err() {
            break;
        }
    }
    watcher.close();
    later.iter().try_for_each(show)?;
    result.map(|()| generate.finish())
}
