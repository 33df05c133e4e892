//! The title, the lanes and the figures.

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Modifier, Style};
use ratatui_core::text::Span;
use sws_engine::DriveMetrics;
use sws_engine::watch::TierTally;

use super::style::Palette;
use super::text::plain;
use super::{Now, Phase, WIDE, Waiting, put};
use crate::{ExpertState, RunStep, Story};

/// Number of columns for the name of a lane.
const NAMES: u16 = 9;
/// Levels of a lane, each an eighth.
const EIGHTHS: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
/// Number of steps that figures cover.
const WINDOW: usize = 20;

/// Draws the model on the left, and its activity on the right.
pub(super) fn title(story: &Story, now: &Now, line: Rect, buffer: &mut Buffer) {
    let tokens = story.written();
    let doing = match now.phase {
        Phase::Prompt(share) => format!("reading the prompt, {:.0} %", 100.0 * share),
        Phase::Idle => "idle".to_owned(),
        Phase::Text => {
            let pace = match now.pace {
                Some(pace) if pace < 1.0 => format!(", {:.1} s/token", 1.0 / pace.max(1e-9)),
                Some(pace) => format!(", {pace:.1} tok/s"),
                None => String::new(),
            };
            format!("token {tokens}{pace}")
        }
    };
    let doing = match story.read_bytes() {
        bytes if bytes > 0 && line.width >= WIDE => format!("{doing}, {} read", size(bytes)),
        _ => doing,
    };
    let width = u16::try_from(Span::raw(&*doing).width()).unwrap_or(u16::MAX);
    let start = line.right().saturating_sub(width).max(line.x);
    put(buffer, line, start, &doing, Style::new());
    let left = Rect { width: (start - line.x).saturating_sub(2), ..line };
    let model = plain(&story.about.model);
    put(buffer, left, left.x, &model, Style::new().add_modifier(Modifier::BOLD));
}

/// Draws the shares of time in which the disk was busy and in which passes computed, the latest on
/// the right.
pub(super) fn lanes(story: &Story, palette: &Palette, area: Rect, buffer: &mut Buffer) {
    type Part = fn(&RunStep) -> f64;
    let lanes: [(&str, Part, Style); 2] = [
        ("disk", |step| step.share(step.reading), palette.disk()),
        ("compute", |step| step.share(step.computing), palette.compute()),
    ];
    for (line, (name, part, style)) in area.rows().zip(lanes) {
        put(buffer, line, line.x, name, palette.quiet());
        let room = usize::from(line.width.saturating_sub(NAMES));
        let steps = story.steps();
        let shown = steps.iter().skip(steps.len().saturating_sub(room));
        let mut x = line.right() - u16::try_from(steps.len().min(room)).unwrap_or(0);
        for step in shown {
            let eighths = (8.0 * part(step).clamp(0.0, 1.0)).round() as usize;
            x = put(buffer, line, x, EIGHTHS[eighths], style);
        }
    }
}

/// Draws hit rate, throughput, waits, and memory within the budget.
pub(super) fn figures(
    story: &Story,
    now: &Now,
    palette: &Palette,
    area: Rect,
    buffer: &mut Buffer,
) {
    let recent = recent(story);
    let hits = match recent.hit_rate() {
        Some(rate) => format!("hits {:>3.0} %", 100.0 * rate),
        None => "hits   -  ".to_owned(),
    };
    let waits = 100.0 * recent.share(recent.waiting);
    let text = format!("{hits}  {:>5.2} GB/s  waits {waits:>3.0} %", recent.gb_per_second());
    let mut lines = area.rows();
    let Some(first) = lines.next() else { return };
    let end = put(buffer, first, first.x, &text, Style::new());
    let rest = match lines.next() {
        Some(second) => second,
        None if first.width >= WIDE => {
            let x = end + 3;
            Rect { x, width: first.right().saturating_sub(x), ..first }
        }
        None => return,
    };
    budget(story, now, palette, rest, buffer);
}

/// Draws the bytes read from each drive.
pub(super) fn drives(drives: &[DriveMetrics], palette: &Palette, area: Rect, buffer: &mut Buffer) {
    let Some(line) = area.rows().next() else { return };
    put(buffer, line, line.x, "drives", palette.quiet());
    let mut parts = Vec::new();
    for (number, drive) in drives.iter().enumerate() {
        let name = if number == 0 { "own".to_owned() } else { format!("copy {number}") };
        let left_out = if drive.left_out { ", left out" } else { "" };
        parts.push(format!("{name} {}{left_out}", size(drive.bytes)));
    }
    put(buffer, line, line.x + NAMES, &parts.join("; "), Style::new());
}

