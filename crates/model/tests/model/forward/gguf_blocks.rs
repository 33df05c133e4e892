//! GGUF files with matrices in many formats.

use std::path::Path;

use sws_format::open_checkpoint;
use sws_kernels::{Encoding, GgufBlocks, Matrix};
use sws_shard::{ShardOptions, shard};
use sws_testing::gguf::{GgufFile, Key};

use crate::forward::gguf::{in_place, logits};
use crate::forward::quantised::assert_as_f32;
use crate::forward::support::Fixture;

/// The number that files have for a format.
fn kind(format: GgufBlocks) -> u32 {
    match format {
        GgufBlocks::Q4_0 => 2,
        GgufBlocks::Q4_1 => 3,
        GgufBlocks::Q5_0 => 6,
        GgufBlocks::Q5_1 => 7,
        GgufBlocks::Q8_0 => 8,
        GgufBlocks::Q2K => 10,
        GgufBlocks::Q3K => 11,
        GgufBlocks::Q4K => 12,
        GgufBlocks::Q5K => 13,
        GgufBlocks::Q6K => 14,
        GgufBlocks::Iq4Nl => 20,
        GgufBlocks::Iq4Xs => 23,
        GgufBlocks::Iq1S => 19,
        GgufBlocks::Iq1M => 29,
        GgufBlocks::Iq2Xxs => 16,
        GgufBlocks::Iq2Xs => 17,
        GgufBlocks::Iq2S => 22,
        GgufBlocks::Iq3Xxs => 18,
        GgufBlocks::Iq3S => 21,
        GgufBlocks::Tq1_0 => 34,
        GgufBlocks::Tq2_0 => 35,
        GgufBlocks::Mxfp4 => 39,
        GgufBlocks::Nvfp4 => 40,
    }
}

/// A mixtral with matrices in all formats, differently in each layer, and the same with the numbers
/// that they stand for.
fn mixed() -> [GgufFile; 2] {
    let mut files = [GgufFile::default(), GgufFile::default()];
    let mut matrices =
        vec![("token_embd".to_owned(), vec![32, 256]), ("output".to_owned(), vec![32, 256])];
    let mut vectors = vec![("output_norm".to_owned(), vec![256])];
    for layer in 0..3 {
        let name = |rest: &str| format!("blk.{layer}.{rest}");
        for (rest, rows) in [("q", 256), ("k", 128), ("v", 128), ("output", 256)] {
            matrices.push((name(&format!("attn_{rest}")), vec![rows, 256]));
        }
        for rest in ["gate", "up", "down"] {
            matrices.push((name(&format!("ffn_{rest}_exps")), vec![3, 256, 256]));
        }
        vectors.extend([(name("attn_norm"), vec![256]), (name("ffn_norm"), vec![256])]);
        vectors.push((name("ffn_gate_inp"), vec![3, 256]));
    }
    for file in &mut files {
        file.key("general.architecture", "llama".into());
        for (key, number) in [
            ("vocab_size", 32),
            ("context_length", 64),
            ("embedding_length", 256),
            ("block_count", 3),
            ("feed_forward_length", 256),
            ("attention.head_count", 8),
            ("attention.head_count_kv", 4),
            ("expert_count", 3),
            ("expert_used_count", 2),
        ] {
            file.key(&format!("llama.{key}"), Key::U32(number));
        }
        file.key("llama.attention.layer_norm_rms_epsilon", Key::F32(1e-5));
    }
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8
    };
    for ((name, shape), format) in matrices.into_iter().zip(GgufBlocks::ALL.into_iter().cycle()) {
        let (cols, rows) = (256, shape.iter().product::<u64>() as usize / 256);
        // About 2^-10, or 2^-14 where large whole numbers multiply it, so that no format has weights far
        // above those of the others.
        let exponent = match format {
            GgufBlocks::Q4K | GgufBlocks::Q5K | GgufBlocks::Q6K | GgufBlocks::Iq4Xs => 0x04,
            _ => 0x14,
        };
        let mut bytes = Vec::new();
        for _ in 0..rows * cols / format.cols() {
            let mut block: Vec<u8> = (0..format.bytes()).map(|_| random()).collect();
            format.scales().iter().for_each(|at| block[at + 1] = exponent | block[at + 1] & 0x83);
            match format {
                GgufBlocks::Mxfp4 => block[0] = 120 | block[0] & 3,
                GgufBlocks::Nvfp4 => block[..4].iter_mut().for_each(|scale| *scale &= 7),
                _ => {}
            }
            bytes.extend(block);
        }
        let matrix = Matrix::new(Encoding::Gguf(format), rows, cols, &[&bytes]).unwrap();
        let mut row = vec![0.0; cols];
        let mut numbers = Vec::new();
        for r in 0..rows {
            matrix.decode_row(r, &mut row);
            numbers.extend(row.iter().flat_map(|number| number.to_le_bytes()));
        }
        let name = format!("{name}.weight");
        files[0].tensor(&name, kind(format), &shape, bytes);
        files[1].tensor(&name, 0, &shape, numbers);
    }
    for (name, shape) in vectors {
        let len = shape.iter().product::<u64>();
        let number = |_| 1.0 + f32::from(random() as i8) / 512.0;
        let bytes: Vec<u8> = (0..len).map(number).flat_map(f32::to_le_bytes).collect();
        for file in &mut files {
            file.tensor(&format!("{name}.weight"), 0, &shape, bytes.clone());
        }
    }
    files
}

