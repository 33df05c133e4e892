//! Traces as safetensors files.

use serde::Deserialize;
use sws_format::{Dtype, Header, HeaderError, HeaderTensor};

use super::{Trace, TraceError, ranges};
use crate::shape::HistoryShape;

/// The longest accepted header: a trace has a handful of tensors.
const MAX_HEADER: usize = 1 << 20;

/// Metadata that may be present.
#[derive(Default, Deserialize)]
struct TraceFacts {
    experts: Option<String>,
}

#[derive(Deserialize)]
struct TraceWithFacts {
    #[serde(rename = "__metadata__", default)]
    facts: TraceFacts,
}

pub(super) fn read(bytes: &[u8]) -> Result<Trace, TraceError> {
    let file = TraceFile::open(bytes)?;
    if file.find("ids").is_some() {
        file.trace()
    } else if file.find("routes").is_some() {
        file.routes()
    } else {
        Err(TraceError::Unknown)
    }
}

pub(super) struct TraceFile<'a> {
    bytes: &'a [u8],
    header: Header,
    facts: TraceFacts,
}

impl<'a> TraceFile<'a> {
    pub(super) fn open(bytes: &'a [u8]) -> Result<TraceFile<'a>, TraceError> {
        let Some((first, rest)) = bytes.split_first_chunk::<8>() else {
            return Err(TraceError::Unknown);
        };
        let Ok(len) = Header::json_len(*first, bytes.len() as u64) else {
            return Err(TraceError::Unknown);
        };
        let json = match rest.get(..len as usize) {
            Some(json) if json.len() <= MAX_HEADER => json,
            _ => return Err(TraceError::Unknown),
        };
        let header = Header::parse(json, bytes.len() as u64)?;
        let facts: TraceWithFacts = serde_json::from_slice(json).map_err(HeaderError::Json)?;
        Ok(TraceFile { bytes, header, facts: facts.facts })
    }

    fn trace(&self) -> Result<Trace, TraceError> {
        let ids = self.find("ids").ok_or(TraceError::Unknown)?;
        let &[_, layers, top_k] = &ids.shape[..] else { return Err(not("ids", THREE)) };
        let ids = self.experts(ids).ok_or(not("ids", THREE))?;
        let shape = self.shape(layers, top_k, &ids)?;
        let tokens = self.counts("tokens")?.unwrap_or_default();
        Trace::checked(shape, ids, tokens, self.counts("lens")?, self.counts("passes")?)
    }

    /// Reads `routes` [layers, tokens, k] of one sequence.
    fn routes(&self) -> Result<Trace, TraceError> {
        let routes = self.find("routes").ok_or(TraceError::Unknown)?;
        let &[layers, tokens, top_k] = &routes.shape[..] else { return Err(not("routes", THREE)) };
        let by_layer = self.experts(routes).ok_or(not("routes", THREE))?;
        let shape = self.shape(layers, top_k, &by_layer)?;
        let mut ids = Vec::with_capacity(by_layer.len());
        let row = shape.top_k;
        let layer = tokens as usize * row;
        for token in 0..tokens as usize {
            for l in 0..shape.layers {
                ids.extend_from_slice(&by_layer[l * layer + token * row..][..row]);
            }
        }
        Trace::checked(shape, ids, Vec::new(), None, None)
    }

    fn shape(&self, layers: u64, top_k: u64, ids: &[u16]) -> Result<HistoryShape, TraceError> {
        // If there is an id, the dimensions are bounded by the size of a tensor in memory.
        let Some(most) = ids.iter().max() else { return Err(TraceError::Empty) };
        let experts = match &self.facts.experts {
            None => usize::from(*most) + 1,
            Some(value) => {
                let Ok(experts) = value.parse::<usize>() else {
                    let value = value.chars().take(20).collect();
                    return Err(TraceError::Metadata { name: "experts", value });
                };
                experts
            }
        };
        Ok(HistoryShape { layers: layers as usize, experts, top_k: top_k as usize })
    }

    pub(super) fn find(&self, name: &str) -> Option<&HeaderTensor> {
        self.header.tensors.iter().find(|tensor| tensor.name == name)
    }

    /// Bytes of a tensor. The header's parser has checked that every tensor lies within the file
    /// and is as long as its type and shape require.
    pub(super) fn data(&self, tensor: &HeaderTensor) -> &'a [u8] {
        let start = tensor.offset as usize;
        self.bytes.get(start..start + tensor.len as usize).unwrap_or_default()
    }

