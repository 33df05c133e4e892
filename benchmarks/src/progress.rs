//! Progress reports: a bar on a terminal, plain lines elsewhere.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use sws_format::Clock;

/// Minimum interval between plain lines.
const BETWEEN_LINES: Duration = Duration::from_secs(2);

/// Counts bytes towards a known total, and reports on standard error.
pub struct Progress {
    label: String,
    total: u64,
    done: u64,
    last_line: Duration,
    bar: Option<ProgressBar>,
    clock: Clock,
}

impl Progress {
    /// Starts at zero.
    pub fn new(label: &str, total: u64) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = "{prefix} {wide_bar} {binary_bytes}/{binary_total_bytes} \
                         {binary_bytes_per_sec} {eta} left";
            let style = ProgressStyle::with_template(style).expect("a fixed template");
            ProgressBar::new(total).with_style(style).with_prefix(label.to_owned())
        });
        let clock = Clock::real();
        Progress { label: label.to_owned(), total, done: 0, last_line: Duration::ZERO, bar, clock }
    }

    /// Counts `bytes` more.
    pub fn add(&mut self, bytes: u64) {
        self.done += bytes;
        match &self.bar {
            Some(bar) => bar.inc(bytes),
            None if self.clock.now() >= self.last_line + BETWEEN_LINES => {
                eprintln!(
                    "{}: {} of {}, {:.0} %",
                    self.label,
                    HumanBytes(self.done),
                    HumanBytes(self.total),
                    self.done as f64 * 100.0 / self.total as f64
                );
                self.last_line = self.clock.now();
            }
            None => {}
        }
    }

    /// Prints a final line with size, time and rate.
    pub fn finish(self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        let seconds = self.clock.now().as_secs_f64();
        eprintln!(
            "{}: {} in {seconds:.1} s, {:.2} GB/s",
            self.label,
            HumanBytes(self.done),
            self.done as f64 / 1e9 / seconds.max(1e-9)
        );
    }
}
