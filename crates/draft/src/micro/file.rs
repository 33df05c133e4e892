//! Trained drafts as safetensors files.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::json;
use sws_format::{Dtype, Header, HeaderError, HeaderTensor};

use super::learned::{FEATURES, HEADS, Learned};
use super::{DEPTH, DraftShape, DraftSize, MicroDraftModel};

/// The highest rank of a correction.
pub const MAX_RANK: usize = 256;

/// Maximum length of a header: there are a dozen tensors, and the numbers of the layers.
const MAX_HEADER: usize = 1 << 20;

/// The largest accepted magnitude of a learned number.
const LARGEST: f32 = 1e12;

/// Name of the tensor with flags of forecasts that depend on routers alone. It is absent if there
/// are none.
const ALONE: &str = "alone";

/// The version of the file's contents.
const VERSION: &str = "1";

/// Reasons to refuse a file as the draft of a model. The messages follow the name of the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DraftError {
    /// The file is not a safetensors file, or lacks the metadata of a draft.
    #[error("is not a draft: {0}; make one with `sws draft train`")]
    Unknown(&'static str),
    /// The header is invalid.
    #[error("is not a safetensors file: {0}; make it again with `sws draft train`")]
    Header(#[from] HeaderError),
    /// The draft was trained on another model.
    #[error("was trained for another model; train one for this model with `sws draft train`")]
    OtherModel,
    /// A tensor is missing, or has another type or length than the model needs.
    #[error("has no `{name}` as this model needs it; make it again with `sws draft train`")]
    Tensor {
        /// Name of the tensor.
        name: &'static str,
    },
    /// A tensor contains an impossible number.
    #[error("has an impossible number in `{name}`; make it again with `sws draft train`")]
    Number {
        /// Name of the tensor.
        name: &'static str,
    },
}

#[derive(Deserialize)]
struct DraftWithFacts {
    #[serde(rename = "__metadata__", default)]
    facts: BTreeMap<String, String>,
}

fn facts(shape: &DraftShape, fingerprint: &str) -> BTreeMap<&'static str, String> {
    let layers: Vec<String> = shape.layers.iter().map(usize::to_string).collect();
    BTreeMap::from([
        ("sws_draft", VERSION.to_owned()),
        ("model", fingerprint.to_owned()),
        ("hidden", shape.hidden.to_string()),
        ("layers", layers.join(",")),
        ("experts", shape.experts.to_string()),
        ("top_k", shape.top_k.to_string()),
    ])
}

impl MicroDraftModel {
    /// Upper bound on the length of the file that [`write`](Self::write) makes for a model.
    pub fn most_bytes(shape: &DraftShape, vocab: usize) -> usize {
        let size =
            DraftSize { rank: MAX_RANK, tokens: vocab.next_multiple_of(4), distances: DEPTH };
        MAX_HEADER + size.bytes(shape)
    }

    /// Returns a safetensors file with everything learned about the model with this fingerprint,
    /// except the recent use of experts.
    pub fn write(&self, fingerprint: &str) -> Vec<u8> {
        let learned = &self.learned;
        let known = &self.known;
        let tokens = &known.tokens;
        let ids = tokens.ids.iter().copied().flat_map(u32::to_le_bytes).collect();
        let mut seen = Vec::new();
        let mut followed = Vec::new();
        for pairs in &known.pairs {
            seen.extend(shorts(&pairs.seen));
            followed.extend_from_slice(&pairs.followed);
        }
        let mut tensors: Vec<(&str, &str, usize, Vec<u8>)> = vec![
            ("weights", "F32", 4, floats(&learned.weights)),
            ("squares", "F32", 4, floats(&learned.squares)),
            ("down", "F32", 4, floats(&learned.down)),
            ("chosen", "F32", 4, floats(&learned.chosen)),
            ("up", "F32", 4, floats(&learned.up)),
            ("counts", "F32", 4, floats(&known.counts)),
            ("steps", "F32", 4, floats(&known.steps)),
            ("pairs.seen", "U16", 2, seen),
            ("pairs.followed", "U8", 1, followed),
            ("tokens.ids", "U32", 4, ids),
            ("tokens.seen", "U16", 2, shorts(&tokens.seen)),
            ("tokens.experts", "U16", 2, shorts(&tokens.experts)),
            ("tokens.counts", "U8", 1, tokens.counts.clone()),
        ];
        if learned.alone.contains(&true) {
            let alone = learned.alone.iter().copied().map(u8::from).collect();
            tensors.push((ALONE, "U8", 1, alone));
        }
        let mut facts = facts(&self.shape, fingerprint);
        facts.insert("rank", learned.rank.to_string());
        facts.insert("distances", self.size.distances.to_string());
        let entries = tensors.iter().map(|(name, dtype, width, bytes)| {
            (*name, *dtype, vec![bytes.len() / width], bytes.len())
        });
        let mut bytes = Header::write(Some(json!(facts)), entries, 8);
        for (_, _, _, data) in tensors {
            bytes.extend(data);
        }
        bytes
    }

