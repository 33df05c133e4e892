//! Any bytes as a GGUF file; if its header is valid, also as a checkpoint read in place.

use std::cell::LazyCell;
use std::collections::HashSet;

use sws_format::{Gguf, Manifest, Naming, PieceId, Placement, Value, open_checkpoint};

thread_local! {
    static DIR: LazyCell<tempfile::TempDir> = LazyCell::new(|| tempfile::tempdir().unwrap());
}

/// True if the header was accepted.
pub fn check(bytes: &[u8]) -> bool {
    let len = bytes.len() as u64;
    let whole = Gguf::read(bytes, len, |_| true);
    let short = Gguf::read(bytes, len, |key| key.len() % 2 == 0);
    let Ok(whole) = whole else { return false };
    let short = short.expect("accepted where all values are kept");
    assert_eq!((&whole.tensors, whole.len), (&short.tensors, short.len));
    assert!(whole.keys.keys().eq(short.keys.keys()));

    let mut end = whole.len;
    let mut names = HashSet::new();
    for tensor in &whole.tensors {
        assert!(tensor.offset >= end);
        end = tensor.offset + tensor.len;
        assert!(end <= len);
        assert_eq!(tensor.dtype.byte_len(&tensor.shape), Some(tensor.len));
        assert!(names.insert(&tensor.name));
    }
    let header = &bytes[..whole.len as usize];
    let again = Gguf::read_keys(header, whole.len, |_| true).unwrap();
    // As text, in which a NaN equals itself, here and below.
    assert_eq!(Value::Map(again).to_string(), Value::Map(whole.keys.clone()).to_string());
    check_lists(header, &whole);
    DIR.with(|dir| check_in_place(&dir.path().join("model.gguf"), bytes));
    true
}

/// Lists that are decoded where they lie have the values of those that are kept.
fn check_lists(header: &[u8], whole: &Gguf) {
    for (key, list) in Gguf::lists(header, |_| true).expect("accepted") {
        let Value::List(kept) = &whole.keys[&key] else { panic!("{key} is no list") };
        assert_eq!(list.count(), kept.len());
        let texts = list.texts().map(|all| all.map(|text| Value::String(text.unwrap().into())));
        if let Some(texts) = texts {
            assert!(texts.eq(kept.iter().cloned()), "{key}");
        }
        if let Some(numbers) = list.numbers() {
            let shown = |value: &Value| value.to_string();
            let decoded = numbers.map(|number| shown(&number.unwrap()));
            assert!(decoded.eq(kept.iter().map(shown)), "{key}");
        }
    }
}

fn check_in_place(path: &std::path::Path, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap();
    let Ok(checkpoint) = open_checkpoint(path, None) else { return };
    let Ok(mut manifest) = Manifest::in_place(&*checkpoint, &ByFirstLetter) else { return };
    for part in manifest.pieces.iter_mut().flat_map(|p| &mut p.tensors).flat_map(|t| &mut t.parts) {
        part.checks = vec![0; part.len.div_ceil(part.check_len) as usize];
    }
    let written = manifest.to_json().expect("a manifest that holds together");
    assert_eq!(Manifest::from_json(&written).unwrap(), manifest);
}

/// Maps the first letter of a name to a kind of placement.
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
            b'x' => return Placement::Extra,
            other => PieceId::expert(0, other.into()),
        };
        Placement::Piece { id, rank: name.len() as u16, matrix: true }
    }

    fn name(&self, name: &str, expert: Option<u32>) -> Option<String> {
        let expert = expert.filter(|_| name.len().is_multiple_of(2))?;
        Some(format!("{name}.{expert}"))
    }
}
