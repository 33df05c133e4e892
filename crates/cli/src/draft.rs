//! The draft of a model: where it lies, what it is made from, what it may take.

mod states;

use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail};
use sws_draft::{DraftShape, DraftSize, MicroDraftModel};
use sws_engine::Budget;
use sws_model::ModelSpec;
use sws_store::{Memory, Piece, PieceKind, open_regular};

use crate::commands::size;
use crate::model::Model;
use crate::terminal::note;
pub(crate) use states::{Sequence, States};

/// A draft takes its room from experts. One that has learned nothing is worth it where all of a model's are
/// so many times as large together as it would be with room enough. That lies between 25 times, where it loses
/// (tales-moe within 46 and 56 MiB: a token took 2 and 16 % longer), and 3,000 times, where it
/// gains.
const WORTH: u64 = 64;
/// The name of a draft beside the shards of its model.
const FILE: &str = "draft.safetensors";
/// A draft takes one part in so many of a budget, or the floor.
const SHARE: u64 = 20;
const FLOOR: u64 = 1 << 20;
/// The most tokens that a draft remembers which learns from a text alone: as many as a text has, unless
/// one asks for a longer one.
const TOKENS: usize = 4096;

/// Where the draft of a model lies, unless one says otherwise.
pub(crate) fn path(model: &Model) -> PathBuf {
    model.dir.join(FILE)
}

/// What a draft has to know of a model; none if it has no experts, or layers that differ in them.
pub(crate) fn shape(spec: &ModelSpec) -> Option<DraftShape> {
    let moe = |layer: &sws_model::LayerSpec| layer.moe().map(|moe| (moe.experts, moe.top_k));
    let mut moes = spec.layers.iter().enumerate().filter_map(|(l, layer)| Some((l, moe(layer)?)));
    let (first, (experts, top_k)) = moes.next()?;
    let mut layers = vec![first];
    for (layer, found) in moes {
        if found != (experts, top_k) {
            return None;
        }
        layers.push(layer);
    }
    Some(DraftShape { hidden: spec.hidden, layers, experts, top_k })
}

/// The bytes that a draft may take of a budget.
pub(crate) fn limit(ram: Budget) -> usize {
    let (total, available) = match Memory::now() {
        Some(memory) => (memory.total, memory.available),
        None => (u64::MAX, u64::MAX),
    };
    (ram.resolve(total, available, 0) / SHARE).max(FLOOR) as usize
}

/// The draft of a model, as far as it fits into `limit` bytes: a [`trained`] one, or one that has
/// learned nothing yet; what of a trained one has no room is told. None for a model without experts, or
/// with small ones only and nothing trained.
pub(crate) fn load(
    model: &Model,
    file: Option<&Path>,
    limit: usize,
) -> anyhow::Result<Option<MicroDraftModel>> {
    let trained = trained(model, file, limit)?;
    Ok(trained.or_else(|| untrained(model, limit)))
}

/// The draft from `file`, or the one beside the model if there is one.
pub(crate) fn trained(
    model: &Model,
    file: Option<&Path>,
    limit: usize,
) -> anyhow::Result<Option<MicroDraftModel>> {
    let beside = path(model);
    match file.or_else(|| beside.exists().then_some(&beside)) {
        Some(file) => read(model, file, limit),
        None => Ok(None),
    }
}

/// One that has learned nothing, if it is [worth](WORTH) its room.
fn untrained(model: &Model, limit: usize) -> Option<MicroDraftModel> {
    let shape = shape(&model.spec)?;
    let tokens = model.spec.vocab.min(TOKENS);
    let size = |limit| DraftSize::within(limit, &shape, 0, tokens);
    let most = size(usize::MAX)?.bytes(&shape) as u64;
    let pieces = model.manifest.pieces.iter();
    let experts = pieces.filter(|piece| matches!(piece.id.kind(), PieceKind::Expert(_)));
    let experts: u64 = experts.map(Piece::stored_bytes).sum();
    let size = size(limit).filter(|_| experts >= WORTH * most)?;
    Some(MicroDraftModel::new(shape, size))
}

fn read(model: &Model, path: &Path, limit: usize) -> anyhow::Result<Option<MicroDraftModel>> {
    let name = path.display();
    let Some(shape) = shape(&model.spec) else {
        bail!("`{name}` is of no use: the model has no experts, or not the same in all layers");
    };
    let other =
        || anyhow!("`{name}` is not a draft of this model; make one with `sws draft train`");
    let unread = |e: std::io::Error| match e.kind() {
        ErrorKind::InvalidInput => other(),
        _ => anyhow!("`{name}` cannot be read: {e}; make it with `sws draft train`"),
    };
    let file = open_regular(path).map_err(unread)?;
    let about = file.metadata().map_err(unread)?;
    let most = MicroDraftModel::most_bytes(&shape, model.spec.vocab) as u64;
    if about.len() > most {
        return Err(other());
    }
    let mut bytes = Vec::with_capacity(about.len() as usize);
    file.take(most).read_to_end(&mut bytes).map_err(unread)?;
    let fingerprint = &model.manifest.model.fingerprint;
    let of = |e| anyhow!("`{name}` {e}");
    let draft = MicroDraftModel::read(&bytes, &shape, fingerprint, limit).map_err(of)?;
    let whole = MicroDraftModel::size_in(&bytes, &shape, fingerprint).map_err(of)?;
    if draft.as_ref().is_none_or(|draft| draft.size().rank < whole.rank) {
        note!(
            "sws: `{name}` needs {}, and the draft may take {}: {} is left out; give it more, or train one of a lower --rank",
            size(DraftSize { tokens: 0, ..whole }.bytes(&shape) as u64),
            size(limit as u64),
            if draft.is_some() { "its correction" } else { "it" },
        );
    }
    Ok(draft)
}
