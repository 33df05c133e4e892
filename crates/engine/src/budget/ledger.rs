//! The ledger: named reservations of a memory budget.

use std::fmt;

/// Named reservations that add up to a budget. Every use of memory belongs to one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    budget: u64,
    lines: Vec<(Use, u64)>,
}

/// Uses of memory, in the order of a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Use {
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
    /// The draft, which forecasts experts.
    Draft,
    /// Keys and values.
    KvCache,
    /// Encoding a text that fills the context.
    Encoding,
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

impl Use {
    /// All uses.
    pub const ALL: [Use; 18] = [
        Use::Program,
        Use::Stacks,
        Use::Heap,
        Use::Tokenizer,
        Use::Slack,
        Use::Files,
        Use::Kernel,
        Use::Tables,
        Use::Draft,
        Use::KvCache,
        Use::Encoding,
        Use::Activations,
        Use::Vectors,
        Use::Pinned,
        Use::Ring,
        Use::StandIns,
        Use::Slots,
        Use::Spare,
    ];

    /// Name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Use::Program => "program",
            Use::Stacks => "stacks",
            Use::Heap => "heap",
            Use::Tokenizer => "tokenizer",
            Use::Slack => "slack",
            Use::Files => "files",
            Use::Kernel => "kernel",
            Use::Tables => "tables",
            Use::Draft => "draft",
            Use::KvCache => "kv_cache",
            Use::Encoding => "encoding",
            Use::Activations => "activations",
            Use::Vectors => "vectors",
            Use::Pinned => "pinned",
            Use::Ring => "ring",
            Use::StandIns => "stand_ins",
            Use::Slots => "slots",
            Use::Spare => "spare",
        }
    }

    /// Description for people.
    pub const fn words(self) -> &'static str {
        match self {
            Use::Program => "program and libraries",
            Use::Stacks => "thread stacks",
            Use::Heap => "heap before the model",
            Use::Tokenizer => "tokenizer",
            Use::Slack => "allocator overhead",
            Use::Files => "small files in the page cache",
            Use::Kernel => "page tables and kernel memory",
            Use::Tables => "tables of pieces and their use",
            Use::Draft => "draft",
            Use::KvCache => "keys and values",
            Use::Encoding => "encoding text",
            Use::Activations => "activations",
            Use::Vectors => "norms and biases",
            Use::Pinned => "pinned weights",
            Use::Ring => "ring for streamed weights",
            Use::StandIns => "stand-ins",
            Use::Slots => "expert slots",
            Use::Spare => "unused",
        }
    }
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Error: the reservations exceed the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overdrawn;

impl Ledger {
    /// Creates the ledger of a budget with these reservations; the rest is [`Use::Spare`].
    pub(crate) fn new(
        budget: u64,
        reservations: impl IntoIterator<Item = (Use, u64)>,
    ) -> Result<Ledger, Overdrawn> {
        let mut lines: Vec<(Use, u64)> = Use::ALL.map(|what| (what, 0)).to_vec();
        let mut left = budget;
        for (what, bytes) in reservations {
            left = left.checked_sub(bytes).ok_or(Overdrawn)?;
            lines[what as usize].1 += bytes;
        }
        lines[Use::Spare as usize].1 += left;
        Ok(Ledger { budget, lines })
    }

    /// The sum of all reservations.
    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// Bytes reserved for one use.
    pub fn get(&self, what: Use) -> u64 {
        self.lines[what as usize].1
    }

    /// All reservations, including empty ones.
    pub fn lines(&self) -> impl Iterator<Item = (Use, u64)> {
        self.lines.iter().copied()
    }

    /// Raises the budget by unused bytes.
    pub(crate) fn grant(&mut self, bytes: u64) {
        self.lines[Use::Spare as usize].1 += bytes;
        self.budget += bytes;
    }

    /// Lowers the budget by bytes of one use.
    pub(crate) fn release(&mut self, what: Use, bytes: u64) {
        self.lines[what as usize].1 -= bytes;
        self.budget -= bytes;
    }
}

/// Memory that the process takes under any plan, measured once it has everything but weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Process {
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

impl Process {
    /// The reservations of the process.
    pub fn lines(&self) -> [(Use, u64); 7] {
        [
            (Use::Program, self.program),
            (Use::Stacks, self.stacks),
            (Use::Heap, self.heap),
            (Use::Tokenizer, self.tokenizer),
            (Use::Slack, self.slack),
            (Use::Files, self.files),
            (Use::Kernel, self.kernel),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_add_up_to_the_budget() {
        let lines = [(Use::Heap, 10), (Use::Slots, 70), (Use::Slack, 5), (Use::Slack, 2)];
        let ledger = Ledger::new(100, lines).unwrap();
        assert_eq!((ledger.get(Use::Slack), ledger.get(Use::Spare)), (7, 13));
        assert_eq!(ledger.lines().map(|(_, bytes)| bytes).sum::<u64>(), ledger.budget());
        assert_eq!(Ledger::new(86, lines), Err(Overdrawn));
        assert_eq!(Ledger::new(u64::MAX, [(Use::Heap, u64::MAX), (Use::Ring, 1)]), Err(Overdrawn));
    }

    #[test]
    fn index_of_each_use_is_its_discriminant() {
        for (place, what) in Use::ALL.into_iter().enumerate() {
            assert_eq!(what as usize, place, "{what}");
        }
    }
}
