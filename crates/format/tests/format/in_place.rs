//! Manifests of a checkpoint's own files.

use std::fs;

use sws_format::{Manifest, Tensor, open_checkpoint};
use sws_testing::toy::{Toy, checkpoint, file, header, safetensors};

use crate::memory::{bound, peak};

/// `piece: tensor encoding shape @ offset+len, …` for every tensor, with offsets from `data_start`.
fn listing(manifest: &Manifest, data_start: u64) -> Vec<String> {
    let line = |tensor: &Tensor| {
        let parts: Vec<String> = tensor
            .parts
            .iter()
            .map(|part| format!("{}+{}", part.offset - data_start, part.len))
            .collect();
        let encoding = tensor.encoding.map_or("raw", |e| e.name());
        let slice = tensor.slice.map_or(String::new(), |s| format!(" {}/{}", s.index, s.count));
        format!("{} {encoding} {:?}{slice} @ {}", tensor.name, tensor.shape, parts.join(", "))
    };
    let pieces = manifest.pieces.iter();
    pieces.flat_map(|p| p.tensors.iter().map(move |t| format!("{}: {}", p.id, line(t)))).collect()
}

#[test]
fn tensors_are_assigned_to_their_pieces() {
    let tensors: &[_] = &[
        ("0.1.down", "BF16", &[4, 3][..], 24),
        ("0.1.up", "F16", &[3, 4], 24),
        ("0.0.up", "F32", &[3, 4], 48),
        ("0.norm", "F32", &[4], 16),
        ("embed", "BF16", &[5, 4], 40),
        ("1.stack", "BF16", &[2, 3, 4], 48),
        ("2.stack_blocks", "U8", &[2, 3, 2, 16], 192),
        ("2.stack_scales", "U8", &[2, 3, 2], 12),
        ("3.0.up.weight", "F8_E4M3", &[130, 4], 520),
        ("3.0.up.weight_scale_inv", "F32", &[2, 1], 8),
        ("3.1.up.weight", "F8_E4M3", &[2, 2], 4),
        ("3.1.up.weight_scale_of_another", "F32", &[1, 2], 8), // no pair
        ("vision", "I64", &[], 8),
        ("empty", "F32", &[0, 4], 0),
    ];
    let dir = tempfile::tempdir().unwrap();
    checkpoint(dir.path(), tensors);
    let opened = open_checkpoint(dir.path(), None).unwrap();
    let manifest = Manifest::in_place(&*opened, &Toy).unwrap();
    let start = 8 + header(tensors).len() as u64;
    assert_eq!(
        listing(&manifest, start),
        [
            "embed: embed bf16 [5, 4] @ 112+40",
            "layer_0/norms: 0.norm f32 [4] @ 96+16",
            "layer_0/expert_0: 0.0.up f32 [3, 4] @ 48+48",
            "layer_0/expert_1: 0.1.up f16 [3, 4] @ 24+24",
            "layer_0/expert_1: 0.1.down bf16 [4, 3] @ 0+24",
            "layer_1/expert_0: 1.stack bf16 [3, 4] 0/2 @ 152+24",
            "layer_1/expert_1: 1.stack bf16 [3, 4] 1/2 @ 176+24",
            "layer_2/expert_0: 2.stack mxfp4 [3, 64] 0/2 @ 200+96, 392+6",
            "layer_2/expert_1: 2.stack mxfp4 [3, 64] 1/2 @ 296+96, 398+6",
            "layer_3/expert_0: 3.0.up.weight fp8 [130, 4] @ 404+520, 924+8",
            "layer_3/expert_1: 3.1.up.weight raw [2, 2] @ 932+4",
            "extra: 3.1.up.weight_scale_of_another f32 [1, 2] @ 936+8",
            "extra: empty f32 [0, 4] @ 952+0",
            "extra: vision raw [] @ 944+8",
        ]
    );
    assert_eq!(manifest.model.fingerprint, opened.fingerprint());
    assert_eq!(manifest.files[0].len, start + 952);
}

/// A stack that cannot be split into experts is an error; it must not become empty pieces.
#[test]
fn stacks_are_split_into_whole_experts_only() {
    #[rustfmt::skip]
    let cases: &[(&str, &[u64], usize)] = &[
        ("BF16", &[4], 8),                  // a vector has no experts
        ("BF16", &[2, 0], 0),               // empty ones
        ("F4", &[2, 3, 1], 3),              // one and a half bytes each
        ("U8", &[65_537, 1], 65_537),       // more than any model
        ("BF16", &[], 2),
    ];
    for &(dtype, shape, len) in cases {
        let dir = tempfile::tempdir().unwrap();
        checkpoint(dir.path(), &[("1.stack", dtype, shape, len)]);
        let opened = open_checkpoint(dir.path(), None).unwrap();
        let error = Manifest::in_place(&*opened, &Toy).unwrap_err().to_string();
        assert!(error.contains("model.safetensors") && error.contains("`1.stack`"), "{error}");
    }
}

