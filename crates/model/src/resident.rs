//! A model held entirely in memory.

use std::collections::HashMap;
use std::ops::Range;

use sws_format::{Extent, Manifest, Piece, PieceId, PieceKind};
use sws_kernels::{Encoding, Matrix, MatrixError};

use crate::inventory::{HeldTensor, Inventory, WeightsError};
use crate::observer::Observer;
use crate::role::Role;
use crate::source::{
    Compute, FindRows, PassSource, Ready, Routed, SourceError, TakeRow, WeightSource, Weights,
};
use crate::spec::ModelSpec;

/// All weights in memory, as they are stored. The reference for every other source.
#[derive(Debug)]
pub struct ResidentSource {
    weights: Resident,
    /// Buffer for the numbers of looked-up rows.
    numbers: Vec<u64>,
    /// Buffer for a row of a table.
    row: Vec<f32>,
}

/// Accepts the pieces of a model as they arrive, in any order.
#[derive(Debug)]
pub struct ResidentLoader<'a> {
    manifest: &'a Manifest,
    inventory: Inventory,
    weights: Resident,
}

/// Reasons why weights could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum LoadError {
    /// The weights do not match the configuration.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The weights could not be read.
    #[error(transparent)]
    Read(SourceError),
    /// The bytes do not form a valid matrix.
    #[error("the tensor `{name}` is damaged ({cause}); get its file again")]
    Matrix {
        name: String,
        /// The problem with the matrix.
        cause: MatrixError,
    },
}

impl ResidentSource {
    /// Checks that the weights match `spec`, then loads the tensors it asks for: `read` fills a
    /// slice with the bytes of an extent.
    pub fn load(
        spec: &ModelSpec,
        manifest: &Manifest,
        mut read: impl FnMut(&Extent, &mut [u8]) -> Result<(), SourceError>,
    ) -> Result<ResidentSource, LoadError> {
        let mut loader = ResidentLoader::new(spec, manifest)?;
        for id in loader.wanted() {
            loader.add(id, |extent, _, into| read(extent, into))?;
        }
        Ok(loader.finish())
    }

    /// The bytes of all weights in memory.
    pub fn bytes(&self) -> u64 {
        self.weights.pieces.values().map(|piece| piece.bytes.capacity() as u64).sum()
    }

    fn reach(&mut self) -> &mut dyn Weights {
        &mut self.weights
    }
}

impl<'a> ResidentLoader<'a> {
    /// Checks that the weights match `spec`.
    pub fn new(
        spec: &ModelSpec,
        manifest: &'a Manifest,
    ) -> Result<ResidentLoader<'a>, WeightsError> {
        let inventory = Inventory::new(spec, manifest)?;
        let weights = Resident { pieces: HashMap::new() };
        Ok(ResidentLoader { manifest, inventory, weights })
    }

    /// The pieces that are needed and have not been added yet.
    pub fn wanted(&self) -> Vec<PieceId> {
        let mut wanted = Vec::new();
        for piece in &self.manifest.pieces {
            let is_asked = !self.inventory.piece(piece.id).is_empty();
            if is_asked && !self.weights.pieces.contains_key(&piece.id) {
                wanted.push(piece.id);
            }
        }
        wanted
    }

    /// Adds a piece: `read` fills a slice with the bytes of an extent. Its second argument gives
    /// the tensor and the part as indices in the piece. Every number is checked to be finite.
    pub fn add(
        &mut self,
        id: PieceId,
        read: impl FnMut(&Extent, (usize, usize), &mut [u8]) -> Result<(), SourceError>,
    ) -> Result<(), LoadError> {
        if let Some(piece) = self.manifest.piece(id) {
            let loaded = LoadedPiece::load(piece, self.inventory.piece(id), read)?;
            self.weights.pieces.insert(id, loaded);
        }
        Ok(())
    }

    /// Returns the source once every piece has been added.
    ///
    /// # Panics
    ///
    /// If a piece is still missing.
    pub fn finish(self) -> ResidentSource {
        assert_eq!(self.wanted(), [], "pieces that were not added");
        ResidentSource { weights: self.weights, numbers: Vec::new(), row: Vec::new() }
    }
}

impl WeightSource for ResidentSource {
    fn embed(&mut self, tokens: &[u32], rows: &mut [f32]) -> Result<(), SourceError> {
        let table = self.weights.get(PieceId::EMBED, Role::Embedding);
        for (row, &token) in rows.chunks_exact_mut(table.cols()).zip(tokens) {
            table.decode_row(token as usize, row);
        }
        Ok(())
    }

    fn look_up(
        &mut self,
        layer: usize,
        find: FindRows<'_>,
        take: TakeRow<'_>,
    ) -> Result<(), SourceError> {
        self.numbers.clear();
        find(&self.weights, &mut self.numbers)?;
        let mut first = 0;
        for part in 0.. {
            let id = PieceId::table(layer as u32, part);
            if !self.weights.pieces.contains_key(&id) {
                break;
            }
            let part = self.weights.get(id, Role::Table);
            let range = first..first + part.row_count() as u64;
            self.row.resize(part.cols(), 0.0);
            for (place, number) in self.numbers.iter().enumerate() {
                if range.contains(number) {
                    part.decode_row((number - first) as usize, &mut self.row);
                    take(place, &self.row);
                }
            }
            first = range.end;
        }
        Ok(())
    }

