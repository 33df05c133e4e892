//! Traces as safetensors files.

use std::collections::BTreeMap;

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
        let len = Header::json_len(*first, bytes.len() as u64).map_err(|_| TraceError::Unknown)?;
        let json = rest.get(..len as usize).filter(|json| json.len() <= MAX_HEADER);
        let json = json.ok_or(TraceError::Unknown)?;
        let header = Header::parse(json, bytes.len() as u64)?;
        let facts: TraceWithFacts =
            serde_json::from_slice(json).map_err(|e| TraceError::Header(HeaderError::Json(e)))?;
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
            Some(value) => value.parse().map_err(|_| TraceError::Metadata {
                name: "experts",
                value: value.chars().take(20).collect(),
            })?,
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
            Dtype::U8 => Some(data.iter().map(|&id| id.into()).collect()),
            Dtype::U16 => {
                Some(data.as_chunks().0.iter().map(|&id| u16::from_le_bytes(id)).collect())
            }
            Dtype::U32 | Dtype::I32 => data
                .as_chunks()
                .0
                .iter()
                .map(|&id| u32::from_le_bytes(id).try_into().ok())
                .collect(),
            _ => None,
        }
    }

    fn counts(&self, name: &'static str) -> Result<Option<Vec<u32>>, TraceError> {
        let Some(tensor) = self.find(name) else { return Ok(None) };
        let numbers = || -> Option<Vec<u32>> {
            let whole = matches!(tensor.dtype, Dtype::I32 | Dtype::U32) && tensor.shape.len() == 1;
            let numbers = self.data(tensor).as_chunks().0.iter();
            whole.then(|| numbers.map(|&n| i32::from_le_bytes(n).try_into().ok()).collect())?
        };
        numbers().map(Some).ok_or(not(name, "a row of numbers in i32, none below zero"))
    }
}

const THREE: &str = "three-dimensional, of numbers below 65536 in u8, u16, u32 or i32";

fn not(name: &'static str, expected: &'static str) -> TraceError {
    TraceError::Tensor { name, expected }
}

pub(super) fn write(trace: &Trace) -> Vec<u8> {
    let HistoryShape { layers, experts, top_k } = trace.shape;
    let count = trace.token_count();
    let four = |numbers: &mut dyn Iterator<Item = usize>| -> Vec<u8> {
        numbers.flat_map(|n| (n as i32).to_le_bytes()).collect()
    };
    let lens: Vec<usize> = trace.sequences().map(|r| r.len()).collect();
    let passes: Vec<usize> = ranges(trace.passes.iter().copied()).map(|r| r.len()).collect();
    let mut tensors = vec![("lens", "I32", vec![lens.len()], four(&mut lens.into_iter()))];
    if passes.len() < count {
        tensors.push(("passes", "I32", vec![passes.len()], four(&mut passes.into_iter())));
    }
    if !trace.tokens.is_empty() {
        let tokens = four(&mut trace.tokens.iter().map(|&token| token as usize));
        tensors.push(("tokens", "I32", vec![count], tokens));
    }
    let (dtype, ids) = if experts <= 256 {
        ("U8", trace.ids.iter().map(|&id| id as u8).collect())
    } else {
        ("U16", trace.ids.iter().flat_map(|id| id.to_le_bytes()).collect())
    };
    tensors.push(("ids", dtype, vec![count, layers, top_k], ids));

    let facts = [("layers", layers), ("experts", experts), ("top_k", top_k)];
    let facts: BTreeMap<_, _> = facts.map(|(name, n)| (name, n.to_string())).into();
    let entries =
        tensors.iter().map(|(name, dtype, shape, data)| (*name, *dtype, shape.clone(), data.len()));
    let mut bytes = Header::write(Some(serde_json::json!(facts)), entries, 8);
    tensors.into_iter().for_each(|(_, _, _, data)| bytes.extend(data));
    bytes
}
