//! Packed checkpoints of AWQ and GPTQ: shards of them give the bits of the same weights in f32, and
//! the checkpoint back. What contradicts itself is refused.

use std::path::Path;

use safetensors::Dtype;
use serde_json::{Value, json};
use sws_format::{Manifest, open_checkpoint};
use sws_kernels::{Encoding, Matrix};
use sws_model::Inventory;
use sws_shard::{ShardOptions, shard, unshard};
use sws_testing::goldens::Tensors;

use crate::forward::quantised::{
    MATRICES, Stored, assert_as_f32, config, logits, numbers, with_matrices,
};

/// A way to pack weights, and the configuration that says so.
#[derive(Clone)]
struct Format {
    config: Value,
    /// The encoding in shards.
    name: &'static str,
    awq: bool,
    /// Columns of a group.
    group: usize,
    act_order: bool,
    /// What is added to integers of zero points.
    offset: u32,
    scales: Dtype,
}

fn formats() -> Vec<Format> {
    let awq = |group: i64, scales, name| Format {
        config: json!({"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm",
                       "zero_point": true}),
        name,
        awq: true,
        group: usize::try_from(group).unwrap_or(1 << 20),
        act_order: false,
        offset: 0,
        scales,
    };
    let gptq = |group: i64, format: &str, act_order, name| Format {
        config: json!({"quant_method": "gptq", "bits": 4, "group_size": group, "sym": false,
                       "checkpoint_format": format, "desc_act": act_order}),
        act_order,
        awq: false,
        offset: if format == "gptq" { 0x1111_1111 } else { 0 },
        ..awq(group, Dtype::F16, name)
    };
    vec![
        awq(32, Dtype::F16, "int4_zeros_32"),
        awq(64, Dtype::BF16, "int4_zeros_64"),
        awq(128, Dtype::F16, "int4_zeros_128"),
        awq(-1, Dtype::F16, "int4_zeros_128"),
        gptq(128, "gptq", false, "int4_zeros_128"),
        gptq(32, "gptq_v2", false, "int4_zeros_32"),
        gptq(-1, "gptq", true, "int4_zeros_128"),
        gptq(32, "gptq", true, "int4_act_order_32"),
        gptq(64, "gptq_v2", true, "int4_act_order_64"),
        gptq(128, "gptq", true, "int4_act_order_128"),
    ]
}

/// The group of each column.
fn order(format: &Format, cols: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..cols).map(|col| col / format.group).collect();
    if format.act_order {
        (0..cols).for_each(|col| order.swap(col, col * 37 % cols));
    }
    order
}

