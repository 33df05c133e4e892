//! The names of tensors in GGUF files, the same for all architectures.

use sws_format::{PieceId, PieceKind};

use crate::families::Family;
use crate::places::{number_below, outside};
use crate::role::Role;

/// Place of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GgufPlace {
    /// A tensor of one piece.
    Piece(PieceId, Role),
    /// A stacked tensor with all experts of a layer, along the first dimension.
    Stacked(u32, Role),
}

/// Tensors of a layer, by the name after the layer's number. Where a name has several roles, a
/// tensor has the first that its family knows. Tensors of experts are below.
const LAYER: &[(&str, PieceKind, Role)] = &[
    ("attn_norm.weight", PieceKind::Norms, Role::MixerNorm),
    ("ffn_norm.weight", PieceKind::Norms, Role::FfnNorm),
    ("post_attention_norm.weight", PieceKind::Norms, Role::MixerPostNorm),
    ("post_attention_norm.weight", PieceKind::Norms, Role::FfnNorm),
    ("post_ffw_norm.weight", PieceKind::Norms, Role::FfnPostNorm),
    ("post_ffw_norm_1.weight", PieceKind::Norms, Role::SharedPostNorm),
    ("pre_ffw_norm_2.weight", PieceKind::Norms, Role::ExpertsNorm),
    ("post_ffw_norm_2.weight", PieceKind::Norms, Role::ExpertsPostNorm),
    ("layer_output_scale.weight", PieceKind::Norms, Role::StateScale),
    ("inp_gate.weight", PieceKind::LayerInput, Role::LayerInputGate),
    ("proj.weight", PieceKind::LayerInput, Role::LayerInputUp),
    ("post_norm.weight", PieceKind::Norms, Role::LayerInputNorm),
    ("attn_q.weight", PieceKind::Attention, Role::Query),
    ("attn_q.bias", PieceKind::Attention, Role::QueryBias),
    ("attn_k.weight", PieceKind::Attention, Role::Key),
    ("attn_k.bias", PieceKind::Attention, Role::KeyBias),
    ("attn_v.weight", PieceKind::Attention, Role::Value),
    ("attn_v.bias", PieceKind::Attention, Role::ValueBias),
    ("attn_q_norm.weight", PieceKind::Attention, Role::QueryNorm),
    ("attn_k_norm.weight", PieceKind::Attention, Role::KeyNorm),
    ("attn_k_norm.weight", PieceKind::Attention, Role::LatentKeyNorm),
    ("attn_sinks.weight", PieceKind::Attention, Role::Sinks),
    ("attn_sinks.weight", PieceKind::Attention, Role::LatentSinks),
    ("attn_q_a.weight", PieceKind::Attention, Role::QueryDown),
    ("attn_q_a_norm.weight", PieceKind::Attention, Role::QueryDownNorm),
    ("attn_q_b.weight", PieceKind::Attention, Role::QueryUp),
    ("attn_kv_a_mqa.weight", PieceKind::Attention, Role::KvDown),
    ("attn_kv_a_norm.weight", PieceKind::Attention, Role::KvDownNorm),
    ("attn_kv_b.weight", PieceKind::Attention, Role::KvUp),
    ("attn_k_b.weight", PieceKind::Attention, Role::KeyUp),
    ("attn_v_b.weight", PieceKind::Attention, Role::ValueUp),
    ("indexer.attn_q_b.weight", PieceKind::Attention, Role::IndexQuery),
    ("indexer.attn_k.weight", PieceKind::Attention, Role::IndexKey),
    ("indexer.k_norm.weight", PieceKind::Attention, Role::IndexKeyNorm),
    ("indexer.k_norm.weight", PieceKind::Attention, Role::BlockKeyNorm),
    ("indexer.k_norm.bias", PieceKind::Attention, Role::IndexKeyNormBias),
    ("indexer.proj.weight", PieceKind::Attention, Role::IndexWeights),
    ("shortconv.in_proj.weight", PieceKind::Attention, Role::MixedGate),
    ("shortconv.conv.weight", PieceKind::Attention, Role::Conv),
    ("shortconv.out_proj.weight", PieceKind::Attention, Role::Output),
    ("attn_qkv.weight", PieceKind::Attention, Role::Mixed),
    ("attn_gate.weight", PieceKind::Attention, Role::OutputGate),
    ("ssm_ba.weight", PieceKind::Attention, Role::BetaDecay),
    ("ssm_beta.weight", PieceKind::Attention, Role::Beta),
    ("ssm_alpha.weight", PieceKind::Attention, Role::Decay),
    ("ssm_conv1d.weight", PieceKind::Attention, Role::Conv),
    ("ssm_a", PieceKind::Attention, Role::DecayRate),
    ("ssm_dt.bias", PieceKind::Attention, Role::DecayBias),
    ("ssm_out.weight", PieceKind::Attention, Role::Output),
    ("ssm_norm.weight", PieceKind::Attention, Role::MixedNorm),
    ("ssm_in.weight", PieceKind::Attention, Role::MixedGate),
    ("ssm_in.bias", PieceKind::Attention, Role::MixedBias),
    ("ssm_conv1d.bias", PieceKind::Attention, Role::ConvBias),
    ("ssm_conv1d_q.weight", PieceKind::Attention, Role::QueryConv),
    ("ssm_conv1d_k.weight", PieceKind::Attention, Role::KeyConv),
    ("ssm_conv1d_v.weight", PieceKind::Attention, Role::ValueConv),
    ("ssm_d", PieceKind::Attention, Role::Skip),
    ("ssm_f_a.weight", PieceKind::Attention, Role::DecayDown),
    ("ssm_f_a.weight", PieceKind::Attention, Role::Decay),
    ("ssm_f_b.weight", PieceKind::Attention, Role::DecayUp),
    ("ssm_g_a.weight", PieceKind::Attention, Role::OutputGateDown),
    ("ssm_g_a.weight", PieceKind::Attention, Role::OutputGate),
    ("ssm_g_b.weight", PieceKind::Attention, Role::OutputGateUp),
    ("ssm_out.bias", PieceKind::Attention, Role::OutputBias),
    ("attn_kv.weight", PieceKind::Attention, Role::KvDown),
    ("attn_output_a.weight", PieceKind::Attention, Role::OutputDown),
    ("attn_output_b.weight", PieceKind::Attention, Role::Output),
    ("attn_compressor_ape.weight", PieceKind::Attention, Role::PoolBias),
    ("attn_compressor_gate.weight", PieceKind::Attention, Role::PoolGate),
    ("attn_compressor_kv.weight", PieceKind::Attention, Role::Pool),
    ("attn_compressor_norm.weight", PieceKind::Attention, Role::PoolNorm),
    ("indexer_compressor_ape.weight", PieceKind::Attention, Role::IndexPoolBias),
    ("indexer_compressor_gate.weight", PieceKind::Attention, Role::IndexPoolGate),
    ("indexer_compressor_kv.weight", PieceKind::Attention, Role::IndexPool),
    ("indexer_compressor_norm.weight", PieceKind::Attention, Role::IndexPoolNorm),
    ("indexer.q_proj.weight", PieceKind::Attention, Role::IndexQuery),
    ("indexer.k_proj.weight", PieceKind::Attention, Role::IndexKey),
    ("indexer.q_norm.weight", PieceKind::Attention, Role::BlockQueryNorm),
    ("hc_attn_fn.weight", PieceKind::Attention, Role::MixerStreams),
    ("hc_attn_base.weight", PieceKind::Attention, Role::MixerStreamsBase),
    ("hc_attn_scale.weight", PieceKind::Attention, Role::MixerStreamsScale),
    ("hc_attn_norm.weight", PieceKind::Attention, Role::MixerStreamsNorm),
    ("hc_attn_down.weight", PieceKind::Attention, Role::MixerStreamsDown),
    ("hc_attn_inject.weight", PieceKind::Attention, Role::MixerStreams),
    ("hc_attn_up.weight", PieceKind::Attention, Role::MixerStreamsUp),
    ("hc_ffn_fn.weight", PieceKind::Router, Role::FfnStreams),
    ("hc_ffn_base.weight", PieceKind::Router, Role::FfnStreamsBase),
    ("hc_ffn_scale.weight", PieceKind::Router, Role::FfnStreamsScale),
    ("hc_ffn_norm.weight", PieceKind::Router, Role::FfnStreamsNorm),
    ("hc_ffn_down.weight", PieceKind::Router, Role::FfnStreamsDown),
    ("hc_ffn_inject.weight", PieceKind::Router, Role::FfnStreams),
    ("hc_ffn_up.weight", PieceKind::Router, Role::FfnStreamsUp),
    ("ple_key.weight", PieceKind::Attention, Role::NgramKey),
    ("ple_value.weight", PieceKind::Attention, Role::NgramValue),
    ("ple_norm_key.weight", PieceKind::Attention, Role::NgramKeyNorm),
    ("ple_norm_query.weight", PieceKind::Attention, Role::NgramQueryNorm),
    ("ple_norm_conv.weight", PieceKind::Attention, Role::NgramConvNorm),
    ("ple_conv1d.weight", PieceKind::Attention, Role::NgramConv),
    ("attn_output.weight", PieceKind::Attention, Role::Output),
    ("attn_output.bias", PieceKind::Attention, Role::OutputBias),
    ("ffn_gate.weight", PieceKind::Mlp, Role::Gate),
    ("ffn_gate.bias", PieceKind::Mlp, Role::GateBias),
    ("ffn_up.weight", PieceKind::Mlp, Role::Up),
    ("ffn_up.bias", PieceKind::Mlp, Role::UpBias),
    ("ffn_down.weight", PieceKind::Mlp, Role::Down),
    ("ffn_down.bias", PieceKind::Mlp, Role::DownBias),
    ("ffn_gate_inp.weight", PieceKind::Router, Role::Router),
    ("ffn_gate_inp.bias", PieceKind::Router, Role::RouterBias),
    ("exp_probs_b.bias", PieceKind::Router, Role::RouterCorrection),
    ("exp_probs_b", PieceKind::Router, Role::RouterCorrection),
    ("ffn_gate_tid2eid.weight", PieceKind::Router, Role::ExpertTable),
    ("ffn_latent_down.weight", PieceKind::SharedExpert, Role::ExpertsDown),
    ("ffn_latent_up.weight", PieceKind::SharedExpert, Role::ExpertsUp),
    ("ffn_gate_inp.scale", PieceKind::Router, Role::RouterNorm),
    ("ffn_down_exps.scale", PieceKind::Router, Role::RouterFactors),
    ("ffn_gate_inp_shexp.weight", PieceKind::SharedExpert, Role::SharedGate),
    ("ffn_gate_shexp.weight", PieceKind::SharedExpert, Role::Gate),
    ("ffn_up_shexp.weight", PieceKind::SharedExpert, Role::Up),
    ("ffn_down_shexp.weight", PieceKind::SharedExpert, Role::Down),
    // Granite's shared expert is the MLP of its smaller models.
    ("ffn_gate_shexp.weight", PieceKind::Mlp, Role::Gate),
    ("ffn_up_shexp.weight", PieceKind::Mlp, Role::Up),
    ("ffn_down_shexp.weight", PieceKind::Mlp, Role::Down),
];

