//! The read order: every tensor that a pass requests, in the order of the requests.
//!
//! The inventory, the streaming schedule, the order of tensors in a shard and the benchmarks all
//! derive from it. A test compares it with the recorded requests of real passes.

mod attention;
mod compressed;
mod messages;
mod recurrent;
mod streams;

use sws_format::{PieceId, PieceKind};

use crate::role::Role;
use crate::spec::{
    AddedConv, Ffn, LatentNorm, LayerInputs, LayerSpec, Mixer, MlpSpec, ModelSpec, Norm, Router,
    StreamReads,
};
use attention::{attention, latent};
use compressed::compressed;
pub(crate) use compressed::{INDEX_POOL_ROLES, POOL_ROLES};
pub(crate) use messages::Receiver;
use recurrent::{conv, delta, state_space};
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
        if let Some(of) = self.looped.filter(|_| layer == 0) {
            reads.extend(messages::rows(of, self.hidden));
        }
        reads.extend(self.layers[layer].reads(self, layer));
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
        let of_norm = self.ending().filter(|(piece, _)| *piece == PieceId::FINAL_NORM);
        visit(PieceId::FINAL_NORM, &of_norm.map(|(_, tensor)| tensor).collect::<Vec<_>>())?;
        if !self.tied {
            let (head, tensor) = self.head();
            visit(head, &[tensor])?;
        }
        for layer in 0..self.layers.len() {
            self.table(layer).iter().try_for_each(|(id, tensors)| visit(*id, tensors))?;
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
        if let Some(inputs) = self.layer_inputs.filter(|_| layer == 0) {
            parts.push((inputs.rows, self.inputs_width()));
        }
        if let Some(ngrams) = &self.layers[layer].ngrams {
            parts.extend(ngrams.parts.iter().map(|rows| (*rows, ngrams.dim)));
            if ngrams.numbers.is_none() {
                first.push(TensorSpec::vector(Role::NgramMultipliers, ngrams.size));
                first.push(TensorSpec::vector(Role::NgramSizes, ngrams.rows()));
                first.push(TensorSpec::vector(Role::NgramOffsets, ngrams.rows()));
            }
        }
        let part = |(part, (rows, cols))| {
            let mut tensors = std::mem::take(&mut first);
            tensors.push(TensorSpec::matrix(Role::Table, rows, cols));
            (PieceId::table(layer as u32, part), tensors)
        };
        (0..).zip(parts).map(part).collect()
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
            let roles = [Role::HeadMixNorm, Role::HeadMix];
            let roles = if kept.normed.is_some() { &roles[1..] } else { &roles };
            let vector = |role: &Role| TensorSpec::vector(*role, self.hidden);
            return roles.iter().map(vector).collect();
        }
        let by_weights = self.stream_reads == StreamReads::Weights;
        let Some(streams) = self.streams.filter(|_| by_weights) else {
            return Vec::new();
        };
        let rows = streams.count;
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
        let bias = TensorSpec::vector(Role::FinalNormBias, self.hidden);
        let bias = self.head.norm.has_bias().then_some((PieceId::FINAL_NORM, bias));
        let of_head = TensorSpec::vector(Role::HeadBias, self.vocab);
        let of_head = self.head.bias.then_some((PieceId::FINAL_NORM, of_head));
        let streams = self.head_streams().into_iter();
        let streams = streams.map(|tensor| (PieceId::FINAL_NORM, tensor));
        let norm = [self.final_norm()].into_iter().chain(bias);
        let gates = self.stream_gates().into_iter().flat_map(move |rank| {
            let width = self.state_width();
            [(Role::HeadStreamsDown, rank, width), (Role::HeadStreamsUp, width, rank)]
        });
        let gates = gates
            .map(|(role, rows, cols)| (PieceId::FINAL_NORM, TensorSpec::matrix(role, rows, cols)));
        streams.chain(norm).chain(gates).chain([self.head()]).chain(of_head)
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

