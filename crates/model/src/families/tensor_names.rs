//! The names of a model's tensors, from the tables of its family, the prefixes of wrappers and the
//! numbers of layers, experts and parts.

use sws_format::{Manifest, PieceId, PieceKind};

use super::{Ends, Family, RuleTarget, TensorRule, find};
use crate::config::{ConfigError, FamilyConfig};
use crate::places::number_below;
use crate::role::Role;
use crate::wrappers::{DOTS3, WITHIN, WRAPPERS, Wrapper};

/// The names of a model's tensors.
#[derive(Clone, Copy)]
pub(crate) struct Names {
    pub(crate) family: &'static Family,
    prefix: &'static str,
    /// Alternative prefix of some checkpoints.
    other: Option<&'static str>,
    head: &'static str,
    /// Number of layers per layer of the checkpoint. Tensors whose names do not distinguish them
    /// belong to the first.
    pub(crate) parts: u32,
}

/// The names of the model that a configuration describes.
pub(crate) fn of(config: &FamilyConfig) -> Result<Names, ConfigError> {
    let model_type = config.model_type();
    let Some(names) = names(model_type, config.wrapper()) else {
        let model_type = model_type.escape_debug().take(100).collect();
        return Err(ConfigError::Unsupported { model_type });
    };
    Ok(names)
}

/// The names of a model type, in a wrapper if one is given.
pub(crate) fn names(model_type: &str, wrapper: Option<&str>) -> Option<Names> {
    let family = find(model_type)?;
    let other = model_type.ends_with("_text").then_some(WITHIN);
    let Some(wrapper) = wrapper else {
        return Some(Names {
            family,
            prefix: family.prefix,
            other,
            head: "",
            parts: family.parts(),
        });
    };
    let &Wrapper { prefix, head, .. } = WRAPPERS.iter().find(|it| it.model_type == wrapper)?;
    // Checkpoints of dots3-note have either.
    let other = if wrapper == DOTS3 { other } else { None };
    Some(Names { family, prefix, other, head, parts: family.parts() })
}

impl Names {
    /// The names, with the prefix that these weights have.
    pub(crate) fn of_weights(self, manifest: &Manifest) -> Names {
        let embedding = manifest.piece(PieceId::EMBED).and_then(|piece| piece.tensors.first());
        match (self.other, embedding) {
            (Some(other), Some(tensor)) if tensor.name.starts_with(other) => {
                Names { prefix: other, ..self }
            }
            _ => self,
        }
    }

    /// The rest of a name after the prefix.
    fn behind_prefix<'n>(&self, name: &'n str) -> Option<&'n str> {
        if let Some(other) = self.other
            && let Some(behind) = name.strip_prefix(other)
        {
            return Some(behind);
        }
        name.strip_prefix(self.prefix)
    }

    /// The rest of a name after the prefix of layers, from the layer's number on.
    pub(crate) fn in_layers<'n>(&self, name: &'n str) -> Option<&'n str> {
        self.behind_prefix(name)?.strip_prefix("layers.")
    }

    /// The layer, and the rule, of a tensor with this name that belongs to one of so many layers, and
    /// whose name is not among those of layers.
    pub(crate) fn numbered(&self, name: &str, layers: u32) -> Option<(PieceId, &TensorRule)> {
        let rest = self.behind_prefix(name)?;
        for rule in self.family.layer.iter().copied().flatten() {
            if let RuleTarget::Numbered(kind, first) = rule.target
                && let Some(number) = rest.strip_prefix(rule.name)
                && let Some(above) = number_below(number, layers.saturating_sub(first))
            {
                return Some((PieceId::new(above + first, kind), rule));
            }
        }
        None
    }

    /// The tensor outside layers that has this name.
    pub(crate) fn outside(&self, name: &str) -> Option<Role> {
        let Ends { embedding, norm, head, others } = self.family.ends;
        if name.strip_prefix(self.head) == Some(head) {
            return Some(Role::Head);
        }
        for &(role, other) in others {
            let rest = match role {
                Role::HeadBias => name.strip_prefix(self.head),
                _ => self.behind_prefix(name),
            };
            if rest == Some(other) {
                return Some(role);
            }
        }
        match self.behind_prefix(name)? {
            rest if rest == embedding => Some(Role::Embedding),
            rest if rest == norm => Some(Role::FinalNorm),
            _ => None,
        }
    }

    /// The name of a tensor; the first one if there are several.
    pub(crate) fn name_of(&self, id: PieceId, role: Role) -> String {
        let &Names { family, prefix, head, .. } = self;
        if let Some(first) = self.names_of(id, role).next() {
            return first;
        }
        match role {
            Role::Head => format!("{head}{}", family.ends.head),
            Role::FinalNorm => format!("{prefix}{}", family.ends.norm),
            Role::Embedding => format!("{prefix}{}", family.ends.embedding),
            _ => match family.ends.others.iter().find(|(of, _)| *of == role) {
                Some((Role::HeadBias, name)) => format!("{head}{name}"),
                Some((_, name)) => format!("{prefix}{name}"),
                None => format!("{id} {role:?}"),
            },
        }
    }

    /// The possible names of a tensor in a layer: checkpoints may stack experts or store them
    /// separately.
    pub(crate) fn names_of(&self, id: PieceId, role: Role) -> impl Iterator<Item = String> {
        let &Names { family, prefix, parts, .. } = self;
        let rules = id.layer().map(|layer| (layer, family.rules(id.kind(), role)));
        rules.into_iter().flat_map(move |(layer, rules)| {
            let (layer, part) = (layer / parts, layer % parts);
            rules.map(move |rule| match (rule.target, id.kind()) {
                (RuleTarget::Numbered(_, first), _) => {
                    format!("{prefix}{}{}", rule.name, layer.saturating_sub(first))
                }
                (_, PieceKind::Expert(number) | PieceKind::Table(number)) => {
                    numbered(prefix, layer, rule.name, '#', number)
                }
                _ => numbered(prefix, layer, rule.name, '@', part),
            })
        })
    }
}

/// The name of a tensor in a layer. If `name` contains the mark, `number` takes its place. Large
/// models have a hundred thousand names.
fn numbered(prefix: &str, layer: u32, name: &str, mark: char, number: u32) -> String {
    match name.split_once(mark) {
        Some((before, after)) => format!("{prefix}layers.{layer}.{before}{number}{after}"),
        None => format!("{prefix}layers.{layer}.{name}"),
    }
}
