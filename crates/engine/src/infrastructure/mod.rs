//! All weights but routed experts: resident ones, and those that stream through the ring.

mod resident;
mod ring;
mod ring_buffer;
mod router_set;
mod schedule;
mod table_rows;

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use sws_draft::Gates;
use sws_format::{BLOCK_BYTES, Manifest, PieceId};
use sws_kernels::{Matrix, MatrixPart, PartRows};
use sws_model::{
    FindRows, ForwardPass, Inventory, ModelSpec, Role, RouterProbe, SourceError, TakeRow, Weights,
};
use sws_store::{Arena, NVMeWeightStore};

use crate::error::StreamError;
use crate::reads::held_tensor;
use crate::wait::Waiter;
pub(crate) use resident::ResidentPieces;
use resident::ResidentWeights;
use ring::StreamRing;
use ring_buffer::RingBuffer;
pub use router_set::RouterSet;
use schedule::StreamSchedule;
use table_rows::{TablePart, TableRows};

/// Resident pieces, and the ring for all others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InfrastructurePlan {
    /// Resident pieces.
    pub pinned: Vec<PieceId>,
    /// Bytes of the ring that all other weights stream through.
    pub ring: usize,
    /// True if routed experts stream through the ring too.
    pub experts: bool,
}

/// All weights except routed experts, or including them if they stream through the ring.
///
/// Its [`Weights`] have every vector and the matrices of resident pieces. All other matrices are
/// lent in blocks.
#[derive(Debug)]
pub struct Infrastructure {
    store: Arc<NVMeWeightStore>,
    waiter: Waiter,
    pinned: ResidentPieces,
    /// The tables that are not resident, whose rows are read when needed.
    tables: Vec<TableRows>,
    /// Reused buffer for the numbers of the rows that a layer looks up.
    numbers: Vec<u64>,
    ring: StreamRing,
    spec: ModelSpec,
    probe: RouterProbe,
}

/// Maximum share of the ring for rows of tables: one part in this many.
const LOOKUP_SHARE: usize = 8;
/// Number of blocks that the ring has room for, as far as checksums allow: one that is used for
/// computing, the next one, and others that are being read.
const BLOCKS: usize = 4;

impl Infrastructure {
    /// Takes the memory of `plan` out of `arena`, and reads the resident pieces. `report` gets the
    /// bytes of each piece.
    pub fn open(
        model: &ForwardPass,
        store: Arc<NVMeWeightStore>,
        arena: &Arena,
        plan: &InfrastructurePlan,
        waiter: Waiter,
        report: &mut dyn FnMut(u64),
    ) -> Result<Infrastructure, StreamError> {
        let spec = model.spec();
        let manifest = store.manifest();
        let inventory = Inventory::new(spec, manifest)?;
        let pinned: HashSet<PieceId> = plan.pinned.iter().copied().collect();
        let streams =
            StreamedWeights { spec, inventory: &inventory, manifest, pinned: &pinned, plan };
        let [least_rows, least_ring] = streams.least()?;
        let spare = plan.ring.checked_sub(least_rows + least_ring);
        let need = least_rows + least_ring;
        let spare = spare.ok_or(StreamError::RingTooSmall { need, have: plan.ring })?;
        let weights = ResidentPieces::load(&store, arena, &inventory, &pinned, report)?;
        let share = if least_ring == 0 { spare } else { spare / LOOKUP_SHARE };
        let parts = streams.tables();
        let share = share / parts.len().max(1);
        let mut tables = Vec::with_capacity(parts.len());
        for parts in parts {
            tables.push(TableRows::new(&store, arena, parts, share)?);
        }
        let room = plan.ring - tables.iter().map(TableRows::bytes).sum::<usize>();
        let schedule = streams.schedule(BLOCK_BYTES.min(((room - least_ring) / BLOCKS) as u64));
        let slot = match least_ring {
            0 => None,
            _ => {
                let have = arena.free_bytes();
                Some(arena.take(room).ok_or(StreamError::NoRoom { need: room, have })?)
            }
        };
        let ring =
            StreamRing::new(Arc::clone(&store), waiter.clone(), schedule, RingBuffer::new(slot));
        let spec = spec.clone();
        let probe = RouterProbe::new(model.tier());
        Ok(Infrastructure {
            store,
            waiter,
            pinned: weights,
            tables,
            numbers: Vec::new(),
            ring,
            spec,
            probe,
        })
    }

