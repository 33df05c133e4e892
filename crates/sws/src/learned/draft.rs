//! The draft of a model: its file, its contents, and its memory.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

pub use sws_draft::{DraftShape, DraftSize, MicroDraftModel, Samples, Trained, Training};
use sws_format::{Piece, PieceKind};
use sws_model::ModelSpec;

use super::read_within;
use crate::{Cause, Error, Model, Result, Warning};

/// Minimum ratio of the size of a model's experts to that of its full-size untrained draft, which
/// takes memory from expert slots. The threshold lies between 25, where the draft loses (tales-moe
/// within 46 and 56 MiB: a token took 2 and 16 % longer), and 3,000, where it gains.
const WORTH: u64 = 64;
/// Name of the draft file in a model's directory.
const FILE: &str = "draft.safetensors";
/// Limit of the token table of an untrained draft: as many tokens as a text has, unless a longer
/// context is requested.
const TOKENS: usize = 4096;

/// Default path of a model's draft.
pub fn path(model: &Model) -> PathBuf {
    model.dir().join(FILE)
}

/// Shape of a model as its draft needs it. `None` if it has no experts, if its layers differ in
/// them, or if a token visits some several times.
pub fn shape(spec: &ModelSpec) -> Option<DraftShape> {
    if spec.looped.is_some() {
        return None;
    }
    let mut first = None;
    let mut layers = Vec::new();
    for (index, layer) in spec.layers.iter().enumerate() {
        let Some(moe) = layer.moe() else { continue };
        let found = (moe.experts, moe.top_k);
        if *first.get_or_insert(found) != found {
            return None;
        }
        layers.push(index);
    }
    let (experts, top_k) = first?;
    Some(DraftShape { hidden: spec.state_width(), layers, experts, top_k, sequences: 1 })
}

/// Trains a correction on samples and keeps the weights that do best on the second, held-out ones.
/// The callback comes before every step; if it returns false, there is no result.
pub type Trainer = fn(
    &Training,
    &Samples,
    &Samples,
    &mut dyn FnMut() -> bool,
) -> std::result::Result<Option<Trained>, Cause>;

/// Returns the trainer, which only builds with the feature `candle` have.
pub fn trainer() -> Result<Trainer> {
    #[cfg(feature = "candle")]
    return Ok(|training, samples, held_out, step| {
        sws_candle::draft::train(training, samples, held_out, step).map_err(Cause::from)
    });
    #[cfg(not(feature = "candle"))]
    Err(Error::WithoutCandle)
}

/// A possible draft of a model: its size is known, but it has not been made yet.
#[derive(Debug)]
pub struct DraftCandidate {
    shape: DraftShape,
    /// Size of the whole draft.
    whole: DraftSize,
    /// Path and contents of a trained draft.
    trained: Option<(PathBuf, Vec<u8>)>,
}

impl DraftCandidate {
    /// Returns a draft for this many sequences: the one in `file`, the one in the model's
    /// directory, or an untrained one. `None` for a model without experts, or with small experts
    /// and no trained draft.
    pub(crate) fn find(
        model: &Model,
        file: Option<&Path>,
        sequences: usize,
    ) -> Result<Option<DraftCandidate>> {
        let trained = DraftCandidate::trained(model, file)?;
        let found = trained.or_else(|| DraftCandidate::untrained(model));
        let Some(mut candidate) = found else { return Ok(None) };
        candidate.shape.sequences = sequences;
        Ok(Some(candidate))
    }

    /// Returns the draft in `file`, or the one in the model's directory, if any.
    pub fn trained(model: &Model, file: Option<&Path>) -> Result<Option<DraftCandidate>> {
        let beside = path(model);
        match file {
            Some(file) => DraftCandidate::read(model, file).map(Some),
            None if beside.exists() => DraftCandidate::read(model, &beside).map(Some),
            None => Ok(None),
        }
    }

