//! The time that one text may take.

use std::time::Duration;

use sws_format::Clock;

/// Time limit for patterns that are not on the list, for one text, and its increase per MiB: some
/// fifty times what they need.
const TIME: Duration = Duration::from_secs(2);
const TIME_PER_MIB: Duration = Duration::from_secs(5);

/// Time limit for patterns that are not on the list.
#[derive(Debug)]
pub(super) struct Deadline {
    clock: Clock,
    end: Duration,
}

impl Deadline {
    /// The time limit for a text of `bytes` bytes.
    pub(super) fn of(bytes: usize) -> Deadline {
        let clock = Clock::real();
        let end = clock.now() + TIME + TIME_PER_MIB * (bytes >> 20) as u32;
        Deadline { clock, end }
    }

    pub(super) fn is_over(&self) -> bool {
        self.clock.now() > self.end
    }
}
