//! Sharding stays below 256 MiB, whatever the size of a tensor.

use std::io::Write;
use std::path::Path;

use sws_testing::is_night;

use crate::checkpoints::Random;
use crate::sws::sws;

/// Limit set by P4.
const LIMIT: u64 = 256 << 20;

/// A checkpoint with an embedding of 300 MB and experts of 75 MB, written as a stream.
fn large(dir: &Path) {
    const HIDDEN: u64 = 4096;
    let mut shapes = vec![("model.embed_tokens.weight".to_owned(), vec![37_000, HIDDEN])];
    for expert in 0..2 {
        let name = |word| format!("model.layers.0.block_sparse_moe.experts.{expert}.{word}.weight");
        shapes.push((name("w1"), vec![3_000, HIDDEN]));
        shapes.push((name("w2"), vec![HIDDEN, 3_000]));
        shapes.push((name("w3"), vec![3_000, HIDDEN]));
    }
    write(dir, "mixtral", &shapes);
}

/// Writes a checkpoint whose experts are stacked and transposed: some of their matrices are above
/// what the sharder holds in memory, with lines longer than what it reads at once.
fn transposed(dir: &Path) {
    let stack = |name: &str, shape: [u64; 3]| {
        (format!("model.layers.0.mlp.experts.{name}"), shape.to_vec())
    };
    let shapes = [stack("down_proj", [2, 4096, 5000]), stack("gate_up_proj", [2, 24, 2_200_000])];
    write(dir, "gpt_oss", &shapes);
}

fn write(dir: &Path, model_type: &str, shapes: &[(String, Vec<u64>)]) {
    let mut header = serde_json::Map::new();
    let mut end = 0;
    for (name, shape) in shapes {
        let start = end;
        end += 2 * shape.iter().product::<u64>();
        let entry = serde_json::json!(
            { "dtype": "BF16", "shape": shape, "data_offsets": [start, end] }
        );
        header.insert(name.clone(), entry);
    }
    let json = serde_json::Value::Object(header).to_string();
    std::fs::create_dir(dir).unwrap();
    let config = serde_json::json!(
        { "model_type": model_type, "num_hidden_layers": 1, "num_local_experts": 2 }
    );
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let mut file = std::fs::File::create(dir.join("model.safetensors")).unwrap();
    file.write_all(&(json.len() as u64).to_le_bytes()).unwrap();
    file.write_all(json.as_bytes()).unwrap();
    // Exponents as in training, but one in 4096 escapes, so that there are many patches.
    let mut random = Random(1);
    let mut block = vec![0u8; 1 << 20];
    random.fill(&mut block);
    for number in block.as_chunks_mut::<2>().0 {
        let bits = u16::from_le_bytes(*number);
        let exponent = if bits & 0xfff == 0 { 3 } else { 120 - (bits & 7) };
        *number = ((bits & 0x807f) | exponent << 7).to_le_bytes();
    }
    let mut left = end as usize;
    while left > 0 {
        let n = left.min(block.len());
        file.write_all(&block[..n]).unwrap();
        left -= n;
    }
}

/// Runs the command and polls the high-water mark of its memory, which is not available after its
/// exit.
fn peak(args: &[&dyn AsRef<std::ffi::OsStr>]) -> u64 {
    use std::io::Read;
    let mut child = crate::sws::command(args).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    // The high-water mark only grows, so the last poll counts. The child runs on between polls.
    while child.try_wait().unwrap().is_none() {
        if let Ok(text) = std::fs::read_to_string(&status) {
            let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
            let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse().ok());
            peak = peak.max(kib.unwrap_or(0u64) << 10);
        }
        sws_format::Clock::real().sleep(std::time::Duration::from_millis(2));
    }
    let mut error = String::new();
    child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
    assert!(child.wait().unwrap().success(), "{error}");
    peak
}

#[test]
fn peak_of_sharding_verifying_and_unsharding() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("in");
    large(&dir);
    let cases = [["bf12", "q8"], ["bf11", ""], ["f32", "q4"], ["q4", ""], ["fp8", ""]];
    check(temp.path(), &dir, if is_night() { &cases } else { &cases[..1] });
    std::fs::remove_dir_all(&dir).unwrap();
    transposed(&dir);
    let cases = [["bf12", "q4"], ["bf16", ""]];
    check(temp.path(), &dir, if is_night() { &cases } else { &cases[..1] });
}

/// Asserts the peaks, and that weights which are not lossy come back.
fn check(temp: &Path, dir: &Path, cases: &[[&str; 2]]) {
    for [encoding, stand_ins] in cases {
        let out = temp.join(encoding);
        let mut args: Vec<&dyn AsRef<std::ffi::OsStr>> =
            vec![&"shard", &dir, &"--out", &out, &"--encoding", encoding];
        if !stand_ins.is_empty() {
            args.extend([&"--stand-ins" as &dyn AsRef<std::ffi::OsStr>, stand_ins]);
        }
        let sharding = peak(&args);
        let verifying = peak(&[&"verify", &out]);
        let back = temp.join("back");
        let unsharding = peak(&[&"unshard", &out, &"--lossy", &"--out", &back]);
        for (what, bytes) in
            [("sharding", sharding), ("verifying", verifying), ("unsharding", unsharding)]
        {
            assert!(bytes > 0 && bytes < LIMIT, "{what} in {encoding} took {} MiB", bytes >> 20);
        }
        sws(&[&"inspect", &out]).succeeded();
        if ["bf12", "bf11", "bf16"].contains(encoding) {
            let data = |dir: &Path| {
                let bytes = std::fs::read(dir.join("model.safetensors")).unwrap();
                let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
                blake3::hash(&bytes[8 + header..])
            };
            assert!(data(dir) == data(&back), "{encoding}");
        }
        std::fs::remove_dir_all(&out).unwrap();
        std::fs::remove_dir_all(&back).unwrap();
    }
}
