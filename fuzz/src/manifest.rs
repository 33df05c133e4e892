//! Any bytes as a `manifest.json`, and as the body of one with a valid checksum.

use sws_format::Manifest;

/// True if the manifest was accepted.
pub fn check(data: &[u8]) -> bool {
    // Random bytes never match their checksum, so this ends before the body.
    let _ = Manifest::from_json(data);

    let Ok(body) = std::str::from_utf8(data) else { return false };
    let hash = blake3::hash(data);
    let sealed = format!(r#"{{"blake3":"{hash}","body":{body}}}"#);
    // The JSON body may end elsewhere than the sealed bytes.
    let Ok(manifest) = Manifest::from_json(sealed.as_bytes()) else { return false };
    let written = manifest.to_json().expect("what was read can be written");
    let read = Manifest::from_json(&written).expect("what was written can be read");
    assert_eq!(read, manifest);
    assert_eq!(read.to_json().unwrap(), written);
    for piece in &manifest.pieces {
        assert_eq!(manifest.piece(piece.id), Some(piece));
        for part in piece.tensors.iter().flat_map(|tensor| &tensor.parts) {
            let file = &manifest.files[part.file as usize];
            assert!(part.offset + part.len <= file.len);
            assert_eq!(part.checks.len() as u64, part.len.div_ceil(part.check_len));
        }
    }
    true
}
