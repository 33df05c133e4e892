//! Current state of a run, for readers in other threads.

use std::iter::repeat_with;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sws_format::{PieceId, PieceKind};
use sws_model::ModelSpec;
use sws_store::NVMeWeightStore;

use crate::DriveMetrics;
use crate::experts::{TierCounts, TierUsage};
use crate::wait::{Waiter, bytes_read};

pub use crate::recording::{RecordedRead, RecordedStep, Recording, RecordingStep};

/// A view of a run from other threads, also in the middle of a pass. Clones share it.
///
/// Before [`begin`](Self::begin) and after [`end`](Self::end), events cost the run one comparison each.
/// In between it stores them in atomic numbers, without an allocation.
#[derive(Clone, Debug)]
pub struct RunWatch(Arc<RunShared>);

#[derive(Debug)]
struct RunShared {
    /// The first cell of each layer, and the number of all cells.
    firsts: Vec<usize>,
    board: OnceLock<Board>,
    /// Nanoseconds that the source took besides computing and waiting. Set before the watch begins,
    /// so that the first difference is right.
    source: AtomicU64,
    waiter: Waiter,
    store: Weak<NVMeWeightStore>,
}

/// Numbers that only the thread of the pass writes.
#[derive(Debug)]
struct Board {
    /// True between the watch's beginning and its end.
    is_on: AtomicBool,
    /// True if the layers of passes are timed.
    is_timed: AtomicBool,
    /// The layers of the last pass that was timed: all visits of each together.
    laps: Box<[LapNanos]>,
    /// Totals of the run when the layer that is being timed began.
    lap_began: LapNanos,
    /// The layer that is being timed plus 2, or 1 before the first; 0 in a pass that is not timed.
    lap: AtomicU32,
    /// A cell for each expert of each layer: its [`ExpertPlace`] in two bits, a bit that is set if its last
    /// use had to wait, and the number of the pass that used it last.
    cells: Box<[AtomicU32]>,
    /// True until the cells have been compared with the cache.
    is_stale: AtomicBool,
    /// Passes begun.
    pass: AtomicU32,
    /// Tokens of the pass that is running; 0 between passes.
    tokens: AtomicU32,
    layer: AtomicU32,
    /// Nanoseconds spent in passes that are over, and the start of those that are running.
    in_passes: AtomicU64,
    since: AtomicU64,
    /// True while passes are running.
    is_running: AtomicBool,
    hits: AtomicU64,
    misses: AtomicU64,
    /// Of the hits, experts on the tier.
    on_tier: AtomicU64,
    tier: TierBoard,
}

/// Numbers of the tier; all of them 0 without one.
#[derive(Debug, Default)]
struct TierBoard {
    held: AtomicU64,
    slots: AtomicU64,
    bytes: AtomicU64,
    limit: AtomicU64,
    hits: AtomicU64,
    has_failed: AtomicBool,
}

/// Nanoseconds of time, of waiting by the run, and of reading by the device.
#[derive(Debug, Default)]
struct LapNanos([AtomicU64; 3]);

const PLACE: u32 = 0b11;
const WAITED: u32 = 0b100;
const PASS_SHIFT: u32 = 3;

/// Location of an expert's weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExpertPlace {
    /// On the disk only.
    #[default]
    Disk,
    /// Being read into memory.
    Reading,
    /// In memory.
    Memory,
}

/// An expert at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpertCell {
    /// Location of the expert's weights.
    pub place: ExpertPlace,
    /// Use of the expert by the running pass, or else by the last one.
    pub used: Option<Use>,
}

/// Use of an expert by a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// The expert was in memory when the router chose it.
    Hit,
    /// The expert had to be read, or its read had not ended.
    Waited,
}

/// Place of an expert that need not be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HitPlace {
    /// In memory.
    Memory,
    /// On the tier, where it is to be computed.
    Tier,
}

/// A layer with experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerRow {
    /// Number of the layer.
    pub layer: usize,
    /// Number of its experts.
    pub experts: usize,
}

