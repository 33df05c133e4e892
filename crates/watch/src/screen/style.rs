//! Marks and colours. The colours can be distinguished by the colour-blind, and the marks work
//! without colours.

use ratatui_core::style::{Color, Modifier, Style};

use crate::ExpertState;

/// The mark of a state.
pub(super) const fn mark(state: ExpertState) -> &'static str {
    match state {
        ExpertState::Disk => "·",
        ExpertState::Memory => "▒",
        ExpertState::Reading => "↓",
        ExpertState::Used => "█",
        ExpertState::Waited => "!",
    }
}

/// Styles, with or without colours. Of the 256 colours of terminals: blue, orange and vermilion, in
/// shades that are readable on light and dark backgrounds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Palette {
    has_colours: bool,
}

const GREY: u8 = 244;
const BLUE: u8 = 33;
const ORANGE: u8 = 172;
const VERMILION: u8 = 202;

impl Palette {
    pub(super) fn new(has_colours: bool) -> Palette {
        Palette { has_colours }
    }

    pub(super) fn state(&self, state: ExpertState) -> Style {
        match state {
            ExpertState::Disk => self.colour(GREY),
            ExpertState::Memory => self.colour(BLUE),
            ExpertState::Reading => self.colour(ORANGE),
            ExpertState::Used => Style::new(),
            ExpertState::Waited => self.colour(VERMILION).add_modifier(Modifier::BOLD),
        }
    }

    /// Style of a token by its [level](crate::Story::level).
    pub(super) fn level(&self, level: usize) -> Style {
        match level {
            0 => Style::new(),
            1 => self.colour(BLUE).add_modifier(Modifier::UNDERLINED),
            2 => self.colour(ORANGE).add_modifier(Modifier::BOLD),
            _ => self.colour(VERMILION).add_modifier(Modifier::BOLD | Modifier::REVERSED),
        }
    }

    pub(super) fn disk(&self) -> Style {
        self.colour(ORANGE)
    }

    pub(super) fn compute(&self) -> Style {
        self.colour(BLUE)
    }

    /// Style of names and of less important text.
    pub(super) fn quiet(&self) -> Style {
        self.colour(GREY)
    }

    fn colour(&self, number: u8) -> Style {
        match self.has_colours {
            true => Style::new().fg(Color::Indexed(number)),
            false => Style::new(),
        }
    }
}
