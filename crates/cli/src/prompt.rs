//! Progress of a prompt: the layer that it has reached, what was read, and the time left.

use std::sync::Arc;
use std::time::Duration;

use sws_engine::Gauge;
use sws_format::{Clock, Progress};

use crate::live::{EVERY, columns, draw_below, erase_below};
use crate::progress::{ProgressMeter, ProgressUnit};
use crate::terminal::{self, is_line_full, is_within_line};

/// Prompts that are done sooner show no line.
const SOON: Duration = Duration::from_millis(200);
/// Columns of a bar besides its message.
const BAR: usize = 26;

/// Shows the progress of a prompt.
pub(crate) struct PromptProgress {
    /// A bar, or `None` for a line below the prompt's text, whose place a bar would take.
    meter: Option<Arc<ProgressMeter>>,
    steps: PromptSteps,
    gauge: Option<Gauge>,
    /// Bytes that had been read before.
    before: u64,
    clock: Clock,
    drawn: Option<Duration>,
}

impl PromptProgress {
    /// For a model of `layers` layers.
    pub(crate) fn new(layers: usize, gauge: Option<Gauge>) -> PromptProgress {
        let is_below = terminal::can_draw() && is_within_line() && !is_line_full();
        let meter = match is_below {
            true => None,
            false => Some(Arc::new(ProgressMeter::quiet("prompt", ProgressUnit::Prompt))),
        };
        let before = device_bytes(gauge.as_ref());
        let steps = PromptSteps { layers: layers.max(1) as u64, ..PromptSteps::default() };
        PromptProgress { meter, steps, gauge, before, clock: Clock::real(), drawn: None }
    }

    /// The bar, if there is one, to end it.
    pub(crate) fn meter(&self) -> Option<Arc<ProgressMeter>> {
        self.meter.clone()
    }

    /// Shows the progress, unless that was a moment ago.
    pub(crate) fn show(&mut self, progress: Progress) {
        self.steps.count(progress.done);
        let now = self.clock.now();
        let is_over = progress.done >= progress.total;
        match &self.meter {
            Some(_) if is_over => {}
            Some(meter) => {
                if self.is_due(now, Duration::ZERO) {
                    self.drawn = Some(now);
                    meter.say(self.words(progress, now, false, columns().saturating_sub(BAR)));
                }
                meter.show(progress);
            }
            None if is_over => self.erase(),
            None if self.is_due(now, SOON) => {
                self.drawn = Some(now);
                draw_below(&self.words(progress, now, true, columns()));
            }
            None => {}
        }
    }

    /// True from that time on, and then unless it was drawn a moment ago.
    fn is_due(&self, now: Duration, from: Duration) -> bool {
        match self.drawn {
            Some(drawn) => now >= drawn + EVERY,
            None => now >= from,
        }
    }

    fn words(&self, progress: Progress, now: Duration, is_alone: bool, columns: usize) -> String {
        let read = device_bytes(self.gauge.as_ref()).saturating_sub(self.before);
        words(&self.steps.words(progress.total), progress, read, now, is_alone, columns)
    }

    fn erase(&mut self) {
        if self.meter.is_none() && self.drawn.take().is_some() {
            erase_below();
        }
    }
}

impl Drop for PromptProgress {
    fn drop(&mut self) {
        self.erase();
    }
}

fn device_bytes(gauge: Option<&Gauge>) -> u64 {
    match gauge {
        Some(gauge) => gauge.watch().tally().device_bytes,
        None => 0,
    }
}

/// Layers that are done. Each is a step of the progress, whose unit is a token in a layer.
#[derive(Debug, Default)]
struct PromptSteps {
    layers: u64,
    steps: u64,
    done: u64,
    /// Tokens of the first pass, once known.
    tokens: Option<u64>,
}

impl PromptSteps {
    fn count(&mut self, done: u64) {
        if done > self.done {
            self.tokens.get_or_insert(done - self.done);
            self.steps += 1;
            self.done = done;
        }
    }

    /// The layer that is being computed and, if a prompt takes several passes, the pass.
    fn words(&self, total: u64) -> String {
        let pass = self.steps / self.layers + 1;
        let layer = self.steps % self.layers + 1;
        let tokens = total / self.layers;
        let passes = match self.tokens {
            Some(of_pass) => tokens.div_ceil(of_pass),
            None => 1,
        };
        match passes.max(pass) {
            1 => format!("layer {layer} of {}", self.layers),
            passes => format!("part {pass} of {passes}, layer {layer} of {}", self.layers),
        }
    }
}