    /// Minimum bytes of the ring of a plan.
    pub fn least_ring(
        spec: &ModelSpec,
        inventory: &Inventory,
        manifest: &Manifest,
        plan: &InfrastructurePlan,
    ) -> Result<usize, StreamError> {
        let pinned = plan.pinned.iter().copied().collect();
        let streams = StreamedWeights { spec, inventory, manifest, pinned: &pinned, plan };
        Ok(streams.least()?.into_iter().sum())
    }

    /// Writes the embeddings of `tokens` to `rows`. This begins a pass.
    pub fn embed(&mut self, tokens: &[u32], rows: &mut [f32]) -> Result<(), StreamError> {
        let result = self.begin(tokens, rows);
        self.or_interrupt(result)
    }

    fn begin(&mut self, tokens: &[u32], rows: &mut [f32]) -> Result<(), StreamError> {
        let width = self.spec.hidden;
        if let Some(table) = table_of(&mut self.tables, PieceId::EMBED) {
            self.numbers.clear();
            self.numbers.extend(tokens.iter().copied().map(u64::from));
            table.finish(&self.store, &self.waiter, &self.numbers, &mut |place, row| {
                rows[place * width..][..width].copy_from_slice(row);
            })?;
        } else if let Some(table) = self.pinned.matrix(PieceId::EMBED, Role::Embedding) {
            for (row, &token) in rows.chunks_exact_mut(width).zip(tokens) {
                table.decode_row(token as usize, row);
            }
        }
        self.ring.begin()
    }

    /// Starts reading the rows of a layer's table that this pass will look up.
    pub fn expect_rows(&mut self, layer: usize, find: FindRows<'_>) -> Result<(), SourceError> {
        self.use_table(layer, find, None)
    }

    /// Calls `take` for each row that `find` selects in the table of a layer, with its place and
    /// its values.
    pub fn look_up(
        &mut self,
        layer: usize,
        find: FindRows<'_>,
        take: TakeRow<'_>,
    ) -> Result<(), SourceError> {
        self.use_table(layer, find, Some(take))
    }

    /// Calls `take` for the rows that `find` selects in the table of a layer. Without `take` it only
    /// starts reading them.
    fn use_table(
        &mut self,
        layer: usize,
        find: FindRows<'_>,
        take: Option<TakeRow<'_>>,
    ) -> Result<(), SourceError> {
        let mut numbers = std::mem::take(&mut self.numbers);
        numbers.clear();
        let result = match find(&*self, &mut numbers) {
            Ok(()) => self.use_rows(layer, &numbers, take).map_err(SourceError::from),
            Err(error) => Err(error),
        };
        self.numbers = numbers;
        result
    }

    fn use_rows(
        &mut self,
        layer: usize,
        numbers: &[u64],
        take: Option<TakeRow<'_>>,
    ) -> Result<(), StreamError> {
        let Infrastructure { tables, store, waiter, .. } = self;
        let result = match (table_of(tables, PieceId::table(layer as u32, 0)), take) {
            (Some(table), Some(take)) => table.finish(store, waiter, numbers, take),
            (Some(table), None) => table.begin(store, waiter, numbers),
            (None, _) => Ok(()),
        };
        self.or_interrupt(result)
    }

    /// Schedules the experts that a router has chosen, if experts stream through the ring. Their
    /// reads come before those of later weights.
    pub fn routed(&mut self, layer: usize, distinct: &[u32]) -> Result<(), StreamError> {
        let result = self.ring.route(layer, distinct);
        self.or_interrupt(result)
    }

    /// Starts reads as far as there is room. Called repeatedly during other computation.
    pub fn read_ahead(&mut self) -> Result<(), StreamError> {
        let result = self.ring.fill();
        self.or_interrupt(result)
    }

    /// The experts of each layer that follow from the tokens of a pass alone.
    pub fn known_experts(&self, tokens: &[u32]) -> Vec<(usize, Vec<u32>)> {
        let mut known = Vec::new();
        for layer in 0..self.spec.layers.len() {
            let mut experts = Vec::new();
            self.spec.known_experts(layer, self, tokens, &mut experts);
            if !experts.is_empty() {
                known.push((layer, experts));
            }
        }
        known
    }

