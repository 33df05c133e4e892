//! Names of pieces.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Contents of a piece.
///
/// The order of the variants is the order in which a pass uses them; within one layer it is also
/// the order of reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PieceKind {
    /// The token embedding; with tied embeddings also the head.
    Embed,
    /// A part of a layer's table. A table for all layers belongs to the first layer. A pass only
    /// looks up rows, whose numbers depend on tokens alone, and the rest stays on disk.
    Table(u32),
    /// The norms of a layer.
    Norms,
    /// The attention of a layer.
    Attention,
    /// The router of a layer.
    Router,
    /// The experts of a layer that every token uses.
    SharedExpert,
    /// The feed-forward block of a layer without experts.
    Mlp,
    /// One routed expert of a layer.
    Expert(u32),
    /// The matrices by which a layer uses its part of a row, if a [`Table`](Self::Table) serves all
    /// layers.
    LayerInput,
    /// The norm after the last layer.
    FinalNorm,
    /// The output head.
    LmHead,
    /// Tensors that no forward pass uses (multi-token prediction, vision), kept so that nothing is
    /// lost.
    Extra,
}

impl PieceKind {
    /// True if a piece of this kind belongs to a layer.
    pub const fn in_layer(self) -> bool {
        !matches!(
            self,
            PieceKind::Embed | PieceKind::FinalNorm | PieceKind::LmHead | PieceKind::Extra
        )
    }
}

/// The name of a piece, the unit of streaming: `layer_3/expert_7`, `layer_3/attention`, `embed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct PieceId {
    layer: u32,
    kind: PieceKind,
}

impl PieceId {
    /// The token embedding.
    pub const EMBED: PieceId = PieceId { layer: 0, kind: PieceKind::Embed };
    /// The norm after the last layer.
    pub const FINAL_NORM: PieceId = PieceId { layer: 0, kind: PieceKind::FinalNorm };
    /// The output head.
    pub const LM_HEAD: PieceId = PieceId { layer: 0, kind: PieceKind::LmHead };
    /// Tensors that no forward pass uses.
    pub const EXTRA: PieceId = PieceId { layer: 0, kind: PieceKind::Extra };

    /// A piece of a layer. `layer` is ignored for kinds that do not belong to one.
    pub const fn new(layer: u32, kind: PieceKind) -> PieceId {
        PieceId { layer: if kind.in_layer() { layer } else { 0 }, kind }
    }

    /// One routed expert.
    pub const fn expert(layer: u32, expert: u32) -> PieceId {
        PieceId { layer, kind: PieceKind::Expert(expert) }
    }

    /// A part of the table of a layer.
    pub const fn table(layer: u32, part: u32) -> PieceId {
        PieceId { layer, kind: PieceKind::Table(part) }
    }

    /// The layer, for pieces that belong to one.
    pub const fn layer(self) -> Option<u32> {
        if self.kind.in_layer() { Some(self.layer) } else { None }
    }

    /// Kind of the piece.
    pub const fn kind(self) -> PieceKind {
        self.kind
    }

    /// Sort key: pieces sort in the order in which a pass needs them.
    fn order(self) -> (u8, u32, PieceKind) {
        let stage = match self.kind {
            PieceKind::Embed => 0,
            PieceKind::FinalNorm => 2,
            PieceKind::LmHead => 3,
            PieceKind::Extra => 4,
            _ => 1,
        };
        (stage, self.layer, self.kind)
    }
}

impl Ord for PieceId {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.order().cmp(&other.order())
    }
}

impl PartialOrd for PieceId {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// Kinds with fixed names.
const WORDS: [(PieceKind, &str); 10] = [
    (PieceKind::Embed, "embed"),
    (PieceKind::Norms, "norms"),
    (PieceKind::Attention, "attention"),
    (PieceKind::Router, "router"),
    (PieceKind::SharedExpert, "shared_expert"),
    (PieceKind::Mlp, "mlp"),
    (PieceKind::LayerInput, "layer_input"),
    (PieceKind::FinalNorm, "final_norm"),
    (PieceKind::LmHead, "lm_head"),
    (PieceKind::Extra, "extra"),
];

impl fmt::Display for PieceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(layer) = self.layer() {
            write!(f, "layer_{layer}/")?;
        }
        match self.kind {
            PieceKind::Expert(expert) => write!(f, "expert_{expert}"),
            PieceKind::Table(part) => write!(f, "table_{part}"),
            kind => {
                let word = WORDS.iter().find(|(k, _)| *k == kind).map_or("", |(_, word)| word);
                f.write_str(word)
            }
        }
    }
}