/// The shape in the manifest is that of the matrix, whatever the order of its bytes.
#[test]
fn transposed_stacks_are_turned_if_they_can_be() {
    type Tensors = &'static [(&'static str, &'static str, &'static [u64], usize)];
    type Slice = (&'static [u64], bool);
    #[rustfmt::skip]
    let cases: &[(Tensors, Option<Slice>)] = &[
        // tensors, shape of a slice and true if it is transposed
        (&[("1.turned", "BF16", &[2, 3, 4], 48)], Some((&[4, 3], true))),
        (&[("1.turned", "F32", &[1, 5, 1], 20)], Some((&[1, 5], true))),
        // Blocks along a row are never in another order.
        (&[("1.turned_blocks", "U8", &[2, 3, 2, 16], 192), ("1.turned_scales", "U8", &[2, 3, 2], 12)],
            Some((&[3, 64], false))),
        (&[("1.turned", "BF16", &[2, 4], 16)], None),
        (&[("1.turned", "BF16", &[2, 2, 2, 2], 32)], None),
        (&[("1.turned", "I8", &[2, 3, 4], 24)], None),
        (&[("1.turned", "F8_E4M3", &[2, 3, 4], 24), ("1.turned_scale_inv", "F32", &[2, 1, 1], 8)], None),
        (&[("1.turned", "BF16", &[1, (1 << 22) + 1, 1], (2 << 22) + 2)], None),
    ];
    for (tensors, expected) in cases {
        let dir = tempfile::tempdir().unwrap();
        checkpoint(dir.path(), tensors);
        let opened = open_checkpoint(dir.path(), None).unwrap();
        let found = Manifest::in_place(&*opened, &Toy);
        let Some((shape, transposed)) = expected else {
            let error = found.unwrap_err().to_string();
            assert!(error.contains("`1.turned`") && error.contains("cannot be cut"), "{error}");
            continue;
        };
        let found = found.unwrap();
        let tensor = &found.pieces[0].tensors[0];
        assert_eq!((&*tensor.shape, tensor.transposed), (*shape, *transposed), "{tensors:?}");
        let mut source = tensor.source_shape();
        source.insert(0, tensor.slice.unwrap().count);
        assert!(*transposed == (source == tensors[0].2), "{tensors:?}");
    }
}

/// A file of 64 KiB that claims 65,536 experts is refused before it takes memory for 65,536 pieces.
#[test]
fn tiny_experts_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    checkpoint(dir.path(), &[("1.stack", "U8", &[65_536, 1], 65_536)]);
    let opened = open_checkpoint(dir.path(), None).unwrap();
    let (result, allocated) = peak(|| Manifest::in_place(&*opened, &Toy));
    let error = result.unwrap_err().to_string();
    assert!(error.contains("model.safetensors` brings the checkpoint above 51"), "{error}");
    assert!(allocated <= bound(70_000), "{allocated}");
}

#[test]
fn an_index_names_the_files() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| fs::write(dir.path().join(name), bytes).unwrap();
    write("config.json", b"{}");
    write("b.safetensors", &safetensors(&[("0.norm", "F32", &[4], 16)]));
    write("a.safetensors", &safetensors(&[("embed", "F32", &[2, 2], 16)]));
    let index = r#"{"weight_map":{"0.norm":"b.safetensors","embed":"a.safetensors"}}"#;
    write("model.safetensors.index.json", index.as_bytes());
    // The index does not list this one.
    write("c.safetensors", &safetensors(&[("1.norm", "F32", &[4], 16)]));

    let opened = open_checkpoint(dir.path(), None).unwrap();
    let names: Vec<&str> = opened.files().iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, ["a.safetensors", "b.safetensors"]);
    let manifest = Manifest::in_place(&*opened, &Toy).unwrap();
    let sources: Vec<&str> =
        manifest.pieces.iter().map(|piece| piece.tensors[0].source.as_str()).collect();
    assert_eq!(sources, ["a.safetensors", "b.safetensors"]);
}

/// Snapshots in the local Hugging Face cache are links to blobs elsewhere.
#[cfg(unix)]
#[test]
fn a_checkpoint_may_be_made_of_links() {
    let blobs = tempfile::tempdir().unwrap();
    let snapshot = tempfile::tempdir().unwrap();
    checkpoint(blobs.path(), &[("embed", "F32", &[2, 2], 16)]);
    for name in ["config.json", "model.safetensors"] {
        std::os::unix::fs::symlink(blobs.path().join(name), snapshot.path().join(name)).unwrap();
    }
    let linked = open_checkpoint(snapshot.path(), None).unwrap();
    assert_eq!(linked.fingerprint(), open_checkpoint(blobs.path(), None).unwrap().fingerprint());
}

#[test]
fn fingerprints_tell_checkpoints_apart() {
    const MIB: usize = 1 << 20;
    let tensors: &[_] = &[("embed", "U8", &[MIB as u64][..], MIB)];
    let original = safetensors(tensors);
    let fingerprint = |config: &str, weights: &[u8]| {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("config.json"), config).unwrap();
        fs::write(dir.path().join("model.safetensors"), weights).unwrap();
        open_checkpoint(dir.path(), None).unwrap().fingerprint().to_owned()
    };
    let first = fingerprint("{}", &original);
    assert_eq!(first, fingerprint("{}", &original));

    let flipped = |at: usize| {
        let mut bytes = original.clone();
        bytes[at] ^= 1;
        bytes
    };
    let data = original.len() - MIB;
    // Samples 1 and 62 of 64, spread from the first page to the last.
    let second_sample = data + (MIB - 4096) / 63;
    let sample_before_last = data + (MIB - 4096) * 62 / 63 + 4095;
    let renamed = file(&header(tensors).replace("embed", "emb-d"), MIB);
    for (what, other) in [
        ("config", fingerprint("{} ", &original)),
        ("header", fingerprint("{}", &renamed)),
        ("first byte", fingerprint("{}", &flipped(data))),
        ("second sample", fingerprint("{}", &flipped(second_sample))),
        ("sample before last", fingerprint("{}", &flipped(sample_before_last))),
        ("last byte", fingerprint("{}", &flipped(original.len() - 1))),
    ] {
        assert_ne!(first, other, "{what}");
    }
}