    /// Returns an untrained draft, if it is [worth](WORTH) its memory.
    fn untrained(model: &Model) -> Option<DraftCandidate> {
        let shape = shape(model.spec())?;
        let tokens = model.spec().vocab.min(TOKENS);
        let whole = DraftSize::within(usize::MAX, &shape, 0, tokens)?;
        let pieces = model.manifest().pieces.iter();
        let experts = pieces.filter(|piece| matches!(piece.id.kind(), PieceKind::Expert(_)));
        let experts: u64 = experts.map(Piece::stored_bytes).sum();
        let worth = experts >= WORTH * whole.bytes(&shape) as u64;
        worth.then_some(DraftCandidate { shape, whole, trained: None })
    }

    fn read(model: &Model, path: &Path) -> Result<DraftCandidate> {
        let Some(shape) = shape(model.spec()) else {
            let why = "cannot be used: the model has no experts, or its layers differ in them, or a token visits some several times";
            return Err(error(path, why));
        };
        let most = MicroDraftModel::most_bytes(&shape, model.spec().vocab) as u64;
        let bytes = match read_within(path, most) {
            Ok(Some(bytes)) => bytes,
            Err(e) if e.kind() != ErrorKind::InvalidInput => {
                let why = format!("cannot be read: {e}; make it with `sws draft train`");
                return Err(error(path, why));
            }
            Ok(None) | Err(_) => {
                let why = "is not a draft of this model; make one with `sws draft train`";
                return Err(error(path, why));
            }
        };
        let fingerprint = &model.manifest().model.fingerprint;
        let whole = MicroDraftModel::size_in(&bytes, &shape, fingerprint)
            .map_err(|e| error(path, e.to_string()))?;
        Ok(DraftCandidate { shape, whole, trained: Some((path.to_owned(), bytes)) })
    }

    /// True if it was trained before the run.
    pub fn is_trained(&self) -> bool {
        self.trained.is_some()
    }

    /// Returns the largest size that fits into `limit` bytes. `None` if not even a history fits.
    pub fn within(&self, limit: u64) -> Option<DraftSize> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        DraftSize::within(limit, &self.shape, self.whole.rank, self.whole.tokens)
    }

    /// Returns its size in bytes, if limited to `limit`.
    pub(crate) fn bytes_within(&self, limit: u64) -> u64 {
        match self.within(limit) {
            Some(size) => size.bytes(&self.shape) as u64,
            None => 0,
        }
    }

    /// Returns a warning if trained parts do not fit into `limit`.
    pub fn too_large(&self, limit: u64) -> Option<Warning> {
        let file = &self.trained.as_ref()?.0;
        let fits = self.within(limit);
        if fits.is_some_and(|size| size.rank >= self.whole.rank) {
            return None;
        }
        Some(Warning::DraftTooLarge {
            file: file.clone(),
            needs: DraftSize { tokens: 0, ..self.whole }.bytes(&self.shape) as u64,
            limit,
            partly: fits.is_some(),
        })
    }

    /// Makes the draft, as large as fits into `share` bytes.
    pub fn make(self, model: &Model, share: u64) -> Result<Option<MicroDraftModel>> {
        let Some(size) = self.within(share) else { return Ok(None) };
        let DraftCandidate { shape, trained, .. } = self;
        let Some((file, bytes)) = trained else {
            return Ok(Some(MicroDraftModel::new(shape, size)));
        };
        let limit = usize::try_from(share).unwrap_or(usize::MAX);
        let fingerprint = &model.manifest().model.fingerprint;
        MicroDraftModel::read(&bytes, &shape, fingerprint, limit)
            .map_err(|e| error(&file, e.to_string()))
    }
}

/// An error of the draft in a file.
fn error(file: &Path, why: impl Into<String>) -> Error {
    Error::Draft { file: file.to_owned(), why: why.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_of_a_plan_makes_the_draft_that_was_planned() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shards/tales-moe");
        let shape = shape(Model::open(dir).unwrap().spec()).unwrap();
        let rank = 16;
        let tokens = TOKENS;
        let whole = DraftSize { rank, tokens, distances: sws_draft::DEPTH };
        let candidate = DraftCandidate { shape, whole, trained: None };
        let most = candidate.bytes_within(u64::MAX);
        for limit in (0..most + most / 8).step_by(10_007) {
            let share = candidate.bytes_within(limit);
            assert!(share <= limit);
            assert_eq!(candidate.within(share), candidate.within(limit).filter(|_| share > 0));
        }
        assert_eq!(candidate.bytes_within(0), 0);
    }
}
