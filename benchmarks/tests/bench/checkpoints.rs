//! Tests of `sws-bench random` and `sws-bench inflate`, through the command.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use half::bf16;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::{Value, json};
use tempfile::TempDir;

const MOE: [&str; 4] = ["tiny-mixtral", "tiny-olmoe", "tiny-qwen2-moe", "tiny-qwen3-moe"];

fn bench(arguments: &[&str], dir: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sws-bench")).args(arguments).current_dir(dir).output().unwrap()
}

fn succeed(arguments: &[&str], dir: &Path) {
    let output = bench(arguments, dir);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

struct Tensor {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Tensor {
    fn row(&self, row: usize) -> Vec<f64> {
        let width = self.shape[1] * 2;
        let bytes = &self.bytes[row * width..][..width];
        bytes.as_chunks::<2>().0.iter().map(|b| bf16::from_le_bytes(*b).to_f64()).collect()
    }

    fn rows(&self) -> Vec<Vec<f64>> {
        (0..self.shape[0]).map(|row| self.row(row)).collect()
    }
}

/// All tensors of a checkpoint, as the `safetensors` crate reads them, and the size of each file.
fn load(dir: &Path) -> (BTreeMap<String, Tensor>, BTreeMap<String, u64>) {
    let (mut tensors, mut files) = (BTreeMap::new(), BTreeMap::new());
    for entry in dir.read_dir().unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "safetensors") {
            let bytes = fs::read(&path).unwrap();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            files.insert(name, bytes.len() as u64);
            for (name, view) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
                let (dtype, shape) = (view.dtype(), view.shape().to_vec());
                let bytes = view.data().to_vec();
                assert!(tensors.insert(name, Tensor { dtype, shape, bytes }).is_none());
            }
        }
    }
    (tensors, files)
}

fn config(dir: &Path) -> Value {
    serde_json::from_slice(&fs::read(dir.join("config.json")).unwrap()).unwrap()
}

/// Output of one expert, with its last sum taken over 32 lanes.
fn expert(
    tensors: &BTreeMap<String, Tensor>,
    [gate, up, down]: &[String; 3],
    x: &[f64],
) -> Vec<f64> {
    let dot = |row: Vec<f64>| row.iter().zip(x).map(|(w, x)| w * x).sum::<f64>();
    let gate = tensors[gate].rows().into_iter().map(dot);
    let up = tensors[up].rows().into_iter().map(dot);
    let inner: Vec<f64> = gate.zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
    assert!(inner.iter().all(|v| v.abs() < 1e3), "an activation beyond reason");
    let lanes = |row: Vec<f64>| {
        let mut lanes = [0f64; 32];
        for (i, (w, x)) in row.iter().zip(&inner).enumerate() {
            #[expect(clippy::disallowed_methods, reason = "an f64, whose last bits do not matter")]
            let sum = w.mul_add(*x, lanes[i % 32]);
            lanes[i % 32] = sum;
        }
        lanes.iter().sum()
    };
    tensors[down].rows().into_iter().map(lanes).collect()
}

/// Names of each expert's gate, up and down.
fn experts(tensors: &BTreeMap<String, Tensor>) -> Vec<[String; 3]> {
    let gates = tensors.keys().filter(|name| {
        name.contains(".experts.")
            && (name.ends_with(".w1.weight") || name.ends_with(".gate_proj.weight"))
    });
    gates
        .map(|gate| {
            let of = |mixtral, qwen| gate.replace("w1.", mixtral).replace("gate_proj.", qwen);
            [gate.clone(), of("w3.", "up_proj."), of("w2.", "down_proj.")]
        })
        .collect()
}

