//! Every family in every encoding: shards that any library opens, and the same bits back.

use std::path::Path;
use std::sync::Arc;

use safetensors::{Dtype, SafeTensors};
use sws_format::{Configuration, Manifest, Naming, Piece, PieceId, Placement, Tensor};
use sws_kernels::{Encoding, Fp8Scales, Matrix};
use sws_shard::{ShardOptions, shard, unshard, verify};
use sws_store::{Arena, NVMeWeightStore, Read, StoreOptions};
use sws_testing::{each_nth, is_night};

use crate::checkpoints::{self, Checkpoint, FAMILIES, tiny};
use crate::sws::assert_same_tree;

/// A family with experts stacked by rows, which no published family known here has.
struct Stacked(Box<dyn Naming>);

impl Naming for Stacked {
    fn model_type(&self) -> &str {
        "stacked"
    }

    fn place(&self, name: &str, shape: &[u64]) -> Placement {
        let layer = || name.split('.').nth(2)?.parse().ok();
        let rank = if name.ends_with(".experts.gate_up_proj") {
            0
        } else if name.ends_with(".experts.down_proj") {
            1
        } else {
            return self.0.place(name, shape);
        };
        Placement::Experts { layer: layer().unwrap(), rank, matrix: true, transposed: false }
    }
}

fn naming(family: &str, config: &Configuration) -> Box<dyn Naming> {
    let known = sws_model::naming(config).unwrap();
    if family == "stacked" { Box::new(Stacked(known)) } else { known }
}

/// Shards a checkpoint with one thread and with two, verifies, unshards and compares everything.
fn check(family: &str, dtype: Dtype, encoding: Encoding, stand_ins: Option<Encoding>) {
    let case = format!("{family} {dtype} as {encoding}");
    let temp = tempfile::tempdir().unwrap();
    let at = |name: &str| temp.path().join(name);
    let mut original = tiny(family, dtype, 7);
    let keeps_all = encoding == Encoding::F32
        || encoding.has_patches()
        || encoding.name() == dtype.to_string().to_lowercase();
    if keeps_all && stand_ins.is_none() {
        add_oddities(&mut original);
    }
    let files = if family == "olmoe" { 3 } else { 1 };
    original.write(&at("in"), files);
    let source = sws_format::open_checkpoint(at("in"), None).unwrap();
    let naming = naming(family, source.config());
    for (out, threads) in [("one", 1), ("two", 2)] {
        let options = ShardOptions { encoding, stand_ins, threads: Some(threads) };
        let done = shard(&*source, &*naming, &at(out), &options, &|_| ()).unwrap();
        assert_eq!(done.found, 0, "{case}");
    }
    assert_same_tree(&at("one"), &at("two"));
    let verified = verify(&at("one"), &|_| ()).unwrap();
    assert_eq!(verified.damage, [], "{case}");

    let manifest = Manifest::load(at("one")).unwrap();
    assert_eq!(manifest.model.fingerprint, source.fingerprint());
    let in_place = Manifest::in_place(&*source, &*naming).unwrap();
    assert_eq!(manifest.pieces.len(), in_place.pieces.len());
    let mut changed = 0;
    for (piece, before) in manifest.pieces.iter().zip(&in_place.pieces) {
        check_shard(&at("one"), &manifest, piece.id, &piece.tensors);
        assert_eq!(piece.id, before.id);
        for (tensor, before) in piece.tensors.iter().zip(&before.tensors) {
            let before = Stored { dir: &at("in"), manifest: &in_place, tensor: before };
            let after = Stored { dir: &at("one"), manifest: &manifest, tensor };
            changed += usize::from(compare(&case, &before, &after));
        }
        let shards = at("one");
        let checkpoint = at("in");
        let made = (&*shards, &manifest, piece);
        check_stand_in(made, (&checkpoint, &in_place, before), stand_ins);
    }
    // Few matrices of these are wide enough for nested, and only those of experts.
    let reencoded = |t: &Tensor| {
        let instead = encoding == Encoding::Nested && t.encoding == Some(Encoding::Bf11);
        t.encoding == Some(encoding) || instead
    };
    let count = manifest.pieces.iter().flat_map(|p| &p.tensors).filter(|t| reencoded(t)).count();
    assert!(count > 0 || encoding.has_patches() && dtype != Dtype::BF16, "{case}");

    let refused = unshard(&at("one"), &at("exact"), false, None, &|_| ());
    assert_eq!(refused.is_err(), changed > 0, "{case}: {changed} tensors changed");
    let done = unshard(&at("one"), &at("back"), true, None, &|_| ()).unwrap();
    assert_eq!(done.lossy, changed);
    let back = Checkpoint::read_tensors(&at("back"));
    assert_eq!(back.len(), original.tensors.len(), "{case}");
    let same = back.iter().filter(|(name, tensor)| original.tensors[*name] == **tensor).count();
    if changed == 0 {
        assert_eq!(same, back.len(), "{case}");
        assert_same_files(&at("in"), &at("back"), files);
    }
    for (name, tensor) in &back {
        let before = &original.tensors[name];
        assert_eq!((tensor.dtype, &tensor.shape), (before.dtype, &before.shape), "{case} {name}");
    }
}

