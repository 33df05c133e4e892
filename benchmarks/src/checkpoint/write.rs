use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};

use anyhow::{Context, Result, ensure};
use indicatif::HumanBytes;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde_json::json;
use sws_format::Header;

use super::direct::DirectFile;
use crate::progress::Progress;

/// Bytes that are filled at a time and handed to the writer thread. With three buffers in flight,
/// this bounds the memory of the program.
const CHUNK: usize = 8 << 20;
const BUFFERS: usize = 3;

/// A tensor to be written.
#[derive(Clone, Debug)]
pub struct PlannedTensor {
    /// Name in the header.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, rows first.
    pub shape: Vec<usize>,
    /// Limit of the whole numbers in a table of experts; 0 for any other tensor.
    pub below: u64,
}

impl PlannedTensor {
    fn bytes(&self) -> u64 {
        self.shape.iter().map(|&n| n as u64).product::<u64>() * self.dtype.bitsize() as u64 / 8
    }

    /// Chunks end at row ends, so that a filler works on whole rows.
    fn chunk(&self) -> usize {
        let row = self.shape.last().map_or(1, |&n| (n * self.dtype.bitsize() / 8).max(1));
        (CHUNK / row).max(1) * row
    }
}

/// A checkpoint directory that gets its final name only when it is complete.
pub struct Output {
    finished: PathBuf,
    partial: PathBuf,
    keep: bool,
}

impl Output {
    /// Reserves the name `out`, which must not exist.
    pub fn create(out: &Path) -> Result<Self> {
        ensure!(
            !out.exists(),
            "`{}` exists already; remove it or choose another --out",
            out.display()
        );
        let name = out.file_name().with_context(|| {
            format!("`{}` is not a name for a directory; choose another --out", out.display())
        })?;
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(".partial");
        let partial = out.with_file_name(hidden);
        ensure!(
            !partial.exists(),
            "`{}` is left from an interrupted run, or another run is writing it; \
             remove it and try again",
            partial.display()
        );
        fs::create_dir(&partial).with_context(|| format!("cannot create `{}`", out.display()))?;
        Ok(Output { finished: out.to_owned(), partial, keep: false })
    }

    /// Adds a small file.
    pub fn file(&self, name: &str, content: &[u8]) -> Result<()> {
        let path = self.partial.join(name);
        fs::write(&path, content).with_context(|| format!("cannot write `{}`", path.display()))
    }

    /// Adds a copy of `from` under the same name.
    pub fn copy(&self, from: &Path) -> Result<()> {
        let to = self.partial.join(from.file_name().unwrap_or_default());
        // Not `fs::copy`, which would also copy a read-only source's permissions.
        File::open(from)
            .and_then(|mut source| std::io::copy(&mut source, &mut File::create(to)?))
            .with_context(|| format!("cannot copy `{}`", from.display()))?;
        Ok(())
    }