    fn infrastructure(
        &mut self,
        _: usize,
        _: &[PieceKind],
        compute: Compute<'_>,
    ) -> Result<(), SourceError> {
        compute(self.reach())
    }

    fn experts(&mut self, _: usize, routed: &Routed, ready: Ready<'_>) -> Result<(), SourceError> {
        ready(&routed.distinct, self.reach())
    }

    fn head(&mut self, compute: Compute<'_>) -> Result<(), SourceError> {
        compute(self.reach())
    }
}

impl Observer for ResidentSource {}

impl PassSource for ResidentSource {}

#[derive(Debug)]
struct Resident {
    pieces: HashMap<PieceId, LoadedPiece>,
}

impl Resident {
    fn find(&self, piece: PieceId, role: Role) -> (&LoadedPiece, &ResidentTensor) {
        if let Some(loaded) = self.pieces.get(&piece)
            && let Some(stored) = loaded.tensors.iter().find(|stored| stored.role == role)
        {
            return (loaded, stored);
        }
        panic!("{piece} has no {role:?} in the inventory")
    }

    fn get(&self, piece: PieceId, role: Role) -> Matrix<'_> {
        let (loaded, stored) = self.find(piece, role);
        stored.matrix(&loaded.bytes).expect("checked when it was loaded")
    }
}

impl Weights for Resident {
    fn vector(&self, piece: PieceId, role: Role) -> &[f32] {
        &self.find(piece, role).1.vector
    }

    fn matrix(&self, piece: PieceId, role: Role) -> Option<Matrix<'_>> {
        Some(self.get(piece, role))
    }

    fn blocks(
        &mut self,
        piece: PieceId,
        role: Role,
        compute: &mut dyn FnMut(usize, &Matrix<'_>),
    ) -> Result<(), SourceError> {
        compute(0, &self.get(piece, role));
        Ok(())
    }
}

/// One piece.
#[derive(Debug)]
struct LoadedPiece {
    bytes: Vec<u8>,
    tensors: Vec<ResidentTensor>,
}

#[derive(Debug)]
struct ResidentTensor {
    role: Role,
    encoding: Encoding,
    rows: usize,
    cols: usize,
    /// Byte range of each part.
    parts: [Range<usize>; Encoding::MOST_PARTS],
    /// The decoded numbers of a norm or bias; empty for a matrix, and in experts.
    vector: Vec<f32>,
}

/// Parts begin on cache lines: a load that straddles two costs twice as much.
const ALIGN: usize = 64;

impl LoadedPiece {
    fn load(
        piece: &Piece,
        held: &[HeldTensor],
        mut read: impl FnMut(&Extent, (usize, usize), &mut [u8]) -> Result<(), SourceError>,
    ) -> Result<LoadedPiece, LoadError> {
        let extents = |held: &HeldTensor| piece.tensors[held.index].parts.iter();
        let len: usize = held.iter().flat_map(extents).map(padded).sum();
        let mut bytes = vec![0; len + ALIGN];
        let mut at = bytes.as_ptr().align_offset(ALIGN).min(ALIGN);
        let mut tensors = Vec::with_capacity(held.len());
        for held in held {
            let mut parts = [const { 0..0 }; Encoding::MOST_PARTS];
            for (number, (extent, part)) in extents(held).zip(&mut parts).enumerate() {
                *part = at..at + extent.len as usize;
                read(extent, (held.index, number), &mut bytes[part.clone()])
                    .map_err(LoadError::Read)?;
                at += padded(extent);
            }
            let &HeldTensor { role, encoding, rows, cols, .. } = held;
            let mut stored =
                ResidentTensor { role, encoding, rows, cols, parts, vector: Vec::new() };
            let name = &piece.tensors[held.index].name;
            let matrix = stored
                .matrix(&bytes)
                .map_err(|cause| LoadError::Matrix { name: name.clone(), cause })?;
            if !role.has_any_bits()
                && let Some((row, col, value)) = matrix.first_not_finite()
            {
                let name = name.clone();
                let file = None;
                return Err(WeightsError::NotFinite { name, file, value, row, col }.into());
            }
            // Biases of experts are requested as they are stored.
            if !role.is_matrix() && !matches!(piece.id.kind(), PieceKind::Expert(_)) {
                stored.vector.resize(rows * cols, 0.0);
                for (row, to) in stored.vector.chunks_exact_mut(cols).enumerate() {
                    matrix.decode_row(row, to);
                }
            }
            tensors.push(stored);
        }
        Ok(LoadedPiece { bytes, tensors })
    }
}

/// Bytes of a part in memory.
fn padded(extent: &Extent) -> usize {
    (extent.len as usize).next_multiple_of(ALIGN)
}

impl ResidentTensor {
    fn slices<'a>(&self, bytes: &'a [u8]) -> [&'a [u8]; Encoding::MOST_PARTS] {
        self.parts.each_ref().map(|part| &bytes[part.clone()])
    }

    fn matrix<'a>(&self, bytes: &'a [u8]) -> Result<Matrix<'a>, MatrixError> {
        let parts = &self.slices(bytes)[..self.encoding.parts().len()];
        Matrix::new(self.encoding, self.rows, self.cols, parts)
    }
}
