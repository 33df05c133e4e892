//! What is read again and again, and in which order.

use std::collections::HashMap;

use sws_kernels::{Encoding, PartRows};
use sws_model::{Held, Inventory, ModelSpec, ReadStep, Role, TensorSpec};
use sws_store::{LayoutError, Manifest, Parts, PieceId, PieceKind, PieceLayout, Read, Tensor};

/// A matrix that is read when it is needed, whole or in blocks of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Streamed {
    pub(crate) piece: PieceId,
    pub(crate) role: Role,
    /// Its place in the piece.
    pub(crate) tensor: usize,
    pub(crate) encoding: Encoding,
    pub(crate) rows: u64,
    pub(crate) cols: u64,
    /// Rows of each block but the last.
    block: u64,
    /// The number of its first block among those of all matrices.
    pub(crate) first: usize,
}

impl Streamed {
    /// `limit`: bytes of a block, as far as its checksums allow.
    pub(crate) fn new(
        piece: PieceId,
        held: &Held,
        tensor: &Tensor,
        limit: u64,
        first: usize,
    ) -> Streamed {
        let (rows, cols) = (held.rows as u64, held.cols as u64);
        let large = &tensor.parts[0];
        let row = match held.encoding.parts()[0].rows(0..1, cols) {
            Some(PartRows::Bytes(bytes)) => bytes.end - bytes.start,
            _ => 0,
        };
        // A block is made of whole checks, and a check of whole rows.
        let checked = match large.check_len.checked_rem(row) {
            Some(0) => large.check_len / row,
            _ => rows,
        };
        let checks = (limit / large.check_len.max(1)).max(1);
        let block = match large.len <= limit {
            true => rows,
            false => checked.saturating_mul(checks).clamp(1, rows.max(1)),
        };
        let &Held { role, index: tensor, encoding, .. } = held;
        Streamed { piece, role, tensor, encoding, rows, cols, block, first }
    }

    /// How many blocks it has.
    pub(crate) fn blocks(&self) -> usize {
        self.rows.div_ceil(self.block.max(1)) as usize
    }

    /// Whether all parts but the first are read before the blocks, once for all of them.
    pub(crate) fn has_rest(&self) -> bool {
        self.block < self.rows && self.encoding.parts().len() > 1
    }

    /// How many reads it takes.
    pub(crate) fn reads(&self) -> usize {
        self.blocks() + usize::from(self.has_rest())
    }

    /// The rows of a block.
    pub(crate) fn rows_of(&self, block: usize) -> std::ops::Range<u64> {
        let start = block as u64 * self.block;
        start..(start + self.block).min(self.rows)
    }

    /// One of its reads, in the order in which they are needed.
    pub(crate) fn read(&self, number: usize) -> Read {
        let &Streamed { piece, tensor, .. } = self;
        if self.block == self.rows {
            return Read::Tensor(piece, tensor);
        }
        let rows = |rows, parts| Read::Rows { piece, tensor, rows, parts };
        match number.checked_sub(usize::from(self.has_rest())) {
            None => rows(0..self.rows, Parts::Rest),
            Some(block) => rows(self.rows_of(block), Parts::First),
        }
    }
}

/// The matrices that are not kept, in the order in which a pass asks for them.
#[derive(Debug)]
pub(crate) struct StreamSchedule {
    steps: Vec<Step>,
    /// The matrices of experts, if they come along here.
    experts: HashMap<PieceId, Vec<Streamed>>,
    /// Where what comes next stands.
    at: Place,
    /// The experts that the router of a layer has chosen.
    routed: Option<(usize, Vec<u32>)>,
    /// Whether the head is expected at the end of the pass.
    pub(crate) to_head: bool,
    blocks: usize,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Matrix(Streamed),
    /// Those that the router of this layer will choose.
    Experts(usize),
}

/// A read of the course.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Place {
    step: usize,
    /// Which matrix of the chosen experts.
    matrix: usize,
    read: usize,
}

/// A read of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Next {
    pub(crate) matrix: Streamed,
    pub(crate) read: usize,
}

impl StreamSchedule {
    /// Everything that `kept` does not name. `limit`: bytes of a block.
    pub(crate) fn new(
        spec: &ModelSpec,
        inventory: &Inventory,
        manifest: &Manifest,
        kept: impl Fn(PieceId) -> bool,
        with_experts: bool,
        limit: u64,
    ) -> StreamSchedule {
        let mut course = StreamSchedule {
            steps: Vec::new(),
            experts: HashMap::new(),
            at: Place::default(),
            routed: None,
            to_head: true,
            blocks: 0,
        };
        let mut find = |id: PieceId, role: Role| {
            let held = inventory.piece(id).iter().find(|held| held.role == role)?;
            let tensor = &manifest.piece(id)?.tensors[held.index];
            let streamed = Streamed::new(id, held, tensor, limit, course.blocks);
            course.blocks += streamed.blocks();
            Some(streamed)
        };
        for layer in 0..spec.layers.len() {
            for read in spec.reads(layer) {
                match read {
                    ReadStep::Tensor(kind, TensorSpec { role, .. }) => {
                        let id = PieceId::new(layer as u32, kind);
                        if role.is_matrix() && !kept(id) {
                            course.steps.extend(find(id, role).map(Step::Matrix));
                        }
                    }
                    ReadStep::Experts { count, tensors } if with_experts => {
                        let roles = || tensors.iter().map(|tensor| tensor.role);
                        for expert in 0..count as u32 {
                            let id = PieceId::expert(layer as u32, expert);
                            let matrices = roles().filter(|role| role.is_matrix());
                            let matrices = matrices.filter_map(|role| find(id, role)).collect();
                            course.experts.insert(id, matrices);
                        }
                        course.steps.push(Step::Experts(layer));
                    }
                    ReadStep::Experts { .. } => {}
                }
            }
        }
        let (head, TensorSpec { role, .. }) = spec.head();
        if !kept(head) {
            course.steps.extend(find(head, role).map(Step::Matrix));
        }
        course
    }

