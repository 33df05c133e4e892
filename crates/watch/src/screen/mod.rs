//! Frames for a terminal.

mod meters;
mod style;
mod text;
mod wall;
mod writer;

pub use ratatui_core::buffer::Buffer;
pub use ratatui_core::layout::Rect;
use ratatui_core::style::Style;
use sws_engine::DriveMetrics;
use sws_engine::watch::TierTally;

pub use text::column_after;
pub use writer::changes;

use crate::{Story, Wall};
use style::Palette;

/// The state of a run that a frame shows in addition to the story.
#[derive(Clone, Debug, Default)]
pub struct Now {
    /// State of all experts.
    pub wall: Wall,
    /// Phase of the run.
    pub phase: Phase,
    /// Tokens per second; `None` before the second token.
    pub pace: Option<f64>,
    /// Memory of the process in bytes, if known.
    pub memory: Option<u64>,
    /// Reads from each of several drives, the model's own first.
    pub drives: Vec<DriveMetrics>,
    /// The tier of experts outside memory, such as a graphics card.
    pub tier: Option<TierTally>,
    /// False for styles without colours.
    pub has_colours: bool,
    /// Requests of a server.
    pub requests: Vec<Waiting>,
    /// Number of running texts of all clients of a server, and number of waiting texts.
    pub texts: Option<[usize; 2]>,
}

/// A waiting or running request, described in words.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Waiting {
    /// Id of the request.
    pub id: String,
    /// Endpoint of the request.
    pub endpoint: String,
    /// State of the request.
    pub doing: String,
    /// Age of the request.
    pub age: String,
}

/// Phase of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Phase {
    /// The model reads the prompt. This share of it is done.
    Prompt(f64),
    /// The model writes the text.
    #[default]
    Text,
    /// There are no requests.
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
    let requests = now.texts.map(|_| now.requests.len());
    let extra = Extra { drives: !now.drives.is_empty(), card: now.tier.is_some() };
    let frame = FrameLayout::of(area, now.wall.rows.len(), extra, requests);
    meters::title(story, now, frame.title, buffer);
    wall::draw(&now.wall, &palette, frame.wall, buffer);
    if frame.legend.height > 0 {
        wall::legend(&now.wall, &palette, [frame.wall, frame.legend], buffer);
    }
    meters::lanes(story, &palette, frame.lanes, buffer);
    meters::figures(story, now, &palette, frame.figures, buffer);
    meters::drives(&now.drives, &palette, frame.drives, buffer);
    if let Some(tier) = &now.tier {
        meters::card(story, tier, &palette, frame.card, buffer);
    }
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
    drives: Rect,
    card: Rect,
    requests: Rect,
    text: Rect,
}

/// Lines that only some runs have.
struct Extra {
    /// True if there are several drives.
    drives: bool,
    /// True if there is a graphics card.
    card: bool,
}

impl FrameLayout {
    /// `requests` is the number of a server's requests.
    fn of(area: Rect, layers: usize, extra: Extra, requests: Option<usize>) -> FrameLayout {
        let mut y = area.y;
        let mut take = |lines: u16| {
            let lines = lines.min(area.bottom().saturating_sub(y));
            let part = Rect { y, height: lines, ..area };
            y += lines;
            part
        };
        // On wide screens all figures fit on one line.
        let figures = if area.width >= WIDE { 1 } else { 2 };
        let is_high = area.height >= 16;
        let legend = u16::from(area.height >= LEGIBLE);
        let drives = u16::from(extra.drives && area.height >= LEGIBLE);
        let lanes = 2;
        // A line about all texts, and a line for each request.
        let most = if is_high { area.height / 6 } else { 0 };
        let requests = u16::try_from(requests.map_or(0, |count| count + 1)).unwrap_or(u16::MAX);
        let requests = requests.min(most.max(u16::from(requests > 0)));
        let card = u16::from(extra.card);
        let fixed = 1 + legend + lanes + figures + drives + card + requests;
        let left = area.height.saturating_sub(fixed);
        let most = if is_high { left.saturating_sub(6).max(left / 2) } else { left / 2 };
        // The wall gets no more lines than it has when folded.
        let down = layers.div_ceil(usize::from(most.max(1))).max(1);
        let wall = most.min(u16::try_from(layers.div_ceil(down)).unwrap_or(u16::MAX));
        FrameLayout {
            title: take(1),
            wall: take(wall),
            legend: take(legend),
            lanes: take(lanes),
            figures: take(figures),
            drives: take(drives),
            card: take(card),
            requests: take(requests),
            text: take(u16::MAX),
        }
    }
}

/// Minimum number of columns for all figures on one line.
const WIDE: u16 = 76;

/// Minimum number of lines for a legend, and for the drives.
const LEGIBLE: u16 = 10;

/// Writes text within a line, from column `x` on. Returns the column after the text.
fn put(buffer: &mut Buffer, line: Rect, x: u16, text: &str, style: Style) -> u16 {
    let room = usize::from(line.right().saturating_sub(x));
    if room == 0 || line.height == 0 {
        return x;
    }
    buffer.set_stringn(x, line.y, text, room, style).0
}

#[cfg(test)]
mod tests;