/// Totals of a run at one moment; hits, misses and `on_tier` are those since the watch began.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RunTally {
    /// The time.
    pub now: Duration,
    /// Passes begun.
    pub passes: u64,
    /// The pass that is running.
    pub running: Option<RunningPass>,
    /// Time spent in passes, waits included.
    pub in_passes: Duration,
    /// Time spent waiting for reads.
    pub stalled: Duration,
    /// Time that the source took besides computing and waiting, as of its last call.
    pub source: Duration,
    /// Time during which at least one read was on the device.
    pub device_busy: Duration,
    /// Bytes read from the device.
    pub device_bytes: u64,
    /// Experts that were in memory when a router chose them.
    pub hits: u64,
    /// Experts that were not.
    pub misses: u64,
    /// Of the hits, experts that were to be computed on the tier.
    pub on_tier: u64,
    /// The tier of experts outside memory, as of the last layer.
    pub tier: Option<TierTally>,
}

/// A tier of experts outside memory. Its hits are among those of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TierTally {
    /// Experts that it holds.
    pub held: u64,
    /// Experts that it has room for.
    pub slots: u64,
    /// Bytes of the experts that it holds.
    pub bytes: u64,
    /// Limit of all its bytes.
    pub limit: u64,
    /// Experts that were computed on it since the start.
    pub hits: u64,
    /// True if it has failed, and is left alone.
    pub has_failed: bool,
}

/// A layer of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lap {
    /// Duration of the layer.
    pub time: Duration,
    /// Waits for reads in it.
    pub waiting: Duration,
    /// Time in it during which a read was on the device.
    pub reading: Duration,
}

/// A pass that is running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunningPass {
    /// Number of its tokens.
    pub tokens: usize,
    /// The layer that it has reached.
    pub layer: usize,
}

impl RunWatch {
    pub(crate) fn new(
        spec: &ModelSpec,
        waiter: Waiter,
        store: Option<&Arc<NVMeWeightStore>>,
    ) -> RunWatch {
        let mut firsts = vec![0];
        let mut all = 0;
        for layer in &spec.layers {
            if let Some(moe) = layer.moe() {
                all += moe.experts;
            }
            firsts.push(all);
        }
        let store = store.map_or_else(Weak::new, Arc::downgrade);
        let board = OnceLock::new();
        let source = AtomicU64::new(0);
        RunWatch(Arc::new(RunShared { firsts, board, source, waiter, store }))
    }

    /// Bytes of the cells of a model.
    pub fn bytes_for(spec: &ModelSpec) -> u64 {
        let cells: usize = spec.moes().map(|moe| moe.experts).sum();
        (cells * size_of::<AtomicU32>() + (spec.layers.len() + 1) * size_of::<LapNanos>()) as u64
    }

    /// Makes the run report its events. Cells are known from its next pass on.
    pub fn begin(&self) {
        let cells = self.0.firsts.last().copied().unwrap_or(0);
        let board = self.0.board.get_or_init(|| Board {
            is_on: AtomicBool::new(false),
            is_timed: AtomicBool::new(false),
            laps: repeat_with(LapNanos::default).take(self.0.firsts.len() - 1).collect(),
            lap_began: LapNanos::default(),
            lap: AtomicU32::new(0),
            cells: repeat_with(AtomicU32::default).take(cells).collect(),
            is_stale: AtomicBool::new(true),
            pass: AtomicU32::new(0),
            tokens: AtomicU32::new(0),
            layer: AtomicU32::new(0),
            in_passes: AtomicU64::new(0),
            since: AtomicU64::new(0),
            is_running: AtomicBool::new(false),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            on_tier: AtomicU64::new(0),
            tier: TierBoard::default(),
        });
        if !board.is_on.swap(true, Relaxed) {
            // The end of a pass that began earlier is ignored.
            board.is_running.store(false, Relaxed);
            board.tokens.store(0, Relaxed);
            board.is_stale.store(true, Relaxed);
        }
    }

    /// Makes the run report nothing until the watch [begins](Self::begin) again.
    pub fn end(&self) {
        if let Some(board) = self.0.board.get() {
            board.is_on.store(false, Relaxed);
        }
    }

    /// Makes the run record its reads and steps, up to `limit` of each, until the recording is
    /// [taken](Self::recorded). No plan includes the memory of a recording. An earlier recording is
    /// dropped.
    pub fn record(&self, limit: usize) {
        self.0.waiter.recorder().begin(limit);
    }