    /// Writes the tensors: one file, or numbered files of at most `file_bytes` with an index.
    ///
    /// `fill(i, offset, chunk)` provides the bytes of `tensors[i]` from `offset` on. It is called
    /// for every tensor in order, in chunks of whole rows.
    pub fn tensors(
        &self,
        label: &str,
        tensors: &[PlannedTensor],
        file_bytes: u64,
        mut fill: impl FnMut(usize, u64, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let total: u64 = tensors.iter().map(PlannedTensor::bytes).sum();
        self.check_space(total + (64 << 20))?;
        let files = split(tensors, file_bytes);
        let mut progress = Progress::new(label, total);
        let (full, filled) = channel();
        let (give_back, empty) = channel();
        for _ in 0..BUFFERS {
            give_back.send(Vec::new()).expect("the receiver is alive");
        }
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| self.write_files(&files, filled, give_back));
            let mut filling = || -> Result<()> {
                for (index, tensor) in tensors.iter().enumerate() {
                    let bytes = tensor.bytes();
                    let mut offset = 0;
                    while offset < bytes {
                        // The writer hangs up only on failure, and then its error is returned.
                        let Ok(mut buffer) = empty.recv() else { return Ok(()) };
                        let len = (bytes - offset).min(tensor.chunk() as u64);
                        buffer.resize(len as usize, 0);
                        fill(index, offset, &mut buffer)?;
                        offset += len;
                        if full.send(buffer).is_err() {
                            return Ok(());
                        }
                        progress.add(len);
                    }
                }
                Ok(())
            };
            let filled = filling();
            drop(full);
            let written = writer.join().expect("the writer does not panic");
            filled.and(written)
        })?;
        if files.len() > 1 {
            self.write_index(&files, total)?;
        }
        progress.finish();
        Ok(())
    }

    /// Gives the directory its final name.
    pub fn finish(mut self) -> Result<()> {
        let renamed = File::open(&self.partial)
            .and_then(|dir| dir.sync_all())
            .and_then(|()| fs::rename(&self.partial, &self.finished));
        renamed.with_context(|| format!("cannot create `{}`", self.finished.display()))?;
        self.keep = true;
        Ok(())
    }

    fn check_space(&self, needed: u64) -> Result<()> {
        let stat = rustix::fs::statvfs(&self.partial).with_context(|| {
            format!("cannot ask for the free space of `{}`", self.finished.display())
        })?;
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        ensure!(
            needed <= free,
            "`{}` would take {} and only {} are free there; free some or choose another --out",
            self.finished.display(),
            HumanBytes(needed),
            HumanBytes(free)
        );
        Ok(())
    }

    fn write_files(
        &self,
        files: &[(String, &[PlannedTensor])],
        filled: Receiver<Vec<u8>>,
        give_back: Sender<Vec<u8>>,
    ) -> Result<()> {
        for (name, tensors) in files {
            let path = self.partial.join(name);
            let told = || format!("cannot write `{}`", path.display());
            let mut file = DirectFile::create(&path).with_context(told)?;
            file.write_all(&header(tensors)?).with_context(told)?;
            let mut left: u64 = tensors.iter().map(PlannedTensor::bytes).sum();
            while left > 0 {
                // The filler hangs up early only on failure, and then its error is returned.
                let Ok(buffer) = filled.recv() else { return Ok(()) };
                file.write_all(&buffer).with_context(told)?;
                left -= buffer.len() as u64;
                // At the end the filler no longer receives empty buffers.
                let _ = give_back.send(buffer);
            }
            file.finish().with_context(told)?;
        }
        Ok(())
    }

    fn write_index(&self, files: &[(String, &[PlannedTensor])], total: u64) -> Result<()> {
        let map: serde_json::Map<_, _> = files
            .iter()
            .flat_map(|(file, tensors)| tensors.iter().map(move |t| (t.name.clone(), json!(file))))
            .collect();
        let index = json!({ "metadata": { "total_size": total }, "weight_map": map });
        self.file("model.safetensors.index.json", &serde_json::to_vec_pretty(&index)?)
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if !self.keep {
            // If this fails, the next run names the leftover directory.
            let _ = fs::remove_dir_all(&self.partial);
        }
    }
}

/// Splits the list into files of at most `file_bytes`; a longer tensor gets a file of its own.
fn split(tensors: &[PlannedTensor], file_bytes: u64) -> Vec<(String, &[PlannedTensor])> {
    let mut cuts = vec![0];
    let mut filled = 0;
    for (index, tensor) in tensors.iter().enumerate() {
        if filled > 0 && filled + tensor.bytes() > file_bytes {
            cuts.push(index);
            filled = 0;
        }
        filled += tensor.bytes();
    }
    cuts.push(tensors.len());
    let count = cuts.len() - 1;
    cuts.windows(2)
        .enumerate()
        .map(|(i, cut)| {
            let name = match count {
                1 => "model.safetensors".to_owned(),
                _ => format!("model-{:05}-of-{count:05}.safetensors", i + 1),
            };
            (name, &tensors[cut[0]..cut[1]])
        })
        .collect()
}

fn header(tensors: &[PlannedTensor]) -> Result<Vec<u8>> {
    let mut offset = 0;
    let infos = tensors
        .iter()
        .map(|tensor| {
            let start = offset;
            offset += tensor.bytes() as usize;
            let info = TensorInfo {
                dtype: tensor.dtype,
                shape: tensor.shape.clone(),
                data_offsets: (start, offset),
            };
            (tensor.name.clone(), info)
        })
        .collect();
    // transformers rejects files that do not name the framework they were saved for.
    let metadata = [("format".to_owned(), "pt".to_owned())].into();
    Ok(Header::framed(serde_json::to_vec(&Metadata::new(Some(metadata), infos)?)?, 8))
}
