//! Progress of long operations: a bar on a terminal, occasional lines elsewhere.

use std::io::Write;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{
    BinaryBytes, HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle,
};
use sws_format::{Clock, Progress};

use crate::terminal::can_draw;

/// Without a terminal, a line appears this often, and at tenths of work that takes long, of which a
/// line says more than the time.
const INTERVAL: Duration = Duration::from_secs(5);

/// Interval between tenths, at least.
const TENTHS: Duration = Duration::from_secs(2);

/// Work that is done sooner shows no bar.
const SOON: Duration = Duration::from_millis(200);

/// Interval between redraws of a bar.
const REDRAW: Duration = Duration::from_millis(100);

/// Stack of the thread that redraws a bar.
const STACK: usize = 128 << 10;

/// Progress display of one operation.
pub(crate) enum ProgressMeter {
    Bar(Bar),
    Lines { what: &'static str, unit: ProgressUnit, tenths: bool, clock: Clock, last: Mutex<Last> },
}

/// A bar that a thread redraws: time passes also where nothing is reported.
pub(crate) struct Bar {
    bar: ProgressBar,
    over: Sender<()>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// One of several parts of a command's work, in bytes. Its meter is made with the first progress, so
/// that the rate leaves out the time of the parts before.
pub(crate) struct ProgressStage {
    what: &'static str,
    meter: OnceLock<ProgressMeter>,
}

impl ProgressStage {
    pub(crate) fn new(what: &'static str) -> ProgressStage {
        ProgressStage { what, meter: OnceLock::new() }
    }

    /// Shows progress. The meter ends with the last byte, for the next stage.
    pub(crate) fn show(&self, progress: Progress) {
        let meter = self.meter.get_or_init(|| ProgressMeter::new(self.what));
        meter.show(progress);
        if progress.done == progress.total {
            meter.finish();
        }
    }

    pub(crate) fn finish(&self) {
        if let Some(meter) = self.meter.get() {
            meter.finish();
        }
    }
}

/// Unit of progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProgressUnit {
    Bytes,
    Tokens,
    /// Work whose unit says nothing to people.
    Work,
    /// A prompt, of which a message [says](ProgressMeter::say) how far it is.
    Prompt,
}

pub(crate) struct Last {
    /// Progress at the start of this run, once known.
    start: Option<u64>,
    time: Duration,
    tenth: u64,
}

impl ProgressMeter {
    /// A meter, in bytes, for the main work of a command.
    pub(crate) fn new(what: &'static str) -> ProgressMeter {
        ProgressMeter::with(what, ProgressUnit::Bytes, true)
    }

    /// Like [`new`](Self::new), in another unit.
    pub(crate) fn of(what: &'static str, unit: ProgressUnit) -> ProgressMeter {
        ProgressMeter::with(what, unit, true)
    }

    /// A meter for preparatory work: without a terminal, it shows lines only if the work takes
    /// long.
    pub(crate) fn quiet(what: &'static str, unit: ProgressUnit) -> ProgressMeter {
        ProgressMeter::with(what, unit, false)
    }

    fn with(what: &'static str, unit: ProgressUnit, tenths: bool) -> ProgressMeter {
        if can_draw() {
            return ProgressMeter::Bar(Bar::new(what, unit));
        }
        let last = Last { start: None, time: Duration::ZERO, tenth: 0 };
        ProgressMeter::Lines { what, unit, tenths, clock: Clock::real(), last: Mutex::new(last) }
    }

    pub(crate) fn show(&self, progress: Progress) {
        match self {
            ProgressMeter::Bar(Bar { bar, .. }) => {
                if bar.length() != Some(progress.total) {
                    bar.set_length(progress.total);
                    // Progress of an earlier run says nothing about the rate of this one.
                    bar.set_position(progress.done);
                    bar.reset_eta();
                }
                bar.set_position(progress.done.max(bar.position()));
            }
            ProgressMeter::Lines { what, unit, tenths, clock, last } => {
                let mut last = last.lock().expect("no holder panics");
                let start = *last.start.get_or_insert(progress.done);
                let now = clock.now();
                let tenth = progress.done * 10 / progress.total.max(1);
                let is_next = *tenths && tenth > last.tenth && now >= last.time + TENTHS;
                let is_over = progress.done >= progress.total;
                if is_over || !is_next && now < last.time + INTERVAL {
                    return;
                }
                last.time = now;
                last.tenth = tenth.max(last.tenth);
                let _ = writeln!(std::io::stderr(), "{what} {}", line(progress, *unit, start, now));
            }
        }
    }

    /// Sets the message of a bar.
    pub(crate) fn say(&self, words: String) {
        if let ProgressMeter::Bar(Bar { bar, .. }) = self {
            bar.set_message(words);
        }
    }

