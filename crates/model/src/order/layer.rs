//! The reads of a layer.

use sws_format::PieceKind;

use super::attention::{attention, latent};
use super::compressed::compressed;
use super::recurrent::{conv, delta, state_space};
use super::{Branch, ReadStep, Receiver, Site, TensorSpec};
use crate::role::Role;
use crate::spec::{
    Ffn, LatentNorm, LayerInputs, LayerSpec, Mixer, MlpSpec, ModelSpec, MoeSpec, Norm, Router,
};

/// The reads of a layer, in order.
pub(super) fn reads(model: &ModelSpec, layer: usize) -> Vec<ReadStep> {
    let spec = &model.layers[layer];
    let mut reads = LayerReads { model, spec, layer, steps: Vec::new() };
    reads.add_mixer();
    reads.add_ffn();
    reads.add_end();
    reads.steps
}

/// The reads of a layer, as they are listed.
struct LayerReads<'a> {
    model: &'a ModelSpec,
    spec: &'a LayerSpec,
    layer: usize,
    steps: Vec<ReadStep>,
}

impl LayerReads<'_> {
    fn add(&mut self, kind: PieceKind, tensor: TensorSpec) {
        self.steps.push(ReadStep::Tensor(kind, tensor));
    }

    fn add_all(&mut self, kind: PieceKind, tensors: Vec<TensorSpec>) {
        for tensor in tensors {
            self.add(kind, tensor);
        }
    }

    /// Adds a norm of the hidden state, or another vector as long as it.
    fn add_norm(&mut self, role: Role) {
        self.add(PieceKind::Norms, TensorSpec::vector(role, self.model.hidden));
    }

    /// Adds the tensors before those of a branch: a norm with its bias, and gates.
    fn add_input(&mut self, site: Site, role: Role, bias: Role) {
        self.add_norm(role);
        if self.spec.norm.has_bias() {
            self.add_norm(bias);
        }
        self.add_all(site.piece(), site.gates_of(self.spec, self.model.hidden));
    }

    /// Adds the weights by which a branch reads and writes streams.
    fn add_streams(&mut self, site: Site) {
        let branch = Branch { spec: self.model, layer: self.layer, site };
        self.add_all(site.piece(), branch.reads());
    }

    /// Adds the gates of a message, if the layer receives any.
    fn add_message(&mut self, to: Receiver, kind: PieceKind) {
        if let Some(of) = self.model.looped
            && (of.first..of.end).contains(&self.layer)
        {
            self.add_all(kind, to.reads(of.rank, self.model.hidden));
        }
    }

    /// Adds the convolution of a branch, if it has one.
    fn add_conv(&mut self, role: Role) {
        if let Some(conv) = self.spec.residual.conv {
            let tensor = TensorSpec { role, rows: self.model.hidden, cols: conv.taps };
            self.add(PieceKind::Norms, tensor);
        }
    }

    /// True if branches norm their inputs. Mean streams are normed already.
    fn is_normed(&self) -> bool {
        self.model.stream_gates().is_none()
    }

    /// True if router, experts and shared expert each have a norm of their own.
    fn is_split(&self) -> bool {
        self.spec.residual.split && self.spec.moe().is_some()
    }

    /// Adds n-grams and the mixer.
    fn add_mixer(&mut self) {
        let &mut LayerReads { model, spec: layer, .. } = self;
        let hidden = model.hidden;
        let has_mixer = layer.mixer != Mixer::None;
        self.add_all(PieceKind::Attention, ngrams(layer, model));
        self.add_streams(Site::Mixer);
        for to in [Receiver::Query, Receiver::Key, Receiver::Value] {
            self.add_message(to, PieceKind::Attention);
        }
        if has_mixer && self.is_normed() {
            self.add_input(Site::Mixer, Role::MixerNorm, Role::MixerNormBias);
        }
        if layer.inputs_apart() {
            self.add_norm(Role::KeyInputNorm);
            self.add_norm(Role::ValueInputNorm);
        }
        let own = match &layer.mixer {
            Mixer::Attention(spec) => attention(spec, hidden),
            Mixer::Latent(spec) => latent(spec, hidden),
            Mixer::Compressed(spec) => compressed(spec, hidden),
            Mixer::Delta(spec) => delta(spec, hidden),
            Mixer::Conv(spec) => conv(*spec, hidden),
            Mixer::StateSpace(spec) => state_space(spec, hidden),
            Mixer::None => Vec::new(),
        };
        self.add_all(PieceKind::Attention, own);
        if has_mixer {
            self.add_conv(Role::MixerConv);
        }
        if layer.residual.after_mixer.is_some_and(Norm::has_weight) {
            self.add_norm(Role::MixerPostNorm);
        }
        if layer.residual.shares.is_some() && has_mixer {
            self.add_norm(Role::MixerShares);
        }
    }

    /// Adds the feed-forward block.
    fn add_ffn(&mut self) {
        let &mut LayerReads { model, spec: layer, .. } = self;
        self.add_streams(Site::Ffn);
        self.add_message(Receiver::Ffn, Site::Ffn.piece());
        let has_norm = !layer.residual.parallel && !self.is_split() && layer.ffn != Ffn::None;
        if has_norm && self.is_normed() {
            self.add_input(Site::Ffn, Role::FfnNorm, Role::FfnNormBias);
        }
        match layer.ffn {
            Ffn::Dense(spec) => {
                self.add_all(PieceKind::Mlp, mlp(spec, model.hidden));
                if layer.residual.scaled_mlp {
                    self.add(PieceKind::Mlp, TensorSpec::vector(Role::MlpScale, 1));
                }
            }
            Ffn::Moe(moe) => self.add_moe(&moe),
            Ffn::None => {}
        }
    }

    fn add_moe(&mut self, moe: &MoeSpec) {
        let hidden = self.model.hidden;
        let split = self.is_split();
        if split {
            self.add(PieceKind::Router, TensorSpec::vector(Role::RouterNorm, hidden));
        }
        self.add_router(moe);
        if split {
            self.add_norm(Role::FfnNorm);
        }
        if let Some(latent) = moe.latent {
            let down = TensorSpec::matrix(Role::ExpertsDown, latent, hidden);
            self.add(PieceKind::SharedExpert, down);
            if moe.latent_input.is_some() {
                let norm = TensorSpec::vector(Role::LatentInputNorm, latent);
                self.add(PieceKind::SharedExpert, norm);
            }
        }
        if let Some(shared) = moe.shared {
            let mut tensors = mlp(shared.mlp, hidden);
            let parts = moe.shared_scored.max(1);
            for down in &mut tensors {
                if down.role == Role::Down {
                    (down.rows, down.cols) = (down.rows * parts, down.cols / parts);
                }
            }
            self.add_all(shared.piece(), tensors);
            if shared.gated {
                self.add(shared.piece(), TensorSpec::matrix(Role::SharedGate, 1, hidden));
            }
        }
        if split {
            self.add_norm(Role::SharedPostNorm);
            self.add_norm(Role::ExpertsNorm);
        }
        let tensors = mlp(moe.expert, moe.latent.unwrap_or(hidden));
        self.steps.push(ReadStep::Experts { count: moe.experts, tensors });
        if let Some(latent) = moe.latent {
            if moe.latent_norm != LatentNorm::None {
                let norm = TensorSpec::vector(Role::LatentNorm, latent);
                self.add(PieceKind::SharedExpert, norm);
            }
            let up = TensorSpec::matrix(Role::ExpertsUp, hidden, latent);
            self.add(PieceKind::SharedExpert, up);
        }
    }

    /// Adds the tensors that select and weigh experts.
    fn add_router(&mut self, moe: &MoeSpec) {
        let model = self.model;
        let router = TensorSpec::matrix(Role::Router, moe.scored(), model.hidden);
        self.add(PieceKind::Router, router);
        if moe.router_bias {
            let bias = TensorSpec::vector(Role::RouterBias, moe.scored());
            self.add(PieceKind::Router, bias);
        }
        if moe.has_correction() {
            let correction = TensorSpec::vector(Role::RouterCorrection, moe.ranked());
            self.add(PieceKind::Router, correction);
        }
        if moe.router == Router::SoftmaxScaled {
            let factors = TensorSpec::vector(Role::RouterFactors, moe.experts);
            self.add(PieceKind::Router, factors);
        }
        if let Some(rows) = moe.table_rows(model.vocab) {
            let table = TensorSpec { role: Role::ExpertTable, rows, cols: moe.top_k };
            self.add(PieceKind::Router, table);
        }
        if moe.shared_scored > 0 {
            self.add(PieceKind::Router, TensorSpec::vector(Role::RouterScale, 1));
        }
    }

    /// Adds the tensors after the feed-forward block.
    fn add_end(&mut self) {
        let &mut LayerReads { model, spec: layer, .. } = self;
        let hidden = model.hidden;
        self.add_conv(Role::FfnConv);
        if self.is_split() {
            self.add_norm(Role::ExpertsPostNorm);
        }
        if layer.residual.after_ffn.is_some_and(Norm::has_weight) {
            self.add_norm(Role::FfnPostNorm);
        }
        if layer.residual.shares.is_some() && layer.ffn != Ffn::None {
            self.add_norm(Role::FfnShares);
        }
        if let Some(LayerInputs { width, .. }) = model.layer_inputs {
            let gate = TensorSpec::matrix(Role::LayerInputGate, width, hidden);
            let up = TensorSpec::matrix(Role::LayerInputUp, hidden, width);
            self.add_all(PieceKind::LayerInput, vec![gate, up]);
            self.add_norm(Role::LayerInputNorm);
        }
        if layer.residual.scaled_state {
            self.add(PieceKind::Norms, TensorSpec::vector(Role::StateScale, 1));
        }
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
    let mut tensors = Vec::new();
    for &(gate, _) in spec.gates() {
        tensors.push(TensorSpec::matrix(gate, rows, hidden));
    }
    if spec.bias {
        for &(_, bias) in spec.gates() {
            tensors.push(TensorSpec::vector(bias, rows));
        }
    }
    tensors.push(TensorSpec::matrix(Role::Down, hidden, spec.width));
    if spec.bias {
        tensors.push(TensorSpec::vector(Role::DownBias, hidden));
    }
    tensors
}
