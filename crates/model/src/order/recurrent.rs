//! The reads of recurrent mixers.

use super::TensorSpec;
use crate::role::Role;
use crate::spec::{ConvSpec, DeltaInputs, DeltaSpec, StateSpaceSpec};

pub(super) fn conv(spec: ConvSpec, hidden: usize) -> Vec<TensorSpec> {
    let tensors = [
        TensorSpec::matrix(Role::MixedGate, 3 * hidden, hidden),
        TensorSpec::vector(Role::MixedBias, 3 * hidden),
        TensorSpec { role: Role::Conv, rows: hidden, cols: spec.taps },
        TensorSpec::vector(Role::ConvBias, hidden),
        TensorSpec::matrix(Role::Output, hidden, hidden),
        TensorSpec::vector(Role::OutputBias, hidden),
    ];
    let biases = [Role::MixedBias, Role::ConvBias, Role::OutputBias];
    let has = |tensor: &TensorSpec| spec.bias || !biases.contains(&tensor.role);
    tensors.into_iter().filter(has).collect()
}

pub(super) fn delta(spec: &DeltaSpec, hidden: usize) -> Vec<TensorSpec> {
    let channels = spec.channels();
    let values = spec.value_width();
    let heads = spec.heads;
    let mut tensors = match spec.inputs {
        DeltaInputs::Separate | DeltaInputs::Tiled => vec![
            TensorSpec::matrix(Role::Mixed, channels, hidden),
            TensorSpec::matrix(Role::OutputGate, values, hidden),
            TensorSpec::matrix(Role::Beta, heads, hidden),
            TensorSpec::matrix(Role::Decay, heads, hidden),
        ],
        DeltaInputs::ByKeyHead => vec![
            TensorSpec::matrix(Role::MixedGate, channels + values, hidden),
            TensorSpec::matrix(Role::BetaDecay, 2 * heads, hidden),
        ],
        DeltaInputs::Pairs => vec![
            TensorSpec::matrix(Role::Mixed, channels, hidden),
            TensorSpec::matrix(Role::OutputGate, values, hidden),
            TensorSpec::matrix(Role::BetaDecay, 2 * heads, hidden),
        ],
        DeltaInputs::Apart => vec![
            TensorSpec::matrix(Role::Query, spec.key_width(), hidden),
            TensorSpec::matrix(Role::Key, spec.key_width(), hidden),
            TensorSpec::matrix(Role::Value, values, hidden),
            TensorSpec::matrix(Role::OutputGate, values, hidden),
            TensorSpec::matrix(Role::Beta, heads, hidden),
            TensorSpec::matrix(Role::Decay, spec.decays(), hidden),
        ],
        DeltaInputs::PerElement { rank, gate_latent } => {
            let gate = TensorSpec::matrix(Role::OutputGate, values, hidden);
            let down = TensorSpec::matrix(Role::OutputGateDown, rank, hidden);
            let up = TensorSpec::matrix(Role::OutputGateUp, values, rank);
            let all = [
                Some(TensorSpec::matrix(Role::Query, spec.key_width(), hidden)),
                Some(TensorSpec::matrix(Role::Key, spec.key_width(), hidden)),
                Some(TensorSpec::matrix(Role::Value, values, hidden)),
                (!gate_latent).then_some(gate),
                Some(TensorSpec::matrix(Role::Beta, heads, hidden)),
                Some(TensorSpec::matrix(Role::DecayDown, rank, hidden)),
                gate_latent.then_some(down),
                Some(TensorSpec::matrix(Role::DecayUp, spec.decays(), rank)),
                gate_latent.then_some(up),
            ];
            all.into_iter().flatten().collect()
        }
    };
    for (role, rows) in spec.convs() {
        tensors.push(TensorSpec { role, rows, cols: spec.taps });
    }
    tensors.extend([
        TensorSpec::vector(Role::DecayRate, spec.rates),
        TensorSpec::vector(Role::DecayBias, spec.decays()),
        TensorSpec::vector(Role::MixedNorm, spec.value_dim),
        TensorSpec::matrix(Role::Output, hidden, values),
    ]);
    tensors
}

pub(super) fn state_space(spec: &StateSpaceSpec, hidden: usize) -> Vec<TensorSpec> {
    let width = spec.width();
    let channels = spec.channels();
    let heads = spec.heads;
    let mut tensors = vec![TensorSpec::matrix(Role::MixedGate, spec.rows(), hidden)];
    if spec.bias {
        tensors.push(TensorSpec::vector(Role::MixedBias, spec.rows()));
    }
    tensors.push(TensorSpec { role: Role::Conv, rows: channels, cols: spec.taps });
    if spec.conv_bias {
        tensors.push(TensorSpec::vector(Role::ConvBias, channels));
    }
    tensors.extend([
        TensorSpec::vector(Role::DecayRate, heads),
        TensorSpec::vector(Role::DecayBias, heads),
        TensorSpec::vector(Role::Skip, heads),
        TensorSpec::vector(Role::MixedNorm, width),
        TensorSpec::matrix(Role::Output, hidden, width),
    ]);
    if spec.bias {
        tensors.push(TensorSpec::vector(Role::OutputBias, hidden));
    }
    tensors
}
