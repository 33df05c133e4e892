//! Status line on the terminal during a run.

use std::io::IsTerminal;
use std::time::Duration;

use sws_engine::{Counters, Gauge, Metrics, memory};
use sws_format::Clock;
use sws_os::terminal::StdStream;

use crate::account::rate;
use crate::terminal::{self, draw, is_line_full};

/// Interval between updates of the line.
pub(crate) const EVERY: Duration = Duration::from_millis(100);
/// Duration that the figures of the line cover.
const WINDOW: Duration = Duration::from_secs(2);
/// Most columns of the line.
const COLUMNS: usize = 80;

/// Position of the line relative to the generated text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinePlace {
    /// No terminal: nothing is shown.
    Nowhere,
    /// The text goes elsewhere: the line is rewritten in place.
    Alone,
    /// The text is on the same terminal: the line stands below it.
    BelowText,
}

/// The status line.
pub(crate) struct Live {
    place: LinePlace,
    gauge: Option<Gauge>,
    clock: Clock,
    drawn: Option<Duration>,
    /// True while the line is on the terminal.
    is_shown: bool,
    /// Number of tokens so far, if one text is shown, and of those that were asked for.
    tokens: Option<usize>,
    most: Option<usize>,
    budget: Option<u64>,
    /// Counters at the start of the current window and of the next, from the first token on: the
    /// prompt has another pace.
    since: Option<[Counters; 2]>,
}

/// Draws on the row below the cursor: moves down a row (the terminal scrolls if there is none) and back
/// up, so that a row exists below; then down again, and returns.
pub(crate) fn draw_below(line: &str) {
    draw(&format!("\x1bD\x1b[A\x1b7\x1b[B\r\x1b[2K{line}\x1b8"));
}

/// Erases the row below the cursor.
pub(crate) fn erase_below() {
    draw("\x1b7\x1b[B\r\x1b[2K\x1b8");
}

/// Figures of the line that change.
#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    /// `None` before there is a pace.
    tokens_per_second: Option<f64>,
    hit_rate: Option<f64>,
    gb_per_second: f64,
    memory: Option<u64>,
    elapsed: Duration,
}

impl Live {
    /// `text` is true if text is shown on standard output.
    pub(crate) fn new(gauge: Option<Gauge>, text: bool) -> Live {
        let place = match (terminal::can_draw(), std::io::stdout().is_terminal()) {
            (false, _) => LinePlace::Nowhere,
            (true, true) if text => LinePlace::BelowText,
            (true, _) => LinePlace::Alone,
        };
        Live {
            place,
            gauge,
            clock: Clock::real(),
            drawn: None,
            is_shown: false,
            tokens: None,
            most: None,
            budget: None,
            since: None,
        }
    }

    /// Shows the number of tokens of one text, beside that which was asked for, and the memory budget.
    pub(crate) fn of(self, most: Option<usize>, budget: Option<u64>) -> Live {
        Live { tokens: Some(0), most, budget, ..self }
    }

    /// Erases the line before text is printed.
    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.is_shown) {
            match self.place {
                LinePlace::Nowhere => {}
                LinePlace::Alone => draw("\r\x1b[2K"),
                LinePlace::BelowText => erase_below(),
            }
        }
    }

    /// Counts a token.
    pub(crate) fn count(&mut self) {
        if let Some(tokens) = &mut self.tokens {
            *tokens += 1;
        }
        if self.since.is_none()
            && self.place != LinePlace::Nowhere
            && let Some(gauge) = &self.gauge
        {
            let now = gauge.read();
            self.since = Some([now.clone(), now]);
        }
    }

    /// Counters of the run, if it has any.
    pub(crate) fn gauge(&self) -> Option<&Gauge> {
        self.gauge.as_ref()
    }

    /// True if text is printed above the line.
    pub(crate) fn is_below_text(&self) -> bool {
        self.place == LinePlace::BelowText
    }

    /// True unless the line, and the text above it, were drawn a moment ago.
    pub(crate) fn is_due(&self) -> bool {
        match self.drawn {
            Some(drawn) if self.place != LinePlace::Nowhere => self.clock.now() >= drawn + EVERY,
            _ => true,
        }
    }

    /// Draws the line.
    pub(crate) fn show(&mut self) {
        // The next piece moves the cursor on.
        if self.place == LinePlace::BelowText && is_line_full() {
            return;
        }
        let (Some(gauge), Some(since)) = (&self.gauge, &mut self.since) else { return };
        let now = self.clock.now();
        let counters = gauge.read();
        let metrics = Metrics::between(&since[0], &counters);
        if counters.clocks.now > since[1].clocks.now + WINDOW {
            since.rotate_left(1);
            since[1] = counters;
        }
        let figures = Figures {
            tokens_per_second: (metrics.tokens > 0).then_some(metrics.tokens_per_second),
            hit_rate: metrics.experts.hit_rate,
            gb_per_second: metrics.disk.gb_per_second,
            memory: memory(),
            elapsed: now,
        };
        let line = self.line(&figures, columns());
        self.drawn = Some(now);
        self.is_shown = true;
        match self.place {
            LinePlace::Nowhere => {}
            LinePlace::Alone => draw(&format!("\r\x1b[2K{line}")),
            LinePlace::BelowText => draw_below(&line),
        }
    }

    /// Text of the line. Where it would be too long, the disk is left out first, then the memory.
    fn line(&self, figures: &Figures, columns: usize) -> String {
        let tokens = match (self.tokens, self.most) {
            (Some(tokens), Some(most)) => Some(format!("{tokens}/{most}")),
            (Some(tokens), None) => Some(tokens.to_string()),
            (None, _) => None,
        };
        let seconds = figures.elapsed.as_secs();
        // Without slots for experts, and in a dense model, nothing hits, and all is read.
        let reads = figures.hit_rate.is_some() || figures.gb_per_second > 0.0;
        let mut parts = [
            figures.tokens_per_second.map(rate),
            tokens,
            figures.hit_rate.map(|rate| format!("{:.0} % cached", 100.0 * rate)),
            reads.then(|| format!("disk {:.1} GB/s", figures.gb_per_second)),
            figures.memory.map(|used| format!("RAM {}", of_budget(used, self.budget))),
            Some(format!("{}:{:02}", seconds / 60, seconds % 60)),
        ];
        for dispensable in [3, 4, 2, 5, 1] {
            let shown: Vec<&str> = parts.iter().flatten().map(String::as_str).collect();
            let line = shown.join("  ");
            if line.len() < columns {
                return line;
            }
            parts[dispensable] = None;
        }
        String::new()
    }
}