impl LayerSpec {
    fn reads(&self, model: &ModelSpec, layer: usize) -> Vec<ReadStep> {
        let branch = |site| Branch { spec: model, layer, site };
        let hidden = model.hidden;
        let mut reads = Vec::new();
        let mut read = |kind, tensors: Vec<TensorSpec>| {
            reads.extend(tensors.into_iter().map(|tensor| ReadStep::Tensor(kind, tensor)));
        };
        // A norm before a branch, with its bias.
        let with_bias = |role, bias| {
            let roles = [Some(role), self.norm.has_bias().then_some(bias)];
            roles.into_iter().flatten().map(|role| TensorSpec::vector(role, hidden)).collect()
        };
        let messages = model.looped.filter(|of| (of.first..of.end).contains(&layer));
        let message = |to: Receiver| messages.map_or(Vec::new(), |of| to.reads(of.rank, hidden));
        read(PieceKind::Attention, ngrams(self, model));
        read(Site::Mixer.piece(), branch(Site::Mixer).reads());
        for to in [Receiver::Query, Receiver::Key, Receiver::Value] {
            read(PieceKind::Attention, message(to));
        }
        // Mean streams are normed already.
        let normed = model.stream_gates().is_none();
        if self.mixer != Mixer::None && normed {
            read(PieceKind::Norms, with_bias(Role::MixerNorm, Role::MixerNormBias));
            read(Site::Mixer.piece(), Site::Mixer.gates_of(self, hidden));
        }
        if self.inputs_apart() {
            let roles = [Role::KeyInputNorm, Role::ValueInputNorm];
            read(PieceKind::Norms, roles.map(|role| TensorSpec::vector(role, hidden)).to_vec());
        }
        match &self.mixer {
            Mixer::Attention(spec) => read(PieceKind::Attention, attention(spec, hidden)),
            Mixer::Latent(spec) => read(PieceKind::Attention, latent(spec, hidden)),
            Mixer::Compressed(spec) => read(PieceKind::Attention, compressed(spec, hidden)),
            Mixer::Delta(spec) => read(PieceKind::Attention, delta(spec, hidden)),
            Mixer::Conv(spec) => read(PieceKind::Attention, conv(*spec, hidden)),
            Mixer::StateSpace(spec) => read(PieceKind::Attention, state_space(spec, hidden)),
            Mixer::None => {}
        }
        let norm = |role| vec![TensorSpec::vector(role, hidden)];
        let conv = |role| {
            let conv = |conv: AddedConv| TensorSpec { role, rows: hidden, cols: conv.taps };
            self.residual.conv.map(conv).into_iter().collect::<Vec<_>>()
        };
        if self.mixer != Mixer::None {
            read(PieceKind::Norms, conv(Role::MixerConv));
        }
        if self.residual.after_mixer.is_some_and(Norm::has_weight) {
            read(PieceKind::Norms, norm(Role::MixerPostNorm));
        }
        if self.residual.shares.is_some() && self.mixer != Mixer::None {
            read(PieceKind::Norms, norm(Role::MixerShares));
        }
        read(Site::Ffn.piece(), branch(Site::Ffn).reads());
        read(Site::Ffn.piece(), message(Receiver::Ffn));
        let split = self.residual.split && self.moe().is_some();
        if !self.residual.parallel && !split && self.ffn != Ffn::None && normed {
            read(PieceKind::Norms, with_bias(Role::FfnNorm, Role::FfnNormBias));
            read(Site::Ffn.piece(), Site::Ffn.gates_of(self, hidden));
        }
        match self.ffn {
            Ffn::Dense(spec) => {
                let factor = TensorSpec::vector(Role::MlpScale, 1);
                let factor = self.residual.scaled_mlp.then_some(factor);
                read(PieceKind::Mlp, mlp(spec, hidden).into_iter().chain(factor).collect());
            }
            Ffn::Moe(moe) => {
                let router = TensorSpec::matrix(Role::Router, moe.scored(), hidden);
                let bias = TensorSpec::vector(Role::RouterBias, moe.scored());
                let bias = moe.router_bias.then_some(bias);
                let correction = TensorSpec::vector(Role::RouterCorrection, moe.ranked());
                let correction = moe.has_correction().then_some(correction);
                let factors = TensorSpec::vector(Role::RouterFactors, moe.experts);
                let factors = (moe.router == Router::SoftmaxScaled).then_some(factors);
                let table = (moe.table_rows(model.vocab)).map(|rows| TensorSpec {
                    role: Role::ExpertTable,
                    rows,
                    cols: moe.top_k,
                });
                if split {
                    read(PieceKind::Router, norm(Role::RouterNorm));
                }
                let tensors = [router].into_iter().chain(bias).chain(correction).chain(factors);
                let factor = TensorSpec::vector(Role::RouterScale, 1);
                let factor = (moe.shared_scored > 0).then_some(factor);
                read(PieceKind::Router, tensors.chain(table).chain(factor).collect());
                if split {
                    read(PieceKind::Norms, norm(Role::FfnNorm));
                }
                if let Some(latent) = moe.latent {
                    let down = TensorSpec::matrix(Role::ExpertsDown, latent, hidden);
                    let norm = TensorSpec::vector(Role::LatentInputNorm, latent);
                    let norm = moe.latent_input.map(|_| norm);
                    read(PieceKind::SharedExpert, [down].into_iter().chain(norm).collect());
                }
                if let Some(shared) = moe.shared {
                    let gate = TensorSpec::matrix(Role::SharedGate, 1, hidden);
                    let mut tensors = mlp(shared.mlp, hidden);
                    let parts = moe.shared_scored.max(1);
                    for down in tensors.iter_mut().filter(|tensor| tensor.role == Role::Down) {
                        (down.rows, down.cols) = (down.rows * parts, down.cols / parts);
                    }
                    tensors.extend(shared.gated.then_some(gate));
                    read(shared.piece(), tensors);
                }
                if split {
                    read(PieceKind::Norms, norm(Role::SharedPostNorm));
                    read(PieceKind::Norms, norm(Role::ExpertsNorm));
                }
                let tensors = mlp(moe.expert, moe.latent.unwrap_or(hidden));
                reads.push(ReadStep::Experts { count: moe.experts, tensors });
                if let Some(latent) = moe.latent {
                    let norm = TensorSpec::vector(Role::LatentNorm, latent);
                    let up = TensorSpec::matrix(Role::ExpertsUp, hidden, latent);
                    let has_norm = moe.latent_norm != LatentNorm::None;
                    let own = has_norm.then_some(norm).into_iter().chain([up]);
                    reads.extend(own.map(|it| ReadStep::Tensor(PieceKind::SharedExpert, it)));
                }
            }
            Ffn::None => {}
        }
        let after = conv(Role::FfnConv).into_iter();
        reads.extend(after.map(|conv| ReadStep::Tensor(PieceKind::Norms, conv)));
        let vector = |role, len| ReadStep::Tensor(PieceKind::Norms, TensorSpec::vector(role, len));
        reads.extend(split.then(|| vector(Role::ExpertsPostNorm, hidden)));
        let after = self.residual.after_ffn.filter(|norm| norm.has_weight());
        reads.extend(after.map(|_| vector(Role::FfnPostNorm, hidden)));
        let shares = self.residual.shares.filter(|_| self.ffn != Ffn::None);
        reads.extend(shares.map(|_| vector(Role::FfnShares, hidden)));
        if let Some(LayerInputs { width, .. }) = model.layer_inputs {
            let gate = TensorSpec::matrix(Role::LayerInputGate, width, hidden);
            let up = TensorSpec::matrix(Role::LayerInputUp, hidden, width);
            reads.extend([gate, up].map(|it| ReadStep::Tensor(PieceKind::LayerInput, it)));
            reads.push(vector(Role::LayerInputNorm, hidden));
        }
        reads.extend(self.residual.scaled_state.then(|| vector(Role::StateScale, 1)));
        reads
    }
}

