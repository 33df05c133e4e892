//! The difference between two frames, as terminal sequences.

use std::fmt::Write;

use ratatui_core::buffer::{Buffer, Cell};
use ratatui_core::style::{Color, Modifier};

/// Returns the sequences that turn one frame into another of the same size.
pub fn changes(before: &Buffer, after: &Buffer) -> String {
    let mut out = String::new();
    let mut next: Option<(u16, u16)> = None;
    let mut style = None;
    for (x, y, cell) in before.diff(after) {
        if next != Some((x, y)) {
            let _ = write!(out, "\x1b[{};{}H", y + 1, x + 1);
        }
        let wanted = (cell.fg, cell.modifier);
        if style != Some(wanted) {
            select(&mut out, cell);
            style = Some(wanted);
        }
        out.push_str(cell.symbol());
        // A wide character moves the cursor further, so the next cell is addressed explicitly.
        next = cell.symbol().is_ascii().then_some((x + 1, y));
    }
    if style.is_some() {
        out.push_str("\x1b[0m");
    }
    out
}

/// Selects the style of a cell.
fn select(out: &mut String, cell: &Cell) {
    out.push_str("\x1b[0");
    let codes = [(Modifier::BOLD, ";1"), (Modifier::UNDERLINED, ";4"), (Modifier::REVERSED, ";7")];
    for (modifier, code) in codes {
        if cell.modifier.contains(modifier) {
            out.push_str(code);
        }
    }
    if let Color::Indexed(number) = cell.fg {
        let _ = write!(out, ";38;5;{number}");
    }
    out.push('m');
}

#[cfg(test)]
mod tests {
    use ratatui_core::layout::Rect;
    use ratatui_core::style::Style;

    use super::*;

    #[test]
    fn only_what_changed_is_written() {
        let area = Rect::new(0, 0, 10, 2);
        let before = Buffer::empty(area);
        let mut after = Buffer::empty(area);
        assert_eq!(changes(&before, &after), "");
        after.set_string(2, 1, "ab", Style::new());
        let red = Style::new().fg(Color::Indexed(202)).add_modifier(Modifier::BOLD);
        after.set_string(4, 1, "c", red);
        assert_eq!(changes(&before, &after), "\x1b[2;3H\x1b[0mab\x1b[0;1;38;5;202mc\x1b[0m");
        assert_eq!(changes(&after, &after), "");
    }
}
