//! All weights but routed experts: resident ones, and those that stream through the ring.

mod resident;
mod ring;
mod ring_buffer;
mod router_set;
mod schedule;
mod table_rows;

use std::collections::HashSet;
use std::sync::Arc;

use sws_draft::Gates;
use sws_kernels::Matrix;
use sws_model::{
    Held, Inventory, Model, ModelSpec, Role, RouterProbe, SourceError, TakeRow, Weights,
};
use sws_store::{Arena, BLOCK_BYTES, Manifest, NVMeWeightStore, PieceId};

use crate::error::StreamError;
use crate::wait::Waiter;
pub(crate) use resident::ResidentPieces;
use resident::ResidentWeights;
use ring::Ring;
use ring_buffer::RingBuffer;
pub use router_set::RouterSet;
use schedule::StreamSchedule;
use table_rows::TableRows;

/// Resident pieces, and the ring for all others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InfrastructurePlan {
    /// Resident pieces.
    pub pinned: Vec<PieceId>,
    /// Bytes of the ring that all other weights stream through.
    pub ring: usize,
    /// True if routed experts stream through it too.
    pub experts: bool,
}

/// All weights but routed experts, and those too if the plan says so.
///
/// Its [`Weights`] have every vector and the matrices of resident pieces. All other matrices are
/// lent in blocks.
#[derive(Debug)]
pub struct Infrastructure {
    store: Arc<NVMeWeightStore>,
    waiter: Waiter,
    pinned: ResidentPieces,
    /// The tables that are not resident.
    tables: Vec<TableRows>,
    /// A row of a resident table.
    row: Vec<f32>,
    ring: Ring,
    spec: ModelSpec,
    probe: RouterProbe,
}

/// Maximum share of the ring for rows of tables: one part in this many.
const LOOKUP_SHARE: usize = 8;
/// Blocks that the ring has room for, as far as checksums allow: one being computed with, the next,
/// and others being read.
const BLOCKS: usize = 4;

impl Infrastructure {
    /// Takes the memory of `plan` out of `arena`, and reads the resident pieces. `report` is told of
    /// the bytes of each.
    pub fn open(
        model: &Model,
        store: Arc<NVMeWeightStore>,
        arena: &Arena,
        plan: &InfrastructurePlan,
        waiter: Waiter,
        report: &mut dyn FnMut(u64),
    ) -> Result<Infrastructure, StreamError> {
        let (spec, manifest) = (model.spec(), store.manifest());
        let inventory = Inventory::new(spec, manifest)?;
        let pinned: HashSet<PieceId> = plan.pinned.iter().copied().collect();
        let streams = Streams { spec, inventory: &inventory, manifest, pinned: &pinned, plan };
        let [least_rows, least_ring] = streams.least()?;
        let spare = plan.ring.checked_sub(least_rows + least_ring);
        let need = least_rows + least_ring;
        let spare = spare.ok_or(StreamError::RingTooSmall { need, have: plan.ring })?;
        let kept = |id| pinned.contains(&id);
        let weights = ResidentPieces::load(&store, arena, &inventory, kept, report)?;
        let share = if least_ring == 0 { spare } else { spare / LOOKUP_SHARE };
        let tables: Vec<(PieceId, Held)> = streams.tables().collect();
        let share = share / tables.len().max(1);
        let tables = tables.into_iter().map(|table| TableRows::new(&store, arena, table, share));
        let tables = tables.collect::<Result<Vec<_>, _>>()?;
        let room = plan.ring - tables.iter().map(TableRows::bytes).sum::<usize>();
        let schedule = streams.schedule(BLOCK_BYTES.min(((room - least_ring) / BLOCKS) as u64));
        let slot = match least_ring {
            0 => None,
            _ => {
                let have = arena.free_bytes();
                Some(arena.take(room).ok_or(StreamError::NoRoom { need: room, have })?)
            }
        };
        let ring = Ring::new(Arc::clone(&store), waiter.clone(), schedule, RingBuffer::new(slot));
        let (spec, probe) = (spec.clone(), RouterProbe::new(model.tier()));
        Ok(Infrastructure {
            store,
            waiter,
            pinned: weights,
            tables,
            row: Vec::new(),
            ring,
            spec,
            probe,
        })
    }

    /// Bytes of the shortest ring that a plan works with.
    pub fn least_ring(
        spec: &ModelSpec,
        inventory: &Inventory,
        manifest: &Manifest,
        plan: &InfrastructurePlan,
    ) -> Result<usize, StreamError> {
        let pinned = plan.pinned.iter().copied().collect();
        let streams = Streams { spec, inventory, manifest, pinned: &pinned, plan };
        Ok(streams.least()?.into_iter().sum())
    }

