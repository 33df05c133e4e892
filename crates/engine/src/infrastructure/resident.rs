//! Pieces that stay in memory.

use std::collections::{HashMap, HashSet};
use std::ops::{ControlFlow, Range};

use sws_format::{PieceId, PieceKind};
use sws_kernels::{Encoding, Matrix, MatrixError};
use sws_model::{HeldTensor, Inventory, LoadError, Role, SourceError, Weights, WeightsError};
use sws_store::{Arena, Completion, NVMeWeightStore, Read, Slot, TensorLayout};

use crate::error::StreamError;

/// Pieces that were read once, with all numbers checked. Norms and biases are kept as f32,
/// including those of streamed pieces: together they are small.
#[derive(Debug, Default)]
pub(crate) struct ResidentPieces {
    slots: Vec<Slot>,
    matrices: HashMap<(PieceId, Role), MatrixPlace>,
    vectors: HashMap<(PieceId, Role), Vec<f32>>,
}

/// Location of a matrix.
#[derive(Debug)]
struct MatrixPlace {
    slot: usize,
    encoding: Encoding,
    rows: usize,
    cols: usize,
    parts: [Range<usize>; Encoding::MOST_PARTS],
}

impl ResidentPieces {
    /// Reads the `kept` pieces into slots of `arena`, and all vectors, which need room in it
    /// temporarily.
    pub(crate) fn load(
        store: &NVMeWeightStore,
        arena: &Arena,
        inventory: &Inventory,
        kept: &HashSet<PieceId>,
        report: &mut dyn FnMut(u64),
    ) -> Result<ResidentPieces, StreamError> {
        let mut vectors = Vec::new();
        let mut pieces = Vec::new();
        for id in inventory.pieces() {
            let held = inventory.piece(id);
            if kept.contains(&id) && held.iter().any(|held| held.role.is_matrix()) {
                pieces.push(Read::Piece(id));
            } else if !matches!(id.kind(), PieceKind::Expert(_)) {
                for held in held {
                    if !held.role.is_matrix() {
                        vectors.push(Read::Tensor(id, held.index));
                    }
                }
            }
        }
        let mut pinned = ResidentPieces::default();
        // Vectors first: their slots are free again before the first piece that stays.
        pinned.read(store, arena, inventory, &vectors, &mut |_| ())?;
        pinned.read(store, arena, inventory, &pieces, report)?;
        Ok(pinned)
    }

    /// Reads the stand-ins of experts into slots of `arena`.
    pub(crate) fn stand_ins(
        store: &NVMeWeightStore,
        arena: &Arena,
        inventory: &Inventory,
        experts: &[PieceId],
    ) -> Result<ResidentPieces, StreamError> {
        let reads: Vec<Read> = experts.iter().copied().map(Read::StandIn).collect();
        let mut pinned = ResidentPieces::default();
        pinned.read(store, arena, inventory, &reads, &mut |_| ())?;
        Ok(pinned)
    }

