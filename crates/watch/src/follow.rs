//! Reads the state of a run.

use sws_engine::watch::{ExpertCell, Lap, LayerRow, RunTally, TierTally};
use sws_engine::{DriveMetrics, RunWatch};

use crate::{ExpertState, RunStep, Wall};

/// Reads the watch of a run, from any thread.
#[derive(Clone, Debug)]
pub struct Follower {
    watch: RunWatch,
    last: RunTally,
    cells: Vec<ExpertCell>,
}

impl Follower {
    /// Begins to watch a run.
    pub fn new(watch: &RunWatch) -> Follower {
        watch.begin();
        Follower::beside(watch)
    }

    /// Reads a run that others watch, too.
    pub fn beside(watch: &RunWatch) -> Follower {
        Follower { watch: watch.clone(), last: watch.tally(), cells: Vec::new() }
    }

    /// Layers with experts.
    pub fn rows(&self) -> Vec<LayerRow> {
        self.watch.rows().collect()
    }

    /// The step since the last call.
    pub fn step(&mut self) -> RunStep {
        let now = self.watch.tally();
        RunStep::between(&std::mem::replace(&mut self.last, now), &now)
    }

    /// The running pass: its number of tokens, and the layer that it has reached.
    pub fn running(&self) -> Option<[usize; 2]> {
        self.last.running.map(|running| [running.tokens, running.layer])
    }

    /// Reads from each of several drives so far; empty if there is only one.
    pub fn drives(&self) -> Vec<DriveMetrics> {
        self.watch.drives()
    }

    /// The tier of experts outside memory, as of the last step.
    pub fn tier(&self) -> Option<TierTally> {
        self.last.tier
    }

    /// Starts or stops timing the layers, from the next pass on.
    pub fn time_layers(&self, is_timed: bool) {
        self.watch.time_layers(is_timed);
    }

    /// Reads the layers of the last timed pass. Call it on the thread of the passes.
    pub fn laps(&self, laps: &mut Vec<Lap>) {
        self.watch.laps(laps);
    }

    /// Reads the state of all experts.
    pub fn look(&mut self, wall: &mut Wall) {
        self.watch.cells(&mut self.cells);
        for (state, &cell) in wall.states.iter_mut().zip(&self.cells) {
            *state = ExpertState::from(cell);
        }
    }
}