/// A string that is not the name of a piece.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not the name of a piece; names look like `layer_3/expert_7` or `embed`")]
pub struct UnknownPiece(pub String);

impl FromStr for PieceId {
    type Err = UnknownPiece;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match parse(name) {
            Some(id) if id.kind.in_layer() == name.contains('/') => Ok(id),
            _ => Err(UnknownPiece(name.to_owned())),
        }
    }
}

fn parse(name: &str) -> Option<PieceId> {
    let Some((layer, kind)) = name.split_once('/') else {
        return Some(PieceId { layer: 0, kind: parse_kind(name)? });
    };
    let layer = parse_number(layer.strip_prefix("layer_")?)?;
    Some(PieceId { layer, kind: parse_kind(kind)? })
}

fn parse_kind(word: &str) -> Option<PieceKind> {
    if let Some(number) = word.strip_prefix("table_") {
        return parse_number(number).map(PieceKind::Table);
    }
    match word.strip_prefix("expert_") {
        Some(number) => parse_number(number).map(PieceKind::Expert),
        None => {
            let (kind, _) = WORDS.iter().find(|(_, known)| *known == word)?;
            Some(*kind)
        }
    }
}

/// Parses a number without sign or leading zero, so that a piece has only one spelling.
fn parse_number(digits: &str) -> Option<u32> {
    let number: u32 = digits.parse().ok()?;
    (number.to_string() == digits).then_some(number)
}

impl From<PieceId> for String {
    fn from(id: PieceId) -> String {
        id.to_string()
    }
}

impl TryFrom<String> for PieceId {
    type Error = UnknownPiece;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        name.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back() {
        let ids = [
            (PieceId::EMBED, "embed"),
            (PieceId::new(0, PieceKind::Norms), "layer_0/norms"),
            (PieceId::new(3, PieceKind::Table(0)), "layer_3/table_0"),
            (PieceId::new(3, PieceKind::Table(511)), "layer_3/table_511"),
            (PieceId::new(3, PieceKind::Attention), "layer_3/attention"),
            (PieceId::new(3, PieceKind::Router), "layer_3/router"),
            (PieceId::new(3, PieceKind::SharedExpert), "layer_3/shared_expert"),
            (PieceId::new(3, PieceKind::Mlp), "layer_3/mlp"),
            (PieceId::expert(3, 0), "layer_3/expert_0"),
            (PieceId::expert(3, u32::MAX), "layer_3/expert_4294967295"),
            (PieceId::new(3, PieceKind::LayerInput), "layer_3/layer_input"),
            (PieceId::new(4, PieceKind::Norms), "layer_4/norms"),
            (PieceId::FINAL_NORM, "final_norm"),
            (PieceId::LM_HEAD, "lm_head"),
            (PieceId::new(9, PieceKind::Extra), "extra"),
        ];
        for (id, name) in ids {
            assert_eq!(id.to_string(), name);
            assert_eq!(name.parse(), Ok(id));
        }
        assert!(ids.is_sorted(), "listed in the order of a pass");
    }

    #[test]
    fn other_spellings_are_refused() {
        for name in [
            "",
            "layer_3",
            "layer_3/",
            "layer_03/norms",
            "layer_+3/norms",
            "layer_4294967296/norms",
            "layer_3/expert_",
            "layer_3/table_x",
            "layer_3/expert_07",
            "layer_3/embed",
            "table_0",
            "layer_input",
            "norms",
            "expert_3",
            "layer_3/expert_7/x",
            "../embed",
        ] {
            assert_eq!(name.parse::<PieceId>(), Err(UnknownPiece(name.to_owned())), "{name}");
        }
    }
}