/// The tensors of a matrix, and its weights by the formulas of the formats.
fn pack(
    format: &Format,
    [rows, cols]: [usize; 2],
    random: &mut impl FnMut() -> u8,
) -> (Vec<(&'static str, Stored)>, Vec<f32>) {
    let groups = cols.div_ceil(format.group);
    let mut integers = |count: usize| -> Vec<u32> {
        (0..count).map(|_| u32::from_le_bytes([random(), random(), random(), random()])).collect()
    };
    let weights = integers(rows * cols / 8);
    let zeros = integers(groups * rows / 8);
    let scales = numbers(Dtype::BF16, groups * rows, random);
    let order = order(format, cols);
    let encoding = if format.scales == Dtype::F16 { Encoding::F16 } else { Encoding::Bf16 };
    let mut scale = vec![0.0; groups * rows];
    Matrix::new(encoding, 1, scale.len(), &[&scales]).unwrap().decode_row(0, &mut scale);
    // An integer of AWQ has the outputs 0, 2, 4, 6, 1, 3, 5, 7.
    let of_eight = |integer: u32, row: usize| {
        let place = [0, 4, 1, 5, 2, 6, 3, 7][row % 8];
        integer >> (4 * if format.awq { place } else { row % 8 }) & 15
    };
    let code = |row: usize, col: usize| match format.awq {
        true => of_eight(weights[col * rows / 8 + row / 8], row),
        false => weights[col / 8 * rows + row] >> (4 * (col % 8)) & 15,
    };
    let zero = |group: usize, row: usize| {
        of_eight(zeros[group * rows / 8 + row / 8].wrapping_add(format.offset), row)
    };
    let mut wide = Vec::with_capacity(rows * cols);
    for row in 0..rows {
        for (col, &group) in order.iter().enumerate() {
            let difference = code(row, col) as f32 - zero(group, row) as f32;
            wide.push(difference * scale[group * rows + row]);
        }
    }
    let bytes = |integers: &[u32]| integers.iter().flat_map(|n| n.to_le_bytes()).collect();
    let shape = if format.awq { vec![cols, rows / 8] } else { vec![cols / 8, rows] };
    let mut tensors = vec![
        (".qweight", (Dtype::I32, shape, bytes(&weights))),
        (".qzeros", (Dtype::I32, vec![groups, rows / 8], bytes(&zeros))),
        (".scales", (format.scales, vec![groups, rows], scales)),
    ];
    if !format.awq {
        let order: Vec<u32> = order.iter().map(|&group| group as u32).collect();
        tensors.push((".g_idx", (Dtype::I32, vec![cols], bytes(&order))));
    }
    (tensors, wide)
}

/// The checkpoint as stored, and its weights in f32.
fn checkpoint(format: &Format) -> [Tensors; 2] {
    with_matrices(7, |shape, random| pack(format, shape, random))
        .map(|tensors| Tensors(tensors.into_iter().collect()))
}

fn write(dir: &Path, tensors: Tensors, quantisation: Option<&Value>) {
    std::fs::create_dir_all(dir).unwrap();
    config(dir);
    if let Some(quantisation) = quantisation {
        let path = dir.join("config.json");
        let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        config["quantization_config"] = quantisation.clone();
        std::fs::write(path, config.to_string()).unwrap();
    }
    tensors.write(&dir.join("model.safetensors"));
}

#[test]
fn shards_give_the_logits_of_f32_and_the_checkpoint_back() {
    for format in formats() {
        let temp = tempfile::tempdir().unwrap();
        let [dir, plain, shards, back] = ["a", "b", "c", "d"].map(|name| temp.path().join(name));
        let [stored, wide] = checkpoint(&format);
        let original = stored.0.clone();
        write(&dir, stored, Some(&format.config));
        write(&plain, wide, None);

        let (manifest, spec) = sws_testing::open(&dir).unwrap();
        let error = Inventory::new(&spec, &manifest).unwrap_err().to_string();
        let expected = "_proj.weight` is packed along its columns, as AWQ and GPTQ do, and cannot \
                        be read in place; make shards with `sws shard` and use those";
        assert!(error.contains(expected), "{error}");

        let checkpoint = open_checkpoint(&dir, None).unwrap();
        let naming = sws_model::naming(checkpoint.config()).unwrap();
        shard(&*checkpoint, &*naming, &shards, &ShardOptions::default(), &|_| ()).unwrap();
        let manifest = Manifest::load(&shards).unwrap();
        // Matrices of one group need no order of columns.
        let tensors = manifest.pieces.iter().flat_map(|piece| &piece.tensors);
        let packed = tensors.filter(|tensor| tensor.packing.is_some());
        let names: Vec<_> =
            packed.filter_map(|tensor| tensor.encoding.map(Encoding::name)).collect();
        assert_eq!(names.len(), MATRICES.len(), "{}", format.config);
        assert!(names.contains(&format.name), "{names:?} of {}", format.config);
        let arithmetic = manifest.arithmetic();
        assert_as_f32(&logits(&shards), &logits(&plain), arithmetic, &format.config);

        unshard(&shards, &back, false, None, &|_| ()).unwrap();
        let found = Tensors::read(&back.join("model.safetensors"));
        assert!(found.0 == original, "{}", format.config);
    }
}

/// The error of sharding a checkpoint whose configuration or tensors were changed.
fn refusal(format: &Format, change: impl FnOnce(&mut Value, &mut Tensors)) -> String {
    let temp = tempfile::tempdir().unwrap();
    let [mut stored, _] = checkpoint(format);
    let mut quantisation = format.config.clone();
    change(&mut quantisation, &mut stored);
    let dir = temp.path().join("a");
    write(&dir, stored, Some(&quantisation));
    let checkpoint = open_checkpoint(&dir, None).unwrap();
    let naming = match sws_model::naming(checkpoint.config()) {
        Ok(naming) => naming,
        Err(error) => return error.to_string(),
    };
    let shards = temp.path().join("b");
    let options = ShardOptions::default();
    if let Err(error) = shard(&*checkpoint, &*naming, &shards, &options, &|_| ()) {
        return error.to_string();
    }
    let (manifest, spec) = sws_testing::open(&shards).unwrap();
    Inventory::new(&spec, &manifest).expect_err("it was accepted").to_string()
}

#[test]
fn other_options_are_refused_by_name() {
    let formats = formats();
    let [awq, gptq] = [&formats[0], &formats[5]];
    #[rustfmt::skip]
    let cases = [
        (awq, "bits", json!(8), "asks for `bits` = 8 in a model of type `qwen3`, which is not supported; supported: 4"),
        (awq, "w_bit", json!(3), "asks for `w_bit` = 3"),
        (awq, "bits", json!("4"), "`bits` is"),
        (awq, "version", json!("gemv"), "`version` = "),
        (awq, "version", json!("marlin"), "supported: gemm"),
        (awq, "zero_point", json!(false), "`zero_point` = false"),
        (awq, "backend", json!("llm-awq"), "`backend` = "),
        (awq, "group_size", json!(0), "supported: -1 and powers of two from 32 on"),
        (awq, "group_size", json!(33), "`group_size` = 33"),
        (awq, "group_size", json!(16), "`group_size` = 16"),
        (awq, "group_size", json!(-2), "`group_size` is -2 instead of a whole number"),
        (awq, "group_size", json!(64), "config.json` gives a `group_size` of 64, and the scales `model.layers.0"),
        (awq, "group_size", json!(-1), "config.json` gives a `group_size` of -1, and the scales"),
        (gptq, "bits", json!(8), "`bits` = 8"),
        (gptq, "bits", json!(3), "`bits` = 3"),
        (gptq, "bits", json!(null), "has no `bits`"),
        (gptq, "checkpoint_format", json!("marlin"), "supported: gptq and gptq_v2"),
        (gptq, "is_marlin_format", json!(true), "`is_marlin_format` = true"),
        (gptq, "pack_dtype", json!("int16"), "`pack_dtype` = "),
        (gptq, "adapter", json!({"name": "eora"}), "`adapter` = an object"),
        (gptq, "rotation", json!("hadamard"), "`rotation` = "),
        (gptq, "dynamic", json!({"+:.*down.*": {"bits": 8}}), "`bits` = 8"),
        (gptq, "dynamic", json!({"-:.*down.*": {}, ".*up.*": {"group_size": 5}}), "`group_size` = 5"),
        (gptq, "dynamic", json!([1]), "`dynamic` is"),
        (gptq, "dynamic", json!({"+:a": 1}), "`dynamic` is 1"),
        (gptq, "desc_act", json!("yes"), "`desc_act` is"),
    ];
    for (format, key, value, expected) in cases {
        let message = refusal(format, |config, _| config[key] = value);
        assert!(message.contains(expected) && !message.contains('\n'), "{message}");
    }
}

#[test]
fn tensors_that_do_not_fit_are_refused() {
    type Change = fn(&mut Stored);
    const DOWN: &str = "model.layers.0.mlp.down_proj";
    let formats = formats();
    let [awq, gptq, ordered] = [&formats[0], &formats[5], &formats[7]];
    /// Twice the length along a dimension.
    fn longer(tensor: &mut Stored, dim: usize) {
        tensor.1[dim] *= 2;
        tensor.2.extend_from_within(..);
    }
    fn group(tensor: &mut Stored, col: usize, group: i32) {
        tensor.2[4 * col..][..4].copy_from_slice(&group.to_le_bytes());
    }
    #[rustfmt::skip]
    let cases: [(&Format, &str, Change, &str); 17] = [
        (awq, ".qweight", |t| t.0 = Dtype::F32, "whose type or shape is not that of packed codes"),
        (awq, ".qweight", |t| t.1.push(1), "holds the codes `model.layers.0.mlp.down_proj.qweight`, whose type or shape"),
        (awq, ".qweight", |t| longer(t, 0), ".scales` of shape [12, 128] are those of groups of 64 columns"),
        (awq, ".qweight", |t| longer(t, 1), ".scales`, as F16 of shape [12, 128], does not fit"),
        (awq, ".qzeros", |t| longer(t, 0), ".qzeros`, as I32 of shape [24, 16], does not fit"),
        (awq, ".qzeros", |t| t.0 = Dtype::F32, ".qzeros`, as F32 of shape [12, 16], does not fit"),
        (awq, ".scales", |t| longer(t, 0), ".scales`, as F16 of shape [24, 128], does not fit"),
        (awq, ".scales", |t| t.0 = Dtype::I16, ".scales`, as I16 of shape [12, 128], does not fit"),
        (awq, ".scales", |t| { t.1[0] = 0; t.2.clear(); }, ".scales`, as F16 of shape [0, 128], does not fit"),
        (awq, ".scales", |t| t.2[2 * 130..][..2].fill(0x7f), "where row 2 has a scale that is NaN; download it again"),
        (gptq, ".scales", |t| t.2[..2].copy_from_slice(&[0, 0x7c]), "where row 0 has a scale that is inf"),
        (gptq, ".g_idx", |t| longer(t, 0), ".g_idx`, as I32 of shape [768], does not fit"),
        (gptq, ".g_idx", |t| group(t, 3, 1), "which gives column 3 the group 1, though config.json says that columns are in order"),
        (gptq, ".g_idx", |t| group(t, 3, -1), "which gives column 3 the group -1 of 0 to 11"),
        (ordered, ".g_idx", |t| group(t, 5, 12), "which gives column 5 the group 12 of 0 to 11"),
        (ordered, ".g_idx", |t| t.0 = Dtype::F32, ".g_idx`, as F32 of shape [384], does not fit"),
        (ordered, ".qweight", |t| t.1.insert(0, 1), "whose type or shape is not that of packed codes"),
    ];
    for (format, suffix, change, expected) in cases {
        let message = refusal(format, |_, tensors| {
            change(tensors.0.get_mut(&format!("{DOWN}{suffix}")).unwrap());
        });
        assert!(message.contains(expected) && !message.contains('\n'), "{message}");
    }
    for (format, suffix, expected) in [
        (
            awq,
            ".qweight",
            "a part of the codes of `model.layers.0.mlp.down_proj.weight`, whose other parts are missing",
        ),
        (awq, ".qzeros", ".qweight`, and `model.layers.0.mlp.down_proj.qzeros` is missing"),
        (awq, ".scales", "down_proj.scales` is missing"),
        (ordered, ".g_idx", "down_proj.g_idx` is missing"),
    ] {
        let message = refusal(format, |_, tensors| {
            tensors.0.remove(&format!("{DOWN}{suffix}")).unwrap();
        });
        assert!(message.contains(expected) && !message.contains('\n'), "{message}");
    }
    // A name that the matrix would get.
    let message = refusal(awq, |_, tensors| {
        let there = (Dtype::F32, vec![1], vec![0; 4]);
        tensors.0.insert(format!("{DOWN}.weight"), there);
    });
    assert!(message.contains("down_proj.weight` is there, too"), "{message}");
}

#[test]
fn columns_in_order_need_no_list_of_groups() {
    let format = &formats()[4];
    let temp = tempfile::tempdir().unwrap();
    let [dir, plain, shards] = ["a", "b", "c"].map(|name| temp.path().join(name));
    let [mut stored, wide] = checkpoint(format);
    stored.0.retain(|name, _| !name.ends_with(".g_idx"));
    write(&dir, stored, Some(&format.config));
    write(&plain, wide, None);
    let checkpoint = open_checkpoint(&dir, None).unwrap();
    let naming = sws_model::naming(checkpoint.config()).unwrap();
    shard(&*checkpoint, &*naming, &shards, &ShardOptions::default(), &|_| ()).unwrap();
    let arithmetic = Manifest::load(&shards).unwrap().arithmetic();
    assert_as_f32(&logits(&shards), &logits(&plain), arithmetic, &format.config);
}