    /// Ends the recording, and returns it; empty if there is none.
    pub fn recorded(&self) -> Recording {
        self.0.waiter.recorder().end()
    }

    /// Records a step.
    pub(crate) fn step(&self, step: RecordingStep) {
        let waiter = &self.0.waiter;
        waiter.recorder().step(waiter.clock(), step);
    }

    /// The board to write to, if the watch is on.
    fn board(&self) -> Option<&Board> {
        let board = self.0.board.get()?;
        board.is_on.load(Relaxed).then_some(board)
    }

    /// True between the watch's beginning and its end.
    pub(crate) fn is_on(&self) -> bool {
        self.board().is_some()
    }

    /// The layers with experts.
    pub fn rows(&self) -> impl Iterator<Item = LayerRow> {
        let layers = self.0.firsts.windows(2).enumerate();
        let rows = layers.map(|(layer, ends)| LayerRow { layer, experts: ends[1] - ends[0] });
        rows.filter(|row| row.experts > 0)
    }

    /// Copies the cells of all rows, in their order.
    pub fn cells(&self, into: &mut Vec<ExpertCell>) {
        into.clear();
        let Some(board) = self.0.board.get() else { return };
        let pass = board.pass.load(Relaxed);
        into.reserve(board.cells.len());
        for cell in &board.cells {
            let cell = cell.load(Relaxed);
            let place = match cell & PLACE {
                0 => ExpertPlace::Disk,
                1 => ExpertPlace::Reading,
                _ => ExpertPlace::Memory,
            };
            let is_used = pass > 0 && cell >> PASS_SHIFT == numbered(pass);
            let used = match cell & WAITED {
                0 => Use::Hit,
                _ => Use::Waited,
            };
            into.push(ExpertCell { place, used: is_used.then_some(used) });
        }
    }

    /// Starts timing the layers of passes with the next pass, or stops it. Timing costs one reading
    /// of the clock per layer.
    pub fn time_layers(&self, is_timed: bool) {
        if let Some(board) = self.board() {
            board.is_timed.store(is_timed, Relaxed);
        }
    }

    /// Copies the layers of the last timed pass. Call it between passes, on their thread: elsewhere
    /// the layers may be of two passes.
    pub fn laps(&self, into: &mut Vec<Lap>) {
        into.clear();
        let Some(board) = self.0.board.get() else { return };
        into.reserve(board.laps.len());
        for LapNanos([time, waiting, reading]) in &board.laps {
            into.push(Lap { time: nanos(time), waiting: nanos(waiting), reading: nanos(reading) });
        }
    }

    /// Reads from each drive since the model was loaded, its own first; empty without copies on others.
    pub fn drives(&self) -> Vec<DriveMetrics> {
        let drives = self.0.store.upgrade().map_or_else(Vec::new, |store| store.stats().drives);
        drives.iter().map(DriveMetrics::from).collect()
    }

    /// Current totals.
    pub fn tally(&self) -> RunTally {
        let RunShared { board, source, waiter, store, .. } = &*self.0;
        let now = waiter.clock().now();
        let stats = store.upgrade().map(|store| store.stats());
        let stalled = waiter.stalled();
        let source = nanos(source);
        let mut tally = RunTally { now, stalled, source, ..RunTally::default() };
        if let Some(stats) = stats {
            tally.device_bytes = bytes_read(&stats);
            tally.device_busy = stats.busy;
        }
        let Some(board) = board.get() else { return tally };
        tally.passes = board.pass.load(Relaxed).into();
        tally.in_passes = nanos(&board.in_passes);
        if board.is_running.load(Relaxed) {
            tally.in_passes += now.saturating_sub(nanos(&board.since));
        }
        let tokens = board.tokens.load(Relaxed) as usize;
        if tokens > 0 {
            let layer = board.layer.load(Relaxed) as usize;
            tally.running = Some(RunningPass { tokens, layer });
        }
        tally.on_tier = board.on_tier.load(Relaxed);
        tally.hits = board.hits.load(Relaxed);
        tally.misses = board.misses.load(Relaxed);
        tally.tier = board.tier.tally();
        tally
    }

