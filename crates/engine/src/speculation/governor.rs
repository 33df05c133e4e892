//! Switches speculation on and off by its balance in nanoseconds.

use std::time::Duration;

use serde::Serialize;

/// Number of passes in a window. While text is generated a pass is a token.
const WINDOW: u32 = 16;
/// Share of a window's time that speculation has to save to stay on. Below it the reads gain
/// nothing, as on a disk that is never waited for.
const WORTH: f64 = 1.0 / 400.0;
/// Share of a window's time that speculation must be able to save to stay on, whatever was booked.
/// It hides waiting behind computing, so it can save at most the smaller of the two.
const REACH: f64 = 1.0 / 100.0;
/// Maximum share of the waiting that speculation can hide. If the draft takes longer than that, the
/// decision needs no bookings.
const HIDDEN: f64 = 1.0 / 2.0;
/// Number of passes after which an attempt ends that has lost by more than [`SURE`] standard errors,
/// or whose draft takes too long.
const EARLY: u32 = 4;
/// Share of a window's time that speculation may lose before it is switched off at once.
const LOSS: f64 = 1.0 / 100.0;
/// Maximum number of windows between two attempts.
const MAX_BACKOFF: u32 = 64;
/// Weight of the earlier windows of an attempt in the next one. Read times scatter by more than
/// speculation saves, so a single window says little.
const KEEP: f64 = 7.0 / 8.0;
/// Number of standard errors of the balance that have to be lost in addition to end an attempt at
/// once.
const SURE: f64 = 2.0;
/// While speculation is off, the draft is queried in one of this many passes, so that it keeps
/// learning how reliable its forecasts are.
const LEARNING: u32 = 4;
/// Share of a pass's time that the draft may take to be queried and trained while speculation is
/// off.
const CHEAP: f64 = 1.0 / 50.0;

/// Counts and balance of speculation, since the start or over a period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Speculation {
    /// Speculative reads that the device has begun.
    pub issued: u64,
    /// Number of these whose piece was needed, and was resident or in flight when the router chose.
    pub useful: u64,
    /// Number of these that were given up, or whose piece was evicted unused.
    pub wasted: u64,
    /// Bytes of speculative reads that the device has begun.
    pub bytes: u64,
    /// Bytes of the useful ones.
    pub useful_bytes: u64,
    /// Nanoseconds of waiting that useful reads have saved.
    pub saved_ns: f64,
    /// Nanoseconds that speculation has cost: demanded reads delayed by speculative ones, evicted
    /// pieces read again, and the forecasts themselves.
    pub cost_ns: f64,
    /// Nanoseconds of querying and training the draft.
    pub draft_ns: f64,
    /// Windows with speculation on.
    pub windows_on: u64,
    /// Windows with speculation off, because it had not paid.
    pub windows_off: u64,
}

impl Speculation {
    /// Returns the difference from an earlier reading.
    pub fn since(&self, before: &Speculation) -> Speculation {
        Speculation {
            issued: self.issued - before.issued,
            useful: self.useful - before.useful,
            wasted: self.wasted - before.wasted,
            bytes: self.bytes - before.bytes,
            useful_bytes: self.useful_bytes - before.useful_bytes,
            saved_ns: self.saved_ns - before.saved_ns,
            cost_ns: self.cost_ns - before.cost_ns,
            draft_ns: self.draft_ns - before.draft_ns,
            windows_on: self.windows_on - before.windows_on,
            windows_off: self.windows_off - before.windows_off,
        }
    }

    /// Time saved minus time lost, in nanoseconds.
    pub fn balance_ns(&self) -> f64 {
        self.saved_ns - self.cost_ns
    }

    /// Formats the measured inequality that decides: right reads times the time each has saved,
    /// against wrong reads times the time each has lost. It holds for the rounded numbers as
    /// printed. `None` if nothing was read.
    pub fn inequality(&self) -> Option<String> {
        if self.useful + self.wasted == 0 {
            return None;
        }
        let (saved, right) = side(self.saved_ns, self.useful, "right", "saved");
        let (lost, wrong) = side(self.cost_ns, self.wasted, "wrong", "lost");
        Some(format!("{right} {} {wrong}", if saved > lost { ">" } else { "<=" }))
    }
}

/// Returns a side of the inequality: the rounded value and its text. Without reads to share it, the
/// total is printed.
fn side(nanos: f64, reads: u64, which: &str, what: &str) -> (f64, String) {
    let each = (nanos / reads.max(1) as f64 / 100.0).round() / 10.0;
    let text = match reads {
        0 => format!("{each:.1} us {what}, none {which}"),
        _ => format!("{reads} {which} x {each:.1} us {what}"),
    };
    (each * reads.max(1) as f64, text)
}