#[test]
fn inflating_changes_size_and_nothing_else() {
    for shape in MOE {
        let dir = TempDir::new().unwrap();
        succeed(&["random", "--shape", shape, "--out", "small", "--layers", "2"], dir.path());
        fs::write(dir.path().join("small/tokenizer.json"), "{\"a\": 1}").unwrap();
        let (small, _) = load(&dir.path().join("small"));
        let asked = 150_000;
        succeed(&["inflate", "small", "--expert-bytes", "150kB", "--out", "large"], dir.path());
        let (large, _) = load(&dir.path().join("large"));

        let trained = experts(&small);
        assert_eq!(trained, experts(&large), "{shape}");
        assert_eq!(small.keys().collect::<Vec<_>>(), large.keys().collect::<Vec<_>>(), "{shape}");
        let x: Vec<f64> = (0..72).map(|i| f64::from(i * 37 % 72) / 36.0 - 1.0).collect();
        for names in &trained {
            assert_eq!(expert(&small, names, &x), expert(&large, names, &x), "{shape} {names:?}");
            check_scattering(&small, &large, names);
            let bytes: usize = names.iter().map(|name| large[name].bytes.len()).sum();
            assert!((asked..asked + 64 * 72 * 6).contains(&bytes), "{shape}: {bytes}");
        }
        let of_experts: Vec<_> = trained.iter().flatten().collect();
        for (name, tensor) in small.iter().filter(|(name, _)| !of_experts.contains(name)) {
            assert_eq!(tensor.bytes, large[name].bytes, "{shape} {name}");
            assert_eq!(tensor.shape, large[name].shape, "{shape} {name}");
        }

        let width = large[&trained[0][0]].shape[0];
        let mut expected = config(&dir.path().join("small"));
        let key =
            if shape.contains("qwen") { "moe_intermediate_size" } else { "intermediate_size" };
        expected[key] = json!(width);
        assert_eq!(config(&dir.path().join("large")), expected, "{shape}");
        for file in ["tokenizer.json", "generation_config.json"] {
            let read = |of: &str| fs::read(dir.path().join(of).join(file)).unwrap();
            assert_eq!(read("small"), read("large"), "{shape} {file}");
        }
    }
}

/// Checks that trained neurons stand among the random ones, each at its index modulo 32, in order.
fn check_scattering(
    small: &BTreeMap<String, Tensor>,
    large: &BTreeMap<String, Tensor>,
    [gate, up, down]: &[String; 3],
) {
    let (trained, width) = (small[gate].shape[0], large[gate].shape[0]);
    assert_eq!(width % 64, 0);
    let rows = large[gate].rows();
    let positions: Vec<usize> = small[gate]
        .rows()
        .iter()
        .map(|row| rows.iter().position(|other| other == row).expect("a trained row is missing"))
        .collect();
    for (j, &p) in positions.iter().enumerate() {
        assert_eq!(small[up].row(j), large[up].row(p));
        assert_eq!(p % 32, j % 32);
        assert!(j < 32 || positions[j - 32] < p);
    }
    let mut sorted = positions.clone();
    sorted.sort_unstable();
    let appended = sorted.windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
    assert!(appended < trained / 2, "the trained neurons stand together: {sorted:?}");
    assert!(sorted[0] < width / 2 && sorted[trained - 1] > width / 2);

    for (row, old) in large[down].rows().iter().zip(small[down].rows()) {
        let mut expected = vec![0f64; width];
        for (j, &p) in positions.iter().enumerate() {
            expected[p] = old[j];
        }
        assert_eq!(*row, expected);
        assert!((0..width).all(|p| positions.contains(&p) || row[p].is_sign_positive()));
    }
    let scale = |rows: &[Vec<f64>]| {
        let values: Vec<f64> = rows.iter().flatten().copied().collect();
        (values.iter().map(|v| v * v).sum::<f64>() / values.len() as f64).sqrt()
    };
    for name in [gate, up] {
        let (old, new) = (scale(&small[name].rows()), scale(&large[name].rows()));
        assert!((new / old - 1.0).abs() < 0.03, "trained scale {old}, inflated {new}");
    }
}