/// Tensors outside layers that only some families have.
const OUTSIDE: &[(&str, Role)] = &[
    ("per_layer_token_embd.weight", Role::Table),
    ("per_layer_model_proj.weight", Role::LayerInputs),
    ("per_layer_proj_norm.weight", Role::LayerInputsNorm),
    ("output_hc_base.weight", Role::HeadStreamsBase),
    ("output_hc_down.weight", Role::HeadStreamsDown),
    ("output_hc_fn.weight", Role::HeadStreams),
    ("output_hc_scale.weight", Role::HeadStreamsScale),
    ("output_hc_up.weight", Role::HeadStreamsUp),
];

/// Biases of experts, which are always stacked.
const EXPERT_BIASES: &[(&str, Role)] = &[
    ("ffn_gate_exps.bias", Role::GateBias),
    ("ffn_up_exps.bias", Role::UpBias),
    ("ffn_down_exps.bias", Role::DownBias),
];

/// Tensors of experts: the name of the stacked tensor and, for older files, the name before and
/// after an expert's number.
const EXPERTS: &[(&str, &str, Role)] = &[
    ("ffn_gate_exps.weight", "ffn_gate.", Role::Gate),
    ("ffn_up_exps.weight", "ffn_up.", Role::Up),
    ("ffn_down_exps.weight", "ffn_down.", Role::Down),
    ("ffn_gate_up_exps.weight", "ffn_gate_up.", Role::GateUp),
];

