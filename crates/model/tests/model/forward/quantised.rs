//! Every spelling of quantised checkpoints gives the bits of the same weights in f32: in place, as
//! shards, and restored from them. What contradicts itself is refused.

use std::fmt::Display;
use std::path::Path;

use safetensors::Dtype;
use serde_json::{Value, json};
use sws_format::{ErrorNorms, Manifest, Tensor, open_checkpoint};
use sws_kernels::{Encoding, Fp8Scales, Int4Groups, Matrix, Nvfp4Scale};
use sws_model::{CausalLm, ModelSpec};
use sws_shard::{ShardOptions, shard, unshard, verify};
use sws_testing::goldens::{self, Tensors, change};

use crate::forward::support::{Fixture, Recorder};

/// Type, shape and bytes.
pub(crate) type Stored = (Dtype, Vec<usize>, Vec<u8>);

/// A tensor of a matrix of `r × c`: what replaces `.weight` in its name, and what it is like.
#[derive(Clone, Copy)]
struct Part(&'static str, Dtype, fn(usize, usize) -> Vec<usize>);

const E4M3: Part = Part(".weight", Dtype::F8_E4M3, |r, c| vec![r, c]);
const PAIRS: Part = Part(".weight", Dtype::U8, |r, c| vec![r, c / 2]);
const PACKED: Part = Part(".weight_packed", Dtype::U8, |r, c| vec![r, c / 2]);
const INTEGERS: Part = Part(".weight_packed", Dtype::I32, |r, c| vec![r, c / 8]);

fn squares(r: usize, c: usize) -> Vec<usize> {
    vec![r.div_ceil(128), c.div_ceil(128)]
}

fn spellings() -> Vec<(Encoding, Vec<Part>)> {
    use Dtype::{BF16, F8_E4M3, F8_E8M0, F32, I8, U8};
    use Fp8Scales::{Rows, RowsBf16, SquaresBf16, SquaresE8m0, Thirtytwos, Whole, WholeBf16};
    let fp8 = |scales, parts: &[Part]| (Encoding::Fp8(scales), parts.to_vec());
    let int4 = |groups, parts: &[Part]| (Encoding::Int4(groups), parts.to_vec());
    let nvfp4 = |scale, parts: &[Part]| (Encoding::Nvfp4(scale), parts.to_vec());
    vec![
        (Encoding::Fp8(Fp8Scales::Squares), vec![E4M3, Part(".weight_scale_inv", F32, squares)]),
        (Encoding::Fp8(Fp8Scales::Squares), vec![E4M3, Part(".weight_scale", F32, squares)]),
        fp8(SquaresBf16, &[E4M3, Part(".weight_scale_inv", BF16, squares)]),
        fp8(SquaresE8m0, &[E4M3, Part(".scale", F8_E8M0, squares)]),
        fp8(Rows, &[E4M3, Part(".weight_scale", F32, |r, _| vec![r, 1])]),
        fp8(RowsBf16, &[E4M3, Part(".weight_scale", BF16, |r, _| vec![r])]),
        fp8(Whole, &[E4M3, Part(".weight_scale", F32, |_, _| vec![])]),
        fp8(WholeBf16, &[E4M3, Part(".qscale_weight", BF16, |_, _| vec![1])]),
        fp8(Thirtytwos, &[E4M3, Part(".weight_scale", U8, |r, c| vec![r, c / 32])]),
        int4(
            Int4Groups::Symmetric32,
            &[INTEGERS, Part(".weight_scale", BF16, |r, c| vec![r, c / 32])],
        ),
        int4(
            Int4Groups::Symmetric128,
            &[INTEGERS, Part(".weight_scale", BF16, |r, c| vec![r, c / 128])],
        ),
        (Encoding::Mxfp4, vec![PACKED, Part(".weight_scale", U8, |r, c| vec![r, c / 32])]),
        (
            Encoding::Mxfp4,
            vec![
                Part(".weight", I8, |r, c| vec![r, c / 2]),
                Part(".scale", F8_E8M0, |r, c| vec![r, c / 32]),
            ],
        ),
        nvfp4(
            Nvfp4Scale::Times,
            &[
                PAIRS,
                Part(".weight_scale", F8_E4M3, |r, c| vec![r, c / 16]),
                Part(".weight_scale_2", F32, |_, _| vec![]),
            ],
        ),
        nvfp4(
            Nvfp4Scale::Divided,
            &[
                PACKED,
                Part(".weight_scale", F8_E4M3, |r, c| vec![r, c / 16]),
                Part(".weight_global_scale", F32, |_, _| vec![1]),
            ],
        ),
    ]
}

/// Random bytes that are small finite numbers of the type.
pub(crate) fn numbers(dtype: Dtype, count: usize, random: &mut impl FnMut() -> u8) -> Vec<u8> {
    let one = |_| match dtype {
        Dtype::F32 => vec![random(), random(), random() & 0x7f, 0x3c],
        Dtype::BF16 => vec![random(), 0x3c | random() & 0x80],
        Dtype::F8_E4M3 => vec![random() & 0xb7],
        // As codes, or as powers of two.
        Dtype::U8 | Dtype::F8_E8M0 if count < 2048 => vec![0x78 | random() & 3],
        Dtype::I32 => vec![random(), random(), random(), random()],
        _ => vec![random()],
    };
    (0..count).flat_map(one).collect()
}

/// The matrices of a small model, and its other tensors.
pub(crate) const MATRICES: [(&str, usize, usize); 7] = [
    ("self_attn.q_proj", 256, 128),
    ("self_attn.k_proj", 128, 128),
    ("self_attn.v_proj", 128, 128),
    ("self_attn.o_proj", 128, 256),
    ("mlp.gate_proj", 384, 128),
    ("mlp.up_proj", 384, 128),
    ("mlp.down_proj", 128, 384),
];

const OTHERS: [(&str, &[usize]); 7] = [
    ("lm_head.weight", &[60, 128]),
    ("model.embed_tokens.weight", &[60, 128]),
    ("model.layers.0.input_layernorm.weight", &[128]),
    ("model.layers.0.post_attention_layernorm.weight", &[128]),
    ("model.layers.0.self_attn.k_norm.weight", &[64]),
    ("model.layers.0.self_attn.q_norm.weight", &[64]),
    ("model.norm.weight", &[128]),
];

pub(crate) fn config(dir: &Path) {
    let config = json!({
        "model_type": "qwen3", "hidden_size": 128, "num_hidden_layers": 1, "head_dim": 64,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 384,
        "vocab_size": 60, "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
        "rope_theta": 1e4, "tie_word_embeddings": false, "hidden_act": "silu",
    });
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
}

fn write(dir: &Path, tensors: impl IntoIterator<Item = (String, Stored)>) {
    std::fs::create_dir_all(dir).unwrap();
    config(dir);
    Tensors(tensors.into_iter().collect()).write(&dir.join("model.safetensors"));
}

/// The checkpoint as stored, and its weights in f32.
fn checkpoint(encoding: Encoding, parts: &[Part]) -> [Vec<(String, Stored)>; 2] {
    with_matrices(1, |[rows, cols], random| {
        let tensors: Vec<(&str, Stored)> = parts
            .iter()
            .map(|&Part(suffix, dtype, shape)| {
                let shape = shape(rows, cols);
                let bytes = numbers(dtype, shape.iter().product(), random);
                (suffix, (dtype, shape, bytes))
            })
            .collect();
        let bytes: Vec<&[u8]> = tensors.iter().map(|(_, (_, _, bytes))| &bytes[..]).collect();
        let matrix = Matrix::new(encoding, rows, cols, &bytes).unwrap();
        let mut decoded = vec![0.0; rows * cols];
        for (row, out) in decoded.chunks_mut(cols).enumerate() {
            matrix.decode_row(row, out);
        }
        // Scales of activations, which nothing is computed with.
        let ignored = (".input_scale", (Dtype::F32, vec![], vec![0; 4]));
        (tensors.into_iter().chain([ignored]).collect(), decoded)
    })
}

/// Random bytes.
pub(crate) type Random = Box<dyn FnMut() -> u8>;

/// The tensors of a checkpoint, with matrices of this shape as `store` has them, by suffixes of their
/// names, and the same with the weights that it returns beside them.
pub(crate) fn with_matrices(
    seed: u64,
    mut store: impl FnMut([usize; 2], &mut Random) -> (Vec<(&'static str, Stored)>, Vec<f32>),
) -> [Vec<(String, Stored)>; 2] {
    let mut state = seed;
    let mut random: Random = Box::new(move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8
    });
    let [mut stored, mut wide] = [const { Vec::new() }; 2];
    for (name, shape) in OTHERS {
        let bytes = numbers(Dtype::BF16, shape.iter().product(), &mut random);
        let tensor = (name.to_owned(), (Dtype::BF16, shape.to_vec(), bytes));
        stored.push(tensor.clone());
        wide.push(tensor);
    }
    for (name, rows, cols) in MATRICES {
        let stem = format!("model.layers.0.{name}");
        let (tensors, weights) = store([rows, cols], &mut random);
        stored.extend(tensors.into_iter().map(|(suffix, t)| (format!("{stem}{suffix}"), t)));
        let bytes = weights.iter().flat_map(|w| w.to_le_bytes()).collect();
        wide.push((format!("{stem}.weight"), (Dtype::F32, vec![rows, cols], bytes)));
    }
    [stored, wide]
}

pub(crate) fn logits(dir: &Path) -> Vec<u32> {
    let mut seen = Recorder::default();
    Fixture::at(dir).session().score(&[3, 1, 4, 1, 5, 9, 2, 6], &mut seen).unwrap();
    seen.logits.iter().map(|logit| logit.to_bits()).collect()
}

/// Asserts that logits are those of the same weights as f32: in their bits, or for weights that are summed as
/// codes to 2e-6 of the largest.
#[track_caller]
pub(crate) fn assert_as_f32(found: &[u32], plain: &[u32], arithmetic: u32, what: impl Display) {
    if arithmetic == 1 {
        assert!(found == plain, "{what}");
        return;
    }
    let numbers = |bits: &[u32]| bits.iter().map(|&bits| f32::from_bits(bits)).collect::<Vec<_>>();
    let (found, plain) = (numbers(found), numbers(plain));
    let largest = plain.iter().fold(0.0, |most: f32, logit| most.max(logit.abs()));
    assert!(largest.is_finite() && found.len() == plain.len(), "{what}");
    let differences = found.iter().zip(&plain).map(|(a, b)| (a - b).abs());
    let difference = differences.fold(0.0, |most: f32, d| if d <= most { most } else { d });
    assert!(difference <= 2e-6 * largest, "{what}: {difference:e} of {largest}");
}

#[test]
fn every_spelling_gives_the_logits_of_f32() {
    for (encoding, parts) in spellings() {
        let temp = tempfile::tempdir().unwrap();
        let [dir, plain] = ["a", "b"].map(|name| temp.path().join(name));
        let [stored, wide] = checkpoint(encoding, &parts);
        write(&dir, stored.clone());
        write(&plain, wide);
        let expected = logits(&dir);
        assert_as_f32(&expected, &logits(&plain), encoding.arithmetic(), encoding);

        let checkpoint = open_checkpoint(&dir, None).unwrap();
        let naming = sws_model::naming(checkpoint.config()).unwrap();
        let packed = match encoding {
            Encoding::Fp8(scales) => Encoding::Fp7(scales),
            _ => encoding,
        };
        for (asked, found) in [(Encoding::Bf12, encoding), (Encoding::Bf11, packed)] {
            let [shards, back] =
                ["shards", "back"].map(|name| temp.path().join(format!("{asked}-{name}")));
            let options = ShardOptions { encoding: asked, ..ShardOptions::default() };
            shard(&*checkpoint, &*naming, &shards, &options, &|_| ()).unwrap();
            assert!(verify(&shards, &|_| ()).unwrap().damage.is_empty(), "{found}");
            let manifest = Manifest::load(&shards).unwrap();
            let tensors = manifest.pieces.iter().flat_map(|piece| &piece.tensors);
            let kept = tensors.filter(|tensor| tensor.encoding == Some(found)).count();
            assert_eq!(kept, MATRICES.len(), "{encoding} as {found}");
            assert!(logits(&shards) == expected, "{encoding} as {found} in shards");

            unshard(&shards, &back, false, None, &|_| ()).unwrap();
            let found = Tensors::read(&back.join("model.safetensors"));
            let stored = Tensors(stored.clone().into_iter().collect());
            assert!(found.0.into_iter().eq(stored.0), "{encoding} from {asked}");
        }
    }
}

/// Packed codes do not have the length of what they came from, so that their origins say it.
#[test]
fn origins_of_packed_codes_fit_the_matrix() {
    let temp = tempfile::tempdir().unwrap();
    let [dir, shards] = ["in", "shards"].map(|name| temp.path().join(name));
    let (encoding, parts) = &spellings()[0];
    let [stored, _] = checkpoint(*encoding, parts);
    write(&dir, stored);
    let source = open_checkpoint(&dir, None).unwrap();
    let naming = sws_model::naming(source.config()).unwrap();
    let options = ShardOptions { encoding: Encoding::Bf11, ..ShardOptions::default() };
    shard(&*source, &*naming, &shards, &options, &|_| ()).unwrap();
    let good = Manifest::load(&shards).unwrap();
    let bytes = |manifest: &Manifest| -> u64 {
        let tensors = manifest.pieces.iter().flat_map(|piece| &piece.tensors);
        tensors.map(Tensor::source_bytes).sum()
    };
    assert_eq!(bytes(&good), bytes(&Manifest::in_place(&*source, &*naming).unwrap()));
    const ERROR: ErrorNorms =
        ErrorNorms { relative: 0.1, max: 0.1, spectral: None, spectral_error: None };
    let changes: [fn(&mut Tensor); 7] = [
        |tensor| tensor.origins.clear(),
        |tensor| drop(tensor.origins.pop()),
        |tensor| tensor.origins.push(tensor.origins[1].clone()),
        |tensor| tensor.origins.swap(0, 1),
        |tensor| tensor.origins[0].shape[0] += 1,
        |tensor| tensor.origins[1].shape = vec![u64::MAX, 4],
        // They come back as they were.
        |tensor| tensor.error = Some(ERROR),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut manifest = good.clone();
        let mut tensors = manifest.pieces.iter_mut().flat_map(|piece| &mut piece.tensors);
        let is_packed = |tensor: &&mut Tensor| matches!(tensor.encoding, Some(Encoding::Fp7(_)));
        change(tensors.find(is_packed).unwrap());
        let error = manifest.write(temp.path()).unwrap_err().to_string();
        assert!(error.contains("does not fit the tensors that it came from"), "{number}: {error}");
    }
}

/// The error of a checkpoint with a changed tensor.
fn refusal(parts: &[Part], encoding: Encoding, change: impl Fn(&mut Tensors)) -> String {
    let dir = tempfile::tempdir().unwrap();
    let [stored, _] = checkpoint(encoding, parts);
    let mut tensors = Tensors(stored.into_iter().collect());
    change(&mut tensors);
    write(dir.path(), tensors.0);
    let checkpoint = open_checkpoint(dir.path(), None).unwrap();
    let naming = sws_model::naming(checkpoint.config()).unwrap();
    let manifest = match Manifest::in_place(&*checkpoint, &*naming) {
        Ok(manifest) => manifest,
        Err(error) => return error.to_string(),
    };
    let spec = ModelSpec::of(checkpoint.config()).unwrap();
    let loaded = sws_testing::resident(dir.path(), &manifest, &spec);
    loaded.expect_err("it was accepted").to_string()
}

/// Scales that are missing, of another type, more than there should be, none, or not numbers.
#[test]
fn scales_of_every_spelling_are_checked() {
    type Change = fn(&mut Tensors, &str);
    let changes: [Change; 5] = [
        |tensors, name| drop(tensors.0.remove(name)),
        |tensors, name| {
            let dtype = &mut tensors.0.get_mut(name).unwrap().0;
            *dtype = match *dtype {
                Dtype::F32 => Dtype::I32,
                Dtype::BF16 => Dtype::F16,
                _ => Dtype::F8_E5M2,
            };
        },
        |tensors, name| {
            let (_, shape, bytes) = tensors.0.get_mut(name).unwrap();
            shape.insert(0, 2);
            bytes.extend_from_within(..);
        },
        |tensors, name| {
            let (_, shape, bytes) = tensors.0.get_mut(name).unwrap();
            *shape = vec![0];
            bytes.clear();
        },
        |tensors, name| tensors.0.get_mut(name).unwrap().2.fill(0xff),
    ];
    for (encoding, parts) in spellings() {
        for Part(suffix, ..) in &parts[1..] {
            let name = format!("model.layers.0.mlp.down_proj{suffix}");
            for change in changes {
                let message = refusal(&parts, encoding, |tensors| change(tensors, &name));
                assert!(message.contains("down_proj") && !message.contains('\n'), "{message}");
            }
        }
    }
}

#[test]
fn contradictions_are_refused() {
    const DOWN: &str = "model.layers.0.mlp.down_proj.weight";
    type Change = fn(&mut Tensors, &str);
    let shape: Change = |tensors, name| {
        let (_, shape, bytes) = tensors.0.get_mut(name).unwrap();
        shape[0] += 1;
        let row = bytes.len() / (shape[0] - 1);
        bytes.extend(vec![0; row]);
    };
    let empty: Change = |tensors, name| {
        let (_, shape, bytes) = tensors.0.get_mut(name).unwrap();
        shape[0] = 0;
        bytes.clear();
    };
    let dtype: Change = |tensors, name| {
        let tensor = tensors.0.get_mut(name).unwrap();
        tensor.0 = if tensor.0 == Dtype::BF16 { Dtype::F16 } else { Dtype::I32 };
    };
    let absent: Change = |tensors, name| assert!(tensors.0.remove(name).is_some());
    let beside: Change = |tensors, name| {
        tensors.0.insert(name.to_owned(), (Dtype::I32, vec![1], vec![0; 4]));
    };
    let not_a_number: Change = |tensors, name| {
        let (_, _, bytes) = tensors.0.get_mut(name).unwrap();
        bytes.fill(0xff);
    };
    let quotient: Change = |tensors, name| {
        let scale = tensors.0.remove(name).unwrap();
        tensors.0.insert(name.replace("_scale_2", "_outer_scale_denominator"), scale);
    };
    #[rustfmt::skip]
    let cases: [(usize, &str, Change, &str); 15] = [
        (13, "_scale_2", quotient, "whose scales are divided by `model.layers.0.mlp.down_proj.weight_outer_scale_denominator`, which is not supported"),
        (0, "_scale_inv", shape, "_scale_inv`, as F32 of shape [2, 3], does not fit"),
        (0, "_scale_inv", empty, "_scale_inv`, as F32 of shape [0, 3], does not fit"),
        (0, "_scale_inv", dtype, "_scale_inv`, as I32 of shape [1, 3], does not fit"),
        (0, "_scale_inv", absent, "down_proj.weight` is stored as F8_E4M3, and its scales are missing"),
        (0, "_scale_inv", not_a_number, "down_proj.weight` holds NaN (row 0, column 0)"),
        (4, "_scale", shape, "_scale`, as F32 of shape [129, 1], does not fit"),
        (8, "_scale", not_a_number, "down_proj.weight` holds NaN (row 0, column 0)"),
        (9, "_scale", dtype, "_scale`, as F16 of shape [128, 12], does not fit"),
        (9, "_scale", absent, "_packed`, a part of the codes of `model.layers.0.mlp.down_proj.weight`, whose other parts are missing"),
        (9, "_zero_point", beside, "_zero_point`, as I32 of shape [1], does not fit"),
        (9, "_g_idx", beside, "_g_idx`, as I32 of shape [1], does not fit"),
        (13, "_scale_2", absent, "_scale`, as F8_E4M3 of shape [128, 24], does not fit"),
        (13, "_scale_2", not_a_number, "down_proj.weight` holds NaN (row 0, column 0)"),
        (14, "_global_scale", dtype, "_scale`, as F8_E4M3 of shape [128, 24], does not fit"),
    ];
    for (which, suffix, change, expected) in cases {
        let (encoding, parts) = &spellings()[which];
        let name = format!("{DOWN}{suffix}");
        let message = refusal(parts, *encoding, |tensors| change(tensors, &name));
        assert!(message.contains(expected), "{message}");
        assert!(message.contains("down_proj") && !message.contains('\n'), "{message}");
    }
}

/// One scale for a matrix is no mistake, except where the configuration gives each block one.
#[test]
fn a_scale_for_a_matrix_in_place_of_those_of_blocks() {
    let copy = tempfile::tempdir().unwrap();
    goldens::copy("deepseek_v3_fp8", copy.path());
    let path = copy.path().join("model.safetensors");
    let mut tensors = Tensors::read(&path);
    const SCALES: &str = "model.layers.1.mlp.experts.4.up_proj.weight_scale_inv";
    for (shape, bytes) in [(vec![1, 1], 4), (vec![17], 4 * 17)] {
        tensors.0.insert(SCALES.to_owned(), (Dtype::F32, shape, vec![0; bytes]));
        tensors.write(&path);
        let opened = || {
            let checkpoint = open_checkpoint(copy.path(), None).unwrap();
            let naming = sws_model::naming(checkpoint.config()).unwrap();
            Manifest::in_place(&*checkpoint, &*naming)
        };
        let error = opened().unwrap_err().to_string();
        assert!(error.contains(SCALES) && error.contains("does not fit"), "{error}");
        let set = |config: &mut Value, size: Value| {
            config["quantization_config"]["weight_block_size"] = size;
        };
        change(copy.path(), "config.json", |config| set(config, Value::Null));
        assert!(opened().is_ok());
        change(copy.path(), "config.json", |config| set(config, json!([128, 128])));
    }
}