/// Zeros of both signs, subnormals, infinities and NaNs, which exact encodings preserve.
fn add_oddities(checkpoint: &mut Checkpoint) {
    for (name, tensor) in &mut checkpoint.tensors {
        if !name.contains("proj") || tensor.shape.len() < 2 {
            continue;
        }
        let size = tensor.dtype.bitsize() / 8;
        for (i, top) in
            [0x0000u16, 0x8000, 0x0001, 0x7f80, 0xff80, 0x7fc1, 0x7c00, 0xfc01].iter().enumerate()
        {
            let at = 40 * i * size;
            tensor.bytes[at..at + size].fill(0);
            tensor.bytes[at + size - 2..at + size].copy_from_slice(&top.to_le_bytes());
        }
    }
}

/// A tensor and its location.
struct Stored<'a> {
    dir: &'a Path,
    manifest: &'a Manifest,
    tensor: &'a Tensor,
}

impl Stored<'_> {
    fn parts(&self) -> Vec<Vec<u8>> {
        let part = |part: &sws_format::Extent| {
            let file = &self.manifest.files[part.file as usize].path;
            let bytes = std::fs::read(self.dir.join(file)).unwrap();
            bytes[part.offset as usize..][..part.len as usize].to_vec()
        };
        self.tensor.parts.iter().map(part).collect()
    }

    fn weights(&self) -> Vec<f32> {
        let (rows, cols) = self.tensor.matrix_shape();
        let parts = self.parts();
        let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        let encoding = self.tensor.encoding.unwrap();
        let matrix = Matrix::new(encoding, rows as usize, cols as usize, &parts).unwrap();
        matrix.check().unwrap();
        let mut weights = vec![0.0; (rows * cols) as usize];
        for (row, out) in weights.chunks_mut(cols as usize).enumerate() {
            matrix.decode_row(row, out);
        }
        if self.tensor.transposed && self.manifest.encoding.is_none() {
            // The checkpoint has the numbers in the order of the columns.
            let rows = rows as usize;
            let cols = cols as usize;
            let at = |i: usize| weights[i % cols * rows + i / cols];
            weights = (0..rows * cols).map(at).collect();
        }
        weights
    }
}

/// Compares the weights, and the error in the manifest. Returns true if the tensor is lossy.
fn compare(case: &str, before: &Stored, after: &Stored) -> bool {
    let name = &after.tensor.name;
    assert_eq!(name, &before.tensor.name, "{case}");
    let old = before.weights();
    let new = after.weights();
    let same = old.iter().zip(&new).all(|(a, b)| a.to_bits() == b.to_bits());
    match after.tensor.error {
        None => assert!(same, "{case}: {name} is not exact"),
        Some(error) => {
            let mut difference = 0f64;
            let mut total = 0f64;
            let mut max = 0f64;
            for (a, b) in old.iter().zip(&new) {
                let d = f64::from(*b) - f64::from(*a);
                difference += d * d;
                total += f64::from(*a).powi(2);
                max = max.max(d.abs());
            }
            let relative = (difference / total).sqrt();
            assert!((error.relative - relative).abs() <= 1e-12 * relative, "{case}: {name}");
            assert_eq!(error.max, max, "{case}: {name}");
            let bound = match after.tensor.encoding {
                Some(Encoding::Q8) => 0.01,
                Some(Encoding::Q4) => 0.2,
                Some(Encoding::Fp8(Fp8Scales::Squares)) => 0.04,
                Some(Encoding::Mxfp4) => 0.2,
                _ => 0.01,
            };
            assert!(relative < bound, "{case}: {name} has error {relative}");
        }
    }
    after.tensor.error.is_some()
}