    /// Records that one or several passes are about to begin. The time before their layers counts
    /// as a part of them.
    pub(crate) fn passes_begin(&self, now: Duration) {
        self.0.waiter.recorder().step_at(now, RecordingStep::Passes);
        let Some(board) = self.board() else { return };
        board.since.store(now.as_nanos() as u64, Relaxed);
        board.is_running.store(true, Relaxed);
    }

    /// Records that the layers of a pass begin, and that the previous pass is over.
    pub(crate) fn pass_begins(&self, tokens: usize) {
        self.step(RecordingStep::Pass { tokens });
        let Some(board) = self.board() else { return };
        board.pass.store(board.pass.load(Relaxed).wrapping_add(1), Relaxed);
        board.layer.store(0, Relaxed);
        board.tokens.store(u32::try_from(tokens).unwrap_or(u32::MAX), Relaxed);
        let is_timed = board.is_timed.load(Relaxed);
        board.lap.store(u32::from(is_timed), Relaxed);
        if is_timed {
            let laps = board.laps.iter().flat_map(|LapNanos(parts)| parts);
            laps.for_each(|nanos| nanos.store(0, Relaxed));
        }
    }

    /// Records that the passes are over, if any are running, and the time that the source has taken
    /// so far.
    pub(crate) fn passes_end(&self, now: Duration, source: Duration) {
        self.0.waiter.recorder().step_at(now, RecordingStep::Over);
        self.0.source.store(source.as_nanos() as u64, Relaxed);
        let Some(board) = self.board() else { return };
        self.end_lap(board);
        board.lap.store(0, Relaxed);
        board.tokens.store(0, Relaxed);
        if board.is_running.swap(false, Relaxed) {
            let took = (now.as_nanos() as u64).saturating_sub(board.since.load(Relaxed));
            board.in_passes.store(board.in_passes.load(Relaxed) + took, Relaxed);
        }
    }

    /// Stores the time that the source has taken so far, which changes while the watch
    /// [is on](Self::is_on).
    pub(crate) fn source_took(&self, time: Duration) {
        self.0.source.store(time.as_nanos() as u64, Relaxed);
    }

    /// Records that the pass has reached a layer.
    pub(crate) fn layer_begins(&self, layer: usize) {
        self.step(RecordingStep::Layer { layer });
        let Some(board) = self.board() else { return };
        board.layer.store(layer as u32, Relaxed);
        if self.end_lap(board) {
            board.lap.store(layer as u32 + 2, Relaxed);
        }
    }

    /// Adds the time since the layer began that is being timed, if there is one. Returns false in a
    /// pass that is not timed.
    fn end_lap(&self, board: &Board) -> bool {
        let lap = board.lap.load(Relaxed) as usize;
        if lap == 0 {
            return false;
        }
        let RunShared { waiter, store, .. } = &*self.0;
        let busy = store.upgrade().map_or(Duration::ZERO, |store| store.stats().busy);
        let now = [waiter.clock().now(), waiter.stalled(), busy].map(|it| it.as_nanos() as u64);
        let ended = lap.checked_sub(2).and_then(|layer| board.laps.get(layer));
        for (part, now) in now.into_iter().enumerate() {
            let began = board.lap_began.0[part].swap(now, Relaxed);
            if let Some(LapNanos(parts)) = ended {
                let sum = parts[part].load(Relaxed) + now.saturating_sub(began);
                parts[part].store(sum, Relaxed);
            }
        }
        true
    }

    /// Records the choice of a layer's router. `found` returns the place of an expert that is a hit.
    pub(crate) fn routed(
        &self,
        layer: usize,
        experts: &[u32],
        found: impl Fn(u32) -> Option<HitPlace>,
    ) {
        if self.0.waiter.recorder().is_on() {
            let misses = experts.iter().filter(|&&expert| found(expert).is_none()).count();
            self.step(RecordingStep::Compared { layer, misses });
        }
        let Some(board) = self.board() else { return };
        let pass = numbered(board.pass.load(Relaxed)) << PASS_SHIFT;
        let mut hits = 0;
        let mut misses = 0;
        let mut on_tier = 0;
        for &expert in experts {
            let Some(cell) = self.cell(board, layer, expert) else { continue };
            let before = cell.load(Relaxed);
            let found = found(expert);
            let waited = match found {
                Some(_) => 0,
                None => WAITED,
            };
            match waited {
                0 => hits += 1,
                _ => misses += 1,
            }
            on_tier += u64::from(found == Some(HitPlace::Tier));
            // The pass may have visited the layer before.
            let earlier = if before >> PASS_SHIFT == pass >> PASS_SHIFT { WAITED } else { 0 };
            cell.store(before & (PLACE | earlier) | waited | pass, Relaxed);
        }
        board.hits.store(board.hits.load(Relaxed) + hits, Relaxed);
        board.misses.store(board.misses.load(Relaxed) + misses, Relaxed);
        board.on_tier.store(board.on_tier.load(Relaxed) + on_tier, Relaxed);
    }

