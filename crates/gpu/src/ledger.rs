//! The ledger of a device's memory.

/// Bytes of a device's memory in use, by line, within a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VramLedger {
    limit: u64,
    lines: [u64; VramLine::ALL.len()],
    most: u64,
}

/// Uses of a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VramLine {
    /// Matrices and vectors of the check, while it runs.
    Check,
    /// Buffers of activations, results and jobs.
    Exchange,
    /// Slots of experts.
    Experts,
}

impl VramLine {
    /// Every line.
    pub const ALL: [VramLine; 3] = [VramLine::Check, VramLine::Exchange, VramLine::Experts];
}

impl VramLedger {
    /// An empty ledger with a limit in bytes.
    pub fn new(limit: u64) -> VramLedger {
        VramLedger { limit, lines: [0; VramLine::ALL.len()], most: 0 }
    }

    /// The limit for `auto`: all of a device's memory but a tenth, and at least 1 GiB, for the desktop and the driver.
    pub fn auto(memory: u64) -> u64 {
        memory.saturating_sub((memory / 10).max(1 << 30))
    }

    /// The limit.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.lines.iter().sum()
    }

    /// Bytes of a line.
    pub fn line(&self, line: VramLine) -> u64 {
        self.lines[line as usize]
    }

    /// The most bytes that were in use at once.
    pub fn most(&self) -> u64 {
        self.most
    }

    /// Bytes that are left.
    pub fn left(&self) -> u64 {
        self.limit - self.used()
    }

    /// Enters bytes before they are allocated; false, and nothing entered, if that would exceed the limit.
    #[must_use]
    pub fn take(&mut self, line: VramLine, bytes: u64) -> bool {
        let fits = bytes <= self.left();
        if fits {
            self.lines[line as usize] += bytes;
            self.most = self.most.max(self.used());
        }
        fits
    }

    /// Strikes bytes once they are freed.
    ///
    /// # Panics
    ///
    /// If the line has fewer.
    pub fn give(&mut self, line: VramLine, bytes: u64) {
        let line = &mut self.lines[line as usize];
        *line = line.checked_sub(bytes).expect("bytes that were entered");
    }
}
