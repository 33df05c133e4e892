//! Sizes of a model's pieces, and the order in which they are pinned.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::Range;

use sws_format::{Manifest, PieceId, PieceKind};
use sws_kernels::Encoding;
use sws_model::{HeldTensor, Inventory, ModelSpec, Role};
use sws_store::{LayoutError, Parts, PieceLayout, Read};

use super::slots::SlotSizes;
use crate::stand_ins::StandInUse;

/// One piece that every token needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cyclic {
    pub(super) id: PieceId,
    /// Bytes of its slot, and of reading it.
    pub(super) len: u64,
}

impl Cyclic {
    /// Bytes that a pass uses of it: its layer may be visited several times.
    pub(super) fn per_pass(&self, spec: &ModelSpec) -> u64 {
        self.len * self.times(spec) as u64
    }

    /// Number of times that a pass visits it.
    fn times(&self, spec: &ModelSpec) -> usize {
        match self.id.layer() {
            Some(layer) => spec.times(layer as usize),
            None => 1,
        }
    }
}

/// Sizes of a table whose rows are looked up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TableSizes {
    pub(super) len: u64,
    /// Bytes read for one row.
    pub(super) row: u64,
    /// Bytes that every row needs, and that are therefore resident.
    pub(super) rest: u64,
}

impl TableSizes {
    /// Bytes of the shortest ring for the rows of this table.
    pub(super) fn ring(&self) -> u64 {
        self.rest + LOOKUPS * self.row
    }

    fn new(
        manifest: &Manifest,
        piece: PieceId,
        held: &[HeldTensor],
        len: u64,
    ) -> Result<Option<TableSizes>, LayoutError> {
        let rows = |held: &&HeldTensor| matches!(held.role, Role::Embedding | Role::Table);
        let Some(held) = held.iter().find(rows) else { return Ok(None) };
        // The escapes of an encoding are stored for the whole matrix.
        let (parts, rest) = match held.encoding.has_patches() {
            true => {
                (Parts::First, rows_len(manifest, piece, held, 0..held.rows as u64, Parts::Rest)?)
            }
            false => (Parts::All, 0),
        };
        let row = rows_len(manifest, piece, held, 0..1, parts)? + EDGES;
        Ok(Some(TableSizes { len, row, rest }))
    }
}

/// Sizes of the table of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LayerTable {
    pub(super) layer: usize,
    /// Number of rows that a token looks up.
    pub(super) rows: u64,
    pub(super) sizes: TableSizes,
}

/// Sizes of all pieces of a model.
#[derive(Debug)]
pub(super) struct PieceSizes {
    /// Cyclic pieces, in the order of pinning.
    pub(super) cyclic: Vec<Cyclic>,
    /// `None` if the embedding is also the head, and so cyclic.
    pub(super) embedding: Option<TableSizes>,
    /// The tables of layers, which are never resident.
    pub(super) layer_tables: Vec<LayerTable>,
    pub(super) slots: SlotSizes,
    /// Stand-ins of experts with the bytes of each, layer by layer.
    pub(super) stand_ins: Vec<(PieceId, u64)>,
    /// Bytes of experts that are in stand-ins and not in slots.
    pub(super) shared: u64,
    /// Maximum bytes of the smallest block of a matrix that every token needs.
    pub(super) cyclic_unit: u64,
    /// Maximum bytes of the smallest block of an expert's matrix.
    pub(super) expert_unit: u64,
    /// All norms and biases as f32, but for those of experts, which lie in slots.
    pub(super) vectors: u64,
    /// Bytes of the tables of piece locations.
    pub(super) tables: u64,
}

/// Rows of a table read at once.
const LOOKUPS: u64 = 16;
/// Additional bytes of a read that starts and ends in the middle of a page.
const EDGES: u64 = 2 * sws_store::SLOT_ALIGN as u64;

impl PieceSizes {
    pub(super) fn new(
        spec: &ModelSpec,
        inventory: &Inventory,
        manifest: &Manifest,
        stand_ins: StandInUse,
    ) -> Result<PieceSizes, LayoutError> {
        let mut pieces = PieceSizes {
            cyclic: Vec::new(),
            embedding: None,
            layer_tables: Vec::new(),
            slots: SlotSizes::default(),
            stand_ins: Vec::new(),
            shared: 0,
            cyclic_unit: 0,
            expert_unit: 0,
            vectors: 0,
            tables: 0,
        };
        let mut experts = Vec::new();
        // Pieces are taken in the order of the manifest, as an inventory is unordered.
        for piece in &manifest.pieces {
            let id = piece.id;
            let held = inventory.piece(id);
            if held.is_empty() {
                continue;
            }
            let layout = PieceLayout::new(manifest, Read::Piece(id))?;
            let len = layout.slot_len() as u64;
            pieces.tables += tables(&layout, manifest);
            let mut unit = 0;
            for held in held {
                if !matches!(id.kind(), PieceKind::Expert(_)) && !held.role.is_matrix() {
                    pieces.vectors += (held.rows * held.cols * size_of::<f32>()) as u64;
                }
                let least = match held.encoding {
                    // In other encodings, all parts after the first share one checksum.
                    Encoding::Nested => {
                        rows_len(manifest, id, held, 0..1, Parts::First)?
                            + rows_len(manifest, id, held, 0..held.rows as u64, Parts::Rest)?
                    }
                    _ => rows_len(manifest, id, held, 0..1, Parts::All)?,
                };
                unit = unit.max(least + EDGES);
            }
            match id.kind() {
                PieceKind::Expert(_) => {
                    let mut slot = layout.slot_len();
                    if piece.stand_in_tensors().is_some() {
                        let stand_in = PieceLayout::new(manifest, Read::StandIn(id))?;
                        pieces.stand_ins.push((id, stand_in.slot_len() as u64));
                        if stand_ins == StandInUse::All {
                            slot = PieceLayout::new(manifest, Read::Beside(id))?.slot_len();
                            pieces.shared += layout.slot_len().saturating_sub(slot) as u64;
                        }
                    }
                    experts.push(slot);
                    pieces.expert_unit = pieces.expert_unit.max(unit);
                }
                PieceKind::Embed if !spec.tied => {
                    pieces.embedding = TableSizes::new(manifest, id, held, len)?;
                }
                PieceKind::Table(_) => {
                    if let Some(sizes) = TableSizes::new(manifest, id, held, len)? {
                        pieces.add_part(spec, id, sizes);
                    }
                }
                _ => {
                    pieces.cyclic.push(Cyclic { id, len });
                    pieces.cyclic_unit = pieces.cyclic_unit.max(unit);
                }
            }
        }
        pieces.stand_ins.sort_unstable();
        pieces.slots = SlotSizes::new(experts, spec.max_top_k());
        pieces.sort(spec);
        Ok(pieces)
    }