    /// Reads the output of [`write`](Self::write) for the model with this shape and fingerprint, as
    /// far as it fits into `limit` bytes of memory. The correction is kept whole or not at all. Of
    /// the tokens, the most frequent are kept. Returns `None` if not even a history fits.
    pub fn read(
        bytes: &[u8],
        shape: &DraftShape,
        fingerprint: &str,
        limit: usize,
    ) -> Result<Option<MicroDraftModel>, DraftError> {
        let within = |rank, tokens| DraftSize::within(limit, shape, rank, tokens);
        MicroDraftModel::of_size(bytes, shape, fingerprint, within)
    }

    /// Returns the size of the draft that [`write`](Self::write) made for the model with this shape
    /// and fingerprint.
    pub fn size_in(
        bytes: &[u8],
        shape: &DraftShape,
        fingerprint: &str,
    ) -> Result<DraftSize, DraftError> {
        Ok(open(bytes, shape, fingerprint)?.1)
    }

    /// Like [`read`](Self::read), for the size that `sized` returns for the rank and the number of
    /// tokens in the file. The rank of that size must be the rank in the file, or 0.
    pub(super) fn of_size(
        bytes: &[u8],
        shape: &DraftShape,
        fingerprint: &str,
        sized: impl FnOnce(usize, usize) -> Option<DraftSize>,
    ) -> Result<Option<MicroDraftModel>, DraftError> {
        let (file, whole) = open(bytes, shape, fingerprint)?;
        let DraftSize { rank, distances, .. } = whole;
        let places = shape.layers.len();
        let experts = shape.experts;
        let ids = file.numbers("tokens.ids", Dtype::U32, None, u32::from_le_bytes)?;
        let Some(size) = sized(rank, ids.len()) else { return Ok(None) };

        let mut learned = Learned::new(shape, size.rank);
        let heads = places * HEADS * FEATURES;
        learned.weights = file.floats("weights", heads)?;
        learned.squares = file.floats("squares", heads)?;
        if learned.squares.iter().any(|&x| x <= 0.0) {
            return Err(DraftError::Number { name: "squares" });
        }
        let down = file.floats("down", places * 2 * rank * shape.hidden)?;
        let chosen = file.floats("chosen", places * 2 * rank * experts)?;
        let up = file.floats("up", places * (DEPTH + 1) * experts * (rank + 1))?;
        if size.rank == rank {
            learned.down = down;
            learned.chosen = chosen;
            learned.up = up;
        } else {
            // Without its projection, a correction is reduced to its constant.
            learned.up = up.chunks_exact(rank + 1).map(|row| row[rank]).collect();
        }
        if file.has(ALONE) {
            let alone = file.numbers(ALONE, Dtype::U8, Some(learned.alone.len()), |[x]| x != 0)?;
            learned.alone = alone;
        }
        let mut draft = MicroDraftModel::with(shape.clone(), size, learned);
        let known = &mut draft.known;
        known.counts = file.floats("counts", places * experts)?;
        known.steps = file.floats("steps", places)?;
        if known.counts.iter().chain(&known.steps).any(|&x| x < 0.0) {
            return Err(DraftError::Number { name: "counts" });
        }
        let seen = places * distances * experts;
        let seen = file.numbers("pairs.seen", Dtype::U16, Some(seen), u16::from_le_bytes)?;
        let followed = places * distances * experts * experts;
        let followed = file.numbers("pairs.followed", Dtype::U8, Some(followed), |[x]| x)?;
        for (n, pairs) in known.pairs.iter_mut().enumerate() {
            let place = n / size.distances;
            let distance = n % size.distances;
            if distance < distances {
                let from = place * distances + distance;
                pairs.seen.copy_from_slice(&seen[from * experts..][..experts]);
                let len = experts * experts;
                pairs.followed.copy_from_slice(&followed[from * len..][..len]);
            }
        }
        let rows = ids.len();
        let cells = rows * places * 2 * shape.top_k;
        let seen = file.numbers("tokens.seen", Dtype::U16, Some(rows), u16::from_le_bytes)?;
        let used = file.numbers("tokens.experts", Dtype::U16, Some(cells), u16::from_le_bytes)?;
        let counts = file.numbers("tokens.counts", Dtype::U8, Some(cells), |[x]| x)?;
        let mut order: Vec<usize> = (0..rows).filter(|&row| ids[row] != 0).collect();
        order.sort_by_key(|&row| std::cmp::Reverse(seen[row]));
        let len = places * 2 * shape.top_k;
        for row in order {
            let cells = row * len..(row + 1) * len;
            known.tokens.put(ids[row] - 1, seen[row], &used[cells.clone()], &counts[cells]);
        }
        Ok(Some(draft))
    }
}