    /// Writes the embeddings of `tokens` to `rows`. This begins a pass.
    pub fn embed(&mut self, tokens: &[u32], rows: &mut [f32]) -> Result<(), StreamError> {
        self.interrupt_on_error(|it| {
            // All rows are known now: those of layers are read while the first of them is computed.
            for table in &mut it.tables {
                table.begin(&it.store, &it.waiter, tokens)?;
            }
            let width = it.spec.hidden;
            it.look_up((PieceId::EMBED, Role::Embedding), tokens, &mut |place, row| {
                rows[place * width..][..width].copy_from_slice(row);
            })?;
            it.ring.begin()
        })
    }

    /// Calls `take` with the place and the row of each of `tokens` in the table of layers.
    pub fn layer_rows(&mut self, tokens: &[u32], take: TakeRow<'_>) -> Result<(), StreamError> {
        let table = (PieceId::LAYER_TABLE, Role::LayerTable);
        self.interrupt_on_error(|it| it.look_up(table, tokens, take))
    }

    fn look_up(
        &mut self,
        (piece, role): (PieceId, Role),
        tokens: &[u32],
        take: TakeRow<'_>,
    ) -> Result<(), StreamError> {
        if let Some(table) = self.tables.iter_mut().find(|table| table.piece() == piece) {
            return table.finish(&self.store, &self.waiter, tokens, take);
        }
        if let Some(table) = self.pinned.matrix(piece, role) {
            self.row.resize(table.cols(), 0.0);
            for (place, &token) in tokens.iter().enumerate() {
                table.decode_row(token as usize, &mut self.row);
                take(place, &self.row);
            }
        }
        Ok(())
    }

    /// Schedules the experts that a router has chosen, if experts stream through the ring. Their
    /// reads come before those of later weights.
    pub fn routed(&mut self, layer: usize, distinct: &[u32]) -> Result<(), StreamError> {
        self.interrupt_on_error(|it| it.ring.route(layer, distinct))
    }

    /// Starts reads as far as there is room. Called repeatedly during other computation.
    pub fn read_ahead(&mut self) -> Result<(), StreamError> {
        self.interrupt_on_error(|it| it.ring.fill())
    }

    /// The experts of each layer that follow from the tokens of a pass alone.
    pub fn known_experts(&self, tokens: &[u32]) -> Vec<(usize, Vec<u32>)> {
        let of = |layer: usize| {
            let mut experts = Vec::new();
            self.spec.known_experts(layer, self, tokens, &mut experts);
            (layer, experts)
        };
        let layers = (0..self.spec.layers.len()).map(of);
        layers.filter(|(_, experts)| !experts.is_empty()).collect()
    }

    /// The waiter for its reads.
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

    /// Runs `step`, and cancels all reads if it fails.
    fn interrupt_on_error<T>(
        &mut self,
        step: impl FnOnce(&mut Self) -> Result<T, StreamError>,
    ) -> Result<T, StreamError> {
        let result = step(self);
        if result.is_err() {
            self.interrupt();
        }
        result
    }
}

/// The weights that a plan leaves to stream.
struct Streams<'a> {
    spec: &'a ModelSpec,
    inventory: &'a Inventory,
    manifest: &'a Manifest,
    pinned: &'a HashSet<PieceId>,
    plan: &'a InfrastructurePlan,
}

impl Streams<'_> {
    /// Schedule of the streamed matrices. `limit` is the maximum bytes of a block, as far as
    /// checksums allow.
    fn schedule(&self, limit: u64) -> StreamSchedule {
        let kept = |id| self.pinned.contains(&id);
        StreamSchedule::new(
            self.spec,
            self.inventory,
            self.manifest,
            kept,
            self.plan.experts,
            limit,
        )
    }

    /// The tables that are not resident, and whose rows are looked up.
    fn tables(&self) -> impl Iterator<Item = (PieceId, Held)> {
        let all = [(PieceId::EMBED, Role::Embedding), (PieceId::LAYER_TABLE, Role::LayerTable)];
        all.into_iter().filter(|(piece, _)| !self.pinned.contains(piece)).filter_map(
            |(piece, role)| {
                let mut held = self.inventory.piece(piece).iter();
                Some((piece, *held.find(|held| held.role == role)?))
            },
        )
    }

    /// Minimum bytes for looking up rows, and for blocks.
    fn least(&self) -> Result<[usize; 2], StreamError> {
        let mut rows = 0;
        for (piece, held) in self.tables() {
            rows += TableRows::least(self.manifest, piece, &held)?;
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
