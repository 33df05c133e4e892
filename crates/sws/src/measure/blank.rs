//! Placeholder weights, which take as long to compute with as those of the model.

use std::collections::HashMap;
use std::ops::Range;

use sws_format::{Manifest, Piece, PieceId, PieceKind};
use sws_kernels::{Encoding, Matrix};
use sws_model::{
    Compute, FindRows, HeldTensor, Inventory, ModelSpec, Observer, PassSource, Ready, Role, Routed,
    SourceError, TakeRow, WeightSource, Weights,
};

/// Placeholder weights, many of which share memory. Their inputs are zeros.
#[derive(Debug)]
pub(super) struct Blank<'m> {
    weights: BlankShared<'m>,
    /// For each layer, the number of table rows that a token looks up, and their length.
    rows: Vec<(usize, usize)>,
    /// A row.
    row: Vec<f32>,
    has_head: bool,
}

/// Memory of placeholder weights: zeros, and bytes that make no number near zero, for encodings that
/// need them.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlankMemory<'m> {
    pub(super) zeros: &'m [u8],
    pub(super) powers: &'m [u8],
}

#[derive(Debug)]
struct BlankShared<'m> {
    memory: BlankMemory<'m>,
    pieces: HashMap<PieceId, Vec<BlankTensor>>,
    /// Number of experts of a layer, and the shift by which a later expert stands in for the
    /// requested one.
    experts: u32,
    shift: u32,
}

#[derive(Debug)]
struct BlankTensor {
    role: Role,
    encoding: Encoding,
    rows: usize,
    cols: usize,
    /// Memory range of each part.
    parts: [Range<usize>; Encoding::MOST_PARTS],
    /// Values of a norm, a bias or a table of experts; empty for a matrix.
    vector: Vec<f32>,
}

/// Pieces begin on pages and parts on cache lines, as the real weights do.
const PAGE: usize = 4096;
const LINE: usize = 64;

/// True for encodings of which a part [needs powers](Encoding::needs_powers).
pub(super) fn needs_powers(encoding: Encoding) -> bool {
    (0..encoding.parts().len()).any(|part| encoding.needs_powers(part))
}

impl<'m> BlankMemory<'m> {
    /// Byte that gives codes and scales of moderate size.
    pub(super) const POWER: u8 = 0x3c;

    fn of(&self, encoding: Encoding, part: usize) -> &'m [u8] {
        if encoding.needs_powers(part) { self.powers } else { self.zeros }
    }
}

impl<'m> Blank<'m> {
    /// The placeholder weights of a model. They lie one after another and start over where their
    /// memory ends, which must be as long as the longest part. Without `has_head` passes end before
    /// the head.
    pub(super) fn new(
        (spec, inventory): (&ModelSpec, &Inventory),
        manifest: &Manifest,
        memory: BlankMemory<'m>,
        has_head: bool,
    ) -> Blank<'m> {
        let mut pieces = HashMap::new();
        let mut ends = [0_usize; 2];
        let mut experts = 1;
        for piece in &manifest.pieces {
            for end in &mut ends {
                *end = end.next_multiple_of(PAGE);
            }
            let mut tensors = Vec::new();
            for held in inventory.piece(piece.id) {
                tensors.push(BlankTensor::new(piece, held, memory, &mut ends));
            }
            pieces.insert(piece.id, tensors);
            if let PieceKind::Expert(expert) = piece.id.kind() {
                experts = experts.max(expert + 1);
            }
        }
        let mut rows = Vec::with_capacity(spec.layers.len());
        for layer in 0..spec.layers.len() {
            let count = spec.rows_of_token(layer);
            let mut len = 0;
            if count > 0 {
                let mut table = inventory.piece(PieceId::table(layer as u32, 0)).iter();
                if let Some(held) = table.find(|held| held.role == Role::Table) {
                    len = held.cols;
                }
            }
            rows.push((count, len));
        }
        Blank {
            weights: BlankShared { memory, pieces, experts, shift: 0 },
            rows,
            row: Vec::new(),
            has_head,
        }
    }
}

