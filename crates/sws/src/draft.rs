//! The draft of a model: the file it lies in, what it is made from, and the room that it takes.

use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use sws_draft::{DraftShape, DraftSize, MicroDraftModel};
use sws_model::{LayerSpec, ModelSpec};
use sws_store::{Piece, PieceKind, open_regular};

use crate::{Error, Model, Result, Warning};

/// A draft takes its room from experts. One that has learned nothing is worth it where all of a model's are
/// so many times as large together as it would be with room enough. That lies between 25 times, where it loses
/// (tales-moe within 46 and 56 MiB: a token took 2 and 16 % longer), and 3,000 times, where it
/// gains.
const WORTH: u64 = 64;
/// The name of a draft beside the shards of its model.
const FILE: &str = "draft.safetensors";
/// The most tokens that a draft remembers which learns from a text alone: as many as a text has, unless
/// one asks for a longer one.
const TOKENS: usize = 4096;

/// The file in which the draft of a model lies, unless another one is named.
pub fn path(model: &Model) -> PathBuf {
    model.dir().join(FILE)
}

/// The shape of a model that a draft has to know; none if it has no experts, or layers that differ in them.
pub fn shape(spec: &ModelSpec) -> Option<DraftShape> {
    let moe = |layer: &LayerSpec| layer.moe().map(|moe| (moe.experts, moe.top_k));
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

/// A draft that a model could have: known in its size, and not made yet.
#[derive(Debug)]
pub struct Candidate {
    shape: DraftShape,
    /// All of it, were there room.
    whole: DraftSize,
    /// The file of a trained one, and what is in it.
    trained: Option<(PathBuf, Vec<u8>)>,
}

impl Candidate {
    /// The draft from `file`, or the one beside the model if there is one, or one that has learned nothing.
    /// None for a model without experts, or with small ones only and nothing trained.
    pub(crate) fn find(model: &Model, file: Option<&Path>) -> Result<Option<Candidate>> {
        Ok(Candidate::trained(model, file)?.or_else(|| Candidate::untrained(model)))
    }

    /// The draft from `file`, or the one beside the model if there is one.
    pub fn trained(model: &Model, file: Option<&Path>) -> Result<Option<Candidate>> {
        let beside = path(model);
        match file.or_else(|| beside.exists().then_some(&beside)) {
            Some(file) => Candidate::read(model, file).map(Some),
            None => Ok(None),
        }
    }

    /// One that has learned nothing, if it is [worth](WORTH) its room.
    fn untrained(model: &Model) -> Option<Candidate> {
        let shape = shape(model.spec())?;
        let tokens = model.spec().vocab.min(TOKENS);
        let whole = DraftSize::within(usize::MAX, &shape, 0, tokens)?;
        let pieces = model.manifest().pieces.iter();
        let experts = pieces.filter(|piece| matches!(piece.id.kind(), PieceKind::Expert(_)));
        let experts: u64 = experts.map(Piece::stored_bytes).sum();
        let worth = experts >= WORTH * whole.bytes(&shape) as u64;
        worth.then_some(Candidate { shape, whole, trained: None })
    }

    fn read(model: &Model, path: &Path) -> Result<Candidate> {
        let error = |why: String| Error::Draft { file: path.to_owned(), why };
        let Some(shape) = shape(model.spec()) else {
            let why = "is of no use: the model has no experts, or not the same in all layers";
            return Err(error(why.to_owned()));
        };
        let other =
            || error("is not a draft of this model; make one with `sws draft train`".to_owned());
        let unread = |e: std::io::Error| match e.kind() {
            ErrorKind::InvalidInput => other(),
            _ => error(format!("cannot be read: {e}; make it with `sws draft train`")),
        };
        let file = open_regular(path).map_err(unread)?;
        let about = file.metadata().map_err(unread)?;
        let most = MicroDraftModel::most_bytes(&shape, model.spec().vocab) as u64;
        if about.len() > most {
            return Err(other());
        }
        let mut bytes = Vec::with_capacity(about.len() as usize);
        file.take(most).read_to_end(&mut bytes).map_err(unread)?;
        let fingerprint = &model.manifest().model.fingerprint;
        let whole = MicroDraftModel::size_in(&bytes, &shape, fingerprint)
            .map_err(|e| error(e.to_string()))?;
        Ok(Candidate { shape, whole, trained: Some((path.to_owned(), bytes)) })
    }

    /// The most of it that `limit` bytes have room for; none if not even a history has.
    pub fn within(&self, limit: u64) -> Option<DraftSize> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        DraftSize::within(limit, &self.shape, self.whole.rank, self.whole.tokens)
    }

    /// The bytes that it takes of `limit`.
    pub(crate) fn bytes_within(&self, limit: u64) -> u64 {
        self.within(limit).map_or(0, |size| size.bytes(&self.shape) as u64)
    }

    /// A warning if what was trained has to be left out for room.
    pub fn too_large(&self, limit: u64) -> Option<Warning> {
        let (file, _) = self.trained.as_ref()?;
        let fits = self.within(limit);
        let cut = fits.is_none_or(|size| size.rank < self.whole.rank);
        cut.then(|| Warning::DraftTooLarge {
            file: file.clone(),
            needs: DraftSize { tokens: 0, ..self.whole }.bytes(&self.shape) as u64,
            limit,
            partly: fits.is_some(),
        })
    }

    /// Makes as much of it as `share` bytes have room for.
    pub fn make(self, model: &Model, share: u64) -> Result<Option<MicroDraftModel>> {
        let Some(size) = self.within(share) else { return Ok(None) };
        let Candidate { shape, trained, .. } = self;
        let Some((file, bytes)) = trained else {
            return Ok(Some(MicroDraftModel::new(shape, size)));
        };
        let limit = usize::try_from(share).unwrap_or(usize::MAX);
        let fingerprint = &model.manifest().model.fingerprint;
        MicroDraftModel::read(&bytes, &shape, fingerprint, limit)
            .map_err(|e| Error::Draft { file, why: e.to_string() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_of_a_plan_makes_the_draft_that_was_planned() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shards/tales-moe");
        let shape = shape(Model::open(dir).unwrap().spec()).unwrap();
        let (rank, tokens) = (16, TOKENS);
        let whole = DraftSize { rank, tokens, distances: sws_draft::DEPTH };
        let candidate = Candidate { shape, whole, trained: None };
        let most = candidate.bytes_within(u64::MAX);
        for limit in (0..most + most / 8).step_by(10_007) {
            let share = candidate.bytes_within(limit);
            assert!(share <= limit);
            assert_eq!(candidate.within(share), candidate.within(limit).filter(|_| share > 0));
        }
        assert_eq!(candidate.bytes_within(0), 0);
    }
}