/// Draws the memory of a graphics card in use, and the share of the experts that are computed there.
pub(super) fn card(
    story: &Story,
    tier: &TierTally,
    palette: &Palette,
    line: Rect,
    buffer: &mut Buffer,
) {
    let x = put(buffer, line, line.x, "card   ", Style::new());
    let TierTally { held, bytes, limit, has_failed, .. } = *tier;
    if has_failed {
        put(buffer, line, x, "has failed, and is left alone", palette.state(ExpertState::Waited));
        return;
    }
    let share = 100.0 * recent(story).tier_rate().unwrap_or(0.0);
    let used = format!(" {} of {}", size(bytes), size(limit));
    let words = match line.width >= WIDE {
        true => format!("{used}  {held} experts  {share:.0} % computed there"),
        false => format!("{used}  {share:.0} %"),
    };
    bar(x, bytes as f64 / limit.max(1) as f64, &words, palette, line, buffer);
}

/// The last two seconds.
fn recent(story: &Story) -> RunStep {
    let steps = story.steps();
    RunStep::sum(steps.iter().skip(steps.len().saturating_sub(WINDOW)))
}

/// Draws the texts of a server, and a line for each request. The last line has the number of
/// requests without a line.
pub(super) fn requests(
    requests: &[Waiting],
    [running, waiting]: [usize; 2],
    palette: &Palette,
    area: Rect,
    buffer: &mut Buffer,
) {
    let mut lines = area.rows();
    let Some(first) = lines.next() else { return };
    let words = format!("texts: {running} running, {waiting} waiting");
    put(buffer, first, first.x, &words, Style::new());
    let room = usize::from(area.height - 1);
    let shown = if requests.len() > room { room.saturating_sub(1) } else { requests.len() };
    for (number, line) in lines.enumerate() {
        let Some(request) = requests[..shown].get(number) else {
            let more = requests.len() - shown;
            put(buffer, line, line.x, &format!("and {more} more"), palette.quiet());
            return;
        };
        let doing = format!("{:>6}  {:<16}", request.age, request.doing);
        let x = put(buffer, line, line.x, &plain(&doing), Style::new());
        let about = format!("  {}  {}", request.endpoint, request.id);
        put(buffer, line, x, &plain(&about), palette.quiet());
    }
}

/// Draws the memory of the process as a bar within its budget.
fn budget(story: &Story, now: &Now, palette: &Palette, line: Rect, buffer: &mut Buffer) {
    let Some(memory) = now.memory else { return };
    let Some(budget) = story.about.budget.filter(|&budget| budget > 0) else {
        put(buffer, line, line.x, &format!("memory {}", size(memory)), Style::new());
        return;
    };
    let words = format!(" {} of {}", size(memory), size(budget));
    let x = put(buffer, line, line.x, "memory ", Style::new());
    bar(x, memory as f64 / budget as f64, &words, palette, line, buffer);
}

/// Draws a bar of which a share is full, from column `x` on, and words behind it.
fn bar(x: u16, share: f64, words: &str, palette: &Palette, line: Rect, buffer: &mut Buffer) {
    let taken = u16::try_from(words.len()).unwrap_or(u16::MAX);
    let room = line.right().saturating_sub(x).saturating_sub(taken).min(MOST_BAR);
    let full = (f64::from(room) * share.clamp(0.0, 1.0)).round() as u16;
    let mut x = x;
    for at in 0..room {
        let (mark, style) = match at < full {
            true => ("█", palette.compute()),
            false => ("░", palette.quiet()),
        };
        x = put(buffer, line, x, mark, style);
    }
    put(buffer, line, x, words, Style::new());
}

/// Maximum number of columns of a bar.
const MOST_BAR: u16 = 40;

/// An amount of memory.
fn size(bytes: u64) -> String {
    let bytes = bytes as f64;
    match bytes {
        _ if bytes >= 1024.0 * 1024.0 * 1024.0 => format!("{:.2} GiB", bytes / (1u64 << 30) as f64),
        _ => format!("{:.1} MiB", bytes / (1u64 << 20) as f64),
    }
}
