//! Small models made of random bytes.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use sws_format::{
    Clock, Extent, FileEntry, Manifest, ModelIdentity, Piece, PieceId, ShardReader, Tensor,
};
use sws_kernels::Encoding;
use sws_store::{NVMeWeightStore, StoreOptions};
use xxhash_rust::xxh3::xxh3_64;

pub(crate) const MIB: usize = 1 << 20;

/// Bytes that do not repeat.
pub(crate) fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| next().to_le_bytes()).collect();
    bytes.truncate(len);
    bytes
}

/// A manifest and the bytes that it describes.
#[derive(Clone)]
pub(crate) struct Model {
    pub(crate) manifest: Manifest,
    pub(crate) files: Vec<Vec<u8>>,
}

impl Model {
    pub(crate) fn new(files: Vec<Vec<u8>>) -> Model {
        let entries = files.iter().enumerate();
        let manifest = Manifest {
            model: ModelIdentity { model_type: "test".into(), fingerprint: "00".into() },
            encoding: None,
            files: entries
                .map(|(n, bytes)| FileEntry { path: format!("f{n}"), len: bytes.len() as u64 })
                .collect(),
            pieces: Vec::new(),
            copies: Vec::new(),
        };
        Model { manifest, files }
    }

    /// `count` pieces, experts of layer 0, each one tensor that fills a file of its own.
    pub(crate) fn experts(count: u32, bytes: usize) -> Model {
        let files = (0..count).map(|n| noise(bytes, u64::from(n) + 1)).collect();
        let mut model = Model::new(files);
        for n in 0..count {
            let tensor = model.tensor(n, 0..bytes, bytes / 2, true);
            model.piece(PieceId::expert(0, n), vec![tensor]);
        }
        model
    }

    pub(crate) fn extent(
        &self,
        file: u32,
        bytes: Range<usize>,
        check_len: usize,
        checked: bool,
    ) -> Extent {
        let run = &self.files[file as usize][bytes.clone()];
        let checks = if checked { run.chunks(check_len).map(xxh3_64).collect() } else { vec![] };
        Extent {
            file,
            offset: bytes.start as u64,
            len: bytes.len() as u64,
            check_len: check_len as u64,
            checks,
        }
    }

    /// A bf16 matrix of `cols` columns in these bytes, with a checksum per row.
    pub(crate) fn tensor(
        &self,
        file: u32,
        bytes: Range<usize>,
        cols: usize,
        checked: bool,
    ) -> Tensor {
        let rows = (bytes.len() / 2).checked_div(cols).unwrap_or(0);
        let check_len = (cols * 2).max(1);
        Tensor {
            name: format!("f{file}.at{}", bytes.start),
            dtype: sws_format::Dtype::BF16,
            shape: vec![rows as u64, cols as u64],
            transposed: false,
            packing: None,
            slice: None,
            source: "model.safetensors".into(),
            encoding: Some(Encoding::Bf16),
            parts: vec![self.extent(file, bytes, check_len, checked)],
            origins: Vec::new(),
            error: None,
        }
    }

    pub(crate) fn piece(&mut self, id: PieceId, tensors: Vec<Tensor>) {
        self.manifest.pieces.push(Piece { id, tensors, stand_in: None });
        self.manifest.pieces.sort_by_key(|piece| piece.id);
    }

    pub(crate) fn write(&self, dir: &Path) {
        for (entry, bytes) in self.manifest.files.iter().zip(&self.files) {
            std::fs::write(dir.join(&entry.path), bytes).unwrap();
        }
    }

    /// The bytes of a part.
    pub(crate) fn bytes(&self, extent: &Extent) -> &[u8] {
        &self.files[extent.file as usize][extent.offset as usize..][..extent.len as usize]
    }

    pub(crate) fn open(
        &self,
        reader: Arc<dyn ShardReader>,
        depth: usize,
        clock: Clock,
    ) -> NVMeWeightStore {
        self.open_in(Path::new("/nowhere"), reader, depth, clock)
    }

    pub(crate) fn open_in(
        &self,
        dir: &Path,
        reader: Arc<dyn ShardReader>,
        depth: usize,
        clock: Clock,
    ) -> NVMeWeightStore {
        let options =
            StoreOptions { reader: Some(reader), depth, cache: None, clock, ..Default::default() };
        NVMeWeightStore::open(Arc::new(self.manifest.clone()), dir, options).unwrap()
    }
}