    fn experts(&self, tensor: &HeaderTensor) -> Option<Vec<u16>> {
        let data = self.data(tensor);
        match tensor.dtype {
            Dtype::U8 => Some(data.iter().copied().map(u16::from).collect()),
            Dtype::U16 => {
                Some(data.as_chunks().0.iter().copied().map(u16::from_le_bytes).collect())
            }
            Dtype::U32 | Dtype::I32 => {
                let ids = data.as_chunks().0.iter().copied().map(u32::from_le_bytes);
                ids.map(|id| id.try_into().ok()).collect()
            }
            _ => None,
        }
    }

    fn counts(&self, name: &'static str) -> Result<Option<Vec<u32>>, TraceError> {
        let Some(tensor) = self.find(name) else { return Ok(None) };
        let wrong = not(name, "a row of numbers in i32, none below zero");
        if !matches!(tensor.dtype, Dtype::I32 | Dtype::U32) || tensor.shape.len() != 1 {
            return Err(wrong);
        }
        let mut counts = Vec::new();
        for &count in self.data(tensor).as_chunks().0 {
            let Ok(count) = u32::try_from(i32::from_le_bytes(count)) else { return Err(wrong) };
            counts.push(count);
        }
        Ok(Some(counts))
    }
}

const THREE: &str = "three-dimensional, of numbers below 65536 in u8, u16, u32 or i32";

fn not(name: &'static str, expected: &'static str) -> TraceError {
    TraceError::Tensor { name, expected }
}

pub(super) fn write(trace: &Trace) -> Vec<u8> {
    let HistoryShape { layers, experts, top_k } = trace.shape;
    let count = trace.token_count();
    let lens: Vec<i32> = trace.sequences().map(|tokens| tokens.len() as i32).collect();
    let passes: Vec<i32> =
        ranges(trace.passes.iter().copied()).map(|tokens| tokens.len() as i32).collect();
    let mut tensors = vec![("lens", "I32", vec![lens.len()], in_bytes(lens))];
    if passes.len() < count {
        tensors.push(("passes", "I32", vec![passes.len()], in_bytes(passes)));
    }
    if !trace.tokens.is_empty() {
        let tokens = trace.tokens.iter().map(|&token| token as i32);
        tensors.push(("tokens", "I32", vec![count], in_bytes(tokens)));
    }
    let (dtype, ids) = if experts <= 256 {
        ("U8", trace.ids.iter().map(|&id| id as u8).collect())
    } else {
        ("U16", trace.ids.iter().copied().flat_map(u16::to_le_bytes).collect())
    };
    tensors.push(("ids", dtype, vec![count, layers, top_k], ids));

    // In the order of the alphabet, with any features of serde_json.
    let facts = serde_json::json!({
        "experts": experts.to_string(),
        "layers": layers.to_string(),
        "top_k": top_k.to_string(),
    });
    let entries =
        tensors.iter().map(|(name, dtype, shape, data)| (*name, *dtype, shape.clone(), data.len()));
    let mut bytes = Header::write(Some(facts), entries, 8);
    for (_, _, _, data) in tensors {
        bytes.extend(data);
    }
    bytes
}

fn in_bytes(numbers: impl IntoIterator<Item = i32>) -> Vec<u8> {
    numbers.into_iter().flat_map(i32::to_le_bytes).collect()
}
