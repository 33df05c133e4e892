//! Sources of tensors: the files of a checkpoint, or a store of shards.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read as _, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use candle_nn::Linear;
use safetensors::Dtype;
use safetensors::tensor::Metadata;
use sws_format::{CheckpointError, PieceId, open_checkpoint, open_regular};
use sws_model::WeightsError;
use sws_store::{Arena, NVMeWeightStore, Read};

/// An error in loading or running a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum CandleError {
    /// The backend does not support a feature of the model.
    #[error("the candle backend does not know {0}; use the default backend, which does")]
    Unsupported(String),
    /// The directory is not a checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A file cannot be read.
    #[error("`{}` cannot be read ({cause}); check that nothing writes to it", path.display())]
    Read { path: PathBuf, cause: std::io::Error },
    /// A file is damaged.
    #[error("`{}` is damaged ({reason}); download it again", path.display())]
    Damaged {
        path: PathBuf,
        /// A description of the damage.
        reason: String,
    },
    /// A piece cannot be read.
    #[error(transparent)]
    Store(Box<dyn std::error::Error + Send + Sync>),
    /// An observer ended the pass.
    #[error(transparent)]
    Observer(Box<dyn std::error::Error + Send + Sync>),
    /// The weights do not match the configuration.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The progress callback stopped the loading.
    #[error("the model was still being loaded")]
    Stopped,
    /// An operation failed.
    #[error("the candle backend failed ({0}); this is a bug, please report it")]
    Candle(#[from] candle_core::Error),
}

pub(crate) type Result<T> = std::result::Result<T, CandleError>;

/// A source of tensors, by their names in a checkpoint.
pub(crate) trait Tensors {
    /// Reads a tensor, widened to f32.
    fn get(&mut self, name: &str) -> Result<Tensor>;
}

/// Loads the tensors of a model, checks shapes and values, and counts their bytes.
pub(crate) struct CandleLoader<'a> {
    pub(crate) tensors: &'a mut dyn Tensors,
    pub(crate) progress: &'a mut dyn FnMut(u64) -> bool,
    pub(crate) bytes: u64,
}

/// Numbers copied at a time to check that they are finite.
const LOOKED_AT: usize = 1 << 20;

impl CandleLoader<'_> {
    pub(crate) fn get(&mut self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let tensor = self.tensors.get(name)?;
        if tensor.dims() != shape {
            let found = sizes(tensor.dims());
            let expected = sizes(shape);
            return Err(WeightsError::Shape { name: name.to_owned(), found, expected }.into());
        }
        let all = tensor.flatten_all()?;
        let cols = shape.last().copied().unwrap_or(1);
        for first in (0..all.elem_count()).step_by(LOOKED_AT) {
            let some = all.narrow(0, first, LOOKED_AT.min(all.elem_count() - first))?;
            let some = some.to_vec1::<f32>()?;
            if let Some(at) = some.iter().position(|x| !x.is_finite()) {
                let row = (first + at) / cols;
                let col = (first + at) % cols;
                let name = name.to_owned();
                let file = None;
                let value = some[at];
                return Err(WeightsError::NotFinite { name, file, value, row, col }.into());
            }
        }
        self.bytes += 4 * tensor.elem_count() as u64;
        if !(self.progress)(self.bytes) {
            return Err(CandleError::Stopped);
        }
        Ok(tensor)
    }

    /// A matrix and its bias, by the beginning of their names.
    pub(crate) fn linear(
        &mut self,
        name: &str,
        rows: usize,
        cols: usize,
        has_bias: bool,
    ) -> Result<Linear> {
        let weight = self.get(&format!("{name}.weight"), &[rows, cols])?;
        let bias = match has_bias {
            true => Some(self.get(&format!("{name}.bias"), &[rows])?),
            false => None,
        };
        Ok(Linear::new(weight, bias))
    }
}

fn sizes(dims: &[usize]) -> Vec<u64> {
    dims.iter().map(|&n| n as u64).collect()
}

/// The safetensors files of a checkpoint.
pub(crate) struct SafetensorsFiles {
    files: Vec<(PathBuf, File)>,
    tensors: HashMap<String, TensorPlace>,
}

struct TensorPlace {
    file: usize,
    offset: u64,
    len: usize,
    dtype: Dtype,
    shape: Vec<usize>,
}

/// Maximum length of a header, as the format defines it.
const MAX_HEADER: u64 = 100_000_000;

impl SafetensorsFiles {
    pub(crate) fn open(dir: &Path) -> Result<SafetensorsFiles> {
        let mut all = SafetensorsFiles { files: Vec::new(), tensors: HashMap::new() };
        for file in open_checkpoint(dir, None)?.files() {
            all.add(dir.join(&file.name))?;
        }
        Ok(all)
    }