/// Keeps the balance of speculation window by window, and switches it on and off.
///
/// Speculation starts on. It is switched off after a window in which it has saved less than it has
/// to by more than the standard error of the bookings, or could have saved [too little](REACH) at
/// all. A window that [surely](SURE) loses ends early, and switches it off, and so does one whose draft
/// takes longer than it can save. The first break is one window long. It doubles each time an attempt
/// fails again before it has clearly paid, up to [`MAX_BACKOFF`], and lasts until the waiting is worth
/// the draft.
///
/// An attempt that only loses is over after [`LOSS`] of a window plus the loss of one layer. All
/// attempts together lose at most that share of the time, and less the longer the run. Where
/// bookings scatter, the limit is [`SURE`] standard errors higher.
#[derive(Debug)]
pub(crate) struct Governor {
    on: bool,
    /// Windows until the next attempt.
    windows_until_retry: u32,
    /// Length of the last break in windows.
    backoff: u32,
    /// Passes of this window so far.
    passes: u32,
    window: Evidence,
    /// Evidence from earlier windows of this attempt.
    before: Evidence,
    /// Duration of the last full window in nanoseconds.
    last: Option<f64>,
    governed: bool,
    /// Nanoseconds of the draft in this pass.
    draft: f64,
    /// Share of a pass that the draft took when it was last queried.
    share: f64,
    total: Speculation,
}

/// Bookings, with decaying weights of the past.
#[derive(Clone, Copy, Debug, Default)]
struct Evidence {
    time: f64,
    waited: f64,
    saved: f64,
    bookings: f64,
    balance: f64,
    squares: f64,
}

impl Evidence {
    fn add(&mut self, saved: f64, cost: f64) {
        let booked = saved - cost;
        self.saved += saved;
        self.bookings += 1.0;
        self.balance += booked;
        self.squares += booked * booked;
    }

    /// Adds `share` of the earlier evidence.
    fn with(&self, before: &Evidence, share: f64) -> Evidence {
        Evidence {
            time: self.time + share * before.time,
            waited: self.waited + share * before.waited,
            saved: self.saved + share * before.saved,
            bookings: self.bookings + share * before.bookings,
            balance: self.balance + share * before.balance,
            squares: self.squares + share * before.squares,
        }
    }

    /// The standard error of the balance.
    fn error(&self) -> f64 {
        (self.squares - self.balance * self.balance / self.bookings.max(1.0)).max(0.0).sqrt()
    }

    /// True if there is enough of both waiting and computing for a saving.
    fn reaches(&self) -> bool {
        let computed = self.time - self.waited;
        computed.min(self.waited + self.saved) > REACH * self.time
    }
}

impl Governor {
    /// Unless `governed`, speculation is always on.
    pub(crate) fn new(governed: bool) -> Governor {
        Governor {
            on: true,
            windows_until_retry: 0,
            backoff: 0,
            passes: 0,
            window: Evidence::default(),
            before: Evidence::default(),
            last: None,
            governed,
            draft: 0.0,
            share: 0.0,
            total: Speculation::default(),
        }
    }

    pub(crate) fn on(&self) -> bool {
        self.on
    }

    /// True if the draft may be queried in this pass.
    pub(crate) fn may_query_draft(&self) -> bool {
        self.on || self.may_train_draft() && self.passes.is_multiple_of(LEARNING)
    }

    /// True if the draft may learn from the routers' choices.
    pub(crate) fn may_train_draft(&self) -> bool {
        self.on || self.share <= CHEAP
    }

    pub(crate) fn total(&self) -> Speculation {
        self.total
    }

    /// Counts a speculative read that has begun.
    pub(crate) fn issued(&mut self, bytes: usize) {
        self.total.issued += 1;
        self.total.bytes += bytes as u64;
    }

    /// Counts a speculative read whose piece was needed.
    pub(crate) fn useful(&mut self, bytes: usize) {
        self.total.useful += 1;
        self.total.useful_bytes += bytes as u64;
    }

    /// Counts a speculative read that was given up, or whose piece was evicted unused.
    pub(crate) fn wasted(&mut self) {
        self.total.wasted += 1;
    }

    /// Adds nanoseconds that the draft has taken.
    pub(crate) fn draft_took(&mut self, time: f64) {
        self.total.draft_ns += time;
        self.draft += time;
    }

    /// Books nanoseconds saved and lost.
    pub(crate) fn book(&mut self, saved: f64, cost: f64) {
        self.total.saved_ns += saved;
        self.total.cost_ns += cost;
        let Governor { passes, window, last, .. } = self;
        window.add(saved, cost);
        // The length of the first window is extrapolated from its passes so far.
        let first = f64::from(WINDOW) / f64::from(*passes) * window.time;
        let time = last.or((*passes > 0).then_some(first));
        let lost =
            matches!(time, Some(time) if -window.balance > LOSS * time + SURE * window.error());
        if self.on && self.governed && lost {
            self.close(false);
        }
    }

