use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use safetensors::Dtype;
use safetensors::tensor::Metadata;
use serde_json::Value;

/// The longest header that the safetensors format permits.
const MAX_HEADER: u64 = 100_000_000;
/// Limit on JSON files. A config takes a few kilobytes, an index a few hundred bytes per tensor.
const MAX_JSON: u64 = 64 << 20;

/// A checkpoint directory whose headers have been read; its data stays on disk.
pub struct Source {
    /// Content of `config.json`.
    pub config: Value,
    /// All tensors, in the order of the files.
    pub tensors: Vec<SourceTensor>,
    files: Vec<(PathBuf, File)>,
}

/// Location and type of a tensor.
#[derive(Clone, Debug)]
pub struct SourceTensor {
    /// Name in the header.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, rows first.
    pub shape: Vec<usize>,
    /// Length of the data in bytes.
    pub bytes: u64,
    file: usize,
    offset: u64,
}

impl Source {
    /// Reads the config and the headers in `dir`.
    pub fn open(dir: &Path) -> Result<Self> {
        ensure!(dir.is_dir(), "`{}` is not a directory; name a checkpoint's", dir.display());
        let config = read_json(&dir.join("config.json"))?;
        let index_path = dir.join("model.safetensors.index.json");
        let mut listed = BTreeMap::new();
        let mut names = BTreeSet::new();
        if index_path.exists() {
            let index = read_json(&index_path)?;
            let map = index.get("weight_map").and_then(Value::as_object);
            let map = map.with_context(|| {
                format!("`{}` has no `weight_map`; download it again", index_path.display())
            })?;
            for (tensor, file) in map {
                let file = file.as_str().filter(|f| is_plain_name(f)).with_context(|| {
                    format!("`{}` names {file}, which is no file beside it", index_path.display())
                })?;
                names.insert(file.to_owned());
                listed.insert(tensor.clone(), file.to_owned());
            }
        } else if dir.join("model.safetensors").exists() {
            names.insert("model.safetensors".to_owned());
        } else if has_pickled_weights(dir)? {
            bail!(
                "`{}` holds PyTorch .bin weights, which only PyTorch can read safely; load it with \
                 transformers and save it with save_pretrained to get safetensors",
                dir.display()
            );
        } else {
            bail!("`{}` has no model.safetensors; name a checkpoint's directory", dir.display());
        }

        let mut source = Source { config, tensors: Vec::new(), files: Vec::new() };
        let mut seen = BTreeSet::new();
        for name in names {
            let path = dir.join(name);
            source.read_header(&path)?;
        }
        for tensor in &source.tensors {
            ensure!(
                seen.insert(tensor.name.as_str()),
                "`{}` holds `{}` twice; download it again",
                dir.display(),
                tensor.name
            );
        }
        if let Some((tensor, file)) = listed.iter().find(|(t, _)| !seen.contains(t.as_str())) {
            bail!("`{}` does not hold `{tensor}`; download it again", dir.join(file).display());
        }
        Ok(source)
    }

    /// Fills `out` with a tensor's bytes from `offset` on.
    pub fn read_at(&self, tensor: &SourceTensor, offset: u64, out: &mut [u8]) -> Result<()> {
        let (path, file) = &self.files[tensor.file];
        let end = offset.checked_add(out.len() as u64).filter(|&end| end <= tensor.bytes);
        end.with_context(|| format!("a read past the end of `{}`", tensor.name))?;
        file.read_exact_at(out, tensor.offset + offset)
            .with_context(|| format!("cannot read `{}` from `{}`", tensor.name, path.display()))
    }

    fn read_header(&mut self, path: &Path) -> Result<()> {
        let damaged = |what: &str| {
            format!(
                "`{}` is not a whole safetensors file ({what}); download it again",
                path.display()
            )
        };
        let mut file =
            File::open(path).with_context(|| format!("cannot open `{}`", path.display()))?;
        let len =
            file.metadata().with_context(|| format!("cannot open `{}`", path.display()))?.len();
        let mut prefix = [0u8; 8];
        file.read_exact(&mut prefix).with_context(|| damaged("shorter than 8 bytes"))?;
        let header_len = u64::from_le_bytes(prefix);
        ensure!(
            header_len <= MAX_HEADER.min(len - 8),
            damaged(&format!("its header would be {header_len} bytes long"))
        );
        let mut header = vec![0u8; header_len as usize];
        file.read_exact(&mut header).with_context(|| damaged("its header is cut short"))?;
        let metadata: Metadata =
            serde_json::from_slice(&header).with_context(|| damaged("its header is not valid"))?;
        let data_start = 8 + header_len;
        ensure!(
            data_start + metadata.data_len() as u64 == len,
            damaged(&format!("{len} bytes where its header describes another length"))
        );
        for name in metadata.offset_keys() {
            let info = metadata.info(&name).expect("the key comes from the same header");
            self.tensors.push(SourceTensor {
                dtype: info.dtype,
                shape: info.shape.clone(),
                bytes: (info.data_offsets.1 - info.data_offsets.0) as u64,
                file: self.files.len(),
                offset: data_start + info.data_offsets.0 as u64,
                name,
            });
        }
        self.files.push((path.to_owned(), file));
        Ok(())
    }
}

fn read_json(path: &Path) -> Result<Value> {
    let file = File::open(path).with_context(|| format!("cannot open `{}`", path.display()))?;
    let mut text = Vec::new();
    file.take(MAX_JSON + 1)
        .read_to_end(&mut text)
        .with_context(|| format!("cannot read `{}`", path.display()))?;
    ensure!(text.len() as u64 <= MAX_JSON, "`{}` is too long to be a config", path.display());
    serde_json::from_slice(&text).with_context(|| format!("`{}` is not valid JSON", path.display()))
}

fn is_plain_name(name: &str) -> bool {
    Path::new(name).file_name().is_some_and(|plain| plain == name)
}

fn has_pickled_weights(dir: &Path) -> Result<bool> {
    for entry in dir.read_dir().with_context(|| format!("cannot list `{}`", dir.display()))? {
        if entry?.path().extension().is_some_and(|e| e == "bin" || e == "pt" || e == "pth") {
            return Ok(true);
        }
    }
    Ok(false)
}