fn floats(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().copied().flat_map(f32::to_le_bytes).collect()
}

fn shorts(numbers: &[u16]) -> Vec<u8> {
    numbers.iter().copied().flat_map(u16::to_le_bytes).collect()
}

/// Opens a file written for the model with this shape and fingerprint. Also returns its size.
fn open<'a>(
    bytes: &'a [u8],
    shape: &DraftShape,
    fingerprint: &str,
) -> Result<(DraftFile<'a>, DraftSize), DraftError> {
    let file = DraftFile::open(bytes)?;
    let facts = facts(shape, fingerprint);
    if file.facts.get("sws_draft").map(String::as_str) != Some(VERSION) {
        return Err(DraftError::Unknown("its metadata do not say so"));
    }
    if facts.iter().any(|(name, value)| file.facts.get(*name) != Some(value)) {
        return Err(DraftError::OtherModel);
    }
    let rank = file.fact("rank", MAX_RANK)?;
    let distances = file.fact("distances", DEPTH)?;
    let ids = file.numbers("tokens.ids", Dtype::U32, None, u32::from_le_bytes)?;
    Ok((file, DraftSize { rank, tokens: ids.len(), distances }))
}

struct DraftFile<'a> {
    bytes: &'a [u8],
    header: Header,
    facts: BTreeMap<String, String>,
}

impl<'a> DraftFile<'a> {
    fn open(bytes: &'a [u8]) -> Result<DraftFile<'a>, DraftError> {
        let short = DraftError::Unknown("it is too short");
        let (first, rest) = bytes.split_first_chunk::<8>().ok_or(short)?;
        let len = Header::json_len(*first, bytes.len() as u64)?;
        let json = match rest.get(..len as usize) {
            Some(json) if json.len() <= MAX_HEADER => json,
            _ => return Err(DraftError::Unknown("its header is too long")),
        };
        let header = Header::parse(json, bytes.len() as u64)?;
        let facts: DraftWithFacts = serde_json::from_slice(json).map_err(HeaderError::Json)?;
        Ok(DraftFile { bytes, header, facts: facts.facts })
    }

    /// A number in the metadata, which is at most `most`.
    fn fact(&self, name: &str, most: usize) -> Result<usize, DraftError> {
        match self.facts.get(name).map(|value| value.parse()) {
            Some(Ok(number)) if number <= most => Ok(number),
            _ => Err(DraftError::Unknown("its metadata are incomplete")),
        }
    }

    fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    fn find(&self, name: &str) -> Option<&HeaderTensor> {
        self.header.tensors.iter().find(|tensor| tensor.name == name)
    }

    /// Returns the numbers of a tensor, which must be `len` if that is given.
    fn numbers<T, const N: usize>(
        &self,
        name: &'static str,
        dtype: Dtype,
        len: Option<usize>,
        number: impl Fn([u8; N]) -> T,
    ) -> Result<Vec<T>, DraftError> {
        let tensor = self.find(name).ok_or(DraftError::Tensor { name })?;
        if tensor.dtype != dtype || len.is_some_and(|len| tensor.len != (len * N) as u64) {
            return Err(DraftError::Tensor { name });
        }
        // The header's parser has checked that the tensor lies within the file.
        let start = tensor.offset as usize;
        let bytes = self.bytes.get(start..start + tensor.len as usize).unwrap_or_default();
        Ok(bytes.as_chunks::<N>().0.iter().copied().map(number).collect())
    }

    fn floats(&self, name: &'static str, len: usize) -> Result<Vec<f32>, DraftError> {
        let numbers = self.numbers(name, Dtype::F32, Some(len), f32::from_le_bytes)?;
        match numbers.iter().all(|x| x.abs() <= LARGEST) {
            true => Ok(numbers),
            false => Err(DraftError::Number { name }),
        }
    }
}