    /// Ends a pass of `time` nanoseconds, of which `waited` were waits.
    pub(crate) fn passed(&mut self, time: f64, waited: f64) {
        let draft = std::mem::take(&mut self.draft);
        if self.may_query_draft() {
            self.share = draft / time.max(1.0);
        }
        self.passes += 1;
        self.window.time += time;
        self.window.waited += waited;
        let window = &self.window;
        let all = window.with(&self.before, KEEP);
        let loses = window.balance + SURE * window.error() < 0.0 || !self.is_affordable(&all);
        if self.on && self.governed && loses && self.passes >= EARLY {
            self.close(false);
        } else if self.passes == WINDOW {
            let pays = |balance: f64| all.reaches() && balance > WORTH * all.time;
            if self.on && pays(all.balance - all.error()) {
                self.backoff = 0;
            }
            self.close(pays(all.balance + all.error()));
        }
    }

    /// True if the draft takes no more time than it may save: [`HIDDEN`] of the waiting.
    fn is_affordable(&self, over: &Evidence) -> bool {
        self.share * over.time <= HIDDEN * (over.waited + over.saved)
    }

    fn close(&mut self, pays: bool) {
        match self.on {
            true => self.total.windows_on += 1,
            false => self.total.windows_off += 1,
        }
        if self.passes == WINDOW {
            self.last = Some(self.window.time);
        }
        let window = std::mem::take(&mut self.window);
        self.passes = 0;
        if self.on && pays || !self.governed {
            self.before = window.with(&self.before, KEEP);
            return;
        }
        self.before = Evidence::default();
        if self.on {
            self.on = false;
            self.backoff = (2 * self.backoff).clamp(1, MAX_BACKOFF);
            self.windows_until_retry = self.backoff;
        } else {
            self.windows_until_retry = self.windows_until_retry.saturating_sub(1);
            self.on = self.windows_until_retry == 0 && self.is_affordable(&window);
        }
    }
}