    /// Records the counts of the tier, if there is one.
    pub(crate) fn tier(&self, counts: impl FnOnce() -> Option<TierCounts>) {
        let Some(board) = self.board() else { return };
        if let Some(counts) = counts() {
            board.tier.set(&counts);
        }
    }

    /// Records the new place of a piece.
    pub(crate) fn moved(&self, id: PieceId, place: ExpertPlace) {
        let Some(board) = self.board() else { return };
        if let (Some(layer), PieceKind::Expert(expert)) = (id.layer(), id.kind())
            && let Some(cell) = self.cell(board, layer as usize, expert)
        {
            cell.store(cell.load(Relaxed) & !PLACE | place as u32, Relaxed);
        }
    }

    /// Makes [`compare`](Self::compare) due.
    pub(crate) fn set_stale(&self) {
        if let Some(board) = self.board() {
            board.is_stale.store(true, Relaxed);
        }
    }

    /// Records the places of all pieces, if a comparison is due. `pieces` lists those that are not
    /// on the disk.
    pub(crate) fn compare(&self, pieces: impl Iterator<Item = (PieceId, ExpertPlace)>) {
        let Some(board) = self.board() else { return };
        if board.is_stale.swap(false, Relaxed) {
            board.place_all(ExpertPlace::Disk);
            for (id, place) in pieces {
                self.moved(id, place);
            }
        }
    }

    /// Records that all pieces are in memory, if a comparison is due.
    pub(crate) fn compare_resident(&self) {
        let Some(board) = self.board() else { return };
        if board.is_stale.swap(false, Relaxed) {
            board.place_all(ExpertPlace::Memory);
        }
    }

    fn cell<'b>(&self, board: &'b Board, layer: usize, expert: u32) -> Option<&'b AtomicU32> {
        let first = *self.0.firsts.get(layer)?;
        let end = *self.0.firsts.get(layer + 1)?;
        let at = first.checked_add(expert as usize)?;
        if at < end { board.cells.get(at) } else { None }
    }
}

impl Board {
    /// Records the same place for every expert.
    fn place_all(&self, place: ExpertPlace) {
        for cell in &self.cells {
            cell.store(cell.load(Relaxed) & !PLACE | place as u32, Relaxed);
        }
    }
}

fn nanos(number: &AtomicU64) -> Duration {
    Duration::from_nanos(number.load(Relaxed))
}

impl TierBoard {
    fn set(&self, counts: &TierCounts) {
        let TierCounts { usage: TierUsage { held, slots, bytes, limit, failure }, hits, .. } =
            counts;
        let numbers = [&self.held, &self.slots, &self.bytes, &self.limit, &self.hits];
        for (number, value) in numbers.into_iter().zip([held, slots, bytes, limit, hits]) {
            number.store(*value, Relaxed);
        }
        self.has_failed.store(failure.is_some(), Relaxed);
    }

    /// `None` without a tier.
    fn tally(&self) -> Option<TierTally> {
        let of = |number: &AtomicU64| number.load(Relaxed);
        let tally = TierTally {
            held: of(&self.held),
            slots: of(&self.slots),
            bytes: of(&self.bytes),
            limit: of(&self.limit),
            hits: of(&self.hits),
            has_failed: self.has_failed.load(Relaxed),
        };
        (tally != TierTally::default()).then_some(tally)
    }
}

/// The number of a pass, as stored in a cell.
const fn numbered(pass: u32) -> u32 {
    pass & (u32::MAX >> PASS_SHIFT)
}

#[cfg(test)]
mod tests;
