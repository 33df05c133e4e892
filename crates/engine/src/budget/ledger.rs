//! Who may use how much of a budget.

use std::fmt;

/// Named reservations that add up to a budget: whatever takes memory stands in one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    budget: u64,
    lines: Vec<(Use, u64)>,
}

/// What memory is for, in the order of a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Use {
    /// The program and its libraries, as far as they are mapped.
    Program,
    /// Stacks of all threads.
    Stacks,
    /// What is on the heap before the model is.
    Heap,
    /// The tokenizer.
    Tokenizer,
    /// What the allocator holds beyond what was asked of it.
    Slack,
    /// Files that were read through the page cache.
    Files,
    /// Page tables and what else the kernel keeps for the process.
    Kernel,
    /// Where pieces lie, what is in which slot, what was used when.
    Tables,
    /// The draft.
    Draft,
    /// Keys and values.
    KvCache,
    /// Encoding a text that fills the context.
    Encoding,
    /// What a pass works in.
    Activations,
    /// Norms and biases, widened.
    Vectors,
    /// Infrastructure that stays.
    Pinned,
    /// Through which everything flows that neither stays nor has a slot.
    Ring,
    /// Stand-ins of experts.
    StandIns,
    /// Slots in which experts come and go.
    Slots,
    /// What nothing is done with.
    Spare,
}

impl Use {
    /// All of them.
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

    /// What it is called in JSON.
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

    /// What it is, for people.
    pub const fn words(self) -> &'static str {
        match self {
            Use::Program => "program and libraries",
            Use::Stacks => "thread stacks",
            Use::Heap => "heap before the model",
            Use::Tokenizer => "tokenizer",
            Use::Slack => "slack of the allocator",
            Use::Files => "small files in the page cache",
            Use::Kernel => "page tables and the kernel's own",
            Use::Tables => "tables of pieces and their use",
            Use::Draft => "draft",
            Use::KvCache => "keys and values",
            Use::Encoding => "encoding text",
            Use::Activations => "activations",
            Use::Vectors => "norms and biases",
            Use::Pinned => "pinned weights",
            Use::Ring => "weights passing through",
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

/// More was reserved than there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overdrawn;

impl Ledger {
    /// Of a budget with these reservations; the rest is [`Use::Spare`].
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

    /// What is reserved for one use.
    pub fn get(&self, what: Use) -> u64 {
        self.lines[what as usize].1
    }

    /// All reservations, those of nothing too.
    pub fn lines(&self) -> impl Iterator<Item = (Use, u64)> {
        self.lines.iter().copied()
    }

    /// Raises the budget by what nothing is done with.
    pub(crate) fn grant(&mut self, bytes: u64) {
        self.lines[Use::Spare as usize].1 += bytes;
        self.budget += bytes;
    }

    /// Lowers the budget by giving up what one use has.
    pub(crate) fn release(&mut self, what: Use, bytes: u64) {
        self.lines[what as usize].1 -= bytes;
        self.budget -= bytes;
    }
}

/// What the process takes whatever the plan is: measured once it has everything but weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// The program and its libraries, as far as they are mapped.
    pub program: u64,
    /// Stacks of all threads.
    pub stacks: u64,
    /// What is on the heap, the tokenizer not counted.
    pub heap: u64,
    /// The tokenizer.
    pub tokenizer: u64,
    /// What the allocator holds beyond that.
    pub slack: u64,
    /// Files that were read through the page cache.
    pub files: u64,
    /// Page tables and what else the kernel keeps for the process.
    pub kernel: u64,
    /// The most that the process has had at any time until now; no reservation.
    pub peak: u64,
}

impl Process {
    /// The reservations.
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
    fn uses_stand_at_their_own_place() {
        for (place, what) in Use::ALL.into_iter().enumerate() {
            assert_eq!(what as usize, place, "{what}");
        }
    }
}
