//! Status line on the terminal during a run.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use sws_engine::{Counters, Gauge, Metrics};
use sws_store::Clock;

use crate::commands::size;

/// Interval between updates of the line.
const EVERY: Duration = Duration::from_millis(250);
/// Duration that the figures of the line cover.
const WINDOW: Duration = Duration::from_secs(2);

/// Position of the line relative to the generated text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// No terminal: nothing is shown.
    Nowhere,
    /// The text goes elsewhere: the line is rewritten in place.
    Alone,
    /// The text is on the same terminal: the line stands below it.
    BelowText,
}

/// The status line.
pub(crate) struct Live {
    place: Place,
    gauge: Option<Gauge>,
    clock: Clock,
    drawn: Option<Duration>,
    /// Counters at the start of the current window and of the next.
    since: [Counters; 2],
}

impl Live {
    /// `text` is true if text is shown on standard output.
    pub(crate) fn new(gauge: Option<Gauge>, text: bool) -> Live {
        let place = match (std::io::stderr().is_terminal(), std::io::stdout().is_terminal()) {
            (false, _) => Place::Nowhere,
            (true, true) if text => Place::BelowText,
            (true, _) => Place::Alone,
        };
        let since = std::array::from_fn(|_| gauge.as_ref().map(Gauge::read).unwrap_or_default());
        Live { place, gauge, clock: Clock::real(), drawn: None, since }
    }

    /// Erases the line before text is printed.
    pub(crate) fn clear(&mut self) {
        if self.drawn.is_some() {
            match self.place {
                Place::Nowhere => {}
                Place::Alone => draw("\r\x1b[2K"),
                Place::BelowText => draw("\x1b7\x1b[B\r\x1b[2K\x1b8"),
            }
        }
    }

    /// Shows the line, if it is due.
    pub(crate) fn tick(&mut self) {
        let (Some(gauge), true) = (&self.gauge, self.place != Place::Nowhere) else { return };
        let now = self.clock.now();
        if self.drawn.is_some_and(|drawn| now < drawn + EVERY) && self.place == Place::Alone {
            return;
        }
        let counters = gauge.read();
        let line = line(&Metrics::between(&self.since[0], &counters));
        if counters.clocks.now > self.since[1].clocks.now + WINDOW {
            self.since.rotate_left(1);
            self.since[1] = counters;
        }
        self.drawn = Some(now);
        match self.place {
            Place::Nowhere => {}
            Place::Alone => draw(&format!("\r\x1b[2K{line}")),
            // Moves down a row (the terminal scrolls if there is none) and back up, so that a row
            // exists below. Then draws on that row and returns.
            Place::BelowText => draw(&format!("\x1bD\x1b[A\x1b7\x1b[B\r\x1b[2K{line}\x1b8")),
        }
    }
}

/// Writes to the terminal, ignoring errors.
fn draw(text: &str) {
    let mut err = std::io::stderr().lock();
    let _ = err.write_all(text.as_bytes()).and_then(|()| err.flush());
}

/// Text of the line, shorter than any terminal is wide.
fn line(metrics: &Metrics) -> String {
    let memory = metrics.peak_rss_bytes.map_or(String::new(), |b| format!(", {} RAM", size(b)));
    let hits = metrics.experts.hit_rate;
    let hits = hits.map_or(String::new(), |rate| format!(", {:.0} % hits", 100.0 * rate));
    format!(
        "[{:.1} tok/s{hits}, {:.2} GB/s{memory}]",
        metrics.tokens_per_second, metrics.disk.gb_per_second,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_shows_speed_hits_disk_and_memory() {
        let mut metrics = Metrics { tokens_per_second: 12.34, ..Metrics::default() };
        metrics.experts.hit_rate = Some(0.876);
        metrics.disk.gb_per_second = 1.234;
        metrics.peak_rss_bytes = Some(3 << 30);
        assert_eq!(line(&metrics), "[12.3 tok/s, 88 % hits, 1.23 GB/s, 3.00 GiB RAM]");
    }
}
