//! Inkling 2 with layers that a pass visits several times: in later rounds their branches read
//! messages of the round before.

use sws_format::PieceKind;

use super::entries::{entry_in, size_or};
use super::inkling2::{self, ClassDefaults, sized};
use super::{Ends, Family, TensorRule, matrix, small};
use crate::config::{ConfigEntry, ConfigError, FamilyConfig, MAX_COUNT, MAX_LAYERS, within};
use crate::role::Role;
use crate::spec::{LoopSpec, ModelSpec};
use crate::spellings::LOOP_OF_INKLING2;

pub(super) const FAMILY: Family = Family {
    model_types: &["inkling2_loop_text"],
    ends: Ends {
        others: &[
            (Role::EmbeddingNorm, "embed_norm.weight"),
            (Role::HeadMix, "attn_res.output_query"),
            (Role::Messages, "middle_cycle_cross_pass_queries"),
            (Role::KvMessages, "middle_cycle_cross_pass_kv_queries"),
        ],
        ..inkling2::FAMILY.ends
    },
    layer: &[inkling2::ATTENTION, inkling2::BRANCHES, inkling2::ROUTED, MESSAGES],
    spec,
    ..inkling2::FAMILY
};

const MESSAGES: &[TensorRule] = &[
    matrix(PieceKind::Attention, Role::QueryMessageDown, "controllers.attn.down_weight"),
    small(PieceKind::Attention, Role::QueryMessageForget, "controllers.attn.forget_weight"),
    small(PieceKind::Attention, Role::QueryMessageGain, "controllers.attn.gain_weight"),
    matrix(PieceKind::Attention, Role::KeyMessageDown, "controllers.k.down_weight"),
    small(PieceKind::Attention, Role::KeyMessageForget, "controllers.k.forget_weight"),
    small(PieceKind::Attention, Role::KeyMessageGain, "controllers.k.gain_weight"),
    matrix(PieceKind::Attention, Role::ValueMessageDown, "controllers.v.down_weight"),
    small(PieceKind::Attention, Role::ValueMessageForget, "controllers.v.forget_weight"),
    small(PieceKind::Attention, Role::ValueMessageGain, "controllers.v.gain_weight"),
    small(PieceKind::Router, Role::FfnMessageDown, "controllers.mlp.down_weight"),
    small(PieceKind::Router, Role::FfnMessageForget, "controllers.mlp.forget_weight"),
    small(PieceKind::Router, Role::FfnMessageGain, "controllers.mlp.gain_weight"),
];

/// Limit far above any known model.
const MAX_ROUNDS: u64 = 64;

fn spec(config: &FamilyConfig) -> Result<ModelSpec, ConfigError> {
    let mut spec = sized(config, &ClassDefaults { heads: 24, growth: 8192.0 })?;
    let layers = spec.layers.len();
    let every = match spec.kept {
        Some(kept) => kept.every,
        None => 1,
    };
    let of_first = entry(config, 0)?;
    let of_end = entry(config, 1)?;
    let of_rounds = entry(config, 2)?;
    let of_rank = entry(config, 3);
    let looped = LoopSpec {
        first: size_or(of_first, 6, MAX_COUNT)?,
        end: size_or(of_end, 18, MAX_COUNT)?,
        rounds: size_or(of_rounds, 3, MAX_ROUNDS)?,
        rank: size_or(of_rank?, 64, MAX_COUNT)?,
    };
    let [[_, first], [_, end], ..] = LOOP_OF_INKLING2;
    if !looped.end.is_multiple_of(every) || looped.end > layers {
        let reason = format!("which must be a multiple of {every} up to the {layers} layers");
        return Err(of_end.ok_or(ConfigError::MissingKey(end))?.invalid(reason));
    }
    if !looped.first.is_multiple_of(every) || looped.first >= looped.end {
        let reason = format!("which must be a multiple of {every} below {}", looped.end);
        return Err(of_first.ok_or(ConfigError::MissingKey(first))?.invalid(reason));
    }
    if layers + looped.more() > MAX_LAYERS as usize {
        let reason = format!("so that a pass would visit more than {MAX_LAYERS} layers");
        let entry = of_rounds.or(of_end).ok_or(ConfigError::MissingKey(end))?;
        return Err(entry.invalid(reason));
    }
    spec.looped = (looped.rounds > 1).then_some(looped);
    Ok(spec)
}

/// An entry about the layers visited several times, of an object of them or beside the others.
fn entry<'a>(
    config: &FamilyConfig<'a>,
    place: usize,
) -> Result<Option<ConfigEntry<'a>>, ConfigError> {
    let [within_object, beside] = LOOP_OF_INKLING2[place];
    let key = match within_object.split_once('.') {
        Some((_, key)) => key,
        None => within_object,
    };
    // What the language model says itself comes before what is said around it.
    for level in config.levels() {
        if let Some(object) = entry_in(Some(level), "loop_config")
            && let Some(entry) = within(object, key)?
        {
            return Ok(Some(entry));
        }
        if let Some(entry) = entry_in(Some(level), beside) {
            return Ok(Some(entry));
        }
    }
    Ok(None)
}
