//! The order in which streamed matrices are read.

use std::collections::{HashMap, HashSet};

use sws_format::{Manifest, PieceId, PieceKind, Tensor};
use sws_kernels::{Encoding, PartRows};
use sws_model::{HeldTensor, Inventory, ModelSpec, ReadStep, Role, TensorSpec};
use sws_store::{LayoutError, Parts, PieceLayout, Read};

use crate::reads::held_tensor;

/// A streamed matrix, read whole or in blocks of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Streamed {
    pub(crate) piece: PieceId,
    pub(crate) role: Role,
    /// Index of its tensor in the piece.
    pub(crate) tensor: usize,
    pub(crate) encoding: Encoding,
    pub(crate) rows: u64,
    pub(crate) cols: u64,
    /// Rows per block; the last may have fewer.
    block: u64,
    /// Index of its first block among those of all matrices.
    pub(crate) first: usize,
}

impl Streamed {
    /// `limit` is the maximum bytes of a block, as far as checksums allow.
    pub(crate) fn new(
        piece: PieceId,
        held: &HeldTensor,
        tensor: &Tensor,
        limit: u64,
        first: usize,
    ) -> Streamed {
        let rows = held.rows as u64;
        let cols = held.cols as u64;
        let large = &tensor.parts[0];
        let row = match held.encoding.parts()[0].rows(0..1, cols) {
            Some(PartRows::Bytes(bytes)) => bytes.end - bytes.start,
            _ => 0,
        };
        // A block consists of whole checksum runs, and each run of whole rows.
        let checked = match large.check_len.checked_rem(row) {
            Some(0) => large.check_len / row,
            _ => rows,
        };
        let checks = (limit / large.check_len.max(1)).max(1);
        let block = match large.len <= limit {
            true => rows,
            false => checked.saturating_mul(checks).clamp(1, rows.max(1)),
        };
        let &HeldTensor { role, index: tensor, encoding, .. } = held;
        Streamed { piece, role, tensor, encoding, rows, cols, block, first }
    }

    /// Number of blocks.
    pub(crate) fn blocks(&self) -> usize {
        self.rows.div_ceil(self.block.max(1)) as usize
    }

    /// True if all parts but the first are read before the blocks, once for all of them.
    pub(crate) fn has_rest(&self) -> bool {
        self.block < self.rows && self.encoding.parts().len() > 1
    }

    /// Number of reads.
    pub(crate) fn reads(&self) -> usize {
        self.blocks() + usize::from(self.has_rest())
    }

    /// Rows of a block.
    pub(crate) fn rows_of(&self, block: usize) -> std::ops::Range<u64> {
        let start = block as u64 * self.block;
        start..(start + self.block).min(self.rows)
    }

    /// The read with this number, in the order in which reads are needed.
    pub(crate) fn read(&self, number: usize) -> Read {
        let &Streamed { piece, tensor, .. } = self;
        if self.block == self.rows {
            return Read::Tensor(piece, tensor);
        }
        match number.checked_sub(usize::from(self.has_rest())) {
            None => Read::Rows { piece, tensor, rows: 0..self.rows, parts: Parts::Rest },
            Some(block) => {
                Read::Rows { piece, tensor, rows: self.rows_of(block), parts: Parts::First }
            }
        }
    }

    /// Length of the slot of a read.
    fn read_len(&self, manifest: &Manifest, number: usize) -> Result<usize, LayoutError> {
        Ok(PieceLayout::new(manifest, self.read(number))?.slot_len())
    }

    /// True if it is the matrix of this role in a piece.
    fn is_of(&self, piece: PieceId, role: Role) -> bool {
        self.piece == piece && self.role == role
    }
}

/// The streamed matrices, in the order in which a pass uses them.
#[derive(Debug)]
pub(crate) struct StreamSchedule {
    steps: Vec<ScheduleStep>,
    /// Matrices and biases of experts, if experts stream.
    experts: HashMap<PieceId, Vec<Streamed>>,
    /// Position of the next read.
    at: SchedulePosition,
    /// A layer and the experts that its router has chosen.
    routed: Option<(usize, Vec<u32>)>,
    /// True if the pass is expected to use the head.
    pub(crate) expects_head: bool,
    blocks: usize,
}