    fn read(
        &mut self,
        store: &NVMeWeightStore,
        arena: &Arena,
        inventory: &Inventory,
        reads: &[Read],
        report: &mut dyn FnMut(u64),
    ) -> Result<(), StreamError> {
        let mut failure = None;
        store.extract_while(reads, arena, |completion| {
            report(completion.layout.slot_len() as u64);
            failure = self.add(inventory, completion).err();
            if failure.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        failure.map_or(Ok(()), Err)
    }

    /// A norm or bias.
    ///
    /// # Panics
    ///
    /// If the inventory does not have it.
    pub(crate) fn vector(&self, piece: PieceId, role: Role) -> &[f32] {
        let Some(found) = self.vectors.get(&(piece, role)) else {
            panic!("{piece} has no {role:?} in the inventory")
        };
        found
    }

    /// A matrix, if its piece is resident.
    pub(crate) fn matrix(&self, piece: PieceId, role: Role) -> Option<Matrix<'_>> {
        let stored = self.matrices.get(&(piece, role))?;
        stored.matrix(&self.slots[stored.slot]).ok()
    }

    /// A part of a matrix, by its suffix.
    pub(crate) fn part(&self, piece: PieceId, role: Role, suffix: &str) -> Option<&[u8]> {
        let stored = self.matrices.get(&(piece, role))?;
        let number = stored.encoding.parts().iter().position(|part| part.suffix == suffix)?;
        self.slots[stored.slot].get(stored.parts[number].clone())
    }

    fn add(&mut self, inventory: &Inventory, completion: Completion) -> Result<(), StreamError> {
        completion.result?;
        let piece = completion.layout.read().piece();
        let slot = completion.slot;
        let mut stays = false;
        for tensor in completion.layout.tensors() {
            let mut held = inventory.piece(piece).iter();
            let Some(held) = held.find(|held| held.index == tensor.index) else { continue };
            let stored = MatrixPlace::new(self.slots.len(), held, tensor);
            let name = &tensor.name;
            let matrix = match stored.matrix(&slot) {
                Ok(matrix) => matrix,
                Err(cause) => return Err(LoadError::Matrix { name: name.clone(), cause }.into()),
            };
            if !held.role.has_any_bits()
                && let Some((row, col, value)) = matrix.first_not_finite()
            {
                let name = name.clone();
                let file = None;
                return Err(WeightsError::NotFinite { name, file, value, row, col }.into());
            }
            // Biases of stand-ins stay in their slots, as those of experts do.
            if held.role.is_matrix() || matches!(piece.kind(), PieceKind::Expert(_)) {
                self.matrices.insert((piece, held.role), stored);
                stays = true;
            } else {
                let mut vector = vec![0.0; held.rows * held.cols];
                for (row, to) in vector.chunks_exact_mut(held.cols).enumerate() {
                    matrix.decode_row(row, to);
                }
                self.vectors.insert((piece, held.role), vector);
            }
        }
        if stays {
            self.slots.push(slot);
        }
        Ok(())
    }
}

/// Weights of the resident pieces only.
pub(crate) struct ResidentWeights<'a>(pub(crate) &'a ResidentPieces);

impl Weights for ResidentWeights<'_> {
    fn vector(&self, piece: PieceId, role: Role) -> &[f32] {
        self.0.vector(piece, role)
    }

    fn matrix(&self, piece: PieceId, role: Role) -> Option<Matrix<'_>> {
        self.0.matrix(piece, role)
    }

    fn blocks(
        &mut self,
        piece: PieceId,
        role: Role,
        _: &mut dyn FnMut(usize, &Matrix<'_>),
    ) -> Result<(), SourceError> {
        Err(StreamError::not_resident(piece, role))
    }
}

impl MatrixPlace {
    fn new(slot: usize, held: &HeldTensor, tensor: &TensorLayout) -> MatrixPlace {
        let &HeldTensor { rows, cols, .. } = held;
        // The encoding of a stand-in differs from its expert's.
        let encoding = tensor.encoding.unwrap_or(held.encoding);
        let mut parts = [const { 0..0 }; Encoding::MOST_PARTS];
        for (part, found) in parts.iter_mut().zip(&tensor.parts) {
            *part = found.clone().unwrap_or_default();
        }
        MatrixPlace { slot, encoding, rows, cols, parts }
    }

    fn slices<'a>(&self, slot: &'a [u8]) -> [&'a [u8]; Encoding::MOST_PARTS] {
        self.parts.each_ref().map(|part| slot.get(part.clone()).unwrap_or_default())
    }

    fn matrix<'a>(&self, slot: &'a [u8]) -> Result<Matrix<'a>, MatrixError> {
        let parts = &self.slices(slot)[..self.encoding.parts().len()];
        Matrix::new(self.encoding, self.rows, self.cols, parts)
    }
}
