//! The read order: every tensor that a pass requests, in the order of the requests.
//!
//! The inventory, the streaming schedule, the order of tensors in a shard and the benchmarks all
//! derive from it. A test compares it with the recorded requests of real passes.

mod attention;
mod compressed;
mod layer;
mod messages;
mod recurrent;
mod streams;

use sws_format::{PieceId, PieceKind};

use crate::role::Role;
use crate::spec::{ModelSpec, Norm, StreamReads};
pub(crate) use compressed::{INDEX_POOL_ROLES, POOL_ROLES};
pub(crate) use messages::Receiver;
pub(crate) use streams::{Branch, Site};

/// A tensor of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Role of the tensor in its piece.
    pub role: Role,
    /// Rows; 1 for a vector of one dimension.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
}

/// One step of the read order of a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadStep {
    /// A tensor of one of the layer's pieces.
    Tensor(PieceKind, TensorSpec),
    /// The tensors of each expert that the router selects.
    Experts {
        /// Number of experts to select from.
        count: usize,
        /// The tensors of one expert, in order.
        tensors: Vec<TensorSpec>,
    },
}

/// The pieces of a layer, each with its tensors in the order of the requests.
pub(crate) struct LayerPieces {
    /// Pieces other than experts.
    pub(crate) fixed: Vec<(PieceKind, Vec<TensorSpec>)>,
    /// The number of experts, and the tensors of each.
    pub(crate) experts: Option<(usize, Vec<TensorSpec>)>,
}

impl TensorSpec {
    const fn matrix(role: Role, rows: usize, cols: usize) -> TensorSpec {
        TensorSpec { role, rows, cols }
    }

    const fn vector(role: Role, len: usize) -> TensorSpec {
        TensorSpec { role, rows: 1, cols: len }
    }

    /// The shape in a checkpoint.
    pub fn shape(&self) -> Vec<u64> {
        match self.role.is_matrix() || self.rows > 1 {
            true => vec![self.rows as u64, self.cols as u64],
            false => vec![self.cols as u64],
        }
    }
}

impl ModelSpec {
    /// The first read of a pass.
    pub fn embedding(&self) -> (PieceId, TensorSpec) {
        (PieceId::EMBED, TensorSpec::matrix(Role::Embedding, self.vocab, self.hidden))
    }

    /// Number of elements of a token's per-layer inputs, over all layers.
    pub(crate) fn inputs_width(&self) -> usize {
        self.layer_inputs.map_or(0, |inputs| inputs.width * self.layers.len())
    }

    /// The reads of a layer, in order; of one that a pass visits several times, those of a later
    /// visit.
    ///
    /// # Panics
    ///
    /// If the model has no such layer.
    pub fn reads(&self, layer: usize) -> Vec<ReadStep> {
        let mut reads = match self.layer_inputs {
            Some(inputs) if layer == 0 => {
                let width = self.inputs_width();
                let matrix = TensorSpec::matrix(Role::LayerInputs, width, self.hidden);
                let norm = TensorSpec::vector(Role::LayerInputsNorm, inputs.width);
                vec![
                    ReadStep::Tensor(PieceKind::LayerInput, matrix),
                    ReadStep::Tensor(PieceKind::Norms, norm),
                ]
            }
            _ => Vec::new(),
        };
        if self.embedding_norm.is_some_and(Norm::has_weight) && layer == 0 {
            let norm = TensorSpec::vector(Role::EmbeddingNorm, self.hidden);
            reads.push(ReadStep::Tensor(PieceKind::Norms, norm));
        }
        if self.learned_angles && layer == 0 {
            let pairs = self.ropes.first().map_or(0, |rope| rope.inv_freq.len());
            reads.push(ReadStep::Tensor(PieceKind::Norms, TensorSpec::vector(Role::Angles, pairs)));
        }
        if let Some(of) = self.looped
            && layer == 0
        {
            reads.extend(messages::rows(of, self.hidden));
        }
        reads.extend(layer::reads(self, layer));
        reads
    }

    /// The layer of a [visit](Self::visits), and its reads, in order.
    pub fn reads_of(&self, visit: usize) -> (usize, Vec<ReadStep>) {
        let layer = self.layer_of(visit);
        let mut reads = self.reads(layer);
        if self.round_of(visit).is_none() {
            reads.retain(|read| !messages::is_of_message(read));
        }
        (layer, reads)
    }

    /// Calls `visit` with every piece that a pass requests and its tensors, in order, up to an
    /// error. The ends of the model come first.
    pub(crate) fn pieces<E>(
        &self,
        mut visit: impl FnMut(PieceId, &[TensorSpec]) -> Result<(), E>,
    ) -> Result<(), E> {
        let (embedding, tensor) = self.embedding();
        visit(embedding, &[tensor])?;
        let mut of_norm = Vec::new();
        for (piece, tensor) in self.ending() {
            if piece == PieceId::FINAL_NORM {
                of_norm.push(tensor);
            }
        }
        visit(PieceId::FINAL_NORM, &of_norm)?;
        if !self.tied {
            let (head, tensor) = self.head();
            visit(head, &[tensor])?;
        }
        for layer in 0..self.layers.len() {
            for (id, tensors) in self.table(layer) {
                visit(id, &tensors)?;
            }
            let LayerPieces { fixed, experts } = self.layer_pieces(layer);
            for (kind, tensors) in &fixed {
                visit(PieceId::new(layer as u32, *kind), tensors)?;
            }
            if let Some((count, tensors)) = experts {
                for expert in 0..count as u32 {
                    visit(PieceId::expert(layer as u32, expert), &tensors)?;
                }
            }
        }
        Ok(())
    }

