//! The ledger: named reservations of a memory budget.

use std::fmt;

/// Named reservations that add up to a budget. Every use of memory belongs to one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    budget: u64,
    lines: Vec<(MemoryUse, u64)>,
}

/// Uses of memory, in the order of a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemoryUse {
    /// Mapped pages of the program and its libraries.
    Program,
    /// Stacks of all threads.
    Stacks,
    /// The heap before the model is loaded.
    Heap,
    /// The tokenizer.
    Tokenizer,
    /// Memory that the allocator holds beyond the requested bytes.
    Slack,
    /// Files read through the page cache.
    Files,
    /// Page tables and other kernel memory of the process.
    Kernel,
    /// Tables of piece locations, slot contents and expert use.
    Tables,
    /// Buffers for a tier of experts on a device, and the tier itself if its memory is the machine's.
    Device,
    /// The draft, which forecasts experts.
    Draft,
    /// The correction of the eviction policy.
    Correction,
    /// Keys and values.
    KvCache,
    /// Encoding a text that fills the context.
    Encoding,
    /// Structured output, such as by JSON schemas.
    Structured,
    /// Working memory of a pass.
    Activations,
    /// Norms and biases, widened to f32.
    Vectors,
    /// Resident infrastructure.
    Pinned,
    /// Ring buffer for weights that are neither resident nor have slots.
    Ring,
    /// Stand-ins of experts.
    StandIns,
    /// Slots of the expert cache.
    Slots,
    /// Unused memory.
    Spare,
}

impl MemoryUse {
    /// All uses.
    pub const ALL: [MemoryUse; 21] = [
        MemoryUse::Program,
        MemoryUse::Stacks,
        MemoryUse::Heap,
        MemoryUse::Tokenizer,
        MemoryUse::Slack,
        MemoryUse::Files,
        MemoryUse::Kernel,
        MemoryUse::Tables,
        MemoryUse::Device,
        MemoryUse::Draft,
        MemoryUse::Correction,
        MemoryUse::KvCache,
        MemoryUse::Encoding,
        MemoryUse::Structured,
        MemoryUse::Activations,
        MemoryUse::Vectors,
        MemoryUse::Pinned,
        MemoryUse::Ring,
        MemoryUse::StandIns,
        MemoryUse::Slots,
        MemoryUse::Spare,
    ];

    /// Name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            MemoryUse::Program => "program",
            MemoryUse::Stacks => "stacks",
            MemoryUse::Heap => "heap",
            MemoryUse::Tokenizer => "tokenizer",
            MemoryUse::Slack => "slack",
            MemoryUse::Files => "files",
            MemoryUse::Kernel => "kernel",
            MemoryUse::Tables => "tables",
            MemoryUse::Device => "device",
            MemoryUse::Draft => "draft",
            MemoryUse::Correction => "correction",
            MemoryUse::KvCache => "kv_cache",
            MemoryUse::Encoding => "encoding",
            MemoryUse::Structured => "forms",
            MemoryUse::Activations => "activations",
            MemoryUse::Vectors => "vectors",
            MemoryUse::Pinned => "pinned",
            MemoryUse::Ring => "ring",
            MemoryUse::StandIns => "stand_ins",
            MemoryUse::Slots => "slots",
            MemoryUse::Spare => "spare",
        }
    }

    /// Description for people.
    pub const fn words(self) -> &'static str {
        match self {
            MemoryUse::Program => "program and libraries",
            MemoryUse::Stacks => "thread stacks",
            MemoryUse::Heap => "heap before the model",
            MemoryUse::Tokenizer => "tokenizer",
            MemoryUse::Slack => "allocator overhead",
            MemoryUse::Files => "small files in the page cache",
            MemoryUse::Kernel => "page tables and kernel memory",
            MemoryUse::Tables => "tables of pieces and their use",
            MemoryUse::Device => "buffers for the graphics card",
            MemoryUse::Draft => "draft",
            MemoryUse::Correction => "correction of evictions",
            MemoryUse::KvCache => "KV cache",
            MemoryUse::Encoding => "encoding text",
            MemoryUse::Structured => "structured output",
            MemoryUse::Activations => "activations",
            MemoryUse::Vectors => "norms and biases",
            MemoryUse::Pinned => "pinned weights",
            MemoryUse::Ring => "ring for streamed weights",
            MemoryUse::StandIns => "stand-ins",
            MemoryUse::Slots => "expert slots",
            MemoryUse::Spare => "unused",
        }
    }
}

