//! All weights but routed experts: some stay, the others pass by.

mod embedding_rows;
mod resident;
mod ring;
mod ring_buffer;
mod router_set;
mod schedule;

use std::collections::HashSet;
use std::sync::Arc;

use sws_draft::Gates;
use sws_kernels::Matrix;
use sws_model::{Held, Inventory, Model, ModelSpec, Role, RouterProbe, SourceError, Weights};
use sws_store::{Arena, BLOCK_BYTES, Manifest, NVMeWeightStore, PieceId};

use crate::error::StreamError;
use crate::wait::Waiter;
use embedding_rows::EmbeddingRows;
pub(crate) use resident::ResidentPieces;
use resident::ResidentWeights;
use ring::Ring;
use ring_buffer::RingBuffer;
pub use router_set::RouterSet;
use schedule::StreamSchedule;

/// What stays, and how much room there is for what does not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InfrastructurePlan {
    /// Pieces that stay in memory.
    pub pinned: Vec<PieceId>,
    /// Bytes through which everything else flows.
    pub ring: usize,
    /// Whether routed experts flow through it too.
    pub experts: bool,
}

/// Everything but routed experts, within a plan; those too, if the plan says so.
///
/// As [`Weights`] it has every vector and the matrices of pieces that stay. All other matrices are
/// lent in blocks.
#[derive(Debug)]
pub struct Infrastructure {
    store: Arc<NVMeWeightStore>,
    waiter: Waiter,
    pinned: ResidentPieces,
    lookup: Option<EmbeddingRows>,
    ring: Ring,
    spec: ModelSpec,
    probe: RouterProbe,
}

/// The embedding rows that are read at once may take one part in so many of the ring.
const LOOKUP_SHARE: usize = 8;
/// Blocks that the ring has room for, as far as checksums allow: while one is computed with, the
/// next is there and others are being read.
const BLOCKS: usize = 4;

impl Infrastructure {
    /// Takes what `plan` says out of `arena` and reads what stays.
    pub fn open(
        model: &Model,
        store: Arc<NVMeWeightStore>,
        arena: &Arena,
        plan: &InfrastructurePlan,
        waiter: Waiter,
    ) -> Result<Infrastructure, StreamError> {
        let (spec, manifest) = (model.spec(), store.manifest());
        let inventory = Inventory::new(spec, manifest)?;
        let pinned: HashSet<PieceId> = plan.pinned.iter().copied().collect();
        let streams = Streams { spec, inventory: &inventory, manifest, pinned: &pinned, plan };
        let [least_lookup, least_ring] = streams.least()?;
        let spare = plan.ring.checked_sub(least_lookup + least_ring);
        let need = least_lookup + least_ring;
        let spare = spare.ok_or(StreamError::RingTooSmall { need, have: plan.ring })?;
        let weights = ResidentPieces::load(&store, arena, &inventory, |id| pinned.contains(&id))?;
        let lookup = match streams.lookup() {
            None => None,
            Some(held) => {
                let share = if least_ring == 0 { spare } else { spare / LOOKUP_SHARE };
                Some(EmbeddingRows::new(&store, arena, held, share)?)
            }
        };
        let room = plan.ring - lookup.as_ref().map_or(0, EmbeddingRows::bytes);
        let course = streams.course(BLOCK_BYTES.min(((room - least_ring) / BLOCKS) as u64));
        let slot = match least_ring {
            0 => None,
            _ => {
                let have = arena.free_bytes();
                Some(arena.take(room).ok_or(StreamError::NoRoom { need: room, have })?)
            }
        };
        let ring = Ring::new(Arc::clone(&store), waiter.clone(), course, RingBuffer::new(slot));
        let (spec, probe) = (spec.clone(), RouterProbe::new(model.functionals()));
        Ok(Infrastructure { store, waiter, pinned: weights, lookup, ring, spec, probe })
    }

    /// The shortest ring that a plan works with.
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

    /// Writes the embeddings of `tokens` to `rows`. A pass begins with this.
    pub fn embed(&mut self, tokens: &[u32], rows: &mut [f32]) -> Result<(), StreamError> {
        self.whole(|it| {
            if let Some(lookup) = &mut it.lookup {
                lookup.embed(&it.store, &it.waiter, tokens, rows)?;
            } else if let Some(table) = it.pinned.matrix(PieceId::EMBED, Role::Embedding) {
                for (row, &token) in rows.chunks_exact_mut(table.cols()).zip(tokens) {
                    table.decode_row(token as usize, row);
                }
            }
            it.ring.begin()
        })
    }

    /// Takes note of what the router has chosen, where experts flow through the ring: their reads go
    /// before those of what follows.
    pub fn routed(&mut self, layer: usize, distinct: &[u32]) -> Result<(), StreamError> {
        self.whole(|it| it.ring.route(layer, distinct))
    }

    /// Reads on as far as there is room. Called now and then while other things are computed with.
    pub fn read_ahead(&mut self) -> Result<(), StreamError> {
        self.whole(|it| it.ring.fill())
    }

    /// What it waits with.
    pub(crate) fn waiter(&self) -> &Waiter {
        &self.waiter
    }

    /// Gives up what is being read. A pass that goes on, or another, may follow.
    pub fn interrupt(&mut self) {
        self.ring.interrupt();
    }

    /// The bytes of the ring that hold nothing.
    pub(crate) fn free_bytes(&self) -> usize {
        self.ring.free_bytes()
    }

    /// After an error nothing is left under way.
    fn whole<T>(
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

/// What a plan leaves to be streamed.
struct Streams<'a> {
    spec: &'a ModelSpec,
    inventory: &'a Inventory,
    manifest: &'a Manifest,
    pinned: &'a HashSet<PieceId>,
    plan: &'a InfrastructurePlan,
}

impl Streams<'_> {
    /// `limit`: bytes of a block, as far as checksums allow.
    fn course(&self, limit: u64) -> StreamSchedule {
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

    /// The embedding, if rows of it are looked up.
    fn lookup(&self) -> Option<Held> {
        let mut held = self.inventory.piece(PieceId::EMBED).iter();
        let found = held.find(|held| held.role == Role::Embedding).copied();
        found.filter(|_| !self.pinned.contains(&PieceId::EMBED))
    }

    /// The least that looking up rows takes, and that blocks do.
    fn least(&self) -> Result<[usize; 2], StreamError> {
        let lookup = match self.lookup() {
            Some(held) => EmbeddingRows::least(self.manifest, &held)?,
            None => 0,
        };
        Ok([lookup, self.course(0).largest(self.manifest)?])
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
