//! Answers on standard output: reasoning is dim on a terminal, named on one without colours, and left
//! out elsewhere.

use std::io::IsTerminal;

use sws::Piece;

use super::print;
use crate::terminal::{has_colours, is_dumb, raw};

/// Begins dim text.
const DIM: &str = "\x1b[2m";
/// Ends it.
const PLAIN: &str = "\x1b[0m";

/// Shows one answer.
pub(super) struct AnswerScreen {
    is_terminal: bool,
    has_colours: bool,
    /// True while reasoning is shown.
    thinks: bool,
}

impl Default for AnswerScreen {
    fn default() -> AnswerScreen {
        let is_terminal = std::io::stdout().is_terminal();
        let has_colours = is_terminal && has_colours() && !is_dumb();
        AnswerScreen { is_terminal, has_colours, thinks: false }
    }
}

impl AnswerScreen {
    /// Shows a piece.
    pub(super) fn show(&mut self, piece: &Piece) -> anyhow::Result<()> {
        if self.is_terminal && !piece.reasoning.is_empty() {
            if !std::mem::replace(&mut self.thinks, true) && !self.has_colours {
                print("[thinking]\n")?;
            }
            // Piece by piece, so that a signal never leaves the terminal dim.
            self.style(DIM)?;
            print(&piece.reasoning)?;
            self.style(PLAIN)?;
        }
        if !piece.text.is_empty() {
            if std::mem::replace(&mut self.thinks, false) {
                print(if self.has_colours { "\n\n" } else { "\n[answer]\n" })?;
            }
            print(&piece.text)?;
        }
        Ok(())
    }

    fn style(&self, code: &'static str) -> anyhow::Result<()> {
        if self.has_colours { raw(code) } else { Ok(()) }
    }
}