/// The reads of the tensors that compute values from n-gram rows.
fn ngrams(layer: &LayerSpec, model: &ModelSpec) -> Vec<TensorSpec> {
    let Some(spec) = &layer.ngrams else { return Vec::new() };
    let all = model.state_width();
    vec![
        TensorSpec::matrix(Role::NgramKey, all, spec.width()),
        TensorSpec::matrix(Role::NgramValue, model.hidden, spec.width()),
        TensorSpec::vector(Role::NgramKeyNorm, all),
        TensorSpec::vector(Role::NgramQueryNorm, all),
        TensorSpec::vector(Role::NgramConvNorm, all),
        TensorSpec { role: Role::NgramConv, rows: all, cols: spec.taps },
    ]
}

fn mlp(spec: MlpSpec, hidden: usize) -> Vec<TensorSpec> {
    let rows = spec.gate_rows();
    let matrices = spec.gates().iter().map(|&(gate, _)| TensorSpec::matrix(gate, rows, hidden));
    let mut tensors: Vec<TensorSpec> = matrices.collect();
    if spec.bias {
        tensors.extend(spec.gates().iter().map(|&(_, bias)| TensorSpec::vector(bias, rows)));
    }
    tensors.push(TensorSpec::matrix(Role::Down, hidden, spec.width));
    if spec.bias {
        tensors.push(TensorSpec::vector(Role::DownBias, hidden));
    }
    tensors
}
