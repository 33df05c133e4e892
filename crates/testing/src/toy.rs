//! Small checkpoints, made by hand so that they can be wrong in any way.

use std::fs;
use std::path::Path;

use sws_format::{Manifest, Naming, PieceId, PieceKind, Placement};

/// One tensor to write: name, type, shape, and the length of its data.
pub type Spec<'a> = (&'a str, &'a str, &'a [u64], usize);

/// The JSON of a header for `tensors`, laid out one after another.
pub fn header(tensors: &[Spec<'_>]) -> String {
    let mut end = 0;
    let mut entries = Vec::with_capacity(tensors.len());
    for (name, dtype, shape, len) in tensors {
        let start = end;
        end += len;
        entries.push(format!(
            r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{start},{end}]}}"#
        ));
    }
    format!("{{{}}}", entries.join(","))
}

/// A file with this header and `data` bytes of data, which count up.
pub fn file(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend((0..data).map(|i| i as u8));
    bytes
}

/// A file of `tensors`, whose data counts up.
pub fn safetensors(tensors: &[Spec<'_>]) -> Vec<u8> {
    file(&header(tensors), tensors.iter().map(|spec| spec.3).sum())
}

/// A checkpoint in one file.
pub fn checkpoint(dir: &Path, tensors: &[Spec<'_>]) {
    fs::write(dir.join("config.json"), br#"{"model_type":"toy"}"#).unwrap();
    fs::write(dir.join("model.safetensors"), safetensors(tensors)).unwrap();
}

/// Gives every extent the required number of checksums.
pub fn fill_checks(manifest: &mut Manifest) {
    for part in manifest.pieces.iter_mut().flat_map(|p| &mut p.tensors).flat_map(|t| &mut t.parts) {
        part.checks = (0..part.len.div_ceil(part.check_len)).map(|i| i.wrapping_sub(1)).collect();
    }
}

/// `embed`, `N.norm`, `N.K.up` and `N.K.down` (expert K), `N.stack` and `N.turned` (all
/// experts of a layer, by rows or by columns).
#[derive(Debug)]
pub struct Toy;

impl Naming for Toy {
    fn model_type(&self) -> &str {
        "toy"
    }

    fn place(&self, name: &str, shape: &[u64]) -> Placement {
        let words: Vec<&str> = name.trim_end_matches(".weight").split('.').collect();
        match words.as_slice() {
            ["embed"] => piece(PieceId::EMBED, 0, true),
            [layer, word] => match (number(layer), *word) {
                (Some(l), "norm") => piece(PieceId::new(l, PieceKind::Norms), 0, false),
                (Some(layer), "stack" | "turned") if shape != [1] => {
                    let transposed = words[1] == "turned";
                    Placement::Experts { layer, rank: 0, matrix: true, transposed }
                }
                _ => Placement::Extra,
            },
            [layer, expert, word] => match (number(layer), number(expert), *word) {
                (Some(l), Some(e), "up") => piece(PieceId::expert(l, e), 0, true),
                (Some(l), Some(e), "down") => piece(PieceId::expert(l, e), 1, true),
                _ => Placement::Extra,
            },
            _ => Placement::Extra,
        }
    }
}

fn number(word: &str) -> Option<u32> {
    word.parse().ok()
}

fn piece(id: PieceId, rank: u16, matrix: bool) -> Placement {
    Placement::Piece { id, rank, matrix }
}