    /// All blocks that are numbered.
    pub(crate) fn blocks(&self) -> usize {
        self.blocks
    }

    /// All matrices.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = &Streamed> {
        let steps = self.steps.iter().filter_map(|step| match step {
            Step::Matrix(matrix) => Some(matrix),
            Step::Experts(_) => None,
        });
        steps.chain(self.experts.values().flatten())
    }

    /// The most memory that a block of any matrix needs, together with what is read apart.
    pub(crate) fn largest(&self, manifest: &Manifest) -> Result<usize, LayoutError> {
        let mut largest = 0;
        for matrix in self.matrices() {
            let len = |read| Ok(PieceLayout::new(manifest, matrix.read(read))?.slot_len());
            let rest = if matrix.has_rest() { len(0)? } else { 0 };
            for read in usize::from(matrix.has_rest())..matrix.reads() {
                largest = largest.max(rest + len(read)?);
            }
        }
        Ok(largest)
    }

    /// The router has chosen.
    pub(crate) fn route(&mut self, layer: usize, experts: &[u32]) {
        let mut list = self.routed.take().map_or_else(Vec::new, |(_, list)| list);
        list.clear();
        list.extend_from_slice(experts);
        self.routed = Some((layer, list));
    }

    /// What will be needed next; none if nobody knows yet.
    pub(crate) fn next(&self) -> Option<Next> {
        let matrix = match *self.steps.get(self.at.step)? {
            Step::Matrix(matrix) => matrix,
            Step::Experts(layer) => self.expert(layer, self.at.matrix)?,
        };
        Some(Next { matrix, read: self.at.read })
    }

    /// Goes on behind [`next`](Self::next).
    pub(crate) fn advance(&mut self) {
        let Some(Next { matrix, .. }) = self.next() else { return };
        self.at.read += 1;
        if self.at.read < matrix.reads() {
            return;
        }
        self.at.read = 0;
        if let Step::Experts(layer) = self.steps[self.at.step] {
            self.at.matrix += 1;
            if self.expert(layer, self.at.matrix).is_some() {
                return;
            }
            self.routed = None;
        }
        let mut step = (self.at.step + 1) % self.steps.len();
        if !self.to_head && self.is_head(step) {
            step = (step + 1) % self.steps.len();
        }
        self.at = Place { step, ..Place::default() };
    }

    /// Goes back to where a pass begins.
    pub(crate) fn restart(&mut self) {
        self.at = Place::default();
        self.routed = None;
    }

    /// Goes back, or ahead, to the first read of a matrix; none if it is not streamed.
    pub(crate) fn seek(&mut self, piece: PieceId, role: Role) -> Option<Streamed> {
        let is = |matrix: &Streamed| matrix.piece == piece && matrix.role == role;
        let (step, matrix, found) = match piece.kind() {
            PieceKind::Expert(_) => {
                let found = *self.experts.get(&piece)?.iter().find(|&matrix| is(matrix))?;
                let layer = piece.layer()? as usize;
                let is_layer = |step: &Step| matches!(step, Step::Experts(l) if *l == layer);
                let step = self.steps.iter().position(is_layer)?;
                let chosen = (0..).map_while(|n| self.expert(layer, n));
                (step, chosen.take_while(|matrix| !is(matrix)).count(), found)
            }
            _ => {
                let mut steps = self.steps.iter().enumerate();
                let (step, found) = steps.find_map(|(n, step)| match step {
                    Step::Matrix(matrix) if is(matrix) => Some((n, *matrix)),
                    _ => None,
                })?;
                (step, 0, found)
            }
        };
        self.at = Place { step, matrix, read: 0 };
        Some(found)
    }

    /// The n-th matrix of the experts chosen in a layer.
    fn expert(&self, layer: usize, n: usize) -> Option<Streamed> {
        let (_, experts) = self.routed.as_ref().filter(|(routed, _)| *routed == layer)?;
        let matrices = |expert| self.experts.get(&PieceId::expert(layer as u32, expert));
        // Experts of a layer have the same tensors.
        let each = matrices(*experts.first()?)?.len();
        matrices(*experts.get(n.checked_div(each)?)?)?.get(n % each).copied()
    }

    /// Whether it is the end of a pass, which prompts reach in their last chunk only.
    fn is_head(&self, step: usize) -> bool {
        let head = |id| id == PieceId::LM_HEAD || id == PieceId::EMBED;
        matches!(self.steps[step], Step::Matrix(matrix) if head(matrix.piece))
    }
}