    /// The waiter for reads of these weights.
    pub(crate) fn waiter(&self) -> &Waiter {
        &self.waiter
    }

    /// Cancels all reads. The pass may go on, or another may begin.
    pub fn interrupt(&mut self) {
        self.ring.interrupt();
        for table in &mut self.tables {
            table.settle(&self.store, &self.waiter);
        }
    }

    /// Unused bytes of the ring.
    pub(crate) fn free_bytes(&self) -> usize {
        self.ring.free_bytes()
    }

    /// Cancels all reads on failure.
    fn or_interrupt(&mut self, result: Result<(), StreamError>) -> Result<(), StreamError> {
        if result.is_err() {
            self.interrupt();
        }
        result
    }
}

/// The table that begins with this piece.
fn table_of(tables: &mut [TableRows], piece: PieceId) -> Option<&mut TableRows> {
    tables.iter_mut().find(|table| table.piece() == piece)
}

/// The weights that a plan leaves to stream.
struct StreamedWeights<'a> {
    spec: &'a ModelSpec,
    inventory: &'a Inventory,
    manifest: &'a Manifest,
    pinned: &'a HashSet<PieceId>,
    plan: &'a InfrastructurePlan,
}

impl StreamedWeights<'_> {
    /// Schedule of the streamed matrices. `limit` is the maximum bytes of a block, as far as
    /// checksums allow.
    fn schedule(&self, limit: u64) -> StreamSchedule {
        StreamSchedule::new(
            self.spec,
            self.inventory,
            self.manifest,
            self.pinned,
            self.plan.experts,
            limit,
        )
    }

    /// The parts of the tables whose rows are looked up: tables of layers, and the embedding if it
    /// is not resident.
    fn tables(&self) -> Vec<Vec<TablePart>> {
        let mut tables = Vec::new();
        if !self.pinned.contains(&PieceId::EMBED)
            && let Some(embedding) = self.part(PieceId::EMBED, Role::Embedding, 0)
        {
            tables.push(vec![embedding]);
        }
        for layer in 0..self.spec.layers.len() as u32 {
            let mut parts: Vec<TablePart> = Vec::new();
            let mut first = 0;
            while let Some(part) =
                self.part(PieceId::table(layer, parts.len() as u32), Role::Table, first)
            {
                first += part.held.rows as u64;
                parts.push(part);
            }
            if !parts.is_empty() {
                tables.push(parts);
            }
        }
        tables
    }

    /// A part of a table, whose first row has the number `first`.
    fn part(&self, piece: PieceId, role: Role, first: u64) -> Option<TablePart> {
        let held = *held_tensor(self.inventory, piece, role)?;
        Some(TablePart { piece, held, first })
    }

    /// Minimum bytes for looking up rows, and for the ring's blocks.
    fn least(&self) -> Result<[usize; 2], StreamError> {
        let mut rows = 0;
        for parts in self.tables() {
            rows += TableRows::least(self.manifest, &parts)?;
        }
        Ok([rows, self.schedule(0).largest(self.manifest)?])
    }
}

impl Gates for Infrastructure {
    fn logits(&mut self, layer: usize, state: &[f32], logits: &mut [f32]) -> bool {
        self.probe.scores(&self.spec, layer, &mut ResidentWeights(&self.pinned), state, logits)
    }
}

impl Weights for Infrastructure {
    fn vector(&self, piece: PieceId, role: Role) -> &[f32] {
        self.pinned.vector(piece, role)
    }

    fn matrix(&self, piece: PieceId, role: Role) -> Option<Matrix<'_>> {
        self.pinned.matrix(piece, role)
    }

    fn blocks(
        &mut self,
        piece: PieceId,
        role: Role,
        compute: &mut dyn FnMut(usize, &Matrix<'_>),
    ) -> Result<(), SourceError> {
        self.ring.blocks(piece, role, compute)
    }
}

/// The bytes of these rows, in a part that was read for all rows.
fn of_rows<'a>(part: &MatrixPart, rows: Range<u64>, cols: u64, all: &'a [u8]) -> &'a [u8] {
    match part.rows(rows, cols) {
        Some(PartRows::Bytes(range)) => {
            all.get(range.start as usize..range.end as usize).unwrap_or_default()
        }
        _ => all,
    }
}
