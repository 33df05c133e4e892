//! Maps tensor names to pieces, by the table of the family.

use sws_format::{Configuration, Naming, Packed, PieceId, PieceKind, Placement};

use crate::config::{ConfigError, FamilyConfig, InvalidConfig};
use crate::families::{self, Names, RuleTarget, TensorRule};
use crate::gguf::{self, GgufPlace};
use crate::places::{number_below, outside};
use crate::reading::read;
use crate::role::Role;

/// The naming of the model that a configuration describes.
pub fn naming(config: &Configuration) -> Result<Box<dyn Naming>, InvalidConfig> {
    Ok(Box::new(read(config, family_naming)?))
}

fn family_naming(config: &FamilyConfig) -> Result<FamilyNaming, ConfigError> {
    let names = families::of(config)?;
    let has_experts =
        |rule: &TensorRule| matches!(rule.target, RuleTarget::Expert | RuleTarget::Experts { .. });
    let experts = match names.family.layer.iter().copied().flatten().any(has_experts) {
        true => config.some_experts()?,
        false => config.experts()?.unwrap_or(0),
    };
    families::check_quantised(config)?;
    Ok(FamilyNaming {
        names,
        model_type: config.model_type().to_owned(),
        layers: config.layers()?,
        with_keys: families::layers_with_keys(config)?,
        experts,
        parts: families::parts_of_tables(config)?,
        with_table: families::layer_with_table(config),
        gguf: config.is_gguf(),
        packed: families::packed(config)?,
        blocks: families::has_blocks(config)?,
    })
}

struct FamilyNaming {
    names: Names,
    model_type: String,
    layers: u32,
    experts: u32,
    /// Number of first layers with keys and values of their own.
    with_keys: u32,
    /// Number of parts of an n-gram table.
    parts: u32,
    /// The layer with the table of a GGUF file.
    with_table: u32,
    /// True if tensors have the names of GGUF files.
    gguf: bool,
    packed: Option<Packed>,
    /// See [`Naming::has_blocks`].
    blocks: bool,
}

impl Naming for FamilyNaming {
    fn model_type(&self) -> &str {
        &self.model_type
    }

    fn place(&self, name: &str, shape: &[u64]) -> Placement {
        if let Some(found) = self.in_gguf(name) {
            return self.place_of_gguf(found, shape).unwrap_or(Placement::Extra);
        }
        match self.names.in_layers(name) {
            Some(rest) => self.place_in_layer(rest, shape),
            None => self.place_outside(name),
        }
        .unwrap_or(Placement::Extra)
    }

    fn packed(&self) -> Option<Packed> {
        self.packed
    }

    fn has_blocks(&self) -> bool {
        self.blocks
    }

    fn name(&self, name: &str, expert: Option<u32>) -> Option<String> {
        let (id, role) = match (self.in_gguf(name)?, expert) {
            (GgufPlace::Piece(id, role), None) => (id, role),
            (GgufPlace::Stacked(layer, role), Some(expert)) => {
                (PieceId::expert(layer, expert), role)
            }
            _ => return None,
        };
        Some(self.names.name_of(id, role))
    }
}

impl FamilyNaming {
    fn in_gguf(&self, name: &str) -> Option<GgufPlace> {
        if !self.gguf {
            return None;
        }
        match gguf::find(self.names.family, name, self.layers, self.experts)? {
            GgufPlace::Piece(_, Role::Table) => {
                let id = PieceId::table(self.with_table, 0);
                Some(GgufPlace::Piece(id, Role::Table))
            }
            place => Some(place),
        }
    }

    fn place_of_gguf(&self, found: GgufPlace, shape: &[u64]) -> Option<Placement> {
        let matrix = |kind, role| Some(self.names.family.rule(kind, role)?.matrix);
        match found {
            GgufPlace::Piece(id, role) => {
                if role.is_of_keys() && id.layer().is_some_and(|layer| layer >= self.with_keys) {
                    return None;
                }
                let matrix = match role {
                    Role::FinalNorm => false,
                    Role::Embedding | Role::Head => true,
                    _ if self.names.family.has_outside(role) => outside(role).1,
                    _ => matrix(id.kind(), role)?,
                };
                Some(Placement::Piece { id, rank: role_rank(role), matrix })
            }
            GgufPlace::Stacked(layer, role) => {
                let matrix = matrix(PieceKind::Expert(0), role)?;
                let all = shape.first() == Some(&self.experts.into());
                let rank = role as u16;
                let transposed = false;
                all.then_some(Placement::Experts { layer, rank, matrix, transposed })
            }
        }
    }

    fn place_outside(&self, name: &str) -> Option<Placement> {
        if let Some((id, rule)) = self.names.numbered(name, self.layers) {
            let &TensorRule { role, matrix, .. } = rule;
            return Some(Placement::Piece { id, rank: role as u16, matrix });
        }
        let role = self.names.outside(name)?;
        let (id, matrix) = outside(role);
        Some(Placement::Piece { id, rank: role_rank(role), matrix })
    }

    /// `rest` is the name from the layer number on. Layers beyond the configured count are those of
    /// multi-token prediction.
    fn place_in_layer(&self, rest: &str, shape: &[u64]) -> Option<Placement> {
        let (layer, rest) = rest.split_once('.')?;
        let parts = self.names.parts;
        let layer = number_below(layer, self.layers / parts)? * parts;
        for &TensorRule { name, target, role, matrix } in
            self.names.family.layer.iter().copied().flatten()
        {
            let rank = role as u16;
            if layer >= self.with_keys && role.is_of_keys() && name == rest {
                return None;
            }
            let kind = match target {
                RuleTarget::Experts { transposed }
                    if name == rest && shape.first() == Some(&self.experts.into()) =>
                {
                    return Some(Placement::Experts { layer, rank, matrix, transposed });
                }
                RuleTarget::Expert => match expert_of(name, rest, self.experts) {
                    Some(expert) => PieceKind::Expert(expert),
                    None => continue,
                },
                RuleTarget::Part => match expert_of(name, rest, self.parts) {
                    Some(part) => PieceKind::Table(part),
                    None => continue,
                },
                RuleTarget::Kind(kind) => match part_of(name, rest, parts) {
                    Some(part) => {
                        let id = PieceId::new(layer + part, kind);
                        return Some(Placement::Piece { id, rank, matrix });
                    }
                    None => continue,
                },
                RuleTarget::Experts { .. } | RuleTarget::Numbered(..) => continue,
            };
            return Some(Placement::Piece { id: PieceId::new(layer, kind), rank, matrix });
        }
        None
    }
}

/// The number in `name`, which matches `pattern` with the number in place of `@`; 0 if the pattern has
/// none.
fn part_of(pattern: &str, name: &str, parts: u32) -> Option<u32> {
    match pattern.split_once('@') {
        Some((before, after)) => {
            number_below(name.strip_prefix(before)?.strip_suffix(after)?, parts)
        }
        None => (name == pattern).then_some(0),
    }
}

/// The number of an expert or of a part in `name`, which matches `pattern` with the number in place of `#`.
fn expert_of(pattern: &str, name: &str, experts: u32) -> Option<u32> {
    let (before, after) = pattern.split_once('#')?;
    number_below(name.strip_prefix(before)?.strip_suffix(after)?, experts)
}

/// The rank of a tensor in its piece; 0 in pieces of one tensor.
fn role_rank(role: Role) -> u16 {
    match role {
        Role::Embedding | Role::Head | Role::FinalNorm => 0,
        role => role as u16,
    }
}