/// Memory beside its limit, in one unit if there is a digit for it: `3.0/8.0 GiB`.
fn of_budget(used: u64, budget: Option<u64>) -> String {
    let (unit, name) = match budget.unwrap_or(used) >> 30 {
        0 => (f64::from(1 << 20), "MiB"),
        _ => (f64::from(1 << 30), "GiB"),
    };
    let budget = match budget {
        Some(all) => format!("/{:.1}", all as f64 / unit),
        None => String::new(),
    };
    match used as f64 / unit {
        small if small < 0.1 => format!("{} MiB{budget} {name}", used >> 20),
        used => format!("{used:.1}{budget} {name}"),
    }
}

/// Columns of the terminal, as far as the line uses them.
pub(crate) fn columns() -> usize {
    terminal::columns(StdStream::Err).unwrap_or(COLUMNS).min(COLUMNS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_shows_progress_speed_hits_disk_and_memory() {
        let mut live = Live::new(None, true).of(Some(400), Some(8 << 30));
        live.tokens = Some(214);
        let first = Figures { elapsed: Duration::from_secs(77), ..Figures::default() };
        assert_eq!(live.line(&first, 80), "214/400  1:17");
        let figures = Figures {
            tokens_per_second: Some(12.34),
            hit_rate: Some(0.876),
            gb_per_second: 1.234,
            memory: Some(3 << 30),
            elapsed: Duration::from_secs(17),
        };
        let whole = live.line(&figures, 80);
        assert_eq!(whole, "12.3 tok/s  214/400  88 % cached  disk 1.2 GB/s  RAM 3.0/8.0 GiB  0:17");
        let slow = Figures { tokens_per_second: Some(0.14), ..figures };
        assert!(live.line(&slow, 80).starts_with("7.1 s/token  214/400"));
        assert_eq!(
            live.line(&figures, 70),
            "12.3 tok/s  214/400  88 % cached  RAM 3.0/8.0 GiB  0:17"
        );
        let uncached = Figures { hit_rate: None, ..figures };
        assert_eq!(
            live.line(&uncached, 80),
            "12.3 tok/s  214/400  disk 1.2 GB/s  RAM 3.0/8.0 GiB  0:17"
        );
        assert_eq!(live.line(&figures, 20), "12.3 tok/s  214/400");
        assert_eq!(live.line(&figures, 5), "");
        live.most = None;
        assert!(live.line(&figures, 80).starts_with("12.3 tok/s  214  88 %"));
        let long = Figures { memory: Some(200 << 30), hit_rate: Some(1.0), ..figures };
        (live.tokens, live.most, live.budget) = (Some(131_072), Some(131_072), Some(1 << 40));
        assert!(live.line(&long, 80).len() < 80);
    }

    #[test]
    fn memory_has_the_unit_of_its_limit() {
        for (used, budget, expected) in [
            (3 << 30, Some(8 << 30), "3.0/8.0 GiB"),
            (300 << 20, Some(8 << 30), "0.3/8.0 GiB"),
            (30 << 20, Some(40 << 20), "30.0/40.0 MiB"),
            (47 << 20, Some(8 << 30), "47 MiB/8.0 GiB"),
            (5 << 30, None, "5.0 GiB"),
        ] {
            assert_eq!(of_budget(used, budget), expected);
        }
    }
}
