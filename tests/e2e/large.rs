//! Matrices larger than the sharder's memory limit.

use std::path::Path;

use safetensors::Dtype;
use sws_format::Manifest;
use sws_kernels::{EncodedRows, Encoder, Encoding, ExponentCounts, TensorTally};

use crate::checkpoints::{Checkpoint, Random, Tensor, tiny};
use crate::sws::sws;

const GATE: &str = "model.layers.0.mlp.gate_proj.weight";
const UP: &str = "model.layers.0.mlp.up_proj.weight";
const DOWN: &str = "model.layers.0.mlp.down_proj.weight";

/// Weights whose exponents all fit into one table.
fn weights(shape: [u64; 2], random: &mut Random) -> Tensor {
    let mut bytes = vec![0; (2 * shape[0] * shape[1]) as usize];
    random.fill(&mut bytes);
    for number in bytes.as_chunks_mut::<2>().0 {
        let bits = u16::from_le_bytes(*number);
        *number = ((bits & 0x807f) | (120 - (bits & 7)) << 7).to_le_bytes();
    }
    Tensor { dtype: Dtype::BF16, shape: shape.to_vec(), bytes }
}

fn shard(model: &Checkpoint, temp: &Path, encoding: Encoding) -> Manifest {
    let dir = temp.join("in");
    let out = temp.join(encoding.name());
    if !dir.exists() {
        model.write(&dir, 1);
    }
    sws(&[&"shard", &dir, &"--out", &out, &"--encoding", &encoding.name()]).succeeded();
    sws(&[&"verify", &out]).succeeded();
    Manifest::load(&out).unwrap()
}

fn stored<'a>(manifest: &'a Manifest, name: &str) -> &'a sws_format::Tensor {
    manifest.pieces.iter().find_map(|piece| piece.tensor(name)).unwrap()
}

/// Escapes outside the samples are met while encoding; the matrix then starts again as bf16.
#[test]
fn escapes_missed_by_the_samples_give_bf16() {
    const SAMPLE: usize = 256 << 10;
    let temp = tempfile::tempdir().unwrap();
    let mut model = tiny("llama", Dtype::BF16, 5);
    let mut random = Random(8);
    let mut up = weights([10_001, 2049], &mut random);
    assert!(up.bytes.len() > 32 << 20);
    // The last gap between samples, so that most of the matrix has been written by then.
    let last = up.bytes.len() - SAMPLE;
    let gap = ((last * 14 / 15) & !1) + SAMPLE..last;
    assert!(gap.len() > up.bytes.len() / 20);
    let escapes = &mut up.bytes[gap];
    random.fill(escapes);
    // Finite, but with exponents outside the weights' table.
    escapes.as_chunks_mut::<2>().0.iter_mut().for_each(|number| number[1] &= 0x9f);
    model.tensors.insert(UP.to_owned(), up);
    // Neighbours in the same shard, whose lengths place the large matrix in the middle of a page.
    model.tensors.insert(GATE.to_owned(), weights([33, 77], &mut random));
    model.tensors.insert(DOWN.to_owned(), weights([35, 79], &mut random));
    let manifest = shard(&model, temp.path(), Encoding::Bf12);
    let encoding = |name| stored(&manifest, name).encoding.unwrap();
    assert_eq!([GATE, UP, DOWN].map(encoding), [Encoding::Bf12, Encoding::Bf16, Encoding::Bf12]);
    assert_eq!(stored(&manifest, UP).parts.len(), 1);
    let back = temp.path().join("back");
    sws(&[&"unshard", &temp.path().join("bf12"), &"--out", &back]).succeeded();
    assert!(Checkpoint::read_tensors(&back) == model.tensors);
}

/// Scales and offsets beyond two megabytes are spilled to a file while the codes are written.
#[test]
fn parts_too_large_for_memory_are_spilled() {
    const ROWS: u64 = 1_200_000;
    let temp = tempfile::tempdir().unwrap();
    let mut model = tiny("llama", Dtype::BF16, 6);
    let tall = weights([ROWS, 1], &mut Random(9));
    model.tensors.insert(UP.to_owned(), tall.clone());
    for encoding in [Encoding::Bf12, Encoding::Q8, Encoding::Q4] {
        let manifest = shard(&model, temp.path(), encoding);
        let stored = stored(&manifest, UP);
        let last = &stored.parts[stored.parts.len() - 1];
        assert!(last.len > 2 << 20, "{encoding}");
        let file = temp.path().join(encoding.name()).join(&manifest.files[last.file as usize].path);
        let bytes = std::fs::read(file).unwrap();

        let mut rows = EncodedRows::default();
        let mut histogram = ExponentCounts::default();
        histogram.add(&tall.bytes);
        let encoder = Encoder::counted(encoding, 1, &histogram).unwrap();
        let mut tally = TensorTally::new(&encoder);
        encoder.encode(&tall.bytes, &mut rows).unwrap();
        tally.push(&rows).unwrap();
        let [codes, scales] = rows.parts;
        let parts = match encoder.table() {
            Some(table) => vec![codes, table.to_vec(), tally.patches()],
            None => vec![codes, scales],
        };
        assert_eq!(stored.parts.len(), parts.len());
        for (extent, part) in stored.parts.iter().zip(parts) {
            let found = &bytes[extent.offset as usize..][..extent.len as usize];
            assert!(found == part, "{encoding}");
        }
    }
}