    /// The parts of a layer's table, if it has one. A pass only looks up rows of it, whose numbers
    /// depend on tokens alone.
    pub(crate) fn table(&self, layer: usize) -> Vec<(PieceId, Vec<TensorSpec>)> {
        let mut parts = Vec::new();
        let mut first = Vec::new();
        if let Some(inputs) = self.layer_inputs
            && layer == 0
        {
            parts.push((inputs.rows, self.inputs_width()));
        }
        if let Some(ngrams) = &self.layers[layer].ngrams {
            for rows in &ngrams.parts {
                parts.push((*rows, ngrams.dim));
            }
            if ngrams.numbers.is_none() {
                first.push(TensorSpec::vector(Role::NgramMultipliers, ngrams.size));
                first.push(TensorSpec::vector(Role::NgramSizes, ngrams.rows()));
                first.push(TensorSpec::vector(Role::NgramOffsets, ngrams.rows()));
            }
        }
        let mut pieces = Vec::with_capacity(parts.len());
        for (part, (rows, cols)) in (0..).zip(parts) {
            let mut tensors = std::mem::take(&mut first);
            tensors.push(TensorSpec::matrix(Role::Table, rows, cols));
            pieces.push((PieceId::table(layer as u32, part), tensors));
        }
        pieces
    }

    /// Number of rows that a token looks up in a layer's table; 0 without a table.
    pub fn rows_of_token(&self, layer: usize) -> usize {
        match &self.layers[layer].ngrams {
            Some(ngrams) => ngrams.rows(),
            None => usize::from(layer == 0 && self.layer_inputs.is_some()),
        }
    }

    /// The reads of a layer, by piece.
    pub(crate) fn layer_pieces(&self, layer: usize) -> LayerPieces {
        let mut pieces = LayerPieces { fixed: Vec::new(), experts: None };
        for read in self.reads(layer) {
            match read {
                ReadStep::Tensor(kind, tensor) => {
                    match pieces.fixed.iter_mut().find(|(other, _)| *other == kind) {
                        Some((_, tensors)) => tensors.push(tensor),
                        None => pieces.fixed.push((kind, vec![tensor])),
                    }
                }
                ReadStep::Experts { count, tensors } => pieces.experts = Some((count, tensors)),
            }
        }
        pieces
    }

    /// The tensors that reduce residual streams, or kept states, to the input of the final norm.
    fn head_streams(&self) -> Vec<TensorSpec> {
        if let Some(kept) = self.kept {
            let mix = TensorSpec::vector(Role::HeadMix, self.hidden);
            return match kept.normed {
                Some(_) => vec![mix],
                None => vec![TensorSpec::vector(Role::HeadMixNorm, self.hidden), mix],
            };
        }
        let rows = match self.streams {
            Some(streams) if self.stream_reads == StreamReads::Weights => streams.count,
            _ => return Vec::new(),
        };
        let cols = self.state_width();
        vec![
            TensorSpec { role: Role::HeadStreams, rows, cols },
            TensorSpec::vector(Role::HeadStreamsBase, rows),
            TensorSpec::vector(Role::HeadStreamsScale, 1),
        ]
    }

    /// The norm after the last layer.
    pub fn final_norm(&self) -> (PieceId, TensorSpec) {
        let width = if self.stream_gates().is_some() { self.state_width() } else { self.hidden };
        (PieceId::FINAL_NORM, TensorSpec::vector(Role::FinalNorm, width))
    }

    /// The reads after the last layer, in order.
    pub fn ending(&self) -> impl Iterator<Item = (PieceId, TensorSpec)> {
        let mut of_norm = self.head_streams();
        of_norm.push(self.final_norm().1);
        if self.head.norm.has_bias() {
            of_norm.push(TensorSpec::vector(Role::FinalNormBias, self.hidden));
        }
        if let Some(rank) = self.stream_gates() {
            let width = self.state_width();
            of_norm.push(TensorSpec::matrix(Role::HeadStreamsDown, rank, width));
            of_norm.push(TensorSpec::matrix(Role::HeadStreamsUp, width, rank));
        }
        let of_head = TensorSpec::vector(Role::HeadBias, self.vocab);
        let of_head = self.head.bias.then_some((PieceId::FINAL_NORM, of_head));
        let of_norm = of_norm.into_iter().map(|tensor| (PieceId::FINAL_NORM, tensor));
        of_norm.chain([self.head()]).chain(of_head)
    }

    /// The matrix at the end of a pass: the head, or the embedding again where the two are tied.
    pub fn head(&self) -> (PieceId, TensorSpec) {
        match self.tied {
            true => self.embedding(),
            false => {
                (PieceId::LM_HEAD, TensorSpec::matrix(Role::Head, self.head.rows[0], self.hidden))
            }
        }
    }
}
