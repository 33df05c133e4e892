//! Weights without values: they take as long to compute with as those of the model.

use std::collections::HashMap;
use std::ops::Range;

use sws_kernels::{Encoding, Matrix};
use sws_model::{
    Compute, FindRows, Held, Inventory, ModelSpec, Observer, PassSource, Ready, Role, Routed,
    SourceError, TakeRow, WeightSource, Weights,
};
use sws_store::{Manifest, Piece, PieceId, PieceKind};

/// Weights that are all zeros, in memory that many of them share.
#[derive(Debug)]
pub(super) struct Blank<'z> {
    weights: Zeros<'z>,
    /// For each layer the rows of its table that a token chooses, and their length.
    rows: Vec<(usize, usize)>,
    /// A row.
    row: Vec<f32>,
    has_head: bool,
}

#[derive(Debug)]
struct Zeros<'z> {
    zeros: &'z [u8],
    pieces: HashMap<PieceId, Vec<Tensor>>,
    /// Experts of a layer, and how many later ones stand for those that are asked for.
    experts: u32,
    shift: u32,
}

#[derive(Debug)]
struct Tensor {
    role: Role,
    encoding: Encoding,
    rows: usize,
    cols: usize,
    /// Places among the zeros.
    parts: [Range<usize>; 3],
    /// A norm, a bias or a table of experts; empty for a matrix.
    vector: Vec<f32>,
}

/// Pieces begin on pages and parts on cache lines, as in memory for weights.
const PAGE: usize = 4096;
const LINE: usize = 64;

impl<'z> Blank<'z> {
    /// The weights of a model. They lie one after the other, and from the first place on again
    /// where `zeros` end, which must be as long as the longest part. Without `has_head` passes end
    /// before the head.
    pub(super) fn new(
        (spec, inventory): (&ModelSpec, &Inventory),
        manifest: &Manifest,
        zeros: &'z [u8],
        has_head: bool,
    ) -> Blank<'z> {
        let (mut pieces, mut end) = (HashMap::new(), 0);
        for piece in &manifest.pieces {
            end = usize::next_multiple_of(end, PAGE);
            let held = inventory.piece(piece.id).iter();
            let tensors = held.map(|held| Tensor::new(piece, held, zeros.len(), &mut end));
            pieces.insert(piece.id, tensors.collect());
        }
        let rows = (0..spec.layers.len()).map(|layer| match spec.rows_of_token(layer) {
            0 => (0, 0),
            count => {
                let mut table = inventory.piece(PieceId::table(layer as u32, 0)).iter();
                (count, table.find(|held| held.role == Role::Table).map_or(0, |held| held.cols))
            }
        });
        let rows = rows.collect();
        let experts = manifest.pieces.iter().filter_map(|piece| match piece.id.kind() {
            PieceKind::Expert(expert) => Some(expert + 1),
            _ => None,
        });
        let experts = experts.max().unwrap_or(1);
        Blank {
            weights: Zeros { zeros, pieces, experts, shift: 0 },
            rows,
            row: Vec::new(),
            has_head,
        }
    }
}

impl Tensor {
    fn new(piece: &Piece, held: &Held, most: usize, end: &mut usize) -> Tensor {
        let &Held { role, index, encoding, rows, cols } = held;
        let mut parts = [const { 0..0 }; 3];
        for (part, extent) in parts.iter_mut().zip(&piece.tensors[index].parts) {
            let len = extent.len as usize;
            if *end + len > most {
                *end = 0;
            }
            *part = *end..*end + len;
            *end = part.end.next_multiple_of(LINE);
        }
        let is_vector = !role.is_matrix() && !matches!(piece.id.kind(), PieceKind::Expert(_));
        let mut vector = vec![0.0; if is_vector { rows * cols } else { 0 }];
        // A row has different experts, each in two halves, the lower one first.
        if role == Role::ExpertTable {
            for (at, value) in vector.iter_mut().enumerate().step_by(2) {
                *value = f32::from_bits((at % cols / 2) as u32);
            }
        }
        Tensor { role, encoding, rows, cols, parts, vector }
    }
}

impl Zeros<'_> {
    /// Zeros always choose the first experts, which would stay in the processor's cache. So others
    /// stand for them, in turn.
    fn stand_in(&self, piece: PieceId) -> PieceId {
        match (piece.layer(), piece.kind()) {
            (Some(layer), PieceKind::Expert(expert)) => {
                PieceId::new(layer, PieceKind::Expert((expert + self.shift) % self.experts))
            }
            _ => piece,
        }
    }

    fn get(&self, piece: PieceId, role: Role) -> &Tensor {
        let found = self.pieces.get(&self.stand_in(piece)).or_else(|| self.pieces.get(&piece));
        let found = found.and_then(|held| held.iter().find(|it| it.role == role));
        found.unwrap_or_else(|| panic!("{piece} has no {role:?} in the inventory"))
    }

    fn view(&self, piece: PieceId, role: Role) -> Result<Matrix<'_>, SourceError> {
        let &Tensor { encoding, rows, cols, ref parts, .. } = self.get(piece, role);
        let parts = parts.each_ref().map(|part| self.zeros.get(part.clone()).unwrap_or_default());
        Ok(Matrix::new(encoding, rows, cols, &parts[..encoding.parts().len()])?)
    }
}

impl Weights for Zeros<'_> {
    fn vector(&self, piece: PieceId, role: Role) -> &[f32] {
        &self.get(piece, role).vector
    }

    fn matrix(&self, piece: PieceId, role: Role) -> Option<Matrix<'_>> {
        self.view(piece, role).ok()
    }

    fn blocks(
        &mut self,
        piece: PieceId,
        role: Role,
        compute: &mut dyn FnMut(usize, &Matrix<'_>),
    ) -> Result<(), SourceError> {
        compute(0, &self.view(piece, role)?);
        Ok(())
    }
}

impl WeightSource for Blank<'_> {
    fn embed(&mut self, _: &[u32], rows: &mut [f32]) -> Result<(), SourceError> {
        rows.fill(0.0);
        Ok(())
    }

    fn look_up(
        &mut self,
        layer: usize,
        _: FindRows<'_>,
        take: TakeRow<'_>,
    ) -> Result<(), SourceError> {
        let (count, len) = self.rows[layer];
        self.row.resize(len, 0.0);
        (0..count).for_each(|place| take(place, &self.row));
        Ok(())
    }

    fn infrastructure(
        &mut self,
        _: usize,
        _: &[PieceKind],
        compute: Compute<'_>,
    ) -> Result<(), SourceError> {
        compute(&mut self.weights)
    }

    fn experts(&mut self, _: usize, routed: &Routed, ready: Ready<'_>) -> Result<(), SourceError> {
        ready(&routed.distinct, &mut self.weights)?;
        let weights = &mut self.weights;
        weights.shift = (weights.shift + routed.distinct.len() as u32) % weights.experts;
        Ok(())
    }

    fn head(&mut self, compute: Compute<'_>) -> Result<(), SourceError> {
        if self.has_head { compute(&mut self.weights) } else { Ok(()) }
    }
}

impl Observer for Blank<'_> {}

impl PassSource for Blank<'_> {}
