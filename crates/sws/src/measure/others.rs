//! Measures the share of processor time that other programs took during a measurement.

use sws_os::machine::Ticks;

/// Processor time at the beginning of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Others {
    began: Ticks,
}

impl Others {
    /// Begins now. `None` where the system does not report it.
    pub fn begin() -> Option<Others> {
        Some(Others { began: Ticks::now()? })
    }

    /// Share of processor time that programs other than this one and its children, or the hypervisor, took since then, from 0 to 1.
    /// `None` before a tick has passed.
    pub fn share(&self) -> Option<f64> {
        self.began.others_until(Ticks::now()?)
    }
}