impl fmt::Display for MemoryUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The sum of these reservations.
pub(super) fn sum_of(reservations: impl IntoIterator<Item = (MemoryUse, u64)>) -> u64 {
    let mut sum = 0;
    for (_, bytes) in reservations {
        sum += bytes;
    }
    sum
}

/// Error: the reservations exceed the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overdrawn;

impl Ledger {
    /// Creates the ledger of a budget with these reservations; the rest is [`MemoryUse::Spare`].
    pub(crate) fn new(
        budget: u64,
        reservations: impl IntoIterator<Item = (MemoryUse, u64)>,
    ) -> Result<Ledger, Overdrawn> {
        let mut lines: Vec<(MemoryUse, u64)> = MemoryUse::ALL.map(|what| (what, 0)).to_vec();
        let mut left = budget;
        for (what, bytes) in reservations {
            left = left.checked_sub(bytes).ok_or(Overdrawn)?;
            lines[what as usize].1 += bytes;
        }
        lines[MemoryUse::Spare as usize].1 += left;
        Ok(Ledger { budget, lines })
    }

    /// The sum of all reservations.
    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// Bytes reserved for one use.
    pub fn get(&self, what: MemoryUse) -> u64 {
        self.lines[what as usize].1
    }

    /// All reservations, including empty ones.
    pub fn lines(&self) -> impl Iterator<Item = (MemoryUse, u64)> {
        self.lines.iter().copied()
    }

    /// Raises the budget by unused bytes.
    pub(crate) fn grant(&mut self, bytes: u64) {
        self.lines[MemoryUse::Spare as usize].1 += bytes;
        self.budget += bytes;
    }

    /// Lowers the budget by bytes of one use.
    pub(crate) fn release(&mut self, what: MemoryUse, bytes: u64) {
        self.lines[what as usize].1 -= bytes;
        self.budget -= bytes;
    }
}

/// Memory that the process takes under any plan, measured once it has everything but weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessMemory {
    /// Mapped pages of the program and its libraries.
    pub program: u64,
    /// Stacks of all threads.
    pub stacks: u64,
    /// The heap without the tokenizer.
    pub heap: u64,
    /// The tokenizer.
    pub tokenizer: u64,
    /// Memory that the allocator holds beyond heap and tokenizer.
    pub slack: u64,
    /// Files read through the page cache.
    pub files: u64,
    /// Page tables and other kernel memory of the process.
    pub kernel: u64,
    /// Peak memory of the process so far. Not a reservation.
    pub peak: u64,
}

impl ProcessMemory {
    /// The reservations of the process.
    pub fn lines(&self) -> [(MemoryUse, u64); 7] {
        [
            (MemoryUse::Program, self.program),
            (MemoryUse::Stacks, self.stacks),
            (MemoryUse::Heap, self.heap),
            (MemoryUse::Tokenizer, self.tokenizer),
            (MemoryUse::Slack, self.slack),
            (MemoryUse::Files, self.files),
            (MemoryUse::Kernel, self.kernel),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_add_up_to_the_budget() {
        let lines = [
            (MemoryUse::Heap, 10),
            (MemoryUse::Slots, 70),
            (MemoryUse::Slack, 5),
            (MemoryUse::Slack, 2),
        ];
        let ledger = Ledger::new(100, lines).unwrap();
        assert_eq!((ledger.get(MemoryUse::Slack), ledger.get(MemoryUse::Spare)), (7, 13));
        assert_eq!(ledger.lines().map(|(_, bytes)| bytes).sum::<u64>(), ledger.budget());
        assert_eq!(Ledger::new(86, lines), Err(Overdrawn));
        assert_eq!(
            Ledger::new(u64::MAX, [(MemoryUse::Heap, u64::MAX), (MemoryUse::Ring, 1)]),
            Err(Overdrawn)
        );
    }

    #[test]
    fn index_of_each_use_is_its_discriminant() {
        for (place, what) in MemoryUse::ALL.into_iter().enumerate() {
            assert_eq!(what as usize, place, "{what}");
        }
    }
}
