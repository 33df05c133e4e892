//! The wall: the state of every expert, with a row for each layer.

use sws_engine::watch::{ExpertCell, ExpertPlace, LayerRow, Use};

/// State of an expert. A mark for several experts has the last of these states in which any of them
/// is. It shows memory only if most of its experts are in memory; if exactly half of them are, the
/// first expert decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExpertState {
    /// On the disk.
    #[default]
    Disk,
    /// In memory.
    Memory,
    /// Being read.
    Reading,
    /// In memory when the pass chose it.
    Used,
    /// Not in memory when the pass chose it.
    Waited,
}

impl ExpertState {
    /// All states.
    pub const ALL: [ExpertState; 5] = [
        ExpertState::Disk,
        ExpertState::Memory,
        ExpertState::Reading,
        ExpertState::Used,
        ExpertState::Waited,
    ];

    /// A short word for the state.
    pub const fn short(self) -> &'static str {
        match self {
            ExpertState::Disk => "disk",
            ExpertState::Memory => "memory",
            ExpertState::Reading => "reading",
            ExpertState::Used => "used",
            ExpertState::Waited => "waited",
        }
    }

    /// A description of the state.
    pub const fn name(self) -> &'static str {
        match self {
            ExpertState::Disk => "on disk",
            ExpertState::Memory => "in memory",
            ExpertState::Reading => "being read",
            ExpertState::Used => "used",
            ExpertState::Waited => "waited for",
        }
    }
}

impl From<ExpertCell> for ExpertState {
    fn from(cell: ExpertCell) -> ExpertState {
        match (cell.used, cell.place) {
            (Some(Use::Hit), _) => ExpertState::Used,
            (Some(Use::Waited), _) => ExpertState::Waited,
            (None, ExpertPlace::Reading) => ExpertState::Reading,
            (None, ExpertPlace::Memory) => ExpertState::Memory,
            (None, ExpertPlace::Disk) => ExpertState::Disk,
        }
    }
}

/// The states of all experts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wall {
    /// Layers with experts.
    pub rows: Vec<LayerRow>,
    /// The states, row after row.
    pub states: Vec<ExpertState>,
}

/// A wall folded to fit a screen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Folded {
    /// Maximum number of experts of a layer per mark.
    pub across: usize,
    /// Number of layers per line.
    pub down: usize,
    /// The number of each line's first layer, and the marks of the line.
    pub lines: Vec<(usize, Vec<ExpertState>)>,
}

impl Wall {
    /// A wall of experts that are all on the disk.
    pub fn new(rows: Vec<LayerRow>) -> Wall {
        let cells = rows.iter().map(|row| row.experts).sum();
        Wall { rows, states: vec![ExpertState::Disk; cells] }
    }

    /// Folds the wall to this many columns and lines.
    pub fn fold(&self, columns: usize, lines: usize) -> Folded {
        let widest = self.rows.iter().map(|row| row.experts).max().unwrap_or(0);
        if widest == 0 || columns == 0 || lines == 0 {
            return Folded::default();
        }
        let across = widest.div_ceil(columns);
        let down = self.rows.len().div_ceil(lines);
        let mut firsts = Vec::with_capacity(self.rows.len());
        let mut first = 0;
        for row in &self.rows {
            firsts.push(first);
            first += row.experts;
        }
        let mut lines = Vec::new();
        for (rows, firsts) in self.rows.chunks(down).zip(firsts.chunks(down)) {
            let experts = rows.iter().map(|row| row.experts).max().unwrap_or(0);
            let mut marks = Vec::with_capacity(experts.div_ceil(across));
            for start in (0..experts).step_by(across) {
                let mut states = Vec::new();
                for (row, first) in rows.iter().zip(firsts) {
                    let from = first + start.min(row.experts);
                    let to = first + (start + across).min(row.experts);
                    states.extend_from_slice(self.states.get(from..to).unwrap_or_default());
                }
                marks.push(folded(&states));
            }
            lines.push((rows[0].layer, marks));
        }
        Folded { across, down, lines }
    }

    /// Number of experts in each state, in the order of [`ExpertState::ALL`].
    pub fn counts(&self) -> [usize; 5] {
        let mut counts = [0; 5];
        for &state in &self.states {
            counts[state as usize] += 1;
        }
        counts
    }
}

/// The state of a mark that stands for several experts.
fn folded(states: &[ExpertState]) -> ExpertState {
    let mut excess = 0;
    let mut first = None;
    let mut last = ExpertState::Disk;
    for &state in states {
        excess += if state == ExpertState::Disk { 1 } else { -1 };
        first.get_or_insert(state);
        last = last.max(state);
    }
    match last {
        ExpertState::Memory if excess > 0 || excess == 0 && first == Some(ExpertState::Disk) => {
            ExpertState::Disk
        }
        state => state,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_several_experts_show_the_most_important() {
        let rows = [(1, 4), (2, 4), (5, 3)].map(|(layer, experts)| LayerRow { layer, experts });
        let mut wall = Wall::new(rows.to_vec());
        use ExpertState::{Disk, Memory, Reading, Used, Waited};
        wall.states =
            vec![Memory, Disk, Memory, Memory, Disk, Used, Disk, Disk, Reading, Waited, Disk];
        assert_eq!(wall.counts(), [5, 3, 1, 1, 1]);
        let whole = wall.fold(80, 24);
        assert_eq!((whole.across, whole.down, whole.lines.len()), (1, 1, 3));
        assert_eq!(whole.lines[2], (5, vec![Reading, Waited, Disk]));
        let narrow = wall.fold(2, 24);
        assert_eq!(narrow.lines[0], (1, vec![Memory, Memory]));
        assert_eq!(narrow.lines[1], (2, vec![Used, Disk]));
        assert_eq!(narrow.lines[2], (5, vec![Waited, Disk]));
        let low = wall.fold(2, 2);
        assert_eq!(low.lines, [(1, vec![Used, Memory]), (5, vec![Waited, Disk])]);
        assert_eq!((low.across, low.down), (2, 2));
        assert_eq!(wall.fold(0, 5), Folded::default());
        assert_eq!(Wall::new(Vec::new()).fold(80, 24), Folded::default());
    }
}