    /// Adds a part of the table of a layer.
    fn add_part(&mut self, spec: &ModelSpec, id: PieceId, part: TableSizes) {
        let layer = id.layer().unwrap_or(0) as usize;
        match self.layer_tables.iter_mut().find(|table| table.layer == layer) {
            Some(LayerTable { sizes, .. }) => {
                sizes.len += part.len;
                sizes.rest += part.rest;
                sizes.row = sizes.row.max(part.row);
            }
            None => {
                let rows = spec.rows_of_token(layer) as u64;
                self.layer_tables.push(LayerTable { layer, rows, sizes: part });
            }
        }
    }

    /// Sorts the cyclic pieces in the order of pinning.
    ///
    /// Every cyclic piece saves as many bytes per visit as it takes, so the order among layers that a
    /// pass visits as often is free to serve other ends. Norms and routers come first: they are small, and forecasts need them. Large
    /// kinds come before small ones, which then fill the remaining space. Layers are ordered so
    /// that every prefix is spread evenly. Streamed layers then alternate with resident ones, and
    /// the device reads on while resident ones are computed.
    fn sort(&mut self, spec: &ModelSpec) {
        let mut largest: HashMap<PieceKind, u64> = HashMap::new();
        for piece in &self.cyclic {
            let kind = largest.entry(piece.id.kind()).or_default();
            *kind = piece.len.max(*kind);
        }
        self.cyclic.sort_by_key(|piece| {
            let kind = piece.id.kind();
            let is_first =
                matches!(kind, PieceKind::Norms | PieceKind::FinalNorm | PieceKind::Router);
            let times = Reverse(piece.times(spec));
            let layer = piece.id.layer().unwrap_or(0);
            (!is_first, Reverse(largest[&kind]), kind, times, layer.reverse_bits())
        });
    }

    pub(super) fn cyclic_bytes(&self) -> u64 {
        self.cyclic.iter().map(|piece| piece.len).sum()
    }

    /// Bytes of the stand-ins of all experts.
    pub(super) fn stand_in_bytes(&self) -> u64 {
        self.stand_ins.iter().map(|(_, len)| len).sum()
    }

    /// Bytes of all pieces.
    pub(super) fn bytes(&self) -> u64 {
        self.table_bytes() + self.bytes_without_tables()
    }

    /// Bytes of the tables of layers.
    pub(super) fn table_bytes(&self) -> u64 {
        self.layer_tables.iter().map(|table| table.sizes.len).sum()
    }

    /// Bytes of all pieces but the tables of layers.
    pub(super) fn bytes_without_tables(&self) -> u64 {
        let embedding = self.embedding.unwrap_or_default().len;
        self.cyclic_bytes() + embedding + self.slots.bytes() + self.shared
    }
}

/// Bytes of a slot for these rows of a matrix.
fn rows_len(
    manifest: &Manifest,
    piece: PieceId,
    held: &HeldTensor,
    rows: Range<u64>,
    parts: Parts,
) -> Result<u64, LayoutError> {
    let read = Read::Rows { piece, tensor: held.index, rows, parts };
    Ok(PieceLayout::new(manifest, read)?.slot_len() as u64)
}

/// Heap bytes of a layout and its checksums. The checksums of a checkpoint read in place have a
/// table of their own, which doubles when it grows and is copied when it is saved.
fn tables(layout: &PieceLayout, manifest: &Manifest) -> u64 {
    const PIECE: u64 = 512;
    const TENSOR: u64 = 320;
    const BLOCK: u64 = 64;
    const IN_TABLE: u64 = 256;
    let Some(piece) = manifest.piece(layout.read().piece()) else { return PIECE };
    let mut bytes = PIECE;
    for tensor in &piece.tensors {
        bytes += TENSOR + tensor.name.len() as u64;
        for extent in &tensor.parts {
            let count = extent.len.div_ceil(extent.check_len.max(1));
            bytes += count * if extent.checks.is_empty() { BLOCK + IN_TABLE } else { BLOCK };
        }
    }
    bytes
}