#[derive(Clone, Copy, Debug)]
enum ScheduleStep {
    Matrix(Streamed),
    /// The experts that the router of this layer will choose.
    Experts(usize),
}

/// Position of a read in the schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SchedulePosition {
    step: usize,
    /// Index of the matrix among those of the chosen experts.
    matrix: usize,
    read: usize,
}

/// A read of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NextRead {
    pub(crate) matrix: Streamed,
    pub(crate) read: usize,
}

impl NextRead {
    /// True if it is the first read of the matrix of this role in a piece.
    pub(crate) fn begins(&self, piece: PieceId, role: Role) -> bool {
        self.matrix.is_of(piece, role) && self.read == 0
    }
}

impl StreamSchedule {
    /// Schedules all matrices but those of the `kept` pieces. `limit` is the maximum bytes of a
    /// block.
    pub(crate) fn new(
        spec: &ModelSpec,
        inventory: &Inventory,
        manifest: &Manifest,
        kept: &HashSet<PieceId>,
        with_experts: bool,
        limit: u64,
    ) -> StreamSchedule {
        let mut schedule = StreamSchedule {
            steps: Vec::new(),
            experts: HashMap::new(),
            at: SchedulePosition::default(),
            routed: None,
            expects_head: true,
            blocks: 0,
        };
        let mut find = |id: PieceId, role: Role| {
            let held = held_tensor(inventory, id, role)?;
            let tensor = &manifest.piece(id)?.tensors[held.index];
            let streamed = Streamed::new(id, held, tensor, limit, schedule.blocks);
            schedule.blocks += streamed.blocks();
            Some(streamed)
        };
        for visit in 0..spec.visits() {
            let (layer, reads) = spec.reads_of(visit);
            for read in reads {
                match read {
                    ReadStep::Tensor(kind, TensorSpec { role, .. }) => {
                        let id = PieceId::new(layer as u32, kind);
                        if role.is_matrix() && !kept.contains(&id) {
                            schedule.steps.extend(find(id, role).map(ScheduleStep::Matrix));
                        }
                    }
                    ReadStep::Experts { count, tensors } if with_experts => {
                        // Experts are the same in each visit of their layer.
                        let first = PieceId::expert(layer as u32, 0);
                        let count = match schedule.experts.contains_key(&first) {
                            true => 0,
                            false => count,
                        };
                        for expert in 0..count as u32 {
                            let id = PieceId::expert(layer as u32, expert);
                            // Biases stream too: those of all experts together are not small.
                            let mut matrices = Vec::new();
                            for tensor in &tensors {
                                matrices.extend(find(id, tensor.role));
                            }
                            schedule.experts.insert(id, matrices);
                        }
                        schedule.steps.push(ScheduleStep::Experts(layer));
                    }
                    ReadStep::Experts { .. } => {}
                }
            }
        }
        for (id, TensorSpec { role, .. }) in spec.ending() {
            if role.is_matrix() && !kept.contains(&id) {
                schedule.steps.extend(find(id, role).map(ScheduleStep::Matrix));
            }
        }
        schedule
    }

    /// Number of blocks of all matrices.
    pub(crate) fn blocks(&self) -> usize {
        self.blocks
    }

