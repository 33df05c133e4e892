//! Progress of long operations: a bar on a terminal, occasional lines elsewhere.

use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::time::Duration;

use indicatif::{BinaryBytes, HumanDuration, ProgressBar, ProgressStyle};
use sws_store::Clock;
use sws_store::shard::Progress;

/// Without a terminal, a line appears at least this often, and at every tenth of the work.
const INTERVAL: Duration = Duration::from_secs(5);

/// Work that is done sooner shows no bar.
const SOON: Duration = Duration::from_millis(200);

/// Progress display of one operation.
pub(crate) enum Meter {
    Bar { bar: ProgressBar, clock: Clock },
    Lines { what: &'static str, unit: Unit, tenths: bool, clock: Clock, last: Mutex<Last> },
}

/// Unit of progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Bytes,
    Tokens,
    /// Work whose unit says nothing to people.
    Work,
}

pub(crate) struct Last {
    /// Progress at the start of this run, once known.
    start: Option<u64>,
    time: Duration,
    tenth: u64,
}

impl Meter {
    /// A meter, in bytes, for the main work of a command.
    pub(crate) fn new(what: &'static str) -> Meter {
        Meter::with(what, Unit::Bytes, true)
    }

    /// Like [`new`](Self::new), in another unit.
    pub(crate) fn of(what: &'static str, unit: Unit) -> Meter {
        Meter::with(what, unit, true)
    }

    /// A meter for preparatory work: without a terminal, it shows lines only if the work takes
    /// long.
    pub(crate) fn quiet(what: &'static str, unit: Unit) -> Meter {
        Meter::with(what, unit, false)
    }

    fn with(what: &'static str, unit: Unit, tenths: bool) -> Meter {
        if std::io::stderr().is_terminal() {
            let style = ProgressStyle::with_template(match unit {
                Unit::Bytes => {
                    "{prefix} {wide_bar} {binary_bytes} of {binary_total_bytes}  {binary_bytes_per_sec}  {eta} left"
                }
                Unit::Tokens => "{prefix} {wide_bar} {pos} of {len} tokens  {per_sec}  {eta} left",
                Unit::Work => "{prefix} {wide_bar} {percent} %  {eta} left",
            });
            let bar = ProgressBar::new(0).with_prefix(what);
            let bar = match style {
                Ok(style) => bar.with_style(style),
                Err(_) => bar,
            };
            Meter::Bar { bar, clock: Clock::real() }
        } else {
            let last = Last { start: None, time: Duration::ZERO, tenth: 0 };
            Meter::Lines { what, unit, tenths, clock: Clock::real(), last: Mutex::new(last) }
        }
    }

    pub(crate) fn show(&self, progress: Progress) {
        match self {
            Meter::Bar { clock, .. } if clock.now() < SOON => {}
            Meter::Bar { bar, .. } => {
                if bar.length() != Some(progress.total) {
                    bar.set_length(progress.total);
                    // Progress of an earlier run says nothing about the rate of this one.
                    bar.set_position(progress.done);
                    bar.reset_eta();
                }
                bar.set_position(progress.done.max(bar.position()));
            }
            Meter::Lines { what, unit, tenths, clock, last } => {
                let mut last = last.lock().expect("no holder panics");
                let start = *last.start.get_or_insert(progress.done);
                let now = clock.now();
                let tenth = progress.done * 10 / progress.total.max(1);
                if !(*tenths && tenth > last.tenth) && now < last.time + INTERVAL {
                    return;
                }
                last.time = now;
                last.tenth = tenth.max(last.tenth);
                let _ = writeln!(std::io::stderr(), "{what} {}", line(progress, *unit, start, now));
            }
        }
    }

    pub(crate) fn finish(&self) {
        if let Meter::Bar { bar, .. } = self {
            bar.finish_and_clear();
        }
    }
}

fn line(progress: Progress, unit: Unit, start: u64, elapsed: Duration) -> String {
    let Progress { done, total } = progress;
    let rate = done.saturating_sub(start) as f64 / elapsed.as_secs_f64().max(1e-9);
    let left = if rate > 0.0 { total.saturating_sub(done) as f64 / rate } else { 0.0 };
    let left = Duration::try_from_secs_f64(left.ceil()).unwrap_or(Duration::MAX);
    let percent = done * 100 / total.max(1);
    let left = HumanDuration(left);
    match unit {
        Unit::Bytes => {
            let [total, rate] = [total, rate as u64].map(BinaryBytes);
            format!("{percent} % of {total}, {rate}/s, {left} left")
        }
        Unit::Tokens => {
            format!("{percent} % of {total} tokens, {} tokens/s, {left} left", rate as u64)
        }
        Unit::Work => format!("{percent} %, {left} left"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_show_share_rate_and_time_left() {
        let mib = 1 << 20;
        #[rustfmt::skip]
        let cases = [
            // unit, done, total, done before, seconds, line
            (Unit::Bytes, 0, 0, 0, 0, "0 % of 0 B, 0 B/s, 0 seconds left"),
            (Unit::Bytes, 50 * mib, 100 * mib, 0, 5, "50 % of 100.00 MiB, 10.00 MiB/s, 5 seconds left"),
            (Unit::Bytes, 75 * mib, 100 * mib, 50 * mib, 5, "75 % of 100.00 MiB, 5.00 MiB/s, 5 seconds left"),
            (Unit::Bytes, 100 * mib, 100 * mib, 50 * mib, 5, "100 % of 100.00 MiB, 10.00 MiB/s, 0 seconds left"),
            (Unit::Tokens, 50, 100, 0, 5, "50 % of 100 tokens, 10 tokens/s, 5 seconds left"),
            (Unit::Work, 50, 100, 0, 5, "50 %, 5 seconds left"),
        ];
        for (unit, done, total, start, seconds, expected) in cases {
            let elapsed = Duration::from_secs(seconds);
            assert_eq!(line(Progress { done, total }, unit, start, elapsed), expected);
        }
    }
}