/// In place and as shards, which keep the formats.
#[test]
fn mixed_formats_give_the_logits_of_their_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let [mixed, plain] = mixed();
    mixed.write(&path("mixed.gguf"));
    plain.write(&path("plain.gguf"));
    let expected = in_place(&path("mixed.gguf"));
    assert_as_f32(&expected, &in_place(&path("plain.gguf")), 2, "in place");

    let shards = tempfile::tempdir().unwrap();
    let out = shards.path().join("shards");
    sharded(&path("mixed.gguf"), &out);
    let fixture = Fixture::at(&out);
    let stored = fixture.manifest.pieces.iter().flat_map(|piece| &piece.tensors);
    let formats: std::collections::HashSet<_> =
        stored.filter_map(|tensor| tensor.encoding).collect();
    assert_eq!(formats.len(), GgufBlocks::ALL.len() + 1, "{formats:?}");
    assert!(logits(&fixture.spec, fixture.source()) == expected);
}

/// As Unsloth's dynamic files are: with keys of an importance matrix, and in parts of which only the
/// first has the keys.
#[test]
fn dynamic_files_in_parts_give_the_same_bits() {
    let [mixed, _] = mixed();
    let dir = tempfile::tempdir().unwrap();
    mixed.write(&dir.path().join("whole.gguf"));
    let expected = in_place(&dir.path().join("whole.gguf"));
    let parts = dir.path().join("parts");
    std::fs::create_dir(&parts).unwrap();
    let total = mixed.tensors.len();
    let chunks: Vec<_> = mixed.tensors.chunks(total.div_ceil(4)).collect();
    for (no, tensors) in chunks.iter().enumerate() {
        let keys = if no == 0 { mixed.keys.clone() } else { Vec::new() };
        let mut part = GgufFile { keys, tensors: tensors.to_vec(), ..GgufFile::default() };
        if no == 0 {
            part.key("general.quantized_by", "Unsloth".into());
            part.key("general.file_type", Key::U32(19));
            part.key("quantize.imatrix.file", "imatrix_unsloth.gguf".into());
            part.key("quantize.imatrix.dataset", "unsloth_calibration.txt".into());
            part.key("quantize.imatrix.entries_count", Key::Raw(5, 496i32.to_le_bytes().to_vec()));
            part.key("quantize.imatrix.chunks_count", Key::Raw(5, 81i32.to_le_bytes().to_vec()));
        }
        part.key("split.no", Key::Raw(2, (no as u16).to_le_bytes().to_vec()));
        part.key("split.count", Key::Raw(2, (chunks.len() as u16).to_le_bytes().to_vec()));
        part.key("split.tensors.count", Key::Raw(5, (total as i32).to_le_bytes().to_vec()));
        part.write(&parts.join(format!("m-UD-Q2_K_XL-{:05}-of-{:05}.gguf", no + 1, chunks.len())));
    }
    assert!(in_place(&parts.join("m-UD-Q2_K_XL-00001-of-00004.gguf")) == expected);
}

fn sharded(path: &Path, out: &Path) {
    let checkpoint = open_checkpoint(path, None).unwrap();
    let naming = sws_model::naming(checkpoint.config()).unwrap();
    shard(&*checkpoint, &*naming, out, &ShardOptions::default(), &|_| ()).unwrap();
}