/// Finds the place of a tensor in a model of a family with this many layers and experts. `None` if
/// no forward pass uses it.
pub(crate) fn find(family: &Family, name: &str, layers: u32, experts: u32) -> Option<GgufPlace> {
    let Some(rest) = name.strip_prefix("blk.") else {
        return match name {
            "token_embd.weight" => Some(GgufPlace::Piece(PieceId::EMBED, Role::Embedding)),
            "output_norm.weight" | "token_embd_norm.weight" | "output_hc_norm.weight" => {
                Some(GgufPlace::Piece(PieceId::FINAL_NORM, Role::FinalNorm))
            }
            "output.weight" => Some(GgufPlace::Piece(PieceId::LM_HEAD, Role::Head)),
            _ => {
                let &(_, role) = OUTSIDE.iter().find(|(of, _)| *of == name)?;
                let (id, _) = outside(role);
                let known = family.has_outside(role) || family.rule(id.kind(), role).is_some();
                known.then_some(GgufPlace::Piece(id, role))
            }
        };
    };
    let (layer, rest) = rest.split_once('.')?;
    let layer = number_below(layer, layers)?;
    let mut roles = LAYER.iter().filter(|(name, ..)| *name == rest);
    let own = roles.clone().find(|(_, kind, role)| family.rule(*kind, *role).is_some());
    if let Some(&(_, kind, role)) = own.or(roles.next()) {
        return Some(GgufPlace::Piece(PieceId::new(layer, kind), role));
    }
    if let Some(&(_, role)) = EXPERT_BIASES.iter().find(|(name, _)| *name == rest) {
        return Some(GgufPlace::Stacked(layer, role));
    }
    for &(stacked, before, role) in EXPERTS {
        if rest == stacked {
            return Some(GgufPlace::Stacked(layer, role));
        }
        if let Some(rest) = rest.strip_prefix(before)
            && let Some(number) = rest.strip_suffix(".weight")
            && let Some(expert) = number_below(number, experts)
        {
            return Some(GgufPlace::Piece(PieceId::expert(layer, expert), role));
        }
    }
    None
}