    pub(crate) fn finish(&self) {
        if let ProgressMeter::Bar(bar) = self {
            bar.finish();
        }
    }
}

impl Bar {
    fn new(what: &'static str, unit: ProgressUnit) -> Bar {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        let bar = bar.with_prefix(format!("{what:<10}"));
        let bar = match ProgressStyle::with_template(match unit {
            ProgressUnit::Bytes => {
                "{prefix} {wide_bar} {binary_bytes} of {binary_total_bytes}{rate}  {left}"
            }
            ProgressUnit::Tokens => "{prefix} {wide_bar} {pos} of {len} tokens{rate}  {left}",
            ProgressUnit::Work => "{prefix} {wide_bar} {percent} %  {left}",
            ProgressUnit::Prompt => "{prefix} {wide_bar} {msg}  {left}",
        }) {
            Ok(style) => {
                let rate = move |state: &ProgressState, to: &mut dyn std::fmt::Write| {
                    rate(state, unit, to);
                };
                bar.with_style(style.with_key("left", left).with_key("rate", rate))
            }
            Err(_) => bar,
        };
        let (over, ended) = mpsc::channel();
        let shown = bar.clone();
        let redraw = move || {
            let mut wait = SOON;
            while ended.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                wait = REDRAW;
                // Until the total is known there is nothing to show.
                if shown.length().is_none() {
                    continue;
                }
                if shown.is_hidden() {
                    shown.set_draw_target(ProgressDrawTarget::stderr());
                }
                shown.tick();
            }
        };
        // Without a thread there is no bar, and the work goes on.
        let thread = std::thread::Builder::new().stack_size(STACK).spawn(redraw).ok();
        Bar { bar, over, thread: Mutex::new(thread) }
    }

    /// Removes the bar, once the thread has ended.
    fn finish(&self) {
        let _ = self.over.send(());
        let thread = match self.thread.lock() {
            Ok(mut thread) => thread.take(),
            Err(_) => None,
        };
        if let Some(thread) = thread {
            // It has no more to say than that it ended.
            let _ = thread.join();
        }
        self.bar.finish_and_clear();
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Time left, or the time so far while nothing is done.
fn left(state: &ProgressState, to: &mut dyn std::fmt::Write) {
    let (time, what) = match state.pos() {
        0 => (state.elapsed(), ""),
        _ => (state.eta(), " left"),
    };
    let _ = write!(to, "{}:{:02}{what}", time.as_secs() / 60, time.as_secs() % 60);
}

/// The rate, once something is done.
fn rate(state: &ProgressState, unit: ProgressUnit, to: &mut dyn std::fmt::Write) {
    let _ = match unit {
        _ if state.pos() == 0 => Ok(()),
        ProgressUnit::Bytes => write!(to, "  {}/s", BinaryBytes(state.per_sec() as u64)),
        _ => write!(to, "  {:.1}/s", state.per_sec()),
    };
}

fn line(progress: Progress, unit: ProgressUnit, start: u64, elapsed: Duration) -> String {
    let Progress { done, total } = progress;
    let rate = done.saturating_sub(start) as f64 / elapsed.as_secs_f64().max(1e-9);
    let left = if rate > 0.0 { total.saturating_sub(done) as f64 / rate } else { 0.0 };
    let left = Duration::try_from_secs_f64(left.ceil()).unwrap_or(Duration::MAX);
    let percent = done * 100 / total.max(1);
    let left = HumanDuration(left);
    match unit {
        ProgressUnit::Bytes => {
            let [total, rate] = [total, rate as u64].map(BinaryBytes);
            format!("{percent} % of {total}, {rate}/s, {left} left")
        }
        ProgressUnit::Tokens => {
            format!("{percent} % of {total} tokens, {} tokens/s, {left} left", rate as u64)
        }
        ProgressUnit::Work | ProgressUnit::Prompt => format!("{percent} %, {left} left"),
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
            (ProgressUnit::Bytes, 0, 0, 0, 0, "0 % of 0 B, 0 B/s, 0 seconds left"),
            (ProgressUnit::Bytes, 50 * mib, 100 * mib, 0, 5, "50 % of 100.00 MiB, 10.00 MiB/s, 5 seconds left"),
            (ProgressUnit::Bytes, 75 * mib, 100 * mib, 50 * mib, 5, "75 % of 100.00 MiB, 5.00 MiB/s, 5 seconds left"),
            (ProgressUnit::Bytes, 100 * mib, 100 * mib, 50 * mib, 5, "100 % of 100.00 MiB, 10.00 MiB/s, 0 seconds left"),
            (ProgressUnit::Tokens, 50, 100, 0, 5, "50 % of 100 tokens, 10 tokens/s, 5 seconds left"),
            (ProgressUnit::Work, 50, 100, 0, 5, "50 %, 5 seconds left"),
        ];
        for (unit, done, total, start, seconds, expected) in cases {
            let elapsed = Duration::from_secs(seconds);
            assert_eq!(line(Progress { done, total }, unit, start, elapsed), expected);
        }
    }
}
