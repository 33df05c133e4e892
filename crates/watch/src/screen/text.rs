//! The text, coloured by the cost of each token.

use std::borrow::Cow;

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::Style;
use ratatui_core::text::Span;

use super::put;
use super::style::Palette;
use crate::Story;

/// A grapheme with its style; `None` at the end of a line.
type StyledGrapheme = Option<(String, Style)>;

/// Draws the end of the text, wrapped at words.
pub(super) fn draw(story: &Story, palette: &Palette, area: Rect, buffer: &mut Buffer) {
    // The line above the text stays empty.
    let area = Rect { y: area.y + 1, height: area.height.saturating_sub(1), ..area };
    if area.height == 0 || area.width == 0 {
        return;
    }
    let most = usize::from(area.width) * usize::from(area.height);
    let usual = story.usual();
    // Parts are collected from the end backwards, until there are more than fit.
    let mut parts: Vec<(Cow<'_, str>, Style)> = Vec::new();
    let mut room = most;
    for (number, token) in story.tokens().iter().enumerate().rev() {
        if room == 0 {
            break;
        }
        let text = plain(&token.text);
        room = room.saturating_sub(text.chars().count());
        parts.push((text, palette.level(story.level(number, usual))));
    }
    if room > 0 && story.left_out() == 0 {
        parts.push((plain(story.opening()), palette.quiet()));
    }
    parts.reverse();
    let lines = wrapped(&parts, area.width);
    let shown = lines.len().saturating_sub(usize::from(area.height));
    for (line, marks) in area.rows().zip(&lines[shown..]) {
        let mut x = line.x;
        for (mark, style) in marks {
            x = put(buffer, line, x, mark, *style);
        }
    }
}

/// Breaks parts into lines, at the last space that fits, or within a word that is longer than a
/// line.
fn wrapped(parts: &[(Cow<'_, str>, Style)], width: u16) -> Vec<Vec<(String, Style)>> {
    let mut lines = Vec::new();
    let mut line = Vec::new();
    let mut used = 0;
    for mark in parts.iter().flat_map(|(text, style)| marks(text, *style)) {
        let Some((mark, style)) = mark else {
            lines.push(std::mem::take(&mut line));
            used = 0;
            continue;
        };
        let columns = Span::raw(mark.as_str()).width();
        if used + columns > usize::from(width) {
            if mark == " " {
                lines.push(std::mem::take(&mut line));
                used = 0;
                continue;
            }
            let space = line.iter().rposition(|(mark, _): &(String, Style)| mark == " ");
            let rest = match space {
                Some(at) => line.split_off(at + 1),
                None => Vec::new(),
            };
            lines.push(std::mem::replace(&mut line, rest));
            used = line.iter().map(|(mark, _)| Span::raw(mark.as_str()).width()).sum();
        }
        used += columns;
        line.push((mark, style));
    }
    lines.push(line);
    lines
}

/// The graphemes of a text with their style, and the ends of its lines.
fn marks(text: &str, style: Style) -> Vec<StyledGrapheme> {
    let mut marks = Vec::new();
    for (number, line) in text.split('\n').enumerate() {
        if number > 0 {
            marks.push(None);
        }
        let span = Span::raw(line);
        let graphemes = span.styled_graphemes(style);
        marks.extend(graphemes.map(|grapheme| Some((grapheme.symbol.to_owned(), style))));
    }
    marks
}

/// The cursor's column on a terminal with `columns` columns, after it has shown a text that begins
/// in column `from`. It is `columns` if the last column is full, so that the next character begins
/// a line.
pub fn column_after(text: &str, from: usize, columns: usize) -> usize {
    let last = columns.saturating_sub(1);
    let mut column = from;
    for (number, line) in text.split('\n').enumerate() {
        if number > 0 {
            column = 0;
        }
        for (number, part) in line.split('\t').enumerate() {
            if number > 0 {
                column = (column.min(last) / TAB + 1).saturating_mul(TAB).min(last);
            }
            for grapheme in Span::raw(part).styled_graphemes(Style::new()) {
                column = match Span::raw(grapheme.symbol).width() {
                    width if column + width > columns => width,
                    width => column + width,
                };
            }
        }
    }
    column
}

/// Number of columns between tab stops.
const TAB: usize = 8;

/// True for a control character, except the end of a line.
fn is_obeyed(c: char) -> bool {
    c.is_control() && c != '\n'
}

/// The text without control characters, which a terminal would interpret.
pub(super) fn plain(text: &str) -> Cow<'_, str> {
    if !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '\t' => plain.push_str("    "),
            c if is_obeyed(c) => plain.extend(c.escape_default()),
            c => plain.push(c),
        }
    }
    Cow::Owned(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_follow_a_text() {
        #[rustfmt::skip]
        let cases = [
            // text, from, columns, column
            ("", 3, 10, 3),
            ("abc", 0, 10, 3),
            ("abcdefghij", 0, 10, 10),
            ("k", 10, 10, 1),
            ("abcdefghijklm", 0, 10, 3),
            ("abc\nde", 9, 10, 2),
            ("a\n", 9, 10, 0),
            ("羊羊", 7, 10, 2),
            ("羊", 8, 10, 10),
            ("e\u{301}", 0, 10, 1),
            ("a\tb", 0, 40, 9),
            ("\t\t", 0, 10, 9),
        ];
        for (text, from, columns, expected) in cases {
            assert_eq!(column_after(text, from, columns), expected, "{text:?} from {from}");
        }
    }
}