    /// All matrices.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = &Streamed> {
        let steps = self.steps.iter().filter_map(|step| match step {
            ScheduleStep::Matrix(matrix) => Some(matrix),
            ScheduleStep::Experts(_) => None,
        });
        steps.chain(self.experts.values().flatten())
    }

    /// Maximum bytes of a block of any matrix, with its separately read parts.
    pub(crate) fn largest(&self, manifest: &Manifest) -> Result<usize, LayoutError> {
        let mut largest = 0;
        for matrix in self.matrices() {
            let rest = if matrix.has_rest() { matrix.read_len(manifest, 0)? } else { 0 };
            for read in usize::from(matrix.has_rest())..matrix.reads() {
                largest = largest.max(rest + matrix.read_len(manifest, read)?);
            }
        }
        Ok(largest)
    }

    /// Schedules the experts that a router has chosen.
    pub(crate) fn route(&mut self, layer: usize, experts: &[u32]) {
        let mut list = match self.routed.take() {
            Some((_, list)) => list,
            None => Vec::new(),
        };
        list.clear();
        list.extend_from_slice(experts);
        self.routed = Some((layer, list));
    }

    /// The next read; `None` if it depends on a router that has not chosen yet.
    pub(crate) fn next(&self) -> Option<NextRead> {
        let matrix = match *self.steps.get(self.at.step)? {
            ScheduleStep::Matrix(matrix) => matrix,
            ScheduleStep::Experts(layer) => self.expert(layer, self.at.matrix)?,
        };
        Some(NextRead { matrix, read: self.at.read })
    }

    /// Advances behind [`next`](Self::next).
    pub(crate) fn advance(&mut self) {
        let Some(NextRead { matrix, .. }) = self.next() else { return };
        self.at.read += 1;
        if self.at.read < matrix.reads() {
            return;
        }
        self.at.read = 0;
        if let ScheduleStep::Experts(layer) = self.steps[self.at.step] {
            self.at.matrix += 1;
            if self.expert(layer, self.at.matrix).is_some() {
                return;
            }
            self.routed = None;
        }
        let mut step = (self.at.step + 1) % self.steps.len();
        for _ in 0..self.steps.len() {
            if self.expects_head || !self.is_head(step) {
                break;
            }
            step = (step + 1) % self.steps.len();
        }
        self.at = SchedulePosition { step, ..SchedulePosition::default() };
    }

    /// Returns to the start of a pass.
    pub(crate) fn restart(&mut self) {
        self.at = SchedulePosition::default();
        self.routed = None;
    }

    /// Moves to the next first read of a matrix. Returns `None` if it is not streamed.
    pub(crate) fn seek(&mut self, piece: PieceId, role: Role) -> Option<Streamed> {
        let (step, matrix, found) = match piece.kind() {
            PieceKind::Expert(_) => {
                let matrices = self.experts.get(&piece)?;
                let found = *matrices.iter().find(|matrix| matrix.is_of(piece, role))?;
                let layer = piece.layer()? as usize;
                let is_layer = |step: &usize| match self.steps[*step] {
                    ScheduleStep::Experts(of) => of == layer,
                    ScheduleStep::Matrix(_) => false,
                };
                let step = self.onward().find(is_layer)?;
                let mut at = 0;
                while let Some(chosen) = self.expert(layer, at)
                    && !chosen.is_of(piece, role)
                {
                    at += 1;
                }
                (step, at, found)
            }
            _ => {
                let (step, found) = self.onward().find_map(|n| match &self.steps[n] {
                    ScheduleStep::Matrix(matrix) if matrix.is_of(piece, role) => Some((n, *matrix)),
                    _ => None,
                })?;
                (step, 0, found)
            }
        };
        self.at = SchedulePosition { step, matrix, read: 0 };
        Some(found)
    }

    /// All steps from the present one on, then those before it.
    fn onward(&self) -> impl Iterator<Item = usize> + use<> {
        (self.at.step..self.steps.len()).chain(0..self.at.step)
    }

    /// The n-th matrix of the experts chosen in a layer.
    fn expert(&self, layer: usize, n: usize) -> Option<Streamed> {
        let (routed, experts) = self.routed.as_ref()?;
        if *routed != layer {
            return None;
        }
        // All experts of a layer have the same tensors.
        let each = self.matrices_of(layer, *experts.first()?)?.len();
        self.matrices_of(layer, *experts.get(n.checked_div(each)?)?)?.get(n % each).copied()
    }

    /// The matrices of an expert.
    fn matrices_of(&self, layer: usize, expert: u32) -> Option<&Vec<Streamed>> {
        self.experts.get(&PieceId::expert(layer as u32, expert))
    }

    /// True if a step is the head, or a norm before it, which prompts reach only in their last
    /// chunk.
    fn is_head(&self, step: usize) -> bool {
        let head = [PieceId::FINAL_NORM, PieceId::LM_HEAD, PieceId::EMBED];
        matches!(self.steps[step], ScheduleStep::Matrix(matrix) if head.contains(&matrix.piece))
    }
}