/// A duration in nanoseconds.
pub(crate) fn nanos(time: Duration) -> f64 {
    time.as_nanos() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs windows of passes of 1000 ns, each of which gains `gain` while speculation is on.
    /// Returns for each window whether it was on.
    fn run(governor: &mut Governor, windows: usize, gain: f64) -> Vec<bool> {
        let closed = |governor: &Governor| governor.total.windows_on + governor.total.windows_off;
        let mut on = Vec::new();
        for _ in 0..windows {
            on.push(governor.on());
            let before = closed(governor);
            while closed(governor) == before {
                if governor.on() {
                    governor.book(gain.max(0.0), (-gain).max(0.0));
                }
                if closed(governor) == before {
                    governor.passed(1000.0, 500.0);
                }
            }
        }
        on
    }

    #[test]
    fn unprofitable_speculation_is_retried_with_backoff() {
        let attempts = |gain: f64| {
            let mut governor = Governor::new(true);
            let on = run(&mut governor, 199, gain);
            (on.iter().filter(|on| **on).count(), on, governor.total)
        };
        let (count, _, total) = attempts(100.0);
        assert_eq!((count, total.windows_off), (199, 0));
        for gain in [0.0, 2.0, -1.0, -500.0] {
            let (count, on, total) = attempts(gain);
            let expected = [true, false, true, false, false, true, false, false, false, false];
            assert_eq!(on[..10], expected, "{gain}");
            assert_eq!(count, 8, "in windows 0, 2, 5, 10, 19, 36, 69 and 134: {gain}");
            let most = 8.0 * (LOSS * 16_000.0 + (-gain).max(0.0) + 16.0 * gain.max(0.0));
            assert!(total.balance_ns().abs() <= most, "{gain}: {total:?}");
        }
        let mut free = Governor::new(false);
        assert!(run(&mut free, 50, -5.0).into_iter().all(|on| on));
    }

    /// Bookings scatter by several times the possible gain or loss. A gain is kept, and a loss
    /// stays small.
    #[test]
    fn noisy_bookings_are_judged_over_more_windows() {
        // Gain of each of the eight layers of a pass; least and most windows on, of 400; largest
        // loss as a share of the time.
        for (gain, least, most, loss) in
            [(6.0, 300, 400, 0.0), (0.0, 0, 400, 0.0), (-3.0, 0, 100, 0.01), (-12.0, 0, 30, 0.01)]
        {
            let mut governor = Governor::new(true);
            let mut draw = 1u64;
            let mut gained = 0.0;
            while governor.total.windows_on + governor.total.windows_off < 400 {
                for _ in 0..8 {
                    draw = draw
                        .wrapping_mul(0x5851_f42d_4c95_7f2d)
                        .wrapping_add(0x1405_7b7e_f767_814f);
                    let noise = ((draw >> 40) as f64 / f64::from(1 << 24) - 0.5) * 200.0;
                    if governor.on() {
                        let booked = gain + noise;
                        governor.book(booked.max(0.0), (-booked).max(0.0));
                        gained += gain;
                    }
                }
                governor.passed(1000.0, 500.0);
            }
            let on = governor.total.windows_on;
            let case = format!("{gain}: on in {on}, {gained} of {}", 400 * 16_000);
            assert!((least..=most).contains(&on), "{case}");
            assert!(gained >= -loss * 400.0 * 16_000.0, "{case}");
        }
    }

    /// Regardless of scatter and of apparent savings.
    #[test]
    fn off_where_nothing_can_be_saved() {
        for (waited, saved, on) in [
            (0.0, 8.0, false),
            (9.0, 0.5, false),
            (992.0, 5.0, false),
            (1000.0, 500.0, false),
            (9.0, 50.0, true),
            (980.0, 5.0, true),
        ] {
            let mut governor = Governor::new(true);
            for _ in 0..16 * WINDOW {
                if governor.on() {
                    governor.book(saved, 0.0);
                }
                governor.passed(1000.0, waited);
            }
            let windows = governor.total.windows_on;
            assert_eq!(windows, if on { 16 } else { 4 }, "{waited} waited, {saved} saved");
        }
    }

    /// Milliseconds of a token as measured at three budgets of a model of 48 layers of 128 experts, of
    /// which the draft takes 14: it pays in the smallest one alone.
    #[test]
    fn off_within_ten_passes_where_the_draft_takes_longer_than_it_saves() {
        // Time and waiting without speculation, with it, saved by it; attempts and passes in 63.
        #[rustfmt::skip]
        let cases = [
            ((218.0, 75.0), (190.0, 27.0), 40.0, (1, 63)),
            ((150.0, 13.0), (143.0, 5.0), 6.0, (1, 3)),
            ((125.0, 11.0), (133.0, 4.0), 12.0, (1, 4)),
        ];
        for (without, with, saved, expected) in cases {
            let mut governor = Governor::new(true);
            let mut attempts = 0;
            let mut passes = 0;
            let mut was_on = false;
            for _ in 0..63 {
                attempts += u32::from(governor.on() && !was_on);
                was_on = governor.on();
                passes += u32::from(was_on);
                if was_on {
                    governor.draft_took(14e6);
                    governor.book(saved * 1e6, 14e6);
                }
                let (time, waited) = if was_on { with } else { without };
                governor.passed(time * 1e6, waited * 1e6);
            }
            assert_eq!((attempts, passes), expected, "{without:?}");
        }
    }

    #[test]
    fn stays_on_once_it_pays() {
        let mut governor = Governor::new(true);
        run(&mut governor, 10, -1.0);
        let later = run(&mut governor, 40, 50.0);
        let first = later.iter().position(|on| *on).unwrap();
        assert!(first <= 16 && later[first..].iter().all(|on| *on), "{later:?}");
        let lost = run(&mut governor, 3, -100.0);
        assert_eq!(lost, [true, false, true], "off at once, and for one window only");
    }

    #[test]
    fn inequality_holds_for_the_printed_numbers() {
        #[rustfmt::skip]
        let cases = [
            ((3, 6000.0), (1, 1000.0), "3 right x 2.0 us saved > 1 wrong x 1.0 us lost"),
            ((3, 6000.0), (1, 7000.0), "3 right x 2.0 us saved <= 1 wrong x 7.0 us lost"),
            ((999, 5e6), (1, 6e6), "999 right x 5.0 us saved <= 1 wrong x 6000.0 us lost"),
            ((3, 6000.0), (0, 7000.0), "3 right x 2.0 us saved <= 7.0 us lost, none wrong"),
            ((3, 6000.0), (0, 0.0), "3 right x 2.0 us saved > 0.0 us lost, none wrong"),
            ((0, 500.0), (2, 4000.0), "0.5 us saved, none right <= 2 wrong x 2.0 us lost"),
            // The difference is below the printed precision.
            ((2, 2060.0), (2, 2040.0), "2 right x 1.0 us saved <= 2 wrong x 1.0 us lost"),
        ];
        for ((useful, saved_ns), (wasted, cost_ns), told) in cases {
            let none = Speculation::default();
            let total = Speculation { useful, wasted, saved_ns, cost_ns, ..none };
            assert_eq!(total.inequality().unwrap(), told);
        }
        assert_eq!(Speculation::default().inequality(), None);
    }
}