#[test]
fn every_split_holds_the_same_tensors() {
    let dir = TempDir::new().unwrap();
    for (out, limit, seed) in [("one", "5GB", "0"), ("many", "100KB", "0"), ("other", "5GB", "1")] {
        let arguments = [
            "random",
            "--shape",
            "tiny-qwen2-moe",
            "--sharded",
            limit,
            "--seed",
            seed,
            "--out",
            out,
        ];
        succeed(&arguments, dir.path());
    }
    let (one, one_files) = load(&dir.path().join("one"));
    let (many, many_files) = load(&dir.path().join("many"));
    let (other, _) = load(&dir.path().join("other"));
    assert_eq!(one_files.keys().collect::<Vec<_>>(), ["model.safetensors"]);
    assert!(many_files.len() > 5);
    assert!(many_files.values().all(|&bytes| bytes < 110_000), "{many_files:?}");
    let index = fs::read(dir.path().join("many/model.safetensors.index.json")).unwrap();
    let index: Value = serde_json::from_slice(&index).unwrap();
    let total: usize = one.values().map(|t| t.bytes.len()).sum();
    assert_eq!(index["metadata"]["total_size"], json!(total));
    assert_eq!(index["weight_map"].as_object().unwrap().len(), one.len());
    for (name, tensor) in &one {
        assert_eq!(tensor.dtype, Dtype::BF16);
        assert_eq!(tensor.bytes, many[name].bytes, "{name}");
        assert_ne!(tensor.bytes, other[name].bytes, "{name}");
        let file = index["weight_map"][name].as_str().unwrap();
        let bytes = fs::read(dir.path().join("many").join(file)).unwrap();
        assert!(SafeTensors::deserialize(&bytes).unwrap().tensor(name).is_ok());
    }

    // A checkpoint in many files inflates to the same weights as one in a single file.
    for (from, out) in [("one", "one-large"), ("many", "many-large")] {
        succeed(&["inflate", from, "--expert-bytes", "100KB", "--out", out], dir.path());
    }
    let (one, _) = load(&dir.path().join("one-large"));
    let (many, _) = load(&dir.path().join("many-large"));
    assert!(one.iter().all(|(name, tensor)| tensor.bytes == many[name].bytes));
}

#[test]
fn bad_input_gets_one_sentence_and_leaves_nothing() {
    let inflate = |dir: &Path, expert_bytes: &str| {
        bench(&["inflate", "in", "--expert-bytes", expert_bytes, "--out", "out"], dir)
    };
    type Case = (&'static str, fn(&Path));
    let cases: &[Case] = &[
        ("`in` is not a directory", |dir| fs::remove_dir_all(dir.join("in")).unwrap()),
        ("`out` exists already", |dir| fs::create_dir(dir.join("out")).unwrap()),
        ("`.out.partial` is left from", |dir| fs::create_dir(dir.join(".out.partial")).unwrap()),
        ("config.json`: No such file", |dir| fs::remove_file(dir.join("in/config.json")).unwrap()),
        ("is not valid JSON", |dir| fs::write(dir.join("in/config.json"), "{").unwrap()),
        ("has no model.safetensors", |dir| {
            fs::remove_file(dir.join("in/model.safetensors")).unwrap();
        }),
        ("PyTorch .bin weights", |dir| {
            let of = |name: &str| dir.join("in").join(name);
            fs::rename(of("model.safetensors"), of("pytorch_model.bin")).unwrap();
        }),
        ("of model_type `llama`", |dir| set(dir, "model_type", json!("llama"))),
        ("of model_type `deepseek_v3`", |dir| set(dir, "model_type", json!("deepseek_v3"))),
        ("of model_type ``", |dir| set(dir, "model_type", json!(7))),
        ("missing or absurd", |dir| set(dir, "hidden_size", json!(1u64 << 60))),
        ("missing or absurd", |dir| set(dir, "intermediate_size", json!(-5))),
        ("of shape [96, 72] where its config says [97, 72]", |dir| {
            set(dir, "intermediate_size", json!(97));
        }),
        ("shorter than 8 bytes", |dir| fs::write(dir.join("in/model.safetensors"), "").unwrap()),
        ("its header would be", |dir| {
            fs::write(dir.join("in/model.safetensors"), [255; 100]).unwrap();
        }),
        ("its header is not valid", |dir| patch(dir, |bytes| bytes[8] = b'x')),
        ("where its header describes another length", |dir| {
            patch(dir, |bytes| bytes.truncate(bytes.len() - 1));
        }),
        ("where its header describes another length", |dir| patch(dir, |bytes| bytes.push(0))),
        ("which is no file beside it", |dir| index(dir, "../in/model.safetensors")),
        ("which is no file beside it", |dir| index(dir, "/etc/passwd")),
        ("does not hold `x`", |dir| index(dir, "model.safetensors")),
        ("cannot open", |dir| index(dir, "absent.safetensors")),
        ("stored as F32", |dir| one_tensor(dir, Dtype::F32, "w1", &[96, 72], 0)),
        ("holds 1 of the 3 matrices", |dir| one_tensor(dir, Dtype::BF16, "w1", &[96, 72], 0)),
        ("no expert tensors", |dir| one_tensor(dir, Dtype::BF16, "w9", &[96, 72], 0)),
    ];
    for (sentence, spoil) in cases {
        let dir = TempDir::new().unwrap();
        succeed(&["random", "--shape", "tiny-mixtral", "--layers", "1", "--out", "in"], dir.path());
        spoil(dir.path());
        check_refusal(sentence, dir.path(), |dir| inflate(dir, "1MB"));
    }
    type Run<'a> = (&'a str, &'a [&'a str]);
    let runs: &[Run] = &[
        ("take 41472 bytes already", &["inflate", "in", "--expert-bytes", "41471", "--out", "out"]),
        ("beyond reason", &["inflate", "in", "--expert-bytes", "900000TB", "--out", "out"]),
        ("are free there", &["inflate", "in", "--expert-bytes", "1TB", "--out", "out"]),
        ("is not a name", &["inflate", "in", "--expert-bytes", "1MB", "--out", "out/.."]),
        ("cannot create", &["inflate", "in", "--expert-bytes", "1MB", "--out", "a/b"]),
        (
            "are free there",
            &["random", "--shape", "mixtral-8x7b", "--layers", "1000", "--out", "out"],
        ),
        ("between 1 and 1000", &["random", "--shape", "tiny-llama", "--layers", "0", "--out", "o"]),
        ("`in` exists already", &["random", "--shape", "tiny-llama", "--out", "in"]),
    ];
    let dir = TempDir::new().unwrap();
    succeed(&["random", "--shape", "tiny-mixtral", "--layers", "1", "--out", "in"], dir.path());
    for (sentence, arguments) in runs {
        check_refusal(sentence, dir.path(), |dir| bench(arguments, dir));
    }
}

