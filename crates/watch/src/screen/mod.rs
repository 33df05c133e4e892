//! Frames for a terminal.

mod meters;
mod style;
mod text;
mod wall;
mod writer;

pub use ratatui_core::buffer::Buffer;
pub use ratatui_core::layout::Rect;
use ratatui_core::style::Style;

pub use text::column_after;
pub use writer::changes;

use crate::{Story, Wall};
use style::Palette;

/// The state of a run, which a frame shows with the story.
#[derive(Clone, Debug, Default)]
pub struct Now {
    /// State of all experts.
    pub wall: Wall,
    /// Its phase.
    pub phase: Phase,
    /// Tokens per second; `None` before the second token.
    pub pace: Option<f64>,
    /// Memory of the process in bytes, if known.
    pub memory: Option<u64>,
    /// False for styles without colours.
    pub has_colours: bool,
    /// Requests of a server.
    pub requests: Vec<Waiting>,
    /// Texts of all clients of a server that run, and those that wait.
    pub texts: Option<[usize; 2]>,
}

/// A request that waits or runs, in words.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Waiting {
    /// Its id.
    pub id: String,
    /// Where it was sent.
    pub endpoint: String,
    /// Its state.
    pub doing: String,
    /// Its age.
    pub age: String,
}

/// Phase of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Phase {
    /// It reads the prompt, of which this share is done.
    Prompt(f64),
    /// It writes the text.
    #[default]
    Text,
    /// Nothing is asked of it.
    Idle,
}

/// Draws a frame over the whole buffer, as far as it has room.
pub fn draw(story: &Story, now: &Now, buffer: &mut Buffer) {
    buffer.reset();
    let area = buffer.area;
    if area.width < 8 || area.height < 2 {
        return;
    }
    let palette = Palette::new(now.has_colours);
    let frame = FrameLayout::of(area, now.wall.rows.len(), now.texts.map(|_| now.requests.len()));
    meters::title(story, now, frame.title, buffer);
    wall::draw(&now.wall, &palette, frame.wall, buffer);
    if frame.legend.height > 0 {
        wall::legend(&now.wall, &palette, [frame.wall, frame.legend], buffer);
    }
    meters::lanes(story, &palette, frame.lanes, buffer);
    meters::figures(story, now, &palette, frame.figures, buffer);
    if let Some(texts) = now.texts {
        meters::requests(&now.requests, texts, &palette, frame.requests, buffer);
    }
    text::draw(story, &palette, frame.text, buffer);
}

/// Places of the parts of a frame, from top to bottom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FrameLayout {
    title: Rect,
    wall: Rect,
    legend: Rect,
    lanes: Rect,
    figures: Rect,
    requests: Rect,
    text: Rect,
}

impl FrameLayout {
    /// `requests` is the number of those of a server.
    fn of(area: Rect, layers: usize, requests: Option<usize>) -> FrameLayout {
        let mut y = area.y;
        let mut take = |lines: u16| {
            let lines = lines.min(area.bottom().saturating_sub(y));
            let part = Rect { y, height: lines, ..area };
            y += lines;
            part
        };
        // On wide screens all figures fit one line.
        let figures = if area.width >= WIDE { 1 } else { 2 };
        let is_high = area.height >= 16;
        let legend = u16::from(area.height >= LEGIBLE);
        let lanes = 2;
        // A line about all texts, and one for each request.
        let most = if is_high { area.height / 6 } else { 0 };
        let requests = u16::try_from(requests.map_or(0, |count| count + 1)).unwrap_or(u16::MAX);
        let requests = requests.min(most.max(u16::from(requests > 0)));
        let fixed = 1 + legend + lanes + figures + requests;
        let left = area.height.saturating_sub(fixed);
        let most = if is_high { left.saturating_sub(6).max(left / 2) } else { left / 2 };
        // No more lines than the folded wall has.
        let down = layers.div_ceil(usize::from(most.max(1))).max(1);
        let wall = most.min(u16::try_from(layers.div_ceil(down)).unwrap_or(u16::MAX));
        FrameLayout {
            title: take(1),
            wall: take(wall),
            legend: take(legend),
            lanes: take(lanes),
            figures: take(figures),
            requests: take(requests),
            text: take(u16::MAX),
        }
    }
}

/// Columns from which all figures fit one line.
const WIDE: u16 = 76;

/// Lines from which there is one for the legend.
const LEGIBLE: u16 = 10;

/// Writes within a line, from a column of it on. Returns the column after the text.
fn put(buffer: &mut Buffer, line: Rect, x: u16, text: &str, style: Style) -> u16 {
    let room = usize::from(line.right().saturating_sub(x));
    if room == 0 || line.height == 0 {
        return x;
    }
    buffer.set_stringn(x, line.y, text, room, style).0
}

#[cfg(test)]
mod tests;