fn check_stand_in(
    (dir, manifest, piece): (&Path, &Manifest, &Piece),
    (checkpoint, in_place, before): (&Path, &Manifest, &Piece),
    wanted: Option<Encoding>,
) {
    let expert = piece.id.to_string().contains("expert_");
    let Some(stand_in) = &piece.stand_in else {
        assert!(wanted.is_none() || !expert, "{} has no stand-in", piece.id);
        return;
    };
    assert_eq!(Some(stand_in.encoding), wanted);
    check_shard(dir, manifest, piece.id, &stand_in.tensors);
    for (tensor, before) in stand_in.tensors.iter().zip(&before.tensors) {
        let before = Stored { dir: checkpoint, manifest: in_place, tensor: before };
        let lossy = compare("stand-in", &before, &Stored { dir, manifest, tensor });
        assert_eq!(lossy, tensor.shape.len() > 1, "biases are exact");
    }
}

/// Checks that a shard is valid and aligned, has its tensors at the manifest's offsets, and names
/// its piece.
fn check_shard(dir: &Path, manifest: &Manifest, piece: PieceId, tensors: &[Tensor]) {
    let parts = || tensors.iter().flat_map(|tensor| &tensor.parts);
    let file = &manifest.files[parts().next().unwrap().file as usize];
    let bytes = std::fs::read(dir.join(&file.path)).unwrap();
    assert_eq!(bytes.len() as u64, file.len);
    assert_eq!(file.len % 4096, 0, "{piece}");
    let (header, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
    assert_eq!((header + 8) % 4096, 0, "{piece}");
    let words = metadata.metadata().as_ref().unwrap();
    assert_eq!(words["sws.piece"], piece.to_string());
    assert_eq!(words["sws.fingerprint"], manifest.model.fingerprint);
    let opened = SafeTensors::deserialize(&bytes).unwrap();
    let mut seen = 0;
    for (name, view) in opened.tensors() {
        let offset = view.data().as_ptr() as u64 - bytes.as_ptr() as u64;
        if name.starts_with("__pad.") {
            assert!(view.data().iter().all(|&byte| byte == 0));
            continue;
        }
        assert_eq!(offset % 64, 0, "{piece} {name}");
        assert!(parts().any(|p| (p.offset, p.len) == (offset, view.data().len() as u64)));
        seen += 1;
    }
    assert_eq!(seen, parts().count(), "{piece}");
    assert!(parts().map(|part| part.offset).is_sorted(), "{piece}");
}

/// Asserts that both directories have the same tensors in files of the same names.
fn assert_same_files(a: &Path, b: &Path, files: usize) {
    let index = |dir: &Path| {
        let bytes = std::fs::read(dir.join("model.safetensors.index.json")).ok()?;
        let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        Some(json["weight_map"].clone())
    };
    assert_eq!(index(a), index(b));
    assert_eq!(index(a).is_some(), files > 1);
    for name in ["config.json", "tokenizer.json"] {
        assert_eq!(std::fs::read(a.join(name)).unwrap(), std::fs::read(b.join(name)).unwrap());
    }
}

#[test]
fn every_family_in_every_encoding() {
    for (number, family) in FAMILIES.into_iter().enumerate() {
        let made = Encoding::ALL.into_iter().filter(|encoding| encoding.is_made());
        for encoding in each_nth(made.skip(if is_night() { 0 } else { number % 2 }), 2) {
            check(family, Dtype::BF16, encoding, None);
        }
    }
}

#[test]
fn every_type_in_every_encoding() {
    for dtype in [Dtype::F16, Dtype::F32] {
        for encoding in Encoding::ALL.into_iter().filter(|encoding| encoding.is_made()) {
            check("qwen2_moe", dtype, encoding, None);
            check("gpt_oss", dtype, encoding, None);
        }
    }
}

#[test]
fn stand_ins_beside_exact_experts() {
    for stand_in in [Encoding::Q8, Encoding::Q4] {
        check("mixtral", Dtype::F32, Encoding::F32, Some(stand_in));
        check("gpt_oss", Dtype::BF16, Encoding::Bf12, Some(stand_in));
    }
}

#[test]
fn the_error_of_a_stand_in_is_that_of_the_manifest() {
    let temp = tempfile::tempdir().unwrap();
    let at = |name: &str| temp.path().join(name);
    tiny("mixtral", Dtype::BF16, 9).write(&at("in"), 1);
    let source = sws_format::open_checkpoint(at("in"), None).unwrap();
    let naming = sws_model::naming(source.config()).unwrap();
    let options = ShardOptions { stand_ins: Some(Encoding::Q4), ..ShardOptions::default() };
    shard(&*source, &*naming, &at("out"), &options, &|_| ()).unwrap();
    let manifest = Arc::new(Manifest::load(at("out")).unwrap());
    let options = StoreOptions { cache: None, ..StoreOptions::default() };
    let store = NVMeWeightStore::open(Arc::clone(&manifest), &at("out"), options).unwrap();
    let arena = Arena::new(8 << 20).unwrap();
    let mut compared = 0;
    for piece in manifest.pieces.iter().filter(|piece| piece.stand_in.is_some()) {
        let exact = store.read(Read::Piece(piece.id), &arena).unwrap();
        let approx = store.read(Read::StandIn(piece.id), &arena).unwrap();
        let stored = &piece.stand_in.as_ref().unwrap().tensors;
        let tensors = exact.layout.tensors().iter().zip(approx.layout.tensors()).zip(stored);
        for ((w, v), stored) in tensors {
            let w = w.matrix(&exact.slot).unwrap().unwrap();
            let v = v.matrix(&approx.slot).unwrap().unwrap();
            assert_eq!(v.encoding(), Encoding::Q4);
            let mut whole = 0.0;
            let mut off = 0.0;
            let mut a = vec![0.0; w.cols()];
            let mut b = vec![0.0; w.cols()];
            for row in 0..w.row_count() {
                w.decode_row(row, &mut a);
                v.decode_row(row, &mut b);
                for (&a, &b) in a.iter().zip(&b) {
                    whole += f64::from(a).powi(2);
                    off += (f64::from(a) - f64::from(b)).powi(2);
                }
            }
            let relative = (off / whole).sqrt();
            let said = stored.error.unwrap().relative;
            assert!(relative > 0.0 && (relative / said - 1.0).abs() < 1e-9, "{}", stored.name);
            let error = stored.error.unwrap();
            let bounds = [error.spectral.unwrap(), error.spectral_error.unwrap()];
            for (bound, frobenius) in bounds.into_iter().zip([whole.sqrt(), off.sqrt()]) {
                assert!(bound > 0.0 && bound <= 1.001 * frobenius, "{}", stored.name);
            }
            for seed in 0..4 {
                let stretched = stretch(&w, &v, seed);
                let held = stretched.iter().zip(bounds).all(|(found, bound)| *found <= bound);
                assert!(held, "{}: {stretched:?} above {bounds:?}", stored.name);
            }
            compared += 1;
        }
    }
    assert!(compared > 3);
}

/// Power iteration: the factors by which the weights, and the error of the stand-in, stretch a
/// vector that they have stretched before.
fn stretch(w: &Matrix, v: &Matrix, seed: u64) -> [f64; 2] {
    let mut a = vec![0.0; w.cols()];
    let mut b = vec![0.0; w.cols()];
    [false, true].map(|change| {
        let mut bytes = vec![0; w.cols()];
        checkpoints::Random(seed).fill(&mut bytes);
        let mut x: Vec<f64> = bytes.iter().map(|&b| f64::from(b) - 127.5).collect();
        let mut found = 0.0;
        for _ in 0..5 {
            let len = x.iter().map(|x| x * x).sum::<f64>().sqrt();
            x.iter_mut().for_each(|x| *x /= len);
            let mut squares = 0.0;
            let mut next = vec![0.0; x.len()];
            for row in 0..w.row_count() {
                w.decode_row(row, &mut a);
                v.decode_row(row, &mut b);
                let at = |i: usize| match change {
                    true => f64::from(b[i]) - f64::from(a[i]),
                    false => f64::from(a[i]),
                };
                let y: f64 = x.iter().enumerate().map(|(i, x)| at(i) * x).sum();
                squares += y * y;
                next.iter_mut().enumerate().for_each(|(i, n)| *n += y * at(i));
            }
            found = f64::sqrt(squares);
            x = next;
        }
        found
    })
}

/// Random codes have too many exponents to be packed.
#[test]
fn tensors_with_scales_are_kept() {
    let mut checkpoint = tiny("llama", Dtype::BF16, 3);
    let scaled = |dtype, shape: &[u64], seed| {
        let mut bytes = vec![
            0;
            shape.iter().product::<u64>() as usize
                * (if dtype == Dtype::F32 { 4 } else { 1 })
        ];
        checkpoints::Random(seed).fill(&mut bytes);
        checkpoints::Tensor { dtype, shape: shape.to_vec(), bytes }
    };
    let name = "model.layers.0.mlp.up_proj.weight";
    let fp8 = scaled(Dtype::F8_E4M3, &[136, 201], 1);
    let scales = scaled(Dtype::F32, &[2, 2], 2);
    checkpoint.tensors.insert(name.to_owned(), fp8);
    checkpoint.tensors.insert(format!("{name}_scale_inv"), scales);
    let blocks = scaled(Dtype::U8, &[136, 6, 16], 3);
    let exponents = scaled(Dtype::U8, &[136, 6], 4);
    checkpoint.tensors.insert("model.layers.1.odd_blocks".to_owned(), blocks);
    checkpoint.tensors.insert("model.layers.1.odd_scales".to_owned(), exponents);
    checkpoint.tensors.insert("model.layers.1.counts".to_owned(), scaled(Dtype::I8, &[5], 5));
    let temp = tempfile::tempdir().unwrap();
    let at = |name: &str| temp.path().join(name);
    checkpoint.write(&at("in"), 1);
    let source = sws_format::open_checkpoint(at("in"), None).unwrap();
    let naming = sws_model::naming(source.config()).unwrap();
    for encoding in [Encoding::Bf12, Encoding::Bf11, Encoding::F32] {
        let out = at(encoding.name());
        let options = ShardOptions { encoding, ..ShardOptions::default() };
        shard(&*source, &*naming, &out, &options, &|_| ()).unwrap();
        let manifest = Manifest::load(&out).unwrap();
        let kept = manifest.pieces.iter().find_map(|piece| piece.tensor(name)).unwrap();
        assert_eq!(kept.encoding, Some(Encoding::Fp8(Fp8Scales::Squares)));
        let back = at(&format!("{encoding}-back"));
        unshard(&out, &back, false, None, &|_| ()).unwrap();
        assert!(Checkpoint::read_tensors(&back) == checkpoint.tensors);
    }
}

/// Exponents of a large matrix are counted in parts of it, and the others may be worse.
#[test]
fn a_matrix_that_needs_more_patches_than_its_sample_is_stored_unchanged() {
    const SAMPLE: usize = 256 << 10;
    let mut checkpoint = tiny("llama", Dtype::BF16, 3);
    let [codes, numbers] =
        ["up_proj", "gate_proj"].map(|it| format!("model.layers.0.mlp.{it}.weight"));
    let mut add = |name: String, dtype: Dtype, shape: [u64; 2], sample: &dyn Fn(usize) -> u8| {
        let mut bytes = vec![0; shape.iter().product::<u64>() as usize * dtype.bitsize() / 8];
        checkpoints::Random(1).fill(&mut bytes);
        for run in 0..16 {
            let at = ((bytes.len() - SAMPLE) * run / 15) & !1;
            (at..at + SAMPLE).for_each(|i| bytes[i] = sample(i));
        }
        checkpoint
            .tensors
            .insert(name, checkpoints::Tensor { dtype, shape: shape.to_vec(), bytes });
    };
    add(codes.clone(), Dtype::F8_E4M3, [4400, 8192], &|i| 0x38 | (i as u8 & 0x87));
    add(numbers.clone(), Dtype::BF16, [4400, 4096], &|i| if i % 2 == 0 { i as u8 } else { 0x3f });
    let scales =
        checkpoints::Tensor { dtype: Dtype::F32, shape: vec![35, 64], bytes: vec![0; 8960] };
    checkpoint.tensors.insert(format!("{codes}_scale_inv"), scales);
    let temp = tempfile::tempdir().unwrap();
    let at = |name: &str| temp.path().join(name);
    checkpoint.write(&at("in"), 1);
    let source = sws_format::open_checkpoint(at("in"), None).unwrap();
    let naming = sws_model::naming(source.config()).unwrap();
    for encoding in [Encoding::Bf12, Encoding::Bf11] {
        let out = at(encoding.name());
        let options = ShardOptions { encoding, ..ShardOptions::default() };
        shard(&*source, &*naming, &out, &options, &|_| ()).unwrap();
        let manifest = Manifest::load(&out).unwrap();
        let of = |name: &str| manifest.pieces.iter().find_map(|piece| piece.tensor(name)).unwrap();
        assert_eq!(of(&codes).encoding, Some(Encoding::Fp8(Fp8Scales::Squares)));
        assert_eq!(of(&numbers).encoding, Some(Encoding::Bf16));
        assert_eq!(verify(&out, &|_| ()).unwrap().damage, []);
        let back = at(&format!("{encoding}-back"));
        unshard(&out, &back, false, None, &|_| ()).unwrap();
        assert!(Checkpoint::read_tensors(&back) == checkpoint.tensors);
    }
}
