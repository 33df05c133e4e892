//! The reads of messages of earlier rounds, in models with layers that a pass visits several times.

use sws_format::{PieceId, PieceKind};

use super::{ReadStep, Site, TensorSpec};
use crate::role::Role;
use crate::spec::LoopSpec;

/// An input of a branch that reads a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receiver {
    /// The input of queries.
    Query,
    /// The input of keys.
    Key,
    /// The input of values.
    Value,
    /// The input of the feed-forward block.
    Ffn,
}

impl Receiver {
    const ALL: [Receiver; 4] = [Receiver::Query, Receiver::Key, Receiver::Value, Receiver::Ffn];

    /// The roles of the matrices to the latent of gates, and from it to those of state and message.
    pub(crate) const fn roles(self) -> [Role; 3] {
        use Role::{
            FfnMessageDown, FfnMessageForget, FfnMessageGain, KeyMessageDown, KeyMessageForget,
            KeyMessageGain, QueryMessageDown, QueryMessageForget, QueryMessageGain,
            ValueMessageDown, ValueMessageForget, ValueMessageGain,
        };
        match self {
            Receiver::Query => [QueryMessageDown, QueryMessageForget, QueryMessageGain],
            Receiver::Key => [KeyMessageDown, KeyMessageForget, KeyMessageGain],
            Receiver::Value => [ValueMessageDown, ValueMessageForget, ValueMessageGain],
            Receiver::Ffn => [FfnMessageDown, FfnMessageForget, FfnMessageGain],
        }
    }

    /// The piece of these matrices in a layer.
    pub(crate) const fn piece(self, layer: usize) -> PieceId {
        match self {
            Receiver::Ffn => PieceId::new(layer as u32, Site::Ffn.piece()),
            _ => PieceId::new(layer as u32, Site::Mixer.piece()),
        }
    }

    /// The role of the rows that compute the logits of the message, and the number of its row among
    /// the two of a layer.
    pub(crate) const fn row(self) -> (Role, usize) {
        match self {
            Receiver::Query => (Role::Messages, 0),
            Receiver::Ffn => (Role::Messages, 1),
            Receiver::Key => (Role::KvMessages, 0),
            Receiver::Value => (Role::KvMessages, 1),
        }
    }

    /// The reads of the gates, whose latent has `rank` elements.
    pub(super) fn reads(self, rank: usize, hidden: usize) -> Vec<TensorSpec> {
        let [down, forget, gain] = self.roles();
        vec![
            TensorSpec::matrix(down, rank, 2 * hidden),
            TensorSpec::matrix(forget, hidden, rank),
            TensorSpec::matrix(gain, hidden, rank),
        ]
    }
}

/// The rows that compute the logits of messages, for all layers.
pub(super) fn rows(of: LoopSpec, hidden: usize) -> [ReadStep; 2] {
    let rows = 2 * of.layers();
    [Role::Messages, Role::KvMessages]
        .map(|role| ReadStep::Tensor(PieceKind::Norms, TensorSpec { role, rows, cols: hidden }))
}

/// True for a read of the gates of a message.
pub(super) fn is_of_message(read: &ReadStep) -> bool {
    let ReadStep::Tensor(_, TensorSpec { role, .. }) = read else { return false };
    Receiver::ALL.into_iter().any(|to| to.roles().contains(role))
}