/// Text of the line if it stands alone, or else of a bar's message. Where it would be too long, the
/// rate is left out first, then what was read.
fn words(
    at: &str,
    progress: Progress,
    read: u64,
    elapsed: Duration,
    is_alone: bool,
    columns: usize,
) -> String {
    let seconds = elapsed.as_secs_f64();
    let share = progress.done as f64 / progress.total.max(1) as f64;
    // Before a layer is done nothing is known of the time left.
    let left = if is_alone && progress.done > 0 {
        let left = (seconds * (1.0 / share - 1.0)).round() as u64;
        Some(format!("{}:{:02} left", left / 60, left % 60))
    } else {
        None
    };
    let read_words = match read >> 30 {
        0 => format!("{} MiB read", read >> 20),
        _ => format!("{:.1} GiB read", read as f64 / f64::from(1 << 30)),
    };
    let rate = format!("{:.1} GB/s", read as f64 / 1e9 / seconds.max(1e-3));
    let is_read = read >> 20 > 0;
    let mut parts = [
        is_alone.then_some("prompt".to_owned()),
        Some(at.to_owned()),
        is_read.then_some(read_words),
        is_read.then_some(rate),
        left,
    ];
    for dispensable in [3, 2, 1, 0] {
        let line = parts.iter().flatten().map(String::as_str).collect::<Vec<_>>().join("  ");
        if line.len() < columns {
            return line;
        }
        parts[dispensable] = None;
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_has_the_layer_what_was_read_and_the_time_left() {
        let at = "layer 17 of 48";
        let line = |done, read, seconds, columns| {
            let progress = Progress { done, total: 48 * 7 };
            words(at, progress, read, Duration::from_secs(seconds), true, columns)
        };
        let whole = "prompt  layer 17 of 48  19.4 GiB read  3.5 GB/s  0:12 left";
        assert_eq!(line(112, 20_830_591_386, 6, 80), whole);
        assert_eq!(
            line(112, 20_830_591_386, 6, 58),
            "prompt  layer 17 of 48  19.4 GiB read  0:12 left"
        );
        assert_eq!(line(112, 20_830_591_386, 6, 40), "prompt  layer 17 of 48  0:12 left");
        assert_eq!(line(112, 0, 60, 80), "prompt  layer 17 of 48  2:00 left");
        assert_eq!(line(112, 0, 60, 20), "prompt  2:00 left");
        assert_eq!(line(112, 0, 60, 5), "");
        assert_eq!(line(0, 900 << 20, 1, 80), "prompt  layer 17 of 48  900 MiB read  0.9 GB/s");
    }

    #[test]
    fn a_message_fits_beside_a_bar() {
        let progress = Progress { done: 1, total: 2 };
        let at = "part 12 of 40, layer 100 of 128";
        for read in [0, 19 << 30, 1500 << 30] {
            let said = words(at, progress, read, Duration::from_secs(60), false, 80 - BAR);
            assert!(said.starts_with(at) && said.len() < 80 - BAR, "{said}");
        }
    }

    #[test]
    fn steps_are_layers_of_passes() {
        let mut steps = PromptSteps { layers: 4, ..PromptSteps::default() };
        let mut seen = Vec::new();
        // Two passes of three tokens and one of two; a part begins where the one before it ended.
        for done in [0, 3, 6, 9, 12, 12, 15, 18, 21, 24, 26, 28, 30] {
            steps.count(done);
            seen.push(steps.words(32));
        }
        assert_eq!(seen[0], "layer 1 of 4");
        assert_eq!(seen[1], "part 1 of 3, layer 2 of 4");
        assert_eq!(seen[4], "part 2 of 3, layer 1 of 4");
        assert_eq!(seen[5], seen[4]);
        assert_eq!(seen[12], "part 3 of 3, layer 4 of 4");
        let mut one = PromptSteps { layers: 48, ..PromptSteps::default() };
        (0..=16).for_each(|layer| one.count(7 * layer));
        assert_eq!(one.words(48 * 7), "layer 17 of 48");
    }
}