#[test]
fn weights_that_are_not_finite_are_refused() {
    let dir = TempDir::new().unwrap();
    succeed(&["random", "--shape", "tiny-mixtral", "--layers", "1", "--out", "in"], dir.path());
    let path = dir.path().join("in/model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let name = "model.layers.0.block_sparse_moe.experts.5.w3.weight";
    let at = {
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        tensors.tensor(name).unwrap().data().as_ptr() as usize - bytes.as_ptr() as usize
    };
    let mut spoiled = bytes.clone();
    spoiled[at..at + 2].copy_from_slice(&bf16::INFINITY.to_le_bytes());
    fs::write(&path, spoiled).unwrap();
    check_refusal(name, dir.path(), |dir| {
        bench(&["inflate", "in", "--expert-bytes", "1MB", "--out", "out"], dir)
    });
}

fn check_refusal(sentence: &str, dir: &Path, run: impl Fn(&Path) -> Output) {
    let before = listing(dir);
    let output = run(dir);
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{sentence}: {told}");
    let errors: Vec<_> = told.lines().filter(|line| !line.contains(" of ")).collect();
    assert!(told.contains(sentence), "wanted `{sentence}`, got: {told}");
    assert!(errors.len() <= 1 && told.lines().count() <= 2, "more than a sentence: {told}");
    assert_eq!(listing(dir), before, "{sentence}");
}

fn listing(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = dir
        .read_dir()
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn set(dir: &Path, key: &str, value: Value) {
    let mut config = config(&dir.join("in"));
    config[key] = value;
    fs::write(dir.join("in/config.json"), config.to_string()).unwrap();
}

fn patch(dir: &Path, change: fn(&mut Vec<u8>)) {
    let path = dir.join("in/model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
}

fn index(dir: &Path, file: &str) {
    let index = json!({ "metadata": {}, "weight_map": { "x": file } });
    fs::write(dir.join("in/model.safetensors.index.json"), index.to_string()).unwrap();
}

fn one_tensor(dir: &Path, dtype: Dtype, matrix: &str, shape: &[usize], byte: u8) {
    let bytes = vec![byte; shape.iter().product::<usize>() * dtype.bitsize() / 8];
    let view = TensorView::new(dtype, shape.to_vec(), &bytes).unwrap();
    let name = format!("model.layers.0.block_sparse_moe.experts.0.{matrix}.weight");
    safetensors::serialize_to_file([(name, view)], None, &dir.join("in/model.safetensors"))
        .unwrap();
}