    fn add(&mut self, path: PathBuf) -> Result<()> {
        let unreadable = |cause| CandleError::Read { path: path.clone(), cause };
        let damaged = |reason: String| CandleError::Damaged { path: path.clone(), reason };
        let mut file = open_regular(&path).map_err(unreadable)?;
        let mut len = [0; 8];
        file.read_exact(&mut len).map_err(unreadable)?;
        let len = u64::from_le_bytes(len);
        if len > MAX_HEADER {
            return Err(damaged(format!("its header has {len} bytes")));
        }
        let mut header = Vec::new();
        (&file).take(len).read_to_end(&mut header).map_err(unreadable)?;
        let metadata: Metadata =
            serde_json::from_slice(&header).map_err(|e| damaged(e.to_string()))?;
        let end = file.metadata().map_err(unreadable)?.len();
        for (name, info) in metadata.tensors() {
            let (start, stop) = info.data_offsets;
            let offset = (8 + len).saturating_add(start as u64);
            if start > stop || (8 + len).saturating_add(stop as u64) > end {
                return Err(damaged(format!("`{name}` reaches beyond its end")));
            }
            let dtype = info.dtype;
            let shape = info.shape.clone();
            let file = self.files.len();
            self.tensors
                .insert(name, TensorPlace { file, offset, len: stop - start, dtype, shape });
        }
        self.files.push((path, file));
        Ok(())
    }
}

impl Tensors for SafetensorsFiles {
    fn get(&mut self, name: &str) -> Result<Tensor> {
        let Some(place) = self.tensors.get(name) else { return Err(missing(name)) };
        let stored = match place.dtype {
            Dtype::F32 => DType::F32,
            Dtype::F16 => DType::F16,
            Dtype::BF16 => DType::BF16,
            other => return Err(dtype(name, format!("{other:?}"))),
        };
        let (path, file) = &mut self.files[place.file];
        let mut bytes = vec![0; place.len];
        let read = match file.seek(SeekFrom::Start(place.offset)) {
            Ok(_) => file.read_exact(&mut bytes),
            Err(cause) => Err(cause),
        };
        if let Err(cause) = read {
            return Err(CandleError::Read { path: path.clone(), cause });
        }
        let tensor = Tensor::from_raw_buffer(&bytes, stored, &place.shape, &Device::Cpu)?;
        Ok(tensor.to_dtype(DType::F32)?)
    }
}

/// The tensors of a store, decoded row by row.
pub(crate) struct Shards<'a> {
    store: &'a NVMeWeightStore,
    arena: Arena,
    tensors: HashMap<&'a str, (PieceId, usize)>,
}

impl<'a> Shards<'a> {
    pub(crate) fn open(store: &'a NVMeWeightStore) -> Result<Shards<'a>> {
        let mut tensors = HashMap::new();
        let mut largest = 0;
        for piece in &store.manifest().pieces {
            if piece.id == PieceId::EXTRA {
                continue;
            }
            for (index, tensor) in piece.tensors.iter().enumerate() {
                let layout = store.layout(Read::Tensor(piece.id, index));
                largest = largest.max(layout.map_err(of_store)?.slot_len());
                tensors.insert(tensor.name.as_str(), (piece.id, index));
            }
        }
        let arena = Arena::new(largest).map_err(of_store)?;
        Ok(Shards { store, arena, tensors })
    }
}

impl Tensors for Shards<'_> {
    fn get(&mut self, name: &str) -> Result<Tensor> {
        let Some(&(piece, index)) = self.tensors.get(name) else { return Err(missing(name)) };
        let read = self.store.read(Read::Tensor(piece, index), &self.arena).map_err(of_store)?;
        let Some(piece) = self.store.manifest().piece(piece) else { return Err(missing(name)) };
        let tensor = &piece.tensors[index];
        let matrix = read.layout.tensors().first().and_then(|found| found.matrix(&read.slot));
        let Some(matrix) = matrix else {
            return Err(dtype(name, format!("{:?}", tensor.dtype)));
        };
        let matrix = matrix.map_err(of_store)?;
        let mut numbers = vec![0.0f32; matrix.row_count() * matrix.cols()];
        for (row, numbers) in numbers.chunks_exact_mut(matrix.cols()).enumerate() {
            matrix.decode_row(row, numbers);
        }
        let shape: Vec<usize> = tensor.shape.iter().map(|&n| n as usize).collect();
        Ok(Tensor::from_vec(numbers, shape, &Device::Cpu)?)
    }
}

fn of_store(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> CandleError {
    CandleError::Store(cause.into())
}

fn missing(name: &str) -> CandleError {
    WeightsError::Missing { names: format!("`{name}`") }.into()
}

fn dtype(name: &str, found: String) -> CandleError {
    let supported = "f32, f16 and bf16";
    WeightsError::Dtype { name: name.to_owned(), found, supported }.into()
}
