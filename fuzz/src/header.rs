//! Any bytes as the JSON of a safetensors header; if valid, also as a checkpoint read in place.

use std::cell::LazyCell;
use std::fs::File;
use std::io::Write;

use sws_format::{
    Header, HeaderError, Manifest, Naming, PieceId, PieceKind, Placement, open_checkpoint,
};

/// Limit on the data of files that are created.
const MAX_DATA: u64 = 1 << 20;

thread_local! {
    static DIR: LazyCell<tempfile::TempDir> = LazyCell::new(|| {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.json"), "{}").unwrap();
        dir
    });
}

/// True if the header was accepted.
pub fn check(json: &[u8]) -> bool {
    let first = json.first_chunk().copied().unwrap_or_default();
    if let Ok(len) = Header::json_len(first, json.len() as u64) {
        assert!(len + 8 <= json.len() as u64);
    }

    // Parse with the length that the header describes, as any other is refused.
    let start = 8 + json.len() as u64;
    let data = match Header::parse(json, start) {
        Ok(_) => 0,
        Err(HeaderError::Length { described, .. }) => described,
        Err(_) => return false,
    };
    let Some(file_len) = start.checked_add(data) else { return false };
    let header = match Header::parse(json, file_len) {
        Ok(header) => header,
        // Checked only after everything else.
        Err(HeaderError::Duplicate(_)) => return false,
        Err(other) => panic!("the length was the only thing wrong, but now {other}"),
    };
    let mut end = start;
    for tensor in &header.tensors {
        assert_eq!(tensor.offset, end);
        end += tensor.len;
    }
    assert_eq!(end, file_len);
    let theirs: Result<safetensors::tensor::Metadata, _> = serde_json::from_slice(json);
    assert!(theirs.is_ok(), "accepted what the format's own library refuses: {theirs:?}");

    if data <= MAX_DATA {
        DIR.with(|dir| check_in_place(dir.path(), json, file_len));
    }
    true
}

fn check_in_place(dir: &std::path::Path, json: &[u8], file_len: u64) {
    let mut file = File::create(dir.join("model.safetensors")).unwrap();
    file.write_all(&(json.len() as u64).to_le_bytes()).unwrap();
    file.write_all(json).unwrap();
    file.set_len(file_len).unwrap();
    let checkpoint = open_checkpoint(dir, None).expect("the header was accepted");
    let Ok(mut manifest) = Manifest::in_place(&*checkpoint, &ByFirstLetter) else { return };
    for part in manifest.pieces.iter_mut().flat_map(|p| &mut p.tensors).flat_map(|t| &mut t.parts) {
        part.checks = vec![0; part.len.div_ceil(part.check_len) as usize];
    }
    let written = manifest.to_json().expect("a manifest that holds together");
    assert_eq!(Manifest::from_json(&written).unwrap(), manifest);
}

/// Maps the first letter of a name to a kind of placement, so that short names reach every kind.
struct ByFirstLetter;

impl Naming for ByFirstLetter {
    fn model_type(&self) -> &str {
        "fuzz"
    }

    fn place(&self, name: &str, _shape: &[u64]) -> Placement {
        let id = match name.as_bytes()[0] {
            b's' => {
                return Placement::Experts { layer: 1, rank: 0, matrix: true, transposed: false };
            }
            b'e' => PieceId::EMBED,
            b'n' => PieceId::new(0, PieceKind::Norms),
            b'x' => return Placement::Extra,
            other => PieceId::expert(0, other.into()),
        };
        Placement::Piece { id, rank: name.len() as u16, matrix: true }
    }
}