impl BlankTensor {
    fn new(
        piece: &Piece,
        held: &HeldTensor,
        memory: BlankMemory<'_>,
        ends: &mut [usize; 2],
    ) -> BlankTensor {
        let &HeldTensor { role, index, encoding, rows, cols } = held;
        let mut parts = [const { 0..0 }; Encoding::MOST_PARTS];
        let extents = piece.tensors[index].parts.iter().enumerate();
        for (part, (number, extent)) in parts.iter_mut().zip(extents) {
            let len = extent.len as usize;
            let end = &mut ends[usize::from(encoding.needs_powers(number))];
            if *end + len > memory.of(encoding, number).len() {
                *end = 0;
            }
            *part = *end..*end + len;
            *end = part.end.next_multiple_of(LINE);
        }
        let is_vector = !role.is_matrix() && !matches!(piece.id.kind(), PieceKind::Expert(_));
        let mut vector = vec![0.0; if is_vector { rows * cols } else { 0 }];
        // Each row lists different experts, each as two halves, the lower one first.
        if role == Role::ExpertTable {
            for (at, value) in vector.iter_mut().enumerate().step_by(2) {
                *value = f32::from_bits((at % cols / 2) as u32);
            }
        }
        BlankTensor { role, encoding, rows, cols, parts, vector }
    }
}

impl BlankShared<'_> {
    /// Zero inputs always select the first experts, which would then stay in the processor's cache.
    /// Other experts take their place, in turn.
    fn stand_in(&self, piece: PieceId) -> PieceId {
        match (piece.layer(), piece.kind()) {
            (Some(layer), PieceKind::Expert(expert)) => {
                PieceId::new(layer, PieceKind::Expert((expert + self.shift) % self.experts))
            }
            _ => piece,
        }
    }

    fn get(&self, piece: PieceId, role: Role) -> &BlankTensor {
        let held = self.pieces.get(&self.stand_in(piece)).or_else(|| self.pieces.get(&piece));
        if let Some(held) = held
            && let Some(found) = held.iter().find(|it| it.role == role)
        {
            return found;
        }
        panic!("{piece} has no {role:?} in the inventory")
    }

    fn view(&self, piece: PieceId, role: Role) -> Result<Matrix<'_>, SourceError> {
        let &BlankTensor { encoding, rows, cols, ref parts, .. } = self.get(piece, role);
        let bytes = |number: usize| {
            let memory = self.memory.of(encoding, number);
            memory.get(parts[number].clone()).unwrap_or_default()
        };
        let parts: [&[u8]; Encoding::MOST_PARTS] = std::array::from_fn(bytes);
        Ok(Matrix::new(encoding, rows, cols, &parts[..encoding.parts().len()])?)
    }
}

impl Weights for BlankShared<'_> {
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
        for place in 0..count {
            take(place, &self.row);
        }
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

#[cfg(test)]
mod tests {
    use sws_kernels::{MatrixPart, PartLen};

    use super::*;

    /// A row of a matrix in which all bytes of a part are the same.
    fn row(encoding: Encoding, byte: impl Fn(usize) -> u8) -> Vec<f32> {
        let cols = 256;
        let bytes = |(number, part): (usize, &MatrixPart)| match part.len(1, cols as u64) {
            Some(PartLen::Exact(len) | PartLen::AtLeast(len)) => vec![byte(number); len as usize],
            other => panic!("{encoding}: {other:?}"),
        };
        let parts: Vec<Vec<u8>> = encoding.parts().iter().enumerate().map(bytes).collect();
        let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        let mut out = vec![0.0; cols];
        Matrix::new(encoding, 1, cols, &parts).unwrap().decode_row(0, &mut out);
        out
    }

    #[test]
    fn no_weight_is_below_the_normal_numbers() {
        for encoding in Encoding::ALL.into_iter().filter(|&encoding| needs_powers(encoding)) {
            // Codes in a table of one exponent, where only scales are powers.
            let byte = |part: usize| match encoding.needs_powers(part) {
                true => BlankMemory::POWER,
                false => 8 * u8::from(part == 1),
            };
            let row = row(encoding, byte);
            assert!(row.iter().all(|weight| weight.is_normal()), "{encoding}: {row:?}");
        }
    }
}
