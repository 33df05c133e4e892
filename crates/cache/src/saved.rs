//! Learned state of a model, kept for its next start.

use serde::Deserialize;
use sws_format::{Dtype, Header, HeaderError};

/// The longest accepted header: there are a few dozen tensors.
const MAX_HEADER: usize = 1 << 20;

/// Tensors of all components that learn, in one safetensors file that names their model.
///
/// Learned state decides what is read and cached, never what is computed: a wrong file costs time
/// and nothing else. Each component prefixes the names of its tensors and ignores the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedTensors {
    tensors: Vec<SavedTensor>,
}

/// Name, type, shape, data.
type SavedTensor = (String, Dtype, Vec<usize>, Vec<u8>);

/// Reasons to refuse a saved state. The messages follow the name of a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SavedError {
    /// The file is not a safetensors file.
    #[error("is not a safetensors file: {0}")]
    Header(#[from] HeaderError),
    /// The file was saved for another model.
    #[error("was saved for another model")]
    OtherModel,
    /// A tensor is missing, has the wrong type or shape, or has impossible values.
    #[error("has `{0}` that does not fit the model")]
    Tensor(String),
}

#[derive(Default, Deserialize)]
struct SavedFacts {
    model: Option<String>,
}

#[derive(Deserialize)]
struct SavedWithFacts {
    #[serde(rename = "__metadata__", default)]
    facts: SavedFacts,
}

impl SavedTensors {
    /// Reads the output of [`write`](Self::write) for the model with that identity. Allocates about
    /// as much as the length of `bytes`.
    pub fn read(bytes: &[u8], model: &str) -> Result<SavedTensors, SavedError> {
        match SavedTensors::of_any_model(bytes)? {
            (found, saved) if found == model => Ok(saved),
            _ => Err(SavedError::OtherModel),
        }
    }

    /// Like [`read`](Self::read), for any model. Also returns the model's identity.
    pub fn of_any_model(bytes: &[u8]) -> Result<(String, SavedTensors), SavedError> {
        let Some((first, rest)) = bytes.split_first_chunk::<8>() else { return Err(too_short()) };
        let len = Header::json_len(*first, bytes.len() as u64)?;
        let json = match rest.get(..len as usize) {
            Some(json) if json.len() <= MAX_HEADER => json,
            _ => return Err(too_short()),
        };
        let header = Header::parse(json, bytes.len() as u64)?;
        let facts: SavedWithFacts = serde_json::from_slice(json).map_err(HeaderError::Json)?;
        let model = facts.facts.model.ok_or(SavedError::OtherModel)?;
        let mut tensors = Vec::with_capacity(header.tensors.len());
        for tensor in header.tensors {
            let start = tensor.offset as usize;
            let data = bytes.get(start..start + tensor.len as usize).unwrap_or_default();
            let shape = tensor.shape.iter().map(|&n| n as usize).collect();
            tensors.push((tensor.name, tensor.dtype, shape, data.to_vec()));
        }
        Ok((model, SavedTensors { tensors }))
    }

    /// Returns a safetensors file for the model of that identity.
    pub fn write(&self, model: &str) -> Vec<u8> {
        let tensors = self.tensors.iter();
        let entries = tensors
            .map(|(name, dtype, shape, data)| (name.as_str(), *dtype, shape.clone(), data.len()));
        let mut bytes = Header::write(Some(serde_json::json!({ "model": model })), entries, 8);
        for (_, _, _, data) in &self.tensors {
            bytes.extend(data);
        }
        bytes
    }

    /// True if it has no tensors.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// True if there is a tensor of that name.
    pub(crate) fn contains(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    fn find(&self, name: &str) -> Option<&SavedTensor> {
        self.tensors.iter().find(|tensor| tensor.0 == name)
    }

    /// The shape of a tensor, if there is one of that name.
    pub(crate) fn shape(&self, name: &str) -> Option<&[usize]> {
        let (.., shape, _) = self.find(name)?;
        Some(shape)
    }

    /// True if it contains a correction.
    pub fn has_correction(&self) -> bool {
        self.tensors.iter().any(is_of_correction)
    }

    /// Adds the correction of an earlier state.
    ///
    /// # Panics
    ///
    /// If it has one.
    pub fn keep_correction(&mut self, before: SavedTensors) {
        assert!(!self.has_correction(), "there is a new correction");
        self.tensors.extend(before.tensors.into_iter().filter(is_of_correction));
    }

    /// Adds a tensor.
    ///
    /// # Panics
    ///
    /// If the length of `data` does not match type and shape.
    pub fn push(&mut self, name: &str, dtype: Dtype, shape: &[usize], data: Vec<u8>) {
        let dims: Vec<u64> = shape.iter().map(|&dim| dim as u64).collect();
        let whole = dtype.byte_len(&dims) == Some(data.len() as u64);
        assert!(whole, "{name} is not as long as {dtype} {shape:?}");
        self.tensors.push((name.to_owned(), dtype, shape.to_vec(), data));
    }

    /// Returns the data of a tensor of that type. `expected` returns true if the shape is right.
    pub fn get(
        &self,
        name: &str,
        dtype: Dtype,
        expected: impl FnOnce(&[usize]) -> bool,
    ) -> Result<&[u8], SavedError> {
        match self.find(name) {
            Some((_, found, shape, data)) if *found == dtype && expected(shape) => Ok(data),
            _ => Err(SavedError::Tensor(name.to_owned())),
        }
    }

    /// Returns the data of a tensor of that type and shape.
    pub(crate) fn of_shape(
        &self,
        name: &str,
        dtype: Dtype,
        shape: &[usize],
    ) -> Result<&[u8], SavedError> {
        self.get(name, dtype, |found| found == shape)
    }

    #[cfg(test)]
    pub(crate) fn tensors_mut(&mut self) -> &mut [SavedTensor] {
        &mut self.tensors
    }

    /// Returns the numbers of a tensor of that shape, if all are in `range`.
    pub(crate) fn floats(
        &self,
        name: &str,
        shape: &[usize],
        range: std::ops::RangeInclusive<f32>,
    ) -> Result<Vec<f32>, SavedError> {
        let data = self.of_shape(name, Dtype::F32, shape)?;
        let all: Vec<f32> = data.as_chunks().0.iter().copied().map(f32::from_le_bytes).collect();
        // NaN is in no range.
        let fits = all.iter().all(|x| range.contains(x));
        if fits { Ok(all) } else { Err(SavedError::Tensor(name.to_owned())) }
    }
}

fn too_short() -> SavedError {
    SavedError::Header(HeaderError::Json(serde::de::Error::custom("too short")))
}

fn is_of_correction(tensor: &SavedTensor) -> bool {
    tensor.0.starts_with("correction.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn correction_of_an_earlier_state_is_kept() {
        let of = |names: &[(&str, u8)]| {
            let mut saved = SavedTensors::default();
            names.iter().for_each(|&(name, x)| saved.push(name, Dtype::U8, &[1], vec![x]));
            saved
        };
        let before = of(&[("correction.a", 1), ("correction.b", 2), ("other", 3)]);
        let mut without = of(&[("other", 4)]);
        without.keep_correction(before);
        assert_eq!(without, of(&[("other", 4), ("correction.a", 1), ("correction.b", 2)]));
        assert!(without.has_correction() && !of(&[("other", 4)]).has_correction());
    }
}
