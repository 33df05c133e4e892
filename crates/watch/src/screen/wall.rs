//! The wall of experts.

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;

use super::put;
use super::style::{Palette, mark};
use crate::{ExpertState, Folded, Wall};

/// Number of columns for the number of a layer.
const NUMBERS: u16 = 4;

/// Number of columns of the legend without abbreviations.
const LEGEND: u16 = 64;

/// Folds the wall to fit its place.
fn fold(wall: &Wall, area: Rect) -> Folded {
    wall.fold(usize::from(area.width.saturating_sub(NUMBERS)), usize::from(area.height))
}

pub(super) fn draw(wall: &Wall, palette: &Palette, area: Rect, buffer: &mut Buffer) {
    for (line, (layer, marks)) in area.rows().zip(fold(wall, area).lines) {
        put(buffer, line, line.x, &format!("{layer:>3} "), palette.quiet());
        let mut x = line.x + NUMBERS;
        for state in marks {
            x = put(buffer, line, x, mark(state), palette.state(state));
        }
    }
}

/// Draws the legend: the marks, and the number of experts per mark.
pub(super) fn legend(wall: &Wall, palette: &Palette, areas: [Rect; 2], buffer: &mut Buffer) {
    let [of, line] = areas;
    if wall.rows.is_empty() {
        put(buffer, line, line.x, "a model without experts", palette.quiet());
        return;
    }
    if line.width < LEGEND {
        let mut x = line.x;
        for state in ExpertState::ALL {
            x = put(buffer, line, x, mark(state), palette.state(state));
            x = put(buffer, line, x, &format!("{} ", state.short()), palette.quiet());
        }
        return;
    }
    let mut x = line.x + NUMBERS;
    for state in ExpertState::ALL {
        x = put(buffer, line, x, mark(state), palette.state(state));
        x = put(buffer, line, x, &format!(" {}  ", state.name()), palette.quiet());
    }
    let folded = fold(wall, of);
    if folded.across * folded.down > 1 {
        let experts = format!("a mark: {} × {}", folded.across, folded.down);
        put(buffer, line, x, &experts, palette.quiet());
    }
}
